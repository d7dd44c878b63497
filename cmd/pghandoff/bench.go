package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"pghandoff/cmd/pghandoff/bench"
)

func newBench() *cobra.Command {
	var o bench.Options
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Measure the daemon beside direct connections and other poolers",
		Long: fmt.Sprintf(`Start a PostgreSQL that demands TLS, a client certificate and SCRAM, a daemon,
and the poolers that are installed (of %s) with the same
server, and measure them in turn: how long a connection takes, throughput and
CPU for each transaction, large results, latency at a fixed rate, storms of
connections, plaintext, and memory. Needs pgbench and takes three minutes;
docs/performance.md says how to read it. The exit code is 0 also where a target
is missed.`, strings.Join(bench.Peers(), ", ")),
		Example: `  pghandoff bench --against pgbouncer --plot acquisition.svg
  pghandoff bench --quick --json`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.Validate(); err != nil {
				return usage(err)
			}
			o.Out, o.Progress, o.Version = cmd.OutOrStdout(), cmd.ErrOrStderr(), version
			return bench.Run(cmd.Context(), o)
		},
	}
	f := cmd.Flags()
	f.StringSliceVar(&o.Against, "against", nil, "poolers to measure against (default: all that are installed)")
	f.BoolVar(&o.JSON, "json", false, "print JSON, with every round")
	f.StringVar(&o.Plot, "plot", "", "write the distributions of acquisition to an SVG file")
	f.BoolVar(&o.Quick, "quick", false, "less of everything, in 40 seconds: shows that it works, not how fast")
	f.IntVar(&o.Rounds, "rounds", 0, "rounds of each measurement (default 3, with --quick 1)")
	f.IntSliceVar(&o.Clients, "clients", nil, "numbers of clients of pgbench (default 1,8,32, with --quick 8)")
	f.StringSliceVar(&o.Only, "only", nil, "some of "+strings.Join(bench.Groups(), ",")+" (default: all)")
	f.StringSliceVar(&o.Modes, "modes", nil, "how pgbench queries (default "+strings.Join(bench.Modes, ",")+")")
	return cmd
}
