package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"

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
	tuneRuntime(cfg.Loops)
	logs := newLogQueue(logWriter(cfg.Log))
	go logs.run() // ended by Close, which waits for it
	// Last of all, whether this returns or panics. A panic elsewhere ends the
	// process without it, but what is queued is seldom more than a moment old.
	defer logs.Close()
	o.Log, o.Version, o.AuditFallback = newLogger(cfg.Log, logs), version, os.Stderr
	if from.file != "" {
		o.Load = from.load
	}
	d, err := proxy.New(ctx, cfg, o)
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

// tuneRuntime suits Go's runtime to event loops, unless the environment says how
// it is to be. A loop keeps one of the runtime's processors while it waits for a
// moment, so each gets one on top of those that goroutines run on. And garbage is
// made by acquisitions only, seldom enough to be collected sooner: with thousands
// of leases the heap is most of what the daemon takes.
func tuneRuntime(loops int) {
	if os.Getenv("GOMAXPROCS") == "" {
		if loops == 0 {
			loops = runtime.NumCPU()
		}
		runtime.GOMAXPROCS(runtime.GOMAXPROCS(0) + loops)
	}
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(50)
	}
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

// newLogger logs lines of JSON to a queue.
func newLogger(c config.Log, to *logQueue) zerolog.Logger {
	level, err := zerolog.ParseLevel(c.Level)
	if err != nil {
		level = zerolog.InfoLevel
	}
	return zerolog.New(to).Level(level).With().Timestamp().Logger()
}

// logWriter writes lines of JSON to standard error as the configuration says.
func logWriter(c config.Log) io.Writer {
	if c.Format == "console" {
		return byLine{zerolog.ConsoleWriter{Out: os.Stderr}}
	}
	return os.Stderr
}
