package tests

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pghandoff/cmd/pghandoff/throwaway"
	"pghandoff/handoff"
	"pghandoff/pgwire"
	"pghandoff/proxy/admin"
	"pghandoff/proxy/audit"
	"pghandoff/tests/testca"
	"pghandoff/tests/testpg"
)

// errorTable is one daemon, on which what goes wrong is tried, row by row of the
// table of SPEC section 11. Functions that are frozen or do not read are in
// TestFunctionsThatDoNotRead and TestMisbehavingFunctionsOnOneLoop.
type errorTable struct {
	*daemon
	pg   *throwaway.Cluster
	seen int // lines of the audit that belong to rows before
}

// errorRoute is a route beside "orders"; what is empty is as there.
type errorRoute struct{ name, server, password, pool, timeouts, allow string }

func (e *errorTable) route(r errorRoute) string {
	or := func(a, b string) string {
		if a == "" {
			return b
		}
		return a
	}
	return fmt.Sprintf(`
  %s:
    servers: [%q]
    database: orders
    user: app
    password: {file: %q}
    tls: {identity: app}
    pool: {%s}
    timeouts: {%s}
    allow: [%s]`, r.name, or(r.server, fmt.Sprintf("127.0.0.1:%d", e.pg.Port)), filepath.Join(e.dir, or(r.password, "password")),
		or(r.pool, "min_idle: 0, max: 4"), or(r.timeouts, "drain: 2s"), or(r.allow, "any: true"))
}

// Proves, for each row of the table of errors, that the function is told the code
// and the sentence, by the wire socket and by the handoff socket, and that the
// audit says the same.
func TestErrorTable(t *testing.T) {
	e := &errorTable{daemon: newDaemon(t), pg: testpg.Start(t)}
	expired := startHostileServer(t, &tls.Config{Certificates: []tls.Certificate{testca.Server(t, e.pg.CA, testca.Expired).Certificate}}, hostileScript{})
	malformed := startHostileServer(t, nil, says(frame('D', 3, "")))
	write(t, filepath.Join(e.dir, "wrong"), "hush-hush\n")
	routes := "    timeouts: {drain: 2s}"
	for _, r := range []errorRoute{
		{name: "closed", allow: "{uid: 4242}"},
		{name: "full", pool: "min_idle: 1, max: 1, wait_timeout: 500ms"},
		{name: "wrong", password: "wrong", pool: "min_idle: 1, max: 2"},
		{name: "nobody", server: fmt.Sprintf("127.0.0.1:%d", freePort(t)), pool: "min_idle: 1, max: 2"},
		{name: "nohost", server: "no-such-host.invalid:5432", pool: "min_idle: 1, max: 2"},
		{name: "expired", server: fmt.Sprintf("127.0.0.1:%d", expired.port), pool: "min_idle: 1, max: 2"},
		{name: "aged", pool: "min_idle: 0, max: 2, lease_timeout: 600ms"},
		{name: "idle", timeouts: "idle_lease: 400ms"},
		{name: "open", timeouts: "idle_in_transaction: 400ms"},
	} {
		routes += e.route(r)
	}
	e.configure(e.pg, settings{Global: "limits: {leases: 4, waiting: 1, connections: 12}", Pool: "min_idle: 2, max: 10", Route: routes + malformed.route("malformed", filepath.Join(e.dir, "password"), "reset: close")})
	e.start("serve", "--config", e.config)
	e.await("what works to be warm, and the others to have failed", func(s *admin.Status) bool {
		for _, r := range s.Routes {
			if r.Idle < r.MinIdle && r.LastError == "" {
				return false
			}
		}
		return true
	})
	for _, row := range []struct {
		name string
		run  func()
	}{
		{"refusals", e.refusals}, {"unreachable servers show in the status", e.status}, {"pool full", e.poolFull}, {"over its limits", e.overLimits},
		{"malformed bytes of the function", e.malformedFunction}, {"malformed bytes of the server", e.malformedServer}, {"malformed requests", e.malformedRequests},
		{"timeouts", e.timeouts}, {"the server ends a session", e.terminated}, {"out of descriptors", e.outOfDescriptors},
		{"the backend is killed", e.killed}, {"SIGTERM", e.terminates},
	} {
		t.Run(row.name, func(t *testing.T) {
			e.t = t
			defer func() { e.t = nil }()
			e.seen = len(e.events())
			row.run()
		})
	}
	e.t = t
}

// asks asks for a lease by the wire socket and returns the refusal.
func (e *errorTable) asks(route string, pairs ...string) *refusal {
	e.t.Helper()
	r := e.ask(route, pairs...)
	f := r.failure()
	if _, err := r.conn.Read(make([]byte, 1)); err != io.EOF {
		e.t.Errorf("route %s: behind the error comes %v", route, err)
	}
	return &refusal{f.Code, f.Message, f.Hint}
}

