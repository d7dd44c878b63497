package tests

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"pghandoff/proxy/admin"
	"pghandoff/proxy/audit"
	"pghandoff/tests/testpg"
)

// Proves the way of the URL: everything that libpq's own programs do works
// through the wire socket, over TLS 1.3 with the client's certificate.
func TestServeByURLWithPsqlPgbenchAndPgDump(t *testing.T) {
	psql, pgbench, dump := testpg.Require(t, "psql", "postgresql-client"), testpg.Require(t, "pgbench", "postgresql-contrib"), testpg.Require(t, "pg_dump", "postgresql-client")
	pg := testpg.Start(t)
	d := newDaemon(t)
	t.Setenv("PGHANDOFF_URL", pg.URL())
	d.start("serve", "--run-dir", d.runDir)
	d.awaitWarm()

	if out, err := shell(t, nil, psql, "-h", d.runDir, "-Atc", "select current_user, 6*7", "orders"); err != nil || strings.TrimSpace(out) != "app|42" {
		t.Fatalf("psql: %v, %s", err, out)
	}
	if out, err := shell(t, nil, pgbench, "-h", d.runDir, "-i", "-q", "orders"); err != nil {
		t.Fatalf("pgbench -i: %v, %s", err, out)
	}
	for _, mode := range []string{"simple", "extended", "prepared"} {
		out, err := shell(t, nil, pgbench, "-h", d.runDir, "-S", "-c", "16", "-j", "2", "-T", "2", "-M", mode, "orders")
		if err != nil || !strings.Contains(out, "number of failed transactions: 0 ") {
			t.Errorf("pgbench -M %s: %v, %s", mode, err, out)
		}
	}
	direct, err := shell(t, nil, dump, pg.URL())
	if err != nil {
		t.Fatalf("pg_dump, direct: %v, %s", err, direct)
	}
	through, err := shell(t, nil, dump, "-h", d.runDir, "orders")
	if err != nil || dumped(through) != dumped(direct) || len(through) < 1<<20 {
		t.Errorf("pg_dump: %v, %d bytes, %d direct", err, len(through), len(direct))
	}
	who, err := pg.Psql(t.Context(), "select count(*) filter (where s.ssl and s.version = 'TLSv1.3' and s.client_dn = '/CN=app'), count(*) from pg_stat_ssl s join pg_stat_activity a using (pid) where a.usename = 'app'")
	if err != nil {
		t.Fatal(err)
	}
	if good, all, _ := strings.Cut(who, "|"); good != all || all == "0" {
		t.Errorf("backends over TLS 1.3 with the client's name: %s of %s", good, all)
	}
	if said := d.stderr.String(); strings.Contains(said, pg.Password) {
		t.Error("the password stands in the log")
	}
}

// dumped is a dump without the lines that differ between two runs.
func dumped(s string) string {
	var out []string
	for _, l := range strings.Split(s, "\n") {
		if !strings.HasPrefix(l, "\\restrict") && !strings.HasPrefix(l, "\\unrestrict") {
			out = append(out, l)
		}
	}
	return strings.Join(out, "\n")
}

// Proves that a password on the command line is refused with the way out.
func TestPasswordInArgumentIsRefused(t *testing.T) {
	out, err := shell(t, nil, program(t), "serve", "postgres://app:hush@localhost/orders")
	var exit interface{ ExitCode() int }
	if !errors.As(err, &exit) || exit.ExitCode() != 2 || !strings.Contains(out, "PGHANDOFF_URL") || strings.Contains(out, "hush") {
		t.Errorf("got %v, %s", err, out)
	}
}

