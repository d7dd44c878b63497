package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"

	"github.com/rs/zerolog"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"pghandoff/proxy"
	"pghandoff/proxy/config"
)

func newServe() *cobra.Command {
	var from source
	var runDir, controlDir string
	cmd := &cobra.Command{
		Use:   "serve [--config FILE | POSTGRES-URL]",
		Short: "Run the daemon",
		Long: `Run the daemon: keep connections to the database warm and serve functions on
RUN_DIR/.s.PGSQL.5432 and RUN_DIR/handoff.sock until SIGTERM or SIGINT, then
drain. SIGHUP reads the configuration anew and reopens the audit file.`,
		Example: `  pghandoff serve --config /etc/pghandoff/pghandoff.yaml
  PGHANDOFF_URL='postgres://app:secret@db/orders' pghandoff serve --run-dir /tmp/ph`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := from.load()
			if err != nil {
				return err
			}
			return serve(cmd.Context(), cfg, &from, proxy.Options{RunDir: runDir, ControlDir: controlDir})
		},
	}
	from.addFlags(cmd)
	cmd.Flags().StringVar(&runDir, "run-dir", "", "folder of the sockets for functions")
	cmd.Flags().StringVar(&controlDir, "control-dir", "", "private folder of the daemon (default RUN_DIR.control)")
	return cmd
}

func serve(ctx context.Context, cfg *config.Config, from *source, o proxy.Options) error {
	if err := forbidDumps(); err != nil {
		return err
	}
	o.Log, o.Version, o.AuditFallback = newLogger(cfg.Log), version, os.Stderr
	if from.file != "" {
		o.Load = from.load
	}
	d, err := proxy.New(cfg, o)
	if errors.Is(err, proxy.ErrUnavailable) {
		return err // a daemon is running, say: nothing is wrong with the configuration
	}
	if err != nil {
		return usage(err)
	}
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, unix.SIGHUP)
	defer signal.Stop(hangups)
	done := make(chan struct{})
	defer close(done)
	go func() { // ended by done
		for {
			select {
			case <-hangups:
				_ = d.Reload() // it logs what went wrong
			case <-done:
				return
			}
		}
	}()
	return d.Run(ctx)
}

// forbidDumps keeps passwords and keys out of core dumps, and other processes
// of this user out of our memory and environment.
func forbidDumps() error {
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("forbid core dumps: %w", err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{}); err != nil {
		return fmt.Errorf("forbid core dumps: %w", err)
	}
	return nil
}

// newLogger writes to standard error.
func newLogger(c config.Log) zerolog.Logger {
	level, err := zerolog.ParseLevel(c.Level)
	if err != nil {
		level = zerolog.InfoLevel
	}
	if c.Format == "console" {
		return zerolog.New(zerolog.ConsoleWriter{Out: os.Stderr}).Level(level).With().Timestamp().Logger()
	}
	return zerolog.New(os.Stderr).Level(level).With().Timestamp().Logger()
}
