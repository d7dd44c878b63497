package proxy

import (
	"context"
	"errors"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"pghandoff/pgwire"
	"pghandoff/proxy/config"
)

// fakeServer makes upstreams whose other end the test holds.
type fakeServer struct {
	t       *testing.T
	mu      sync.Mutex
	ends    []net.Conn
	err     error         // what the next dials fail with
	delay   time.Duration // how long a dial takes
	dials   atomic.Int32
	open    atomic.Int32
	most    atomic.Int32
	lives   time.Duration // until an upstream retires; 0: for ever
	reasons []string
}

func (f *fakeServer) dial(ctx context.Context) (*Upstream, error) {
	f.dials.Add(1)
	time.Sleep(f.delay)
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err != nil {
		return nil, f.err
	}
	p, err := newPair()
	if err != nil {
		return nil, err
	}
	theirs := os.NewFile(uintptr(p.theirs), "server")
	other, err := net.FileConn(theirs)
	theirs.Close()
	if err != nil {
		return nil, err
	}
	f.ends = append(f.ends, other)
	u := &Upstream{end: end{fd: p.ours}, pid: uint32(len(f.ends)), opened: time.Now(), tracker: pgwire.NewTracker('I')}
	if f.lives > 0 {
		u.retire = u.opened.Add(f.lives)
	}
	f.most.Store(max(f.most.Load(), f.open.Add(1)))
	return u, nil
}

func (f *fakeServer) events() poolEvents {
	return poolEvents{
		opened: func(*Upstream) {},
		closed: func(_ *Upstream, reason string) {
			f.open.Add(-1)
			f.mu.Lock()
			defer f.mu.Unlock()
			f.reasons = append(f.reasons, reason)
		},
		failed: func(error, time.Duration) {},
	}
}

// withPool runs a pool within a bubble of fake time.
func withPool(t *testing.T, cfg config.Pool, f *fakeServer, do func(t *testing.T, p *pool)) {
	synctest.Test(t, func(t *testing.T) {
		f.t = t
		ctx, cancel := context.WithCancel(t.Context())
		p := newPool("r", cfg, f.dial, f.events())
		done := make(chan struct{})
		go func() { defer close(done); p.run(ctx) }()
		synctest.Wait()
		do(t, p)
		cancel()
		<-done
		p.close()
		for _, c := range f.ends {
			c.Close()
		}
	})
}

// take waits for an upstream as an ask does, but by blocking.
func take(ctx context.Context, p *pool, wait time.Duration) (*Upstream, error) {
	defer p.refill()
	start := time.Now()
	if u := p.takeIdle(); u != nil {
		return u, nil
	}
	if wait == 0 {
		return nil, p.full(start)
	}
	type delivery struct {
		u   *Upstream
		err error
	}
	delivered := make(chan delivery, 1)
	w := &waiter{deliver: func(u *Upstream, err error) { delivered <- delivery{u, err} }}
	timeout := time.NewTimer(wait)
	defer timeout.Stop()
	for again := false; ; again = true {
		u, err := p.take(w, again)
		if u == nil && err == nil {
			select {
			case d := <-delivered:
				u, err = d.u, d.err
			case <-timeout.C:
				if p.leave(w) {
					return nil, p.full(start)
				}
				d := <-delivered
				u, err = d.u, d.err
			case <-ctx.Done():
				if d := (delivery{}); !p.leave(w) {
					if d = <-delivered; d.u != nil {
						p.give(d.u)
					}
				}
				return nil, ctx.Err()
			}
		}
		if err != nil || u.fit() {
			return u, err
		}
		p.drop(u, "closed by the server")
	}
}

func settle(d time.Duration) { time.Sleep(d); synctest.Wait() }

