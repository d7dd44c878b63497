package tests

import (
	"crypto/tls"
	"encoding/binary"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pghandoff/handoff"
	"pghandoff/pgwire"
	"pghandoff/proxy/admin"
	"pghandoff/proxy/audit"
)

// hostileCase is one way to be no PostgreSQL, and what a function sees of it.
type hostileCase struct {
	name     string
	tls      bool
	script   hostileScript
	pool     string   // further settings of the pool; empty: each upstream is used once
	startup  []string // further start-up parameters of the function
	started  string   // what it is told at the start, or how that begins; empty: RKZ
	answered string   // … and after a query; empty: TD(hello)CZ
	then     string   // … and after that, if anything is to come
	outcome  string   // of the refusal or the lease in the audit; empty: it ended well
}

// patience is how long a function waits for an answer in these tests: no hang is
// as short.
const patience = 8 * time.Second

// Proves that nothing that a server says or does at the login makes the daemon
// hang or fall, that the function is told what is wrong, by either socket, that
// neither another route nor the next dial suffers, and that no descriptor stays.
func TestHostileServersAtTheLogin(t *testing.T) { runHostile(t, loginCases()) }

// Proves the same of what a server does once a function has its connection.
func TestHostileServersInASession(t *testing.T) { runHostile(t, sessionCases()) }

// hostileRun is one daemon with a route to an honest server and one to each of
// the servers of a table.
type hostileRun struct {
	*daemon
	cases   []hostileCase
	servers []*hostileServer
	before  footprint
}

func runHostile(t *testing.T, cases []hostileCase) {
	h, whole := &hostileRun{daemon: newDaemon(t), cases: cases}, t
	honest := startFakeServer(t, func(*fakeServer) {})
	routes := ""
	for i, c := range cases {
		var config *tls.Config
		if c.tls {
			config = honest.config
		}
		pool := c.pool
		if pool == "" {
			pool = "reset: close"
		}
		s := startHostileServer(t, config, c.script)
		h.servers = append(h.servers, s)
		routes += s.route(routeOf(i), filepath.Join(h.dir, "password"), pool)
	}
	h.configure(honest.cluster, settings{Pool: "min_idle: 1, max: 1, reset: none", Route: routes, Secret: "hush"})
	h.start("serve", "--config", h.config)
	h.awaitWarm()
	h.serves("orders")
	h.before = h.atRest()
	for i, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			h.t = t
			defer func() { h.t = whole }()
			h.run(t, i)
		})
	}
	after := h.footprint()
	if after.threads > h.before.threads+5 || after.resident > h.before.resident+16<<20 && !raceEnabled {
		t.Errorf("the daemon takes %+v, %+v before", after, h.before)
	}
	if n, idle := h.goroutines(), idleGoroutines(t, h.config); n > idle+2 {
		t.Errorf("%d goroutines, %d in a daemon that has done nothing", n, idle)
	}
}

func routeOf(i int) string { return fmt.Sprintf("r%d", i) }

// idleGoroutines counts those of another daemon with the same configuration that
// nobody has used.
func idleGoroutines(t *testing.T, config string) int {
	t.Helper()
	d := newDaemon(t)
	text := strings.NewReplacer(filepath.Join(filepath.Dir(config), "run"), d.runDir, filepath.Join(filepath.Dir(config), "audit.jsonl"), d.auditLog).Replace(readFile(t, config))
	write(t, d.config, text)
	d.start("serve", "--config", d.config)
	d.awaitWarm()
	return d.goroutines()
}

// atRest returns what the daemon takes when that does not change any more.
func (d *daemon) atRest() (f footprint) {
	d.t.Helper()
	d.await("no lease", restored)
	same := 0
	eventually(d.t, "the daemon to come to rest", func() bool {
		now := d.footprint()
		if same++; now.descriptors != f.descriptors {
			same = 0
		}
		f = now
		return same == 10
	})
	return f
}

// restored reports whether no lease is left.
func restored(s *admin.Status) bool { return len(s.Leases) == 0 }

