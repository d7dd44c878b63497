package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"pghandoff/cmd/pghandoff/child"
	"pghandoff/cmd/pghandoff/throwaway"
)

// Options say how to run the demo.
type Options struct {
	Out  io.Writer
	Keep bool // stay after the table, until ctx is done
}

// ErrSlow: some way was not ten times faster than a direct connection.
var ErrSlow = errors.New("something is wrong: a way to get a connection is less than 10 times faster than a direct one")

// stage is what the demo plays on.
type stage struct {
	out    io.Writer
	exe    string // this program
	dir    string // of everything that is ours
	pg     *throwaway.Cluster
	daemon *child.Daemon
}

const route = "orders"

// Run sets everything up, shows it, and takes it down again. Its errors are
// [ErrSlow], or what could not be started or queried.
func Run(ctx context.Context, o Options) (err error) {
	s := &stage{out: o.Out}
	defer func() { err = errors.Join(err, s.close()) }()
	if err := s.open(ctx); err != nil {
		return err
	}
	if err := s.showFunctions(ctx); err != nil {
		return err
	}
	slow, err := s.showTable(ctx)
	if err != nil {
		return err
	}
	if err := s.showAudit(ctx); err != nil {
		return err
	}
	if o.Keep {
		s.stay(ctx)
	}
	if slow {
		return ErrSlow
	}
	return nil
}

// open starts PostgreSQL and the daemon.
func (s *stage) open(ctx context.Context) (err error) {
	if s.exe, err = os.Executable(); err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	if s.dir, err = os.MkdirTemp(child.ShortTempDir(), "pghandoff-demo-"); err != nil {
		return fmt.Errorf("make a folder: %w", err)
	}
	if err := os.Chmod(s.dir, 0o711); err != nil { // functions of other users pass through it
		return err
	}
	fmt.Fprintln(s.out, "Starting a PostgreSQL that demands TLS, a client certificate and SCRAM …")
	start := time.Now()
	if s.pg, err = throwaway.Start(ctx, throwaway.Config{TLS: true, ClientCert: true}); err != nil {
		return err
	}
	fmt.Fprintf(s.out, "  on 127.0.0.1:%d, in %.1f s\n", s.pg.Port, time.Since(start).Seconds())
	return s.startDaemon(ctx)
}

// startDaemon starts the daemon and waits until it is warm.
func (s *stage) startDaemon(ctx context.Context) (err error) {
	fmt.Fprintln(s.out, "Starting the daemon …")
	start := time.Now()
	s.daemon, err = child.StartDaemon(child.Settings{Exe: s.exe, Dir: s.dir, Route: route, Server: s.pg,
		TLS: "mode: verify-full, identity: app, channel_binding: require", Pool: "min_idle: 4, max: 20"})
	if err != nil {
		return err
	}
	idle, err := s.daemon.AwaitWarm(ctx)
	if err != nil {
		return err
	}
	fmt.Fprintf(s.out, "  %d connections warm after %.1f s: TLS and SCRAM done, past ReadyForQuery\n", idle, time.Since(start).Seconds())
	return nil
}

// close takes everything down; it is for a stage in any state.
func (s *stage) close() error {
	var problems []error
	if s.daemon != nil {
		problems = append(problems, s.daemon.Stop())
	}
	if s.pg != nil {
		problems = append(problems, s.pg.Close())
	}
	if s.dir != "" {
		problems = append(problems, os.RemoveAll(s.dir))
	}
	return errors.Join(problems...)
}

// stay tells what can be tried from another terminal and waits.
func (s *stage) stay(ctx context.Context) {
	fmt.Fprintf(s.out, `Everything stays up until you press Ctrl-C. In another terminal:

  psql "host=%[1]s dbname=orders"
  pgbench -h %[1]s -i orders && pgbench -h %[1]s -S -c 16 -T 10 orders
  %[2]s exec --run-dir %[1]s -- psql -c 'select current_user'
  %[2]s status --run-dir %[1]s --watch
  tail -f %[3]s
`, s.daemon.RunDir, s.exe, s.daemon.Audit)
	<-ctx.Done()
}