// refusal is what a function is told, by either socket.
type refusal struct{ Code, Message, Hint string }

func (r *refusal) says(code, sentence string) bool {
	return r.Code == code && strings.Contains(r.Message+" "+r.Hint, sentence)
}

func (e *errorTable) request(route, user string) handoff.Request {
	return handoff.Request{Socket: filepath.Join(e.runDir, "handoff.sock"), Database: route, User: user, State: handoff.Ready}
}

// asksByHandoff does the same by the handoff socket.
func (e *errorTable) asksByHandoff(route string) *refusal {
	e.t.Helper()
	ctx, cancel := context.WithTimeout(e.t.Context(), patience)
	defer cancel()
	l, err := handoff.Acquire(ctx, e.request(route, "app"))
	if err == nil {
		l.Close()
	}
	r, ok := err.(*handoff.Refusal)
	if !ok {
		e.t.Fatalf("route %s: by the handoff socket: %v", route, err)
	}
	return &refusal{r.SQLState, r.Message, r.Hint}
}

// refusesAtOnce checks a refusal by both sockets, without a wait, and its lines in
// the audit.
func (e *errorTable) refusesAtOnce(route, code, sentence, outcome string) {
	e.t.Helper()
	start := time.Now()
	wire, byHandoff := e.asks(route), e.asksByHandoff(route)
	if took := time.Since(start); took > time.Second && !raceEnabled {
		e.t.Errorf("route %s: it took %s", route, took)
	}
	if !wire.says(code, sentence) || *byHandoff != *wire {
		e.t.Errorf("route %s: told %+v, and %+v by the handoff socket", route, wire, byHandoff)
	}
	for _, way := range []string{"wire", "handoff"} {
		e.audited(audit.Event{Event: audit.LeaseDenied, Route: route, Way: way, Outcome: outcome, SQLState: code, Message: wire.Message})
	}
}

// audited waits for a line of the audit, of this row, that says this.
func (e *errorTable) audited(want audit.Event) {
	e.t.Helper()
	eventually(e.t, fmt.Sprintf("a line of the audit: %+v", want), func() bool {
		for _, got := range e.events()[e.seen:] {
			if got.Event == want.Event && got.Route == want.Route && got.Way == want.Way && got.Outcome == want.Outcome && got.SQLState == want.SQLState && got.Message == want.Message {
				return true
			}
		}
		return false
	})
}

// lease returns a lease of a route by one of the sockets.
func (e *errorTable) lease(route, way string) *raw {
	e.t.Helper()
	if way == "handoff" {
		l, err := handoff.Acquire(e.t.Context(), e.request(route, "app"))
		if err != nil {
			e.t.Fatal(err)
		}
		e.t.Cleanup(func() { l.Close() })
		return rawOn(e.t, l.Conn())
	}
	r := e.ask(route)
	if got := r.told(); got != "RKZ" {
		e.t.Fatalf("route %s: it is told %s", route, got)
	}
	return r
}

// ends checks for both sockets what a lease is told at its end, after it has said
// something, and the line of the audit.
func (e *errorTable) ends(route string, say []byte, kind audit.Kind, outcome, code, sentence string) {
	e.t.Helper()
	for _, way := range []string{"wire", "handoff"} {
		r := e.lease(route, way)
		if say != nil {
			r.send(say)
		}
		told := r.told()
		if strings.HasSuffix(told, "Z") { // the answer comes first
			told = r.told()
		}
		begin := fmt.Sprintf("E(%s: ", code)
		at := strings.Index(told, begin)
		if at < 0 || !strings.Contains(told, sentence) || !strings.HasSuffix(told, ").") {
			e.t.Errorf("route %s, %s: it is told %s", route, way, told)
			continue
		}
		want := audit.Event{Event: kind, Route: route, Way: way, Outcome: outcome}
		if outcome != "server_closed" {
			want.SQLState, want.Message = code, strings.TrimSuffix(told[at+len(begin):], ").")
		}
		e.audited(want)
	}
}

func (e *errorTable) refusals() {
	e.refusesAtOnce("nowhere", "3D000", `there is no route "nowhere"`, "no_route")
	e.refusesAtOnce("closed", "28000", `may not use route "closed"`, "not_allowed")
	for range 2 { // the dial has failed, and the pool waits before the next
		e.refusesAtOnce("wrong", "28P01", `password authentication failed for user "app"`, "server_refused")
	}
	e.refusesAtOnce("nobody", "08001", "connection refused", "unreachable")
	e.refusesAtOnce("nohost", "08001", `host name "no-such-host.invalid" not found`, "unreachable")
	e.refusesAtOnce("expired", "08006", "server certificate expired 2 h ago", "tls")
}

