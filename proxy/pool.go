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

	mu       sync.Mutex
	idle     []*Upstream // the one that came back last is taken first
	waiters  []*waiter   // in order of arrival
	open     int         // upstreams that exist: idle, leased, being reset
	dialling int
	failure  *failedDial // nil once a dial has succeeded
	closed   bool
	ctx      context.Context // of run: ends the dials
	work     sync.WaitGroup  // run and dials
	wake     chan struct{}   // capacity 1: look again
}

// poolEvents tell the outside what happened. Each must be set and must not
// block.
type poolEvents struct {
	opened func(*Upstream)
	closed func(u *Upstream, reason string)
	failed func(err error, retryIn time.Duration)
}

// waiter is one function in the queue.
type waiter struct{ ch chan granted } // capacity 1

type granted struct {
	up  *Upstream
	err error
}

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
// one and nobody waits; else nil.
func (p *pool) takeIdle() *Upstream {
	for {
		g, w := p.claim(false, false)
		if w != nil || g.up == nil {
			return nil
		}
		if g.up.fit() {
			return g.up
		}
		p.drop(g.up, "closed by the server")
	}
}

// take returns an upstream that is fit to be handed out, waiting at most wait
// for one, in order of arrival; notice, if set, is called once when the wait
// gets long. Errors: a *Failure, what the last dial said, or ctx's.
func (p *pool) take(ctx context.Context, wait time.Duration, notice func()) (*Upstream, error) {
	start := time.Now()
	first := false
	for {
		g, w := p.claim(first, wait > 0)
		if w != nil {
			g = p.await(ctx, w, start, wait, notice)
			notice = nil
		}
		switch {
		case errors.Is(g.err, errPoolFullNow):
			return nil, p.full(start)
		case g.err != nil:
			return nil, g.err
		case g.up.fit():
			return g.up, nil
		}
		p.drop(g.up, "closed by the server")
		first = true // it was our turn
	}
}

// errPoolClosed: a reload has replaced the pool, or the daemon stops.
var errPoolClosed = errors.New("pool is closed")

// errPoolFullNow is replaced by a Failure that says how long was waited.
var errPoolFullNow = errors.New("no upstream is free")

func (p *pool) full(start time.Time) error {
	p.mu.Lock()
	failure := p.failure
	p.mu.Unlock()
	if failure != nil && time.Now().Before(failure.until) {
		return failure.err
	}
	return errPoolFull(p.route, time.Since(start), p.cfg.Max)
}

// claim takes an idle upstream, or joins the queue: at its head if first.
func (p *pool) claim(first, mayWait bool) (granted, *waiter) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.closed:
		return granted{err: errPoolClosed}, nil
	case len(p.idle) > 0 && (first || len(p.waiters) == 0):
		u := p.idle[len(p.idle)-1]
		p.idle = p.idle[:len(p.idle)-1]
		p.fillLocked()
		return granted{up: u}, nil
	case p.failure != nil && p.open == 0 && time.Now().Before(p.failure.until):
		return granted{err: p.failure.err}, nil
	case !mayWait:
		p.fillLocked()
		return granted{err: errPoolFullNow}, nil
	}
	w := &waiter{ch: make(chan granted, 1)}
	if first {
		p.waiters = slices.Insert(p.waiters, 0, w)
	} else {
		p.waiters = append(p.waiters, w)
	}
	p.fillLocked()
	return granted{}, w
}

// await waits for the queue to serve w.
func (p *pool) await(ctx context.Context, w *waiter, start time.Time, wait time.Duration, notice func()) granted {
	timeout := time.NewTimer(time.Until(start.Add(wait)))
	defer timeout.Stop()
	var long <-chan time.Time
	if notice != nil && p.cfg.WaitNotice > 0 {
		t := time.NewTimer(p.cfg.WaitNotice.Std())
		defer t.Stop()
		long = t.C
	}
	for {
		select {
		case g := <-w.ch:
			return g
		case <-long:
			notice()
			long = nil
		case <-timeout.C:
			if p.leave(w) {
				return granted{err: errPoolFullNow}
			}
			return <-w.ch
		case <-ctx.Done():
			if !p.leave(w) {
				if g := <-w.ch; g.up != nil {
					p.give(g.up)
				}
			}
			return granted{err: context.Cause(ctx)}
		}
	}
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
	case u.retired(now):
		p.mu.Unlock()
		p.drop(u, "max_lifetime")
		return
	case len(p.waiters) > 0:
		w := p.waiters[0]
		p.waiters = slices.Delete(p.waiters, 0, 1)
		w.ch <- granted{up: u}
	default:
		u.idleFrom = now
		p.idle = append(p.idle, u)
	}
	p.mu.Unlock()
	p.nudge()
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
	if p.failure != nil {
		last = p.failure.err
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
		w.ch <- granted{err: errPoolClosed}
	}
	for _, u := range idle {
		p.drop(u, "shutdown")
	}
	p.nudge()
	p.work.Wait()
}
