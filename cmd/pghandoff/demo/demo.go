package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

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
	runDir string
	audit  string
	pg     *throwaway.Cluster
	daemon *daemon
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
	if s.dir, err = os.MkdirTemp(shortTempDir(), "pghandoff-demo-"); err != nil {
		return fmt.Errorf("make a folder: %w", err)
	}
	if err := os.Chmod(s.dir, 0o711); err != nil { // functions of other users pass through it
		return err
	}
	s.runDir, s.audit = filepath.Join(s.dir, "run"), filepath.Join(s.dir, "audit.jsonl")
	fmt.Fprintln(s.out, "Starting a PostgreSQL that demands TLS, a client certificate and SCRAM …")
	start := time.Now()
	if s.pg, err = throwaway.Start(ctx, throwaway.Config{TLS: true, ClientCert: true}); err != nil {
		return err
	}
	fmt.Fprintf(s.out, "  on 127.0.0.1:%d, in %.1f s\n", s.pg.Port, time.Since(start).Seconds())
	config, err := s.writeConfig()
	if err != nil {
		return err
	}
	fmt.Fprintln(s.out, "Starting the daemon …")
	if s.daemon, err = startDaemon(s.exe, "serve", "--config", config); err != nil {
		return err
	}
	return s.awaitWarm(ctx)
}

// shortTempDir is the folder of temporary files, unless its name would make the
// path of a socket too long (107 bytes).
func shortTempDir() string {
	if dir := os.TempDir(); len(dir) <= 50 {
		return dir
	}
	return "/tmp"
}

const configText = `run_dir: %[1]q
log: {level: warn}
audit: {file: %[2]q}
identities:
  app:
    file: {cert: %[3]q, key: %[4]q, roots: %[5]q}
routes:
  ` + route + `:
    servers: ["%[6]s:%[7]d"]
    database: %[8]q
    user: %[9]q
    password: {file: %[10]q}
    tls: {mode: verify-full, identity: app, channel_binding: require}
    pool: {min_idle: 4, max: 20}
`

// writeConfig writes the daemon's configuration and the password's file, both
// for its eyes only.
func (s *stage) writeConfig() (path string, err error) {
	secret := filepath.Join(s.dir, "password")
	if err := os.WriteFile(secret, []byte(s.pg.Password+"\n"), 0o600); err != nil {
		return "", err
	}
	path = filepath.Join(s.dir, "pghandoff.yaml")
	text := fmt.Sprintf(configText, s.runDir, s.audit, s.pg.ClientCertFile, s.pg.ClientKeyFile, s.pg.RootsFile,
		s.pg.Host, s.pg.Port, s.pg.Database, s.pg.Role, secret)
	return path, os.WriteFile(path, []byte(text), 0o600)
}

// close takes everything down; it is for a stage in any state.
func (s *stage) close() error {
	var problems []error
	if s.daemon != nil {
		problems = append(problems, s.daemon.stop())
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
`, s.runDir, s.exe, s.audit)
	<-ctx.Done()
}
