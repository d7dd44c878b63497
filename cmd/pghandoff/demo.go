package main

import (
	"errors"

	"github.com/spf13/cobra"

	"pghandoff/cmd/pghandoff/demo"
)

func newDemo() *cobra.Command {
	var keep bool
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Show everything at once on a throwaway PostgreSQL with mTLS",
		Long: `Start a PostgreSQL that demands TLS, a client certificate and SCRAM, and a
daemon; let three kinds of function query through it; print how long each way to
a connection takes beside a direct one; show the audit lines. Nothing stays
behind. Without an installed PostgreSQL one is fetched.`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			err := demo.Run(cmd.Context(), demo.Options{Out: cmd.OutOrStdout(), Keep: keep})
			if keep && errors.Is(err, cmd.Context().Err()) && err != nil {
				return nil // ended by Ctrl-C, as announced
			}
			return err
		},
	}
	cmd.Flags().BoolVar(&keep, "keep", false, "stay up afterwards and say what to try")
	return cmd
}

// newDemoFunction is one of the functions that the demo starts.
func newDemoFunction() *cobra.Command {
	return &cobra.Command{
		Use:    "demo-function KIND RUN-DIR",
		Hidden: true,
		Args:   cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			return demo.Function(cmd.Context(), args[0], args[1], cmd.OutOrStdout())
		},
	}
}