func TestPoolKeepsMinIdleWhateverIsTaken(t *testing.T) {
	withPool(t, config.Pool{MinIdle: 3, Max: 5}, &fakeServer{}, func(t *testing.T, p *pool) {
		settle(time.Second)
		for taken, want := range []int{3, 3, 3, 2, 1, 0} {
			if idle, leased, _, _, _ := p.counts(); idle != want || leased != taken {
				t.Errorf("%d taken: %d idle, %d leased", taken, idle, leased)
			}
			if taken < 5 {
				if _, err := take(t.Context(), p, 0); err != nil {
					t.Fatal(err)
				}
				settle(time.Second)
			}
		}
	})
}

func TestPoolServesInOrderOfArrival(t *testing.T) {
	f := &fakeServer{}
	withPool(t, config.Pool{MinIdle: 1, Max: 1}, f, func(t *testing.T, p *pool) {
		settle(time.Second)
		u, err := take(t.Context(), p, 0)
		if err != nil {
			t.Fatal(err)
		}
		var order []int
		var all sync.WaitGroup
		for i := range 5 {
			all.Go(func() {
				u, err := take(t.Context(), p, time.Minute)
				if err != nil {
					t.Error(err)
					return
				}
				order = append(order, i)
				p.give(u)
			})
			synctest.Wait()
		}
		p.give(u)
		all.Wait()
		for i, n := range order {
			if i != n {
				t.Fatalf("served in the order %v", order)
			}
		}
	})
}

func TestPoolForgetsWhoStoppedWaiting(t *testing.T) {
	withPool(t, config.Pool{MinIdle: 0, Max: 1}, &fakeServer{}, func(t *testing.T, p *pool) {
		if _, err := take(t.Context(), p, time.Second); err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		_, err := take(t.Context(), p, 5*time.Second)
		if waited := time.Since(start); failureOf(err).SQLState != codeTooMany || waited != 5*time.Second {
			t.Errorf("got %v after %s", err, waited)
		}
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		if _, err := take(ctx, p, time.Minute); !errors.Is(err, context.Canceled) {
			t.Errorf("a function that is gone: %v", err)
		}
		if _, _, _, waiting, _ := p.counts(); waiting != 0 {
			t.Errorf("%d still wait", waiting)
		}
		if _, err := take(t.Context(), p, 0); failureOf(err).SQLState != codeTooMany {
			t.Errorf("no wait at all: %v", err)
		}
	})
}

func TestPoolDoesNotHammerAServerThatRefuses(t *testing.T) {
	refused := &pgwire.ServerError{Notice: pgwire.Notice{Severity: "FATAL", Code: "28P01", Message: "no"}}
	f := &fakeServer{err: refused}
	withPool(t, config.Pool{MinIdle: 2, Max: 5}, f, func(t *testing.T, p *pool) {
		settle(time.Second / 2)
		before := f.dials.Load()
		for range 100 {
			if _, err := take(t.Context(), p, time.Minute); !errors.Is(err, refused) {
				t.Fatalf("got %v", err)
			}
		}
		if n := f.dials.Load() - before; n > 1 {
			t.Errorf("100 functions made %d dials", n)
		}
		settle(time.Hour)
		if n := f.dials.Load(); n < 50 || n > 90 {
			t.Errorf("%d dials in an hour, about one a minute is meant", n)
		}
		f.mu.Lock()
		f.err = nil
		f.mu.Unlock()
		settle(2 * time.Minute)
		if idle, _, _, _, last := p.counts(); idle != 2 || last != nil {
			t.Errorf("after the password is right again: %d idle, %v", idle, last)
		}
	})
}

func TestPoolTellsWhoWaitsAtOnceThatTheServerIsGone(t *testing.T) {
	gone := &net.OpError{Op: "dial", Err: unix.ECONNREFUSED}
	f := &fakeServer{err: gone, delay: 30 * time.Millisecond}
	withPool(t, config.Pool{MinIdle: 0, Max: 5}, f, func(t *testing.T, p *pool) {
		start := time.Now()
		if _, err := take(t.Context(), p, time.Minute); !errors.Is(err, gone) || time.Since(start) > time.Second {
			t.Errorf("got %v after %s", err, time.Since(start))
		}
	})
}

