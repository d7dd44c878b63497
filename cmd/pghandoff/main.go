// Command pghandoff keeps connections to PostgreSQL warm and hands them to
// functions. See README.md; every command has --help.
//
// Exit codes: 0 done, 1 failed at work, 2 wrong use or configuration, 3 could
// not reach the daemon or the database; exec becomes its program, or exits as
// a shell does (126, 127).
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"pghandoff/handoff"
)

// Exit codes.
const (
	exitFailed      = 1
	exitUsage       = 2
	exitUnreachable = 3
)

// exitError is an error with the exit code that it means.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string { return e.err.Error() }
func (e *exitError) Unwrap() error { return e.err }

// usage marks an error as one of use or configuration.
func usage(err error) error { return &exitError{exitUsage, err} }

func main() {
	unix.Umask(0o077) // what others may see gets its mode explicitly
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM)
	defer stop()
	os.Exit(run(ctx, os.Args[1:]))
}

// run is the whole command line; it returns the exit code.
func run(ctx context.Context, args []string) int {
	root := newRoot()
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return 0
	}
	fmt.Fprintf(os.Stderr, "pghandoff: %v\n", err)
	var exit *exitError
	var launch *handoff.ExitError
	switch {
	case errors.As(err, &launch):
		return launch.Code
	case errors.As(err, &exit):
		return exit.code
	}
	return exitFailed
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:           "pghandoff",
		Short:         "Hands short-lived processes a ready PostgreSQL connection",
		SilenceUsage:  true,
		SilenceErrors: true,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usage(fmt.Errorf("there is no command %q: see pghandoff --help", args[0]))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return usage(fmt.Errorf("%w: see %s --help", err, strings.TrimSpace(cmd.CommandPath())))
	})
	root.AddCommand(newServe(), newExec(), newCheck(), newStatus(), newIdentity(), newDemo(), newDemoFunction(), newBench(), newVersion())
	return root
}

// noArguments is cobra.NoArgs with our exit code.
func noArguments(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usage(fmt.Errorf("%s takes no arguments, got %q", cmd.CommandPath(), args))
	}
	return nil
}
