package proxy

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"pghandoff/proxy/config"
)

// pool holds the upstreams of one route and the functions that wait for one.
// Its methods are safe for concurrent use; run must be running for it to fill.
type pool struct {
	route string
	cfg   config.Pool
	make  func(context.Context) (*Upstream, error) // dials; a worker's job
	on    poolEvents
	// standing says whether an upstream's server is still what the route wants, by
	// what it has reported; ask lets it report, in the background, and calls then
	// with whether the upstream is as it was. nil: nobody wants to know.
	standing func(*Upstream) bool
	ask      func(u *Upstream, then func(fit bool))

	mu         sync.Mutex
	rotation   rotation    // the last one
	trustEpoch uint64      // counts the times that an anchor went
	idle       []*Upstream // the one that came back last is taken first
	waiters    []*waiter   // in order of arrival
	open       int         // upstreams that exist: idle, leased, being reset
	dialling   int
	failure    *failedDial // nil once a dial has succeeded
	doubted    *failedDial // the failure before that, until an upstream is found fit
	stillborn  int         // upstreams that were no good from the start, since one was
	closed     bool
	ctx        context.Context // of run: ends the dials
	work       sync.WaitGroup  // run and dials
	wake       chan struct{}   // capacity 1: look again
}

// poolEvents tell the outside what happened. Each must be set and must not
// block.
type poolEvents struct {
	opened func(*Upstream)
	closed func(u *Upstream, reason string)
	failed func(err error, retryIn time.Duration)
}

// waiter is one function in the queue. deliver is called once, unless it leaves,
// with an upstream or why there is none; it must not block.
type waiter struct{ deliver func(*Upstream, error) }

// failedDial is why there is no upstream and when to try again.
type failedDial struct {
	err   error
	until time.Time
	delay time.Duration
}

const (
	parallelDials = 4 // at a time and route
	// Delays between failed dials. The first are for a server that restarts,
	// the second for one that would say the same again.
	firstDelay, lastDelay               = 100 * time.Millisecond, 5 * time.Second
	firstLastingDelay, lastLastingDelay = time.Second, time.Minute
	// inspectEvery is how often idle upstreams are looked at.
	inspectEvery = 500 * time.Millisecond
)

func newPool(route string, cfg config.Pool, dial func(context.Context) (*Upstream, error), on poolEvents) *pool {
	return &pool{route: route, cfg: cfg, make: dial, on: on, wake: make(chan struct{}, 1)}
}

// takeIdle returns an idle upstream that is fit to be handed out, if there is
// one and nobody waits; else nil. Its place is filled by refill, when the
// function has been served.
func (p *pool) takeIdle() *Upstream {
	for {
		u := p.popIdle()
		if u == nil {
			return nil
		}
		if u.fit() {
			p.proved(u)
			return u
		}
		p.drop(u, "closed by the server") // if that is how it always ends, the next one will show it
	}
}

func (p *pool) popIdle() *Upstream {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || len(p.idle) == 0 || len(p.waiters) > 0 {
		return nil
	}
	return p.popLocked()
}

func (p *pool) popLocked() *Upstream {
	last := len(p.idle) - 1
	u := p.idle[last]
	p.idle[last] = nil
	p.idle = p.idle[:last]
	return u
}

// take returns an idle upstream, which may not be fit, or why there will be none.
// If both are nil, w has joined the queue: at its head if it was its turn before.
// Errors: errPoolClosed, or what the last dial said.
func (p *pool) take(w *waiter, again bool) (*Upstream, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	defer p.fillLocked()
	switch {
	case p.closed:
		return nil, errPoolClosed
	case len(p.idle) > 0 && (again || len(p.waiters) == 0):
		return p.popLocked(), nil
	case p.failure != nil && p.open == 0 && time.Now().Before(p.failure.until):
		return nil, p.failure.err
	case again:
		p.waiters = slices.Insert(p.waiters, 0, w)
	default:
		p.waiters = append(p.waiters, w)
	}
	return nil, nil
}

// refill starts dials for what is missing.
func (p *pool) refill() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fillLocked()
}

// errPoolClosed: a reload has replaced the pool, or the daemon stops.
var errPoolClosed = errors.New("pool is closed")

// full says why a function that may not wait any more gets nothing.
func (p *pool) full(start time.Time) error {
	p.mu.Lock()
	failure := p.failure
	p.mu.Unlock()
	if failure != nil && time.Now().Before(failure.until) {
		return failure.err
	}
	return errPoolFull(p.route, time.Since(start), p.cfg.Max)
}

// leave takes w out of the queue; false: it has been served meanwhile.
func (p *pool) leave(w *waiter) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	i := slices.Index(p.waiters, w)
	if i < 0 {
		return false
	}
	p.waiters = slices.Delete(p.waiters, i, i+1)
	return true
}

// give puts a clean upstream into the pool, or into the hands of the function
// that waits longest.
func (p *pool) give(u *Upstream) {
	p.mu.Lock()
	now := time.Now()
	switch {
	case p.closed:
		p.mu.Unlock()
		p.drop(u, "shutdown")
		return
	case p.retiredLocked(u, now) != "":
		why := p.retiredLocked(u, now)
		p.mu.Unlock()
		p.drop(u, why)
		return
	case p.standing != nil && !p.standing(u):
		p.mu.Unlock()
		p.drop(u, reasonChanged)
		return
	case len(p.waiters) > 0:
		w := p.waiters[0]
		p.waiters = slices.Delete(p.waiters, 0, 1)
		p.mu.Unlock()
		w.deliver(u, nil)
		return
	default:
		u.idleFrom = now
		p.idle = append(p.idle, u)
	}
	p.mu.Unlock()
}

// drop closes an upstream and fills its place.
func (p *pool) drop(u *Upstream, reason string) {
	p.mu.Lock()
	p.open--
	p.fillLocked()
	p.mu.Unlock()
	u.close()
	p.on.closed(u, reason)
}

// reasonChanged is why an upstream is closed whose server was promoted, or has
// become read-only.
const reasonChanged = "its server has changed"

// replaced notes that u is there in the place of old, which was closed.
func (p *pool) replaced(old, u *Upstream) {
	p.on.closed(old, "replaced by one with parameters of its own")
	p.on.opened(u)
}

// nudge makes run look at the pool.
func (p *pool) nudge() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// counts returns how many upstreams and functions there are.
func (p *pool) counts() (idle, leased, dialling, waiting int, last error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.failure != nil:
		last = p.failure.err
	case p.doubted != nil: // what was dialled since is still to show that it is any good
		last = p.doubted.err
	}
	return len(p.idle), p.open - len(p.idle), p.dialling, len(p.waiters), last
}

// close drops what is idle, refuses who waits and ends the dials. Leased
// upstreams are closed when they come back. It waits for dials.
func (p *pool) close() {
	p.mu.Lock()
	idle, waiters := p.idle, p.waiters
	p.idle, p.waiters, p.closed = nil, nil, true
	p.mu.Unlock()
	for _, w := range waiters {
		w.deliver(nil, errPoolClosed)
	}
	for _, u := range idle {
		p.drop(u, "shutdown")
	}
	p.nudge()
	p.work.Wait()
}
