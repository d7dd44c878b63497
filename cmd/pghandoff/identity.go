package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/spf13/cobra"

	"pghandoff/handoff"
	"pghandoff/proxy"
	"pghandoff/proxy/admin"
)

func newIdentity() *cobra.Command {
	var runDir, controlDir string
	cmd := &cobra.Command{Use: "identity", Short: "Renew or give up a client certificate of the running daemon", Args: noArguments}
	cmd.PersistentFlags().StringVar(&runDir, "run-dir", "", "folder of the daemon's sockets")
	cmd.PersistentFlags().StringVar(&controlDir, "control-dir", "", "private folder of the daemon (default RUN_DIR.control)")
	add := func(use, short, long string, do func(*admin.Client, context.Context, string) error) {
		cmd.AddCommand(&cobra.Command{Use: use + " NAME", Short: short, Long: long, Args: cobra.ExactArgs(1), RunE: func(cmd *cobra.Command, args []string) error {
			dir := proxy.ControlDir(controlDir, handoff.RunDir(runDir))
			err := do(admin.Dial(filepath.Join(dir, proxy.ControlSocket)), cmd.Context(), args[0])
			if errors.Is(err, admin.ErrNoDaemon) {
				return &exitError{exitUnreachable, fmt.Errorf("%w: is it running, and is this its --run-dir?", err)}
			}
			return err
		}})
	}
	add("rotate", "Look at the source now and use what is there", `Looks at the identity's source now. A new set is validated, tried by a login and used, even if it ends before the one
in use. Connections of the set before are replaced over the identity's drain_window.`, (*admin.Client).RotateIdentity)
	add("revoke", "Give the certificate up: its key may be known", `No connection is made any more with the certificate that is in use. Idle connections are closed at once, leased ones
when their session is idle, or after 10 s. The next set that the source has is used as any other.`, (*admin.Client).RevokeIdentity)
	return cmd
}
