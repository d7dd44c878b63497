package tests

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"pghandoff/cmd/pghandoff/throwaway"
	"pghandoff/handoff"
	"pghandoff/pgwire"
	"pghandoff/proxy/admin"
	"pghandoff/proxy/audit"
	"pghandoff/tests/testpg"
)

// extended is a whole extended query and its Sync, as libpq sends it.
func extended(sql string) []byte {
	p := message('P', "\x00"+sql+"\x00\x00\x00")
	p = append(p, message('B', "\x00\x00\x00\x00\x00\x00\x00\x00")...)
	p = append(p, message('E', "\x00\x00\x00\x00\x00")...)
	return append(p, message('S', "")...)
}

// answers reads up to ReadyForQuery and returns the types, with the first value
// of rows.
func (r *raw) answers() string {
	r.t.Helper()
	var b strings.Builder
	for {
		typ, body := r.next()
		b.WriteByte(typ)
		switch typ {
		case 'D':
			fmt.Fprintf(&b, "(%s)", body[6:])
		case 'E':
			e, _ := pgwire.ParseError(body)
			fmt.Fprintf(&b, "(%s)", e.Code)
		case 'Z':
			return b.String()
		}
	}
}

// Proves that a COPY which fails before it has read the Sync that libpq sends
// ahead, whose answer is then one more than usual, does not give that answer to
// the next function, and does not end the session of one that stays.
func TestCopyThatFailsAtItsStart(t *testing.T) {
	pg := testpg.Start(t)
	if _, err := pg.Psql(t.Context(), `create table kept (what text); alter table kept owner to app;
		create view v as select 1 as a; alter view v owner to app;
		create function slow() returns trigger language plpgsql as $$begin perform pg_sleep(0.2); raise 'no'; end$$;
		create trigger tr before insert on kept for each statement execute function slow()`); err != nil {
		t.Fatal(err)
	}
	d := serve(t, pg, settings{Pool: "min_idle: 1, max: 1, wait_timeout: 10s"})
	for range 5 {
		r := d.session()
		r.send(extended("copy kept from stdin"))
		r.until('G')
		r.send(append(append(message('d', "x\n"), message('c', "")...), message('S', "")...))
		r.conn.Close()
		next := d.session()
		next.send(message('Q', "select 'mine'\x00"))
		if got := next.answers(); got != "TD(mine)CZ" {
			t.Fatalf("the next function reads %s", got)
		}
		next.conn.Close()
	}
	r := d.session()
	r.send(extended("copy v from stdin"))
	if got := r.answers(); got != "12GE(42809)Z" {
		t.Errorf("COPY into a view: %s", got)
	}
	r.send(message('Q', "select 'alive'\x00"))
	if got := r.answers(); got != "TD(alive)CZ" {
		t.Errorf("and then: %s", got)
	}
}

// slowServer is the way to a PostgreSQL whose answers come late and whose cancel
// requests do not arrive until they are let go.
type slowServer struct {
	mu      sync.Mutex
	lag     time.Duration
	cancels chan struct{} // closed: let go
	held    chan struct{} // one for each cancel request that is held
}

// in puts it between: the result is pg at another port.
func (s *slowServer) in(t *testing.T, pg *throwaway.Cluster) *throwaway.Cluster {
	s.cancels, s.held = make(chan struct{}), make(chan struct{}, 100)
	return inFrontOf(t, pg, func(c net.Conn) { s.relay(c, pg.Port) })
}

// inFrontOf takes each connection to a server by a relay: the result is pg at
// another port.
func inFrontOf(t *testing.T, pg *throwaway.Cluster, relay func(c net.Conn)) *throwaway.Cluster {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() { // ends with the listener
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go relay(c) // ends with its connections
		}
	}()
	return &throwaway.Cluster{Host: pg.Host, Port: l.Addr().(*net.TCPAddr).Port, Role: pg.Role, Password: pg.Password, Database: pg.Database}
}