func TestPoolReplacesBeforeItCloses(t *testing.T) {
	f := &fakeServer{lives: time.Minute, delay: 5 * time.Second}
	withPool(t, config.Pool{MinIdle: 2, Max: 4}, f, func(t *testing.T, p *pool) {
		settle(10 * time.Second)
		for range 20 * 60 {
			settle(time.Second)
			if idle, _, _, _, _ := p.counts(); idle < 2 {
				t.Fatalf("%d idle", idle)
			}
		}
		if n := f.dials.Load(); n < 30 {
			t.Errorf("only %d dials in twenty lifetimes of two", n)
		}
		if f.most.Load() > 4 {
			t.Errorf("%d upstreams at a time", f.most.Load())
		}
	})
}

func TestPoolReplacesWhenItIsFull(t *testing.T) {
	f := &fakeServer{lives: time.Minute, delay: time.Second}
	withPool(t, config.Pool{MinIdle: 2, Max: 2}, f, func(t *testing.T, p *pool) {
		settle(10 * time.Minute)
		if n, most := f.dials.Load(), f.most.Load(); n < 16 || most > 2 {
			t.Errorf("%d dials, %d upstreams at most", n, most)
		}
	})
}

func TestPoolLetsGoOfWhatIsIdleForTooLong(t *testing.T) {
	f := &fakeServer{}
	withPool(t, config.Pool{MinIdle: 1, Max: 5, IdleTimeout: config.Duration(time.Minute)}, f, func(t *testing.T, p *pool) {
		var all []*Upstream
		for range 5 {
			u, err := take(t.Context(), p, time.Second)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, u)
		}
		for _, u := range all {
			p.give(u)
		}
		settle(50 * time.Second)
		if idle, _, _, _, _ := p.counts(); idle != 5 {
			t.Errorf("%d idle after 50 s", idle)
		}
		settle(20 * time.Second)
		if idle, _, _, _, _ := p.counts(); idle != 1 {
			t.Errorf("%d idle after 70 s", idle)
		}
	})
}

func TestPoolNoticesWhatTheServerClosed(t *testing.T) {
	f := &fakeServer{}
	withPool(t, config.Pool{MinIdle: 2, Max: 2}, f, func(t *testing.T, p *pool) {
		settle(time.Second)
		f.mu.Lock()
		for _, c := range f.ends {
			c.Close()
		}
		f.mu.Unlock()
		u, err := take(t.Context(), p, time.Second)
		if err != nil || u.pid < 3 {
			t.Fatalf("got %v, %v", u, err)
		}
		settle(time.Second)
		if n := f.dials.Load(); n != 4 {
			t.Errorf("%d dials", n)
		}
	})
}

