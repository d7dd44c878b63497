package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"pghandoff/handoff"
	"pghandoff/proxy"
	"pghandoff/proxy/admin"
)

func newStatus() *cobra.Command {
	var runDir, controlDir string
	var asJSON, watch bool
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show pools, leases, certificates and waiting functions",
		Args:  noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			dir := proxy.ControlDir(controlDir, handoff.RunDir(runDir))
			client := admin.Dial(filepath.Join(dir, proxy.ControlSocket))
			for {
				if err := showStatus(cmd.Context(), cmd.OutOrStdout(), client, asJSON); err != nil || !watch {
					return err
				}
				select {
				case <-cmd.Context().Done():
					return nil
				case <-time.After(time.Second):
				}
			}
		},
	}
	cmd.Flags().StringVar(&runDir, "run-dir", "", "folder of the daemon's sockets")
	cmd.Flags().StringVar(&controlDir, "control-dir", "", "private folder of the daemon (default RUN_DIR.control)")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.Flags().BoolVar(&watch, "watch", false, "print again every second")
	return cmd
}

func showStatus(ctx context.Context, w io.Writer, client *admin.Client, asJSON bool) error {
	s, err := client.Status(ctx)
	if errors.Is(err, admin.ErrNoDaemon) {
		return &exitError{exitUnreachable, fmt.Errorf("%w: is it running, and is this its --run-dir?", err)}
	}
	if err != nil {
		return err
	}
	if asJSON {
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		return e.Encode(s)
	}
	return printStatus(w, s)
}

func printStatus(w io.Writer, s *admin.Status) error {
	where := s.RunDir
	if s.Address != "" {
		where += " and at " + s.Address
	}
	fmt.Fprintf(w, "pghandoff %s, pid %d, up %s, serving in %s\nkernel TLS (not used yet): %s\n\n", s.Version, s.PID, time.Since(s.Started).Round(time.Second), where, s.KernelTLS)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "ROUTE\tIDLE\tLEASED\tDIALLING\tWAITING\tMAX\tTLS\tSERVERS\tLAST ERROR")
	for _, r := range s.Routes {
		fmt.Fprintf(t, "%s\t%d\t%d\t%d\t%d\t%d\t%s\t%v\t%s\n", r.Name, r.Idle, r.Leased, r.Dialling, r.Waiting, r.Max, r.TLSMode, r.Servers, r.LastError)
	}
	if len(s.Identities) > 0 {
		fmt.Fprintln(t, "\nIDENTITY\tGENERATION\tSUBJECT\tSERIAL\tEXPIRES")
		for _, i := range s.Identities {
			expires := "-"
			if i.NotAfter != nil {
				expires = fmt.Sprintf("%s (in %s)", i.NotAfter.Format(time.DateTime), time.Until(*i.NotAfter).Round(time.Minute))
			}
			fmt.Fprintf(t, "%s\t%d\t%s\t%s\t%s\n", i.Name, i.Generation, i.Subject, i.Serial, expires)
		}
	}
	if len(s.Leases) > 0 {
		fmt.Fprintln(t, "\nLEASE\tROUTE\tWAY\tUID\tPID\tBACKEND\tFOR")
		for _, l := range s.Leases {
			fmt.Fprintf(t, "%s\t%s\t%s\t%d\t%d\t%d\t%s\n", l.ID, l.Route, l.Way, l.UID, l.PID, l.BackendPID, time.Since(l.Since).Round(time.Millisecond))
		}
	}
	return t.Flush()
}