func (s *slowServer) relay(c net.Conn, port int) {
	defer c.Close()
	first := make([]byte, 8)
	if _, err := io.ReadFull(c, first); err != nil {
		return
	}
	if binary.BigEndian.Uint32(first[4:]) == 80877102 {
		s.held <- struct{}{}
		<-s.cancels
	}
	server, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		return
	}
	defer server.Close()
	server.Write(first)
	go io.Copy(server, c) // ends with the connections
	buf := make([]byte, 64<<10)
	for {
		n, err := server.Read(buf)
		if err != nil {
			return
		}
		s.mu.Lock()
		lag := s.lag
		s.mu.Unlock()
		<-time.After(lag)
		c.Write(buf[:n])
	}
}

// roots is some trust anchor, for configurations that do not use it.
func roots(t *testing.T) string { return testpg.Shared(t).RootsFile }

// Proves that a cancel whose way to the server takes longer than anybody waits
// for it does not hit the next function when it arrives at last.
func TestLateCancelDoesNotHitTheNextFunction(t *testing.T) {
	slow := new(slowServer)
	via := slow.in(t, testpg.Start(t, testpg.Plain))
	d := serve(t, via, settings{Roots: roots(t), Pool: "min_idle: 1, max: 1, wait_timeout: 18s", TLS: "mode: disable"})
	a := d.session()
	go d.cancel(a.pid, a.secret)
	<-slow.held
	a.conn.Close()
	b := d.session()
	b.conn.SetDeadline(time.Now().Add(30 * time.Second))
	close(slow.cancels)
	b.send(message('Q', "select 'whole' from pg_sleep(1)\x00"))
	if got := b.answers(); got != "TD(whole)CZ" {
		t.Errorf("the next function reads %s", got)
	}
	if a.pid == b.pid {
		t.Error("it has the same backend, although nobody knows what became of the cancel")
	}
}

// Proves that SIGTERM also ends a lease that was being granted when it came.
func TestSIGTERMAmidAGrant(t *testing.T) {
	slow := new(slowServer)
	via := slow.in(t, testpg.Start(t, testpg.Plain))
	d := serve(t, via, settings{Roots: roots(t), Pool: "min_idle: 1, max: 3", TLS: "mode: disable", Route: "    timeouts: {drain: 1s}"})
	slow.mu.Lock()
	slow.lag = 500 * time.Millisecond
	slow.mu.Unlock()
	r := d.dialWire()
	r.send(startupMessage(pgwire.Version30, "user", "app", "database", "orders", "TimeZone", "Asia/Tokyo"))
	d.await("the upstream to be taken", func(s *admin.Status) bool { return s.Routes[0].Leased == 1 })
	d.cmd.Process.Signal(syscall.SIGTERM)
	if e := r.failure(); e.Code != "57P01" {
		t.Errorf("got %v", e)
	}
	select {
	case <-d.done:
	case <-time.After(15 * time.Second):
		t.Error("the daemon still runs 15 s after SIGTERM")
	}
}

// Proves that the last word of the daemon comes between two messages or not at
// all, also to functions that read slowly.
func TestLastWordNeverStandsInsideAMessage(t *testing.T) {
	pg := testpg.Start(t)
	d := serve(t, pg, settings{Pool: "min_idle: 1, max: 12", Route: "    timeouts: {drain: 500ms}"})
	var readers sync.WaitGroup
	started := make(chan struct{}, 10)
	for range 10 {
		r := d.session()
		r.conn.SetDeadline(time.Now().Add(60 * time.Second))
		r.send(message('Q', "select repeat('x', 37) from generate_series(1, 2000000)\x00"))
		readers.Go(func() {
			for n := 0; ; n++ {
				typ, body, err := r.frames.Next()
				if err != nil {
					return
				}
				if typ == 'D' && (len(body) != 43 || strings.Contains(string(body), "57P01")) || strings.IndexByte("TDCZE", typ) < 0 {
					t.Errorf("message %d is %q %.60q", n, typ, body)
					return
				}
				if n == 1000 {
					started <- struct{}{}
				}
				if n%2000 == 0 {
					<-time.After(5 * time.Millisecond)
				}
			}
		})
	}
	for range 10 {
		<-started
	}
	d.cmd.Process.Signal(syscall.SIGTERM)
	readers.Wait()
}