// What arrives unasked is absorbed if it concerns nobody, and costs the
// upstream its place if it would reach the wrong function.
func TestPoolAbsorbsOrDropsWhatArrivesUnasked(t *testing.T) {
	for name, c := range map[string]struct {
		said []byte
		kept bool
	}{
		"parameter":     {pgwire.AppendParameterStatus(nil, pgwire.Parameter{Name: "in_hot_standby", Value: "off"}), true},
		"notice":        {pgwire.AppendNotice(nil, pgwire.Notice{Severity: "NOTICE", Code: "00000", Message: "x"}), true},
		"half a notice": {pgwire.AppendNotice(nil, pgwire.Notice{Severity: "NOTICE", Code: "00000", Message: "x"})[:7], false},
		"notification":  {[]byte("A\x00\x00\x00\x0b\x00\x00\x00\x01c\x00\x00"), false},
		"FATAL":         {pgwire.AppendError(nil, pgwire.Notice{Severity: "FATAL", Code: "57P01", Message: "x"}), false},
		"ready":         {pgwire.AppendReadyForQuery(nil, 'I'), false},
	} {
		t.Run(name, func(t *testing.T) {
			f := &fakeServer{}
			u, err := f.dial(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer u.close()
			defer f.ends[0].Close()
			f.ends[0].Write(c.said)
			if got := u.fit(); got != c.kept {
				t.Errorf("fit: %v", got)
			}
			if v, _ := u.parameters.get("in_hot_standby"); name == "parameter" && v != "off" {
				t.Errorf("in_hot_standby is %q", v)
			}
		})
	}
}

func TestPoolNeverExceedsMax(t *testing.T) {
	f := &fakeServer{delay: time.Millisecond, lives: 50 * time.Millisecond}
	withPool(t, config.Pool{MinIdle: 2, Max: 7}, f, func(t *testing.T, p *pool) {
		var all sync.WaitGroup
		for i := range 50 {
			all.Go(func() {
				for n := range 50 {
					u, err := take(t.Context(), p, time.Minute)
					if err != nil {
						t.Error(err)
						return
					}
					time.Sleep(time.Duration((i+n)%5) * time.Millisecond)
					if (i+n)%11 == 0 {
						p.drop(u, "test")
					} else {
						p.give(u)
					}
				}
			})
		}
		all.Wait()
		if f.most.Load() > 7 {
			t.Errorf("%d upstreams at a time", f.most.Load())
		}
	})
}

func TestPoolOneFailedDialRefusesNobodyWhoseDialGoesOn(t *testing.T) {
	f := &fakeServer{delay: time.Second}
	refused := &pgwire.ServerError{Notice: pgwire.Notice{Severity: "FATAL", Code: "53300", Message: "too many clients"}}
	withPool(t, config.Pool{MinIdle: 0, Max: 4}, f, func(t *testing.T, p *pool) {
		first := true
		p.make = func(ctx context.Context) (*Upstream, error) {
			f.mu.Lock()
			fail := first
			first = false
			f.mu.Unlock()
			if fail {
				time.Sleep(100 * time.Millisecond) // the other is under way by then
				return nil, refused
			}
			return f.dial(ctx)
		}
		var all sync.WaitGroup
		for range 2 {
			all.Go(func() {
				u, err := take(t.Context(), p, time.Minute)
				if err != nil {
					t.Errorf("got %v", err)
					return
				}
				p.give(u)
			})
		}
		all.Wait()
	})
}

func TestPoolDelayGrowsOnceForDialsThatFailTogether(t *testing.T) {
	gone := &net.OpError{Op: "dial", Err: unix.ECONNREFUSED}
	f := &fakeServer{err: gone, delay: 10 * time.Millisecond}
	withPool(t, config.Pool{MinIdle: 4, Max: 4}, f, func(t *testing.T, p *pool) {
		settle(20 * time.Millisecond)
		p.mu.Lock()
		defer p.mu.Unlock()
		if n := f.dials.Load(); n != 4 || p.failure.delay != firstDelay {
			t.Errorf("after %d dials the delay is %s", n, p.failure.delay)
		}
	})
}

func TestPoolDropsOldUpstreamsBeyondMinIdle(t *testing.T) {
	f := &fakeServer{lives: time.Minute}
	withPool(t, config.Pool{MinIdle: 0, Max: 4}, f, func(t *testing.T, p *pool) {
		u, err := take(t.Context(), p, time.Second)
		if err != nil {
			t.Fatal(err)
		}
		p.give(u)
		settle(2 * time.Minute)
		if idle, _, _, _, _ := p.counts(); idle != 0 {
			t.Errorf("%d idle after twice their lifetime", idle)
		}
	})
}

// A server that ends every session right behind its start is dialled with growing
// delays, also when nobody waits for it.
func TestPoolDoesNotHammerAServerThatEndsEverySession(t *testing.T) {
	f := &fakeServer{}
	withPool(t, config.Pool{MinIdle: 2, Max: 4}, f, func(t *testing.T, p *pool) {
		for range 600 { // a minute
			f.mu.Lock()
			for _, c := range f.ends {
				c.Close()
			}
			f.mu.Unlock()
			settle(100 * time.Millisecond)
		}
		if n := f.dials.Load(); n > 60 {
			t.Errorf("%d dials in a minute", n)
		}
		_, _, _, _, last := p.counts()
		if !errors.Is(last, errStillborn) {
			t.Errorf("the last error is %v", last)
		}
	})
}
