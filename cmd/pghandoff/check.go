package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"pghandoff/proxy"
)

func newCheck() *cobra.Command {
	var from source
	var connect bool
	cmd := &cobra.Command{
		Use:   "check [--config FILE | POSTGRES-URL]",
		Short: "Validate the configuration; with --connect log in once on every route",
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := from.load()
			if err != nil {
				return err
			}
			findings, err := proxy.Check(cmd.Context(), cfg, connect)
			if err != nil {
				return usage(err)
			}
			return report(cmd.Context(), cmd.OutOrStdout(), findings, connect)
		},
	}
	from.addFlags(cmd)
	cmd.Flags().BoolVar(&connect, "connect", false, "log in once on every route")
	return cmd
}

// report prints a line for each route. A login that failed is exit code 3.
func report(_ context.Context, w io.Writer, findings []proxy.Finding, connect bool) error {
	failed := 0
	for _, f := range findings {
		switch {
		case f.Failure != nil:
			failed++
			fmt.Fprintf(w, "%s: FAILED  %s  [%s]\n", f.Route, f.Failure, f.Failure.SQLState)
			if f.Failure.Message != f.Cause.Error() {
				fmt.Fprintf(w, "    %v\n", f.Cause)
			}
		case connect:
			fmt.Fprintf(w, "%s: ok  %s, PostgreSQL %s, %s, %s, %s\n", f.Route, f.Address, f.ServerVersion, f.TLS, f.Method, f.Took.Round(100*time.Microsecond))
		default:
			fmt.Fprintf(w, "%s: ok  configuration is valid (--connect would try it)\n", f.Route)
		}
	}
	if failed > 0 {
		return &exitError{exitUnreachable, fmt.Errorf("%d of %d routes cannot be used", failed, len(findings))}
	}
	return nil
}