// Proves that a function which has shut down only its sending direction gets
// its answer, however long it takes, and all of it, however slowly it reads.
func TestHalfClosedFunctionGetsItsAnswer(t *testing.T) {
	pg := testpg.Start(t)
	d := serve(t, pg, settings{Pool: "min_idle: 1, max: 1, wait_timeout: 10s"})
	r := d.session()
	r.send(message('Q', "select 'late' from pg_sleep(3)\x00"))
	r.conn.(*net.UnixConn).CloseWrite()
	if got := r.answers(); got != "TD(late)CZ" {
		t.Errorf("got %s", got)
	}
	r = d.session()
	r.send(message('Q', "select repeat('x', 1000) from generate_series(1, 30000)\x00"))
	r.conn.(*net.UnixConn).CloseWrite()
	total := 0
	buf := make([]byte, 256<<10)
	for {
		n, err := r.conn.Read(buf)
		total += n
		if err != nil {
			break
		}
		<-time.After(20 * time.Millisecond)
	}
	if total < 30000*1000 {
		t.Errorf("%d bytes of 30 MB", total)
	}
	d.await("the lease ends", func(s *admin.Status) bool { return len(s.Leases) == 0 })
}

// Proves that a function which closes with its query running holds nothing up:
// the query is cancelled after a moment.
func TestClosedFunctionsQueryIsCancelled(t *testing.T) {
	pg := testpg.Start(t)
	d := serve(t, pg, settings{Pool: "min_idle: 1, max: 1, wait_timeout: 10s"})
	r := d.session()
	r.send(message('Q', "select pg_sleep(600)\x00"))
	waitBusy(t, pg.Psql)
	r.conn.Close()
	eventually(t, "the query to end", func() bool {
		n, err := pg.Psql(t.Context(), "select count(*) from pg_stat_activity where wait_event = 'PgSleep'")
		return err == nil && n == "0"
	})
	d.session()
}