func (h *hostileRun) run(t *testing.T, i int) {
	c, s, route := h.cases[i], h.servers[i], routeOf(i)
	or := func(a, b string) string {
		if a == "" {
			return b
		}
		return a
	}
	start := time.Now()
	r := h.ask(route, c.startup...)
	r.conn.SetDeadline(start.Add(patience))
	address := fmt.Sprintf("127.0.0.1:%d", s.port)
	started := strings.ReplaceAll(r.told(), address, "SERVER")
	if want := or(c.started, "RKZ"); started != want {
		t.Errorf("at the start it is told %s, not %s", started, want)
	}
	if strings.HasSuffix(started, "Z") {
		r.conn.Write(message('Q', "hello\x00"))
		if got, want := r.told(), or(c.answered, "TD(hello)CZ"); got != want {
			t.Errorf("after a query it is told %s, not %s", got, want)
		}
		if c.then == "" {
		} else if got := r.told(); got != c.then {
			t.Errorf("and then %s, not %s", got, c.then)
		}
	} else {
		h.refusesByHandoff(route, address, started, c.startup)
	}
	r.conn.Close()
	t.Logf("it took %s", time.Since(start).Round(time.Millisecond))
	h.ends(route, c.outcome)
	s.bad.Store(false)
	if err := h.client().Reload(t.Context()); err != nil { // so that the pool dials at once
		t.Error(err)
	}
	h.serves(route)
	h.serves("orders")
	s.closeAll()
	h.await("rest", restored)
	eventually(t, "as many descriptors as before", func() bool { return h.footprint().descriptors == h.before.descriptors })
}

// refusesByHandoff checks that a function at the other socket is told the same.
func (h *hostileRun) refusesByHandoff(route, address, told string, startup []string) {
	h.t.Helper()
	request := handoff.Request{Socket: filepath.Join(h.runDir, "handoff.sock"), Database: route, User: "app", State: handoff.Ready}
	if len(startup) > 0 {
		request.Parameters = map[string]string{startup[0]: startup[1]}
	}
	_, err := handoff.Acquire(h.t.Context(), request)
	refusal, ok := err.(*handoff.Refusal)
	if !ok || strings.TrimPrefix(told, "R") != fmt.Sprintf("E(%s: %s).", refusal.SQLState, strings.ReplaceAll(refusal.Message, address, "SERVER")) {
		h.t.Errorf("by the handoff socket it is told %v, and %s by the other", err, told)
	}
}

// ends checks how the audit has it.
func (h *hostileRun) ends(route, outcome string) {
	h.t.Helper()
	h.awaitEvent("of the end as "+outcome, func(e audit.Event) bool {
		if e.Route != route || e.Way != "wire" || e.Event != audit.LeaseDenied && e.Event != audit.LeaseReleased {
			return false
		}
		return e.Outcome == outcome || outcome == "" && e.Outcome == "closed"
	})
}

// serves checks that a route gives a function what it asks for.
func (h *hostileRun) serves(route string) {
	h.t.Helper()
	r := h.ask(route)
	r.conn.SetDeadline(time.Now().Add(patience))
	if got := r.told(); got != "RKZ" {
		h.t.Errorf("route %s: a function is told %s", route, got)
		return
	}
	if err := r.echo("served"); err != nil {
		h.t.Errorf("route %s: %v", route, err)
	}
	r.conn.Close()
}

// The parts that scripts are made of.

func auth(code uint32, data string) []byte {
	return message('R', string(binary.BigEndian.AppendUint32(nil, code))+data)
}

var (
	offerSCRAM = auth(10, "SCRAM-SHA-256\x00\x00")
	authOK     = auth(0, "")
	ready      = message('Z', "I")
	key        = message('K', "\x00\x00\x00\x07\x00\x00\x00\x07")
)

func parameter(name, value string) []byte { return message('S', name+"\x00"+value+"\x00") }

func failed(severity, code, text string) []byte {
	return pgwire.AppendError(nil, pgwire.Notice{Severity: severity, Code: code, Message: text})
}

// frame is a message whose length is a lie.
func frame(typ byte, length uint32, body string) []byte {
	return append(binary.BigEndian.AppendUint32([]byte{typ}, length), body...)
}

// logsIn is a login that says this.
func logsIn(parts ...[]byte) hostileScript {
	return hostileScript{login: func(v *visit) { v.say(parts...) }}
}

// scram is a login that answers the daemon's first SASL message, whose nonce it
// is given, and then, if it is not empty, the second one.
func scram(first func(nonce string) string, then ...[]byte) hostileScript {
	return hostileScript{login: func(v *visit) {
		v.say(offerSCRAM)
		_, nonce, _ := strings.Cut(string(v.hears()), ",r=")
		v.say(auth(11, first(nonce)))
		if len(then) > 0 {
			v.hears()
			v.say(then...)
		}
	}}
}

// accepts is a server that says this where it should read SSLRequest's successor.
func accepts(say func(*visit)) hostileScript {
	return hostileScript{accept: func(v *visit) {
		if _, err := readStartup(v); err == nil {
			say(v)
		}
	}}
}

// answers is a server that says this to a query.
func answers(say func(*visit)) hostileScript {
	return hostileScript{hear: func(v *visit, typ byte, body []byte) bool {
		if typ != 'Q' || string(body) != "hello\x00" {
			return false
		}
		say(v)
		return true
	}}
}

// says is a server that says this to a query.
func says(parts ...[]byte) hostileScript { return answers(func(v *visit) { v.say(parts...) }) }