func (e *errorTable) status() {
	e.await("each reason", func(s *admin.Status) bool {
		words := map[string]string{"wrong": "password authentication failed", "nobody": "connection refused", "nohost": "not found", "expired": "server certificate expired 2 h ago"}
		for _, r := range s.Routes {
			if w, ok := words[r.Name]; ok && strings.Contains(r.LastError, w) {
				delete(words, r.Name)
			}
		}
		return len(words) == 0
	})
	if got := query(e.t, e.connect(), "select 1"); got != "1" {
		e.t.Errorf("the route beside: %s", got)
	}
}

func (e *errorTable) poolFull() {
	e.lease("full", "wire")
	for way, told := range map[string]*refusal{"wire": e.asks("full"), "handoff": e.asksByHandoff("full")} {
		if !told.says("53300", `no connection of route "full" became free within 5`) || !told.says("53300", "pool.max and pool.wait_timeout") {
			e.t.Errorf("%s: told %+v", way, told)
		}
		e.audited(audit.Event{Event: audit.LeaseDenied, Route: "full", Way: way, Outcome: "pool_full", SQLState: "53300", Message: told.Message})
	}
}

func (e *errorTable) overLimits() {
	e.await("no lease", restored)
	e.lease("full", "wire")
	waits := e.ask("full")
	e.await("a function in the queue", waiting("full", 1))
	if told := e.asks("full"); !told.says("53300", "is over its limit of 1") || !told.says("53300", "limits.waiting") {
		e.t.Errorf("a second one that waits: %+v", told)
	}
	waits.conn.Close()
	e.await("nobody in the queue", waiting("full", 0))
	for range 3 {
		e.lease("orders", "handoff")
	}
	e.refusesAtOnce("orders", "53300", "is over its limit of 4", "over_limit")
	if told := e.asks("orders"); !told.says("53300", "limits.leases") {
		e.t.Errorf("a fifth lease: %+v", told)
	}
	for range 14 { // more than it may have, with the leases by the wire socket
		e.dialWire()
	}
	if told := e.asks("orders"); !told.says("53300", "limits.connections") {
		e.t.Errorf("one connection too many: %+v", told)
	}
	if told := e.asksByHandoff("orders"); !told.says("53300", "limits.connections") {
		e.t.Errorf("one connection too many, by the handoff socket: %+v", told)
	}
}

// waiting reports whether so many functions wait on a route.
func waiting(route string, n int) func(*admin.Status) bool {
	return func(s *admin.Status) bool {
		return slices.ContainsFunc(s.Routes, func(r admin.Route) bool { return r.Name == route && r.Waiting == n })
	}
}

func (e *errorTable) malformedFunction() {
	other := e.lease("orders", "wire")
	e.ends("orders", []byte("~~~~~~~~"), audit.LeaseReleased, "protocol", "08P01", "invalid frontend message type 126")
	r := e.dialWire()
	r.send([]byte("GET / HTTP/1.1\r\n\r\n"))
	if f := r.failure(); f.Code != "08P01" {
		e.t.Errorf("at the start-up: %v", f)
	}
	if err := other.ask(7); err != nil {
		e.t.Errorf("another function: %v", err)
	}
}

func (e *errorTable) malformedServer() {
	e.ends("malformed", message('Q', "hello\x00"), audit.LeaseReleased, "protocol", "08P01", "server message 'D' announces a length of 3 bytes")
}

func (e *errorTable) malformedRequests() {
	for _, line := range []string{"nonsense\n", `{"v":2,"op":"ping"}` + "\n", `{"v":1,"op":"steal"}` + "\n", `{"v":1,"v":1,"op":"ping"}` + "\n", strings.Repeat("x", 9<<10)} {
		c, err := net.Dial("unix", filepath.Join(e.runDir, "handoff.sock"))
		if err != nil {
			e.t.Fatal(err)
		}
		c.SetDeadline(time.Now().Add(patience))
		c.Write([]byte(line))
		if out, err := io.ReadAll(c); err != nil || !strings.Contains(string(out), `"sqlstate":"08P01"`) {
			e.t.Errorf("%.30q: %s, %v", line, out, err)
		}
		c.Close()
	}
}

func (e *errorTable) timeouts() {
	e.ends("aged", nil, audit.LeaseTimedOut, "lease_timeout", "57P05", "the lease is older than pool.lease_timeout (600ms)")
	e.ends("idle", nil, audit.LeaseTimedOut, "idle_lease", "57P05", "the lease was idle for longer than timeouts.idle_lease (400ms)")
	e.ends("open", message('Q', "begin\x00"), audit.LeaseTimedOut, "idle_in_transaction", "25P03", "timeouts.idle_in_transaction (400ms)")
	eventually(e.t, "no transaction to be left open", func() bool {
		n, err := e.pg.Psql(e.t.Context(), "select count(*) from pg_stat_activity where usename = 'app' and xact_start is not null")
		return err == nil && n == "0"
	})
}