// Proves that the pool is warm without any function, from start on, and warm
// again within three seconds after the server has ended every backend.
func TestPoolIsWarmFromStartAndAfterTheServerEndedItsBackends(t *testing.T) {
	pg := testpg.Start(t)
	d := newDaemon(t)
	d.configure(pg, settings{Pool: "min_idle: 4, max: 10"})
	const idle = "select count(*) from pg_stat_activity where usename = 'app' and state = 'idle'"
	count := func() string {
		n, err := pg.Psql(t.Context(), idle)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	start := time.Now()
	d.start("serve", "--config", d.config)
	eventually(t, "four backends", func() bool { return count() == "4" })
	if took := time.Since(start); took > 3*time.Second {
		t.Errorf("four backends after %s", took)
	}
	before, err := pg.Psql(t.Context(), "select string_agg(pid::text, ',') from pg_stat_activity where usename = 'app'")
	if err != nil {
		t.Fatal(err)
	}
	start = time.Now()
	if _, err := pg.Psql(t.Context(), "select pg_terminate_backend(pid) from pg_stat_activity where usename = 'app'"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "four new backends", func() bool {
		n, err := pg.Psql(t.Context(), fmt.Sprintf("%s and pid not in (%s)", idle, before))
		return err == nil && n == "4"
	})
	if took := time.Since(start); took > 3*time.Second {
		t.Errorf("four new backends after %s", took)
	}
	if got := query(t, d.connect(), "select 1"); got != "1" {
		t.Errorf("got %q", got)
	}
}

// Proves that a dead backend is never handed out, even to the first function
// after its death.
func TestUpstreamThatTheServerClosedIsReplacedAtCheckout(t *testing.T) {
	pg := testpg.Start(t)
	d := serve(t, pg, settings{Pool: "min_idle: 3, max: 3"})
	for range 10 {
		if _, err := pg.Psql(t.Context(), "select pg_terminate_backend(pid, 5000) from pg_stat_activity where usename = 'app'"); err != nil {
			t.Fatal(err)
		}
		c, err := d.tryConnect()
		if err != nil {
			t.Fatal(err)
		}
		if got := query(t, c, "select 1"); got != "1" {
			t.Errorf("got %q", got)
		}
		c.Close(t.Context())
	}
}

// Proves that functions wait in the queue as long as they may, and no longer,
// and are told the setting that bounds it.
func TestFullPoolQueuesAndThenRefuses(t *testing.T) {
	pg := testpg.Start(t)
	d := serve(t, pg, settings{Pool: "min_idle: 1, max: 2, wait_timeout: 500ms, wait_notice: 100ms"})
	a, b := d.connect(), d.connect()
	_, err := d.tryConnect()
	if code := sqlState(err); code != "53300" || !strings.Contains(err.Error(), "within 5") {
		t.Fatalf("got %v", err)
	}
	got := make(chan error, 1)
	go func() {
		c, err := d.tryConnect()
		if err == nil {
			err = c.Ping(context.Background())
			c.Close(context.Background())
		}
		got <- err
	}()
	d.await("a waiting function", func(s *admin.Status) bool { return s.Routes[0].Waiting == 1 })
	a.Close(t.Context())
	if err := <-got; err != nil {
		t.Errorf("the function in the queue: %v", err)
	}
	b.Close(t.Context())
}

func sqlState(err error) string {
	var pgErr *pgconn.PgError
	if errors.As(err, &pgErr) {
		return pgErr.Code
	}
	return fmt.Sprintf("%v", err)
}

// Proves what SIGTERM does: an idle lease is told 57P01 at once, a running
// transaction ends first, and nothing is left behind.
func TestSIGTERMDrains(t *testing.T) {
	pg := testpg.Start(t)
	d := serve(t, pg, settings{Pool: "min_idle: 1, max: 5", Route: "    timeouts: {drain: 10s}"})
	idle, busy := d.session(), d.connect()
	tx, err := busy.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	d.cmd.Process.Signal(os.Interrupt)
	if e := idle.failure(); e.Code != "57P01" {
		t.Errorf("the idle lease got %v", e)
	}
	if _, err := tx.Exec(t.Context(), "select 1"); err != nil {
		t.Errorf("the running transaction got %v", err)
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Errorf("its commit got %v", err)
	}
	<-d.done
	for _, path := range []string{d.runDir + "/.s.PGSQL.5432", d.runDir + "/handoff.sock"} {
		if _, err := os.Stat(path); !os.IsNotExist(err) {
			t.Errorf("%s is left behind", path)
		}
	}
	d.awaitEvent("daemon.stopped", func(e audit.Event) bool { return e.Event == audit.DaemonStopped })
	eventually(t, "no backend is left", func() bool {
		n, err := pg.Psql(t.Context(), "select count(*) from pg_stat_activity where usename = 'app'")
		return err == nil && n == "0"
	})
}

// Proves that a second daemon on the same folders is refused and a dead one's
// sockets are replaced.
func TestOneDaemonAFolder(t *testing.T) {
	pg := testpg.Start(t)
	d := serve(t, pg, settings{})
	out, err := shell(t, nil, program(t), "serve", "--config", d.config)
	if err == nil || !strings.Contains(out, "is running") {
		t.Errorf("a second daemon: %v, %s", err, out)
	}
	out, err = shell(t, nil, program(t), "serve", "--config", d.config, "--control-dir", d.dir+"/other")
	if err == nil || !strings.Contains(out, "somebody serves") {
		t.Errorf("a second daemon with a control folder of its own: %v, %s", err, out)
	}
	d.cmd.Process.Kill()
	<-d.done
	if _, err := os.Stat(d.runDir + "/handoff.sock"); err != nil {
		t.Fatalf("the dead daemon's socket should be there: %v", err)
	}
	second := &daemon{t: t, dir: d.dir, runDir: d.runDir, config: d.config, auditLog: d.auditLog, stderr: new(lockedBuffer)}
	second.start("serve", "--config", d.config)
	second.awaitWarm()
	if got := query(t, second.connect(), "select 1"); got != "1" {
		t.Errorf("got %q", got)
	}
}

// Proves that SIGHUP swaps the configuration whole, keeps the pools of routes
// that did not change, and keeps everything if the new file is bad.
func TestReload(t *testing.T) {
	pg := testpg.Start(t)
	d := serve(t, pg, settings{})
	c := d.connect()
	pid := query(t, c, "select pg_backend_pid()")

	write(t, d.config, "routes: {orders: {servers: []}}")
	if err := d.client().Reload(t.Context()); err == nil || !strings.Contains(err.Error(), "routes.orders.servers") {
		t.Errorf("a bad file: %v", err)
	}
	if got := query(t, d.connect(), "select 1"); got != "1" {
		t.Errorf("after a bad reload: %q", got)
	}

	d.configure(pg, settings{Allow: "uid: 4242"})
	if err := d.client().Reload(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := d.tryConnect(); sqlState(err) != "28000" {
		t.Errorf("after a reload that shuts us out: %v", err)
	}
	if got := query(t, c, "select pg_backend_pid()"); got != pid {
		t.Errorf("the lease of before has backend %s, had %s", got, pid)
	}

	d.configure(pg, settings{Pool: "min_idle: 3, max: 4"})
	if err := d.client().Reload(t.Context()); err != nil {
		t.Fatal(err)
	}
	d.await("the new pool", func(s *admin.Status) bool { return s.Routes[0].Idle == 3 && s.Routes[0].Max == 4 })
	if got := query(t, c, "select pg_backend_pid()"); got != pid {
		t.Errorf("the lease of before has backend %s, had %s", got, pid)
	}
	c.Close(t.Context())
	eventually(t, "the old pool's backend ends", func() bool {
		n, err := pg.Psql(t.Context(), "select count(*) from pg_stat_activity where pid = "+pid)
		return err == nil && n == "0"
	})
}
