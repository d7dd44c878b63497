package proxy

import (
	"context"
	"fmt"
	"os"
	"runtime/pprof"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"pghandoff/pgwire"
	"pghandoff/proxy/audit"
	"pghandoff/proxy/config"
)

// plan is what a house is built from.
type plan struct {
	loops   int
	limits  config.Limits
	pool    config.Pool
	patient patiences
	backend *backend
}

// house is a daemon without sockets of its own: its loops are real, its routes
// "orders" and "other" get their upstreams from a backend, and functions come by
// socketpairs.
type house struct {
	*backend
	t     *testing.T
	d     *Daemon
	door  *door
	trail *safeBuffer
	log   *safeBuffer
	stop  func() // drains, and ends all of it; it may be called twice
}

// build builds a house and ends it with the test.
func build(t *testing.T, change func(*plan)) *house {
	p := plan{loops: 1, limits: config.Limits{Leases: 1000, Waiting: 1000, Connections: 1000}, patient: usualPatiences, backend: newBackend(),
		pool: config.Pool{MinIdle: 1, Max: 1, Reset: "none", WaitTimeout: config.Duration(20 * time.Second)}}
	if change != nil {
		change(&p)
	}
	h := &house{backend: p.backend, t: t, door: &door{}, trail: new(safeBuffer), log: new(safeBuffer)}
	h.d = &Daemon{log: zerolog.New(h.log), limits: newLimits(p.limits), leases: newRegistry(), started: time.Now(), visitors: map[visitor]struct{}{},
		descriptors: spare{fd: -1}, patiences: p.patient}
	var err error
	if h.d.trail, err = audit.Open("", h.trail); err != nil {
		t.Fatal(err)
	}
	tab := &table{cfg: &config.Config{Loops: p.loops}, routes: map[string]*Route{}}
	for _, name := range []string{"orders", "other"} {
		tab.routes[name] = h.route(name, p.pool)
	}
	h.d.table.Store(tab)
	h.open()
	h.warm("orders", p.pool.MinIdle)
	h.warm("other", p.pool.MinIdle)
	return h
}

// route makes a route to the backend, at which everybody may be.
func (h *house) route(name string, pool config.Pool) *Route {
	cfg := config.Route{Pool: pool, Timeouts: config.Timeouts{Connect: config.Duration(5 * time.Second), Drain: config.Duration(time.Second)}}
	r := &Route{name: name, known: remembered{}, cfg: cfg, dialler: &dialler{cfg: cfg}, cancels: make(chan struct{}, cancelBudget)}
	r.access = access{rules: []rule{{any: true}}}
	r.own = func(ctx context.Context, startup []pgwire.Parameter) (*Upstream, error) {
		h.backend.hear(fmt.Sprint("dialled with ", startup))
		return h.dial(ctx)
	}
	events := poolEvents{opened: func(*Upstream) {}, closed: func(*Upstream, string) {}, failed: func(err error, _ time.Duration) { h.d.log.Warn().Err(err).Msg("dial") }}
	r.pool = newPool(name, pool, h.dial, events)
	return r
}

// open does what Run does.
func (h *house) open() {
	base, end := context.WithCancel(h.t.Context())
	h.d.base = base
	ended, err := h.d.startLoops()
	if err != nil {
		h.t.Fatal(err)
	}
	for _, r := range h.d.table.Load().routes {
		r.start(base)
	}
	h.d.onFront(func() {
		h.d.pairs.loop = h.d.front()
		h.d.pairs.refill()
	})
	h.stop = sync.OnceFunc(func() {
		h.within("drain", h.d.drain)
		for _, r := range h.d.table.Load().routes {
			r.close()
		}
		end()
		ended()
		h.d.trail.Close()
		close(h.over)
		h.hangUp()
		h.all.Wait()
	})
	h.t.Cleanup(h.stop)
}

// within fails the test if f takes long, and says where everybody is.
func (h *house) within(what string, f func()) {
	h.t.Helper()
	done := make(chan struct{})
	go func() { f(); close(done) }()
	select {
	case <-done:
	case <-time.After(20 * time.Second):
		pprof.Lookup("goroutine").WriteTo(os.Stderr, 1)
		h.t.Fatalf("%s hangs", what)
	}
}

// eventually waits until it is so.
func (h *house) eventually(what string, so func() bool) {
	h.t.Helper()
	for end := time.Now().Add(10 * time.Second); !so(); {
		if time.Now().After(end) {
			h.t.Fatalf("it never came to pass: %s", what)
		}
		<-time.After(time.Millisecond)
	}
}

// warm waits until a route has so many idle upstreams, and nobody on it.
func (h *house) warm(route string, n int) {
	h.t.Helper()
	h.eventually("idle upstreams", func() bool {
		idle, leased, _, waiting, _ := h.d.table.Load().routes[route].pool.counts()
		return idle == n && leased == 0 && waiting == 0
	})
}

// queued waits until so many functions are in the queue.
func (h *house) queued(n int) {
	h.t.Helper()
	h.eventually("functions in the queue", func() bool {
		_, _, _, waiting, _ := h.d.table.Load().routes["orders"].pool.counts()
		return waiting == n
	})
}

// lease returns the only lease that there is.
func (h *house) lease() *Lease {
	h.t.Helper()
	h.eventually("one lease", func() bool { return len(h.d.leases.all()) == 1 })
	return h.d.leases.all()[0]
}

// held returns what this process's uid holds.
func (h *house) held() usage {
	h.d.limits.mu.Lock()
	defer h.d.limits.mu.Unlock()
	if u := h.d.limits.of[holder{uid: uint32(os.Geteuid())}]; u != nil {
		return *u
	}
	return usage{}
}

// empty waits until nobody holds anything.
func (h *house) empty() {
	h.t.Helper()
	h.eventually("nobody holds anything", func() bool {
		visitors := 0
		h.d.onFront(func() { visitors = len(h.d.visitors) + h.d.refusals })
		return visitors == 0 && h.held() == usage{} && len(h.d.leases.all()) == 0
	})
}

// unleased waits until nobody has a lease.
func (h *house) unleased() {
	h.t.Helper()
	h.eventually("nobody has a lease", func() bool { return len(h.d.leases.all()) == 0 && h.held().leases == 0 })
}
