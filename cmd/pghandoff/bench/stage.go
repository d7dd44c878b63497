package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"pghandoff/cmd/pghandoff/child"
	"pghandoff/cmd/pghandoff/throwaway"
	"pghandoff/handoff"
)

// stage is what is measured on.
type stage struct {
	Options
	results results
	notes   []string
	started time.Time

	exe     string // this program
	dir     string // of everything that is ours
	pgbench string
	version string // of the server
	pg      *throwaway.Cluster
	daemon  *child.Daemon
	peers   []*peer
}

// subject is something to connect to.
type subject struct {
	name     string
	conninfo string // libpq's
	role     string
	socket   string // that takes a start-up message; "": none
	pid      int    // of the daemon in between; 0: none
}

const (
	route = "orders"
	scale = 2 // of pgbench: 200,000 accounts

	// tunnelRole needs no password: libpq refuses channel binding over a tunnel,
	// and Odyssey does not know it.
	tunnelRole = "tunnel"
)

// open starts the server, our daemon and the peers, and warms their pools.
func (s *stage) open(ctx context.Context) (err error) {
	kinds, err := s.choosePeers()
	if err != nil {
		return err
	}
	if s.exe, err = os.Executable(); err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	if s.dir, err = os.MkdirTemp(child.ShortTempDir(), "pghandoff-bench-"); err != nil {
		return fmt.Errorf("make a folder: %w", err)
	}
	if err := os.Chmod(s.dir, 0o711); err != nil { // the peers run as another user
		return err
	}
	if err := s.openServer(ctx); err != nil {
		return err
	}
	s.progress("starting the daemon and its peers")
	if s.daemon, err = s.startDaemon("main", "identity: app"); err != nil {
		return err
	}
	for _, k := range kinds {
		p, err := s.startPeer(ctx, k, true)
		if err != nil {
			return err
		}
		s.peers = append(s.peers, p)
	}
	if _, err := s.daemon.AwaitWarm(ctx); err != nil {
		return err
	}
	return s.warm(ctx, s.pooled())
}

// access lets the server take plaintext as well, for the daemons that are told
// to use it, and a tunnel by its certificate alone.
var access = []string{
	"hostssl all " + tunnelRole + " 127.0.0.1/32 trust clientcert=verify-ca",
	"hostssl all all 127.0.0.1/32 scram-sha-256 clientcert=verify-full",
	"hostnossl all all 127.0.0.1/32 scram-sha-256",
}

// openServer starts PostgreSQL and fills the tables.
func (s *stage) openServer(ctx context.Context) (err error) {
	s.progress("starting a PostgreSQL that demands TLS, a client certificate and SCRAM")
	s.pg, err = throwaway.Start(ctx, throwaway.Config{TLS: true, ClientCert: true, HBA: access,
		Role: "app", Roles: []throwaway.Role{{Name: tunnelRole}},
		Settings: map[string]string{"max_connections": "600", "shared_buffers": "128MB", "autovacuum": "off",
			"ssl_min_protocol_version": "TLSv1.3"}})
	if err != nil {
		return err
	}
	if s.pgbench, err = findPgbench(s.pg.BinDir); err != nil {
		return err
	}
	init := s.command(ctx, "-i", "-q", "-I", "dtgvp", "-s", fmt.Sprint(scale), s.direct().conninfo)
	if out, err := init.CombinedOutput(); err != nil {
		return fmt.Errorf("pgbench fills its tables: %w: %s", err, out)
	}
	s.version, err = s.pg.Psql(ctx, `grant app to `+tunnelRole+`;
		create table bulk as select i, repeat(md5(i::text), 32) as filler from generate_series(1, 2000) i;
		alter table bulk owner to app; analyze bulk; show server_version`)
	return err
}

// poolSize is how many connections each pool has warm.
func (s *stage) poolSize() int { return max(8, slices.Max(s.Clients)) }

// whoever is the rule that the peers have with auth_type=trust: to have opened
// the socket is enough.
const whoever = "{any: true}"

// startDaemon starts a daemon of ours in a folder of its own, with everything
// on that is on for a user.
func (s *stage) startDaemon(name, tls string) (*child.Daemon, error) {
	dir := filepath.Join(s.dir, name)
	if err := os.Mkdir(dir, 0o711); err != nil {
		return nil, err
	}
	return child.StartDaemon(child.Settings{Exe: s.exe, Dir: dir, Route: route, Server: s.pg, TLS: tls,
		Pool: fmt.Sprintf("min_idle: %d, max: %d", s.poolSize(), s.poolSize()), Allow: whoever})
}

func (s *stage) direct() subject {
	return subject{name: directTLS, role: s.pg.Role, conninfo: s.pg.URL("password=")}
}

// wire is the daemon's socket that takes a start-up message.
func (s *stage) wire(d *child.Daemon) subject {
	return subject{name: ours, role: s.pg.Role, conninfo: conninfo(d.RunDir, 5432, s.pg.Role),
		socket: handoff.WirePath(filepath.Join(d.RunDir, handoff.SocketName)), pid: d.Pid()}
}

// pooled are the daemons.
func (s *stage) pooled() []subject {
	all := []subject{s.wire(s.daemon)}
	for _, p := range s.peers {
		all = append(all, p.subject)
	}
	return all
}

func conninfo(folder string, port int, user string) string {
	return fmt.Sprintf("host=%s port=%d user=%s dbname=%s", folder, port, user, route)
}

// warm makes each pool have all its connections: so many are in use at once.
func (s *stage) warm(ctx context.Context, subjects []subject) error {
	for _, to := range subjects {
		if err := to.use(ctx, s.poolSize()); err != nil {
			return fmt.Errorf("warm the pool of %s: %w", to.name, err)
		}
	}
	return pause(ctx, 4*settle)
}

// use opens n connections, asks one thing on each, for some poolers look for a
// connection to the server only then, and closes them.
func (to subject) use(ctx context.Context, n int) (err error) {
	var conns []*pgconn.PgConn
	defer func() {
		for _, conn := range conns {
			err = errors.Join(err, conn.Close(ctx))
		}
	}()
	for range n {
		conn, err := pgconn.Connect(ctx, to.conninfo)
		if err != nil {
			return err
		}
		conns = append(conns, conn)
		if _, err := conn.Exec(ctx, "select 1").ReadAll(); err != nil {
			return err
		}
	}
	return nil
}

// close takes everything down; it is for a stage in any state.
func (s *stage) close() error {
	var problems []error
	if s.daemon != nil {
		problems = append(problems, s.daemon.Stop())
	}
	for _, p := range s.peers {
		problems = append(problems, p.Stop())
	}
	if s.pg != nil {
		problems = append(problems, s.pg.Close())
	}
	if s.dir != "" {
		problems = append(problems, os.RemoveAll(s.dir))
	}
	return errors.Join(problems...)
}

// findPgbench looks where the server's programs are, then on PATH.
func findPgbench(binDir string) (string, error) {
	if path, err := exec.LookPath(filepath.Join(binDir, "pgbench")); err == nil {
		return path, nil
	}
	path, err := exec.LookPath("pgbench")
	if err != nil {
		return "", errors.New("pgbench is not installed (Debian: apt install postgresql; with older versions and elsewhere, postgresql-contrib)")
	}
	return path, nil
}