func (e *errorTable) terminated() {
	e.ends("orders", message('Q', "select pg_terminate_backend(pg_backend_pid())\x00"), audit.LeaseReleased, "server_closed", "57P01", "terminating connection due to administrator command")
}

// limitFor returns the limit with which a process has so many descriptors left.
func limitFor(pid, left int) uint64 {
	for n := 0; ; n++ {
		if _, err := os.Lstat(fmt.Sprintf("/proc/%d/fd/%d", pid, n)); err == nil {
			continue
		}
		if left--; left < 0 {
			return uint64(n)
		}
	}
}

func (e *errorTable) outOfDescriptors() {
	e.atRest()
	pid, before := e.cmd.Process.Pid, unix.Rlimit{}
	if err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, nil, &before); err != nil {
		e.t.Fatal(err)
	}
	tight := unix.Rlimit{Cur: limitFor(pid, 2), Max: before.Max}
	if err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, &tight, nil); err != nil {
		testpg.Missing(e.t, "the daemon's limits cannot be changed: "+err.Error()+" (run the tests with CAP_SYS_RESOURCE)")
	}
	defer unix.Prlimit(pid, unix.RLIMIT_NOFILE, &before, nil)
	for told, n := "RKZ", 0; !strings.HasPrefix(told, "E(53300: the daemon is out of file descriptors)"); n++ {
		if told != "RKZ" || n == 4 {
			e.t.Fatalf("function %d is told %s", n, told)
		}
		r := e.dialWire()
		r.conn.Write(startupMessage(pgwire.Version30, "user", "app", "database", "orders")) // it is told, whether or not this arrives
		told = r.told()
	}
	if told := e.asksByHandoff("orders"); !told.says("53300", "the daemon is out of file descriptors") || !told.says("53300", "LimitNOFILE") {
		e.t.Errorf("by the handoff socket: told %+v", told)
	}
	unix.Prlimit(pid, unix.RLIMIT_NOFILE, &before, nil)
	eventually(e.t, "service again", e.back)
}

// back reports whether functions are served.
func (e *errorTable) back() bool {
	r := e.ask("orders")
	defer r.conn.Close()
	return r.told() == "RKZ" && r.ask(1) == nil
}

// killed kills one of two backends; PostgreSQL then ends the other.
func (e *errorTable) killed() {
	victim, other := e.lease("orders", "wire"), e.lease("orders", "handoff")
	victim.send(message('Q', "select pg_backend_pid()\x00"))
	var pid int
	if _, err := fmt.Sscanf(victim.told(), "TD(%d)CZ", &pid); err != nil {
		e.t.Fatal(err)
	}
	syscall.Kill(pid, syscall.SIGKILL)
	if told := victim.told(); told != "." {
		e.t.Errorf("whose backend is killed: it is told %s", told)
	}
	if told := other.told(); told != "N." { // a warning, 57P02
		e.t.Errorf("beside it: it is told %s", told)
	}
	for _, way := range []string{"wire", "handoff"} {
		e.audited(audit.Event{Event: audit.LeaseReleased, Route: "orders", Way: way, Outcome: "server_closed"})
	}
	eventually(e.t, "service again", e.back)
}

func (e *errorTable) terminates() {
	e.await("no lease", restored)
	idle, byHandoff, finishes, goesOn := e.lease("orders", "wire"), e.lease("orders", "handoff"), e.lease("orders", "wire"), e.lease("orders", "handoff")
	for _, r := range []*raw{finishes, goesOn} {
		r.send(message('Q', "begin\x00"))
		r.told()
	}
	start := time.Now()
	e.cmd.Process.Signal(syscall.SIGTERM)
	const words = "57P01: terminating connection: pghandoff is shutting down"
	for name, r := range map[string]*raw{"idle": idle, "idle, by the handoff socket": byHandoff} {
		if told, took := r.told(), time.Since(start); told != "E("+words+")." || took > time.Second {
			e.t.Errorf("%s: it is told %s after %s", name, told, took)
		}
	}
	finishes.send(message('Q', "commit\x00"))
	if told := finishes.told() + finishes.told(); told != "CZE("+words+")." {
		e.t.Errorf("a transaction that ends: it is told %s", told)
	}
	if told, took := goesOn.told(), time.Since(start); told != "E("+words+")." || took < 1900*time.Millisecond || took > 4*time.Second {
		e.t.Errorf("one that goes on: it is told %s after %s", told, took)
	}
	for _, way := range []string{"wire", "handoff"} {
		e.audited(audit.Event{Event: audit.LeaseRevoked, Route: "orders", Way: way, Outcome: "shutdown", SQLState: "57P01", Message: words[7:]})
	}
	select {
	case <-e.done:
	case <-time.After(patience):
		e.t.Error("the daemon goes on")
	}
}
