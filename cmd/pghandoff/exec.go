package main

import (
	"errors"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"pghandoff/handoff"
)

func newExec() *cobra.Command {
	var runDir, state string
	c := handoff.LaunchConfig{Warn: os.Stderr}
	cmd := &cobra.Command{
		Use:   "exec [-d ROUTE] -- CMD [ARG…]",
		Short: "Run a program that finds a connection at descriptor 3",
		Long: `Acquire leases and become CMD, which finds them at descriptors 3, 4, … and the
control connection behind them. PGHANDOFF_FDS, PGHANDOFF_CONTROL_FD,
PGHANDOFF_STATE and PGHANDOFF_REPLY tell it which; PGHOST, PGDATABASE and PGUSER
are set for drivers that only know the wire socket, unless one of them is set.`,
		Example: "  pghandoff exec -d orders --state ready -- python3 fn.py",
		RunE: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usage(errors.New("which program? pghandoff exec [-d ROUTE] -- CMD [ARG…]"))
			}
			if c.Count < 1 || c.FirstFD < 3 {
				return usage(errors.New("--count must be at least 1, and --first-fd at least 3: 0 to 2 are standard input, output and error"))
			}
			if runDir != "" {
				c.Socket = filepath.Join(runDir, handoff.SocketName)
			}
			c.State, c.Args, c.Env = handoff.State(state), args, os.Environ()
			return handoff.Launch(c)
		},
	}
	cmd.Flags().SetInterspersed(false)
	cmd.Flags().StringVar(&runDir, "run-dir", "", "folder of the daemon's sockets")
	cmd.Flags().StringVarP(&c.Database, "database", "d", "", "route (default: the only one)")
	cmd.Flags().StringVarP(&c.User, "user", "U", "", "user name to give")
	cmd.Flags().IntVarP(&c.Count, "count", "n", 1, "how many leases")
	cmd.Flags().IntVar(&c.FirstFD, "first-fd", 3, "descriptor of the first lease")
	cmd.Flags().StringVar(&state, "state", "startup", "startup (the program's driver starts up) or ready (at ReadyForQuery)")
	return cmd
}