// Proves that connections over the limit are bounded too, so that one uid cannot
// use up the daemon's descriptors, that a cancel gets through all the same, and
// that a function that finds no descriptor left is told so.
func TestConnectionsOverTheLimit(t *testing.T) {
	pg := testpg.Start(t)
	d := newDaemon(t)
	d.configure(pg, settings{Global: "limits: {connections: 5}", Pool: "min_idle: 1, max: 3"})
	d.cmd = exec.Command("sh", "-c", fmt.Sprintf("ulimit -n 200; exec %s serve --config %s", program(t), d.config))
	d.cmd.Stderr, d.cmd.Stdout = d.stderr, d.stderr
	d.run()
	d.awaitWarm()
	busy := d.session()
	busy.send(message('Q', "select pg_sleep(60)\x00"))
	for range 300 {
		c, err := net.Dial("unix", filepath.Join(d.runDir, ".s.PGSQL.5432"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
	}
	start := time.Now()
	out, err := as(t, 4305, program(t), "exec", "--run-dir", d.runDir, "-d", "orders", "--", "/bin/true")
	if took := time.Since(start); err != nil || took > 2*time.Second {
		t.Errorf("another uid: %v, %s, after %s", err, out, took)
	}
	eventually(t, "a cancel to get through", func() bool {
		d.cancel(busy.pid, busy.secret)
		busy.conn.SetReadDeadline(time.Now().Add(500 * time.Millisecond))
		defer busy.conn.SetReadDeadline(time.Time{})
		typ, _, err := busy.frames.Next()
		return err == nil && (typ == 'E' || typ == 'T')
	})
	if n := strings.Count(d.stderr.String(), "too many open files"); n > 10 {
		t.Errorf("%d lines in the log about it", n)
	}
}

// Proves what the audit says of releases, of functions that hang up in the queue
// and of transactions.
func TestAuditOfEndings(t *testing.T) {
	pg := testpg.Start(t)
	d := serve(t, pg, settings{Pool: "min_idle: 1, max: 1, wait_timeout: 30s"})
	l, err := handoff.Acquire(t.Context(), handoff.Request{Socket: filepath.Join(d.runDir, "handoff.sock"), Database: "orders", User: "x", State: handoff.Ready})
	if err != nil {
		t.Fatal(err)
	}
	l.Conn().Write(message('Q', "select pg_sleep(60)\x00"))
	waitBusy(t, pg.Psql)
	start := time.Now()
	if err := l.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	io.ReadAll(l.Conn())
	if took := time.Since(start); took > time.Second {
		t.Errorf("the released lease ended after %s", took)
	}
	l.Close()
	d.awaitEvent("of the release", func(e audit.Event) bool { return e.Event == audit.LeaseReleased && e.Outcome == "released" })

	a := d.connect()
	for _, sql := range []string{"begin", "select 1", "commit"} {
		execSQL(t, a, sql)
	}
	w := d.dialWire()
	w.send(append(startupMessage(pgwire.Version30, "user", "app", "database", "orders"), message('Q', "select 1\x00")...))
	waiting := func(n int) func(*admin.Status) bool {
		return func(s *admin.Status) bool { return s.Routes[0].Waiting == n }
	}
	d.await("a function in the queue", waiting(1))
	w.conn.Close()
	d.await("nobody in the queue", waiting(0))
	d.awaitEvent("of the hang-up", func(e audit.Event) bool { return e.Event == audit.LeaseDenied && e.Outcome == "gone" })
	a.Close(t.Context())
	e := d.awaitEvent("of the last lease", func(e audit.Event) bool { return e.Event == audit.LeaseReleased && e.Way == "wire" })
	if e.Transactions != 1 || e.BytesIn == 0 || e.BytesOut == 0 || e.Outcome != "terminated" {
		t.Errorf("got %+v", e)
	}
}

// Proves that a reload does not refuse the functions that wait: they get their
// connection from the new pool.
func TestReloadKeepsWhoWaits(t *testing.T) {
	pg := testpg.Start(t)
	d := serve(t, pg, settings{Pool: "min_idle: 1, max: 1, wait_timeout: 10s"})
	d.session()
	w := d.dialWire()
	w.send(startupMessage(pgwire.Version30, "user", "app", "database", "orders"))
	d.await("a function in the queue", func(s *admin.Status) bool { return s.Routes[0].Waiting == 1 })
	d.configure(pg, settings{Pool: "min_idle: 1, max: 2, wait_timeout: 10s"})
	if err := d.client().Reload(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := w.answers(); !strings.HasSuffix(got, "KZ") {
		t.Errorf("it is told %s", got)
	}
}

// Proves that one function cannot foretell another's random numbers.
func TestRandomSeedDoesNotStay(t *testing.T) {
	pg := testpg.Start(t)
	d := serve(t, pg, settings{Pool: "min_idle: 1, max: 1"})
	seen := map[string]bool{}
	for range 2 {
		a := d.connect()
		execSQL(t, a, "select setseed(0.42)")
		a.Close(t.Context())
		b := d.connect()
		seen[query(t, b, "select random()")] = true
		b.Close(t.Context())
	}
	if len(seen) != 2 {
		t.Errorf("both find %v", seen)
	}
}

// Proves that root may use the routes of a daemon that is not root, as its own
// user may, and that who may use none is not told their names.
func TestRootAndADaemonWithoutRights(t *testing.T) {
	if os.Geteuid() != 0 {
		testpg.Missing(t, "only root can start a daemon as another user: run the tests as root")
	}
	const uid = 4321
	pg := testpg.Start(t, testpg.TLS)
	d := newDaemon(t)
	d.configure(pg, settings{})
	anchors := filepath.Join(d.dir, "roots.crt")
	write(t, anchors, readFile(t, pg.RootsFile))
	text := strings.Replace(readFile(t, d.config), "    allow: [any: true]\n", "", 1)
	write(t, d.config, strings.ReplaceAll(text, pg.RootsFile, anchors))
	filepath.WalkDir(d.dir, func(path string, _ os.DirEntry, _ error) error { return os.Chown(path, uid, uid) })
	d.cmd = exec.Command(program(t), "serve", "--config", d.config)
	d.cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	d.cmd.Stderr, d.cmd.Stdout = d.stderr, d.stderr
	d.run()
	eventually(t, "the daemon to serve", func() bool { return strings.Contains(d.stderr.String(), "upstream opened") })
	for _, who := range []uint32{0, uid} {
		if out, err := as(t, who, program(t), "exec", "--run-dir", d.runDir, "--", "/bin/true"); err != nil {
			t.Errorf("uid %d: %v, %s", who, err, out)
		}
	}
	out, err := as(t, 4322, program(t), "exec", "--run-dir", d.runDir, "--", "/bin/true")
	if err == nil || strings.Contains(out, "orders") {
		t.Errorf("a stranger: %v, %s", err, out)
	}
}
