package proxy

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"
)

// relayed returns the only lease that there is, once a loop carries it.
func (h *house) relayed() *Lease {
	h.t.Helper()
	l := h.lease()
	h.eventually("it is relayed", func() bool { return l.bridge.home.Load() != nil })
	return l
}

// elsewhere is the load of the loop on which a lease is not.
func (h *house) elsewhere(l *Lease) *load {
	if home := l.bridge.home.Load(); home == h.d.loads.all[0] {
		return h.d.loads.all[1]
	}
	return h.d.loads.all[0]
}

// unsettle makes a lease move to the other loop each time that it can, until stop
// is called, which returns how often it did.
func (h *house) unsettle(l *Lease) (stop func() int) {
	done, moves := make(chan struct{}), make(chan int)
	go func() { // ended by stop
		n, last := 0, l.bridge.home.Load()
		for {
			if home := l.bridge.home.Load(); home != last {
				n, last = n+1, home
			}
			home, to := l.bridge.home.Load(), h.elsewhere(l)
			home.loop.Post(func() { home.shed, home.to = 1, to })
			select {
			case <-done:
				moves <- n
				return
			case <-time.After(200 * time.Microsecond):
			}
		}
	}()
	return func() int { close(done); return <-moves }
}

func twoLoops(p *plan) { p.loops = 2 }

func TestBusyLeaseMovesWithItsData(t *testing.T) {
	h := build(t, twoLoops)
	f := h.wire()
	f.send(start())
	f.want(welcome)
	stop := h.unsettle(h.relayed())
	var all sync.WaitGroup
	const rounds = 400
	text := func(i int) string { return fmt.Sprint(i, " ", strings.Repeat("xyz", i*37%40000)) }
	all.Go(func() { // the function does not wait for answers
		for i := range rounds {
			p := query("echo " + text(i))
			for len(p) > 0 { // nor does it write whole messages
				n := min(len(p), 1+rand.IntN(30000))
				f.SetWriteDeadline(time.Now().Add(20 * time.Second))
				if _, err := f.Write(p[:n]); err != nil {
					t.Error(err)
					return
				}
				p = p[n:]
			}
		}
	})
	for i := range rounds {
		if got, want := f.says(), "D("+text(i)+")C(echo)ZI"; got != want {
			t.Fatalf("answer %d is %.60q… of %d bytes, want %d", i, got, len(got), len(want))
		}
	}
	all.Wait()
	if n := stop(); n < 10 {
		t.Errorf("it moved only %d times", n)
	}
	f.Close()
	h.empty()
	h.warm("orders", 1)
	if h.dials() != 2 {
		t.Errorf("%d dials", h.dials())
	}
}

// A lease moves also while one side does not take what the other one sends.
func TestLeaseMovesUnderBackPressure(t *testing.T) {
	h := build(t, twoLoops)
	f := h.wire()
	f.send(start())
	f.want(welcome)
	l := h.relayed()
	big := strings.Repeat("0123456789", 300_000)
	for round := range 4 {
		var all sync.WaitGroup
		all.Go(func() { f.send(query("echo "+big), query("echo "+big)) })
		h.eventually("the function is the slow one", func() (full bool) {
			onLoop(l, func() { full = len(l.bridge.function.pending) > 0 })
			return full
		})
		onLoop(l, func() { l.bridge.move(h.elsewhere(l)) })
		for range 2 {
			if got := f.says(); got != "D("+big+")C(echo)ZI" {
				t.Fatalf("round %d: %d bytes", round, len(got))
			}
		}
		all.Wait()
	}
	f.Close()
	h.empty()
}

// onLoop runs f on the loop of a lease and waits for it.
func onLoop(l *Lease, f func()) {
	done := make(chan struct{})
	l.bridge.post(func() { f(); close(done) })
	<-done
}

func TestEndReachesALeaseThatHasJustMoved(t *testing.T) {
	h := build(t, twoLoops)
	for name, do := range map[string]func(b *bridge, to *load){
		"moved before": func(b *bridge, to *load) { b.move(to); b.stop(errShutdown(), false) },
		"moved after":  func(b *bridge, to *load) { b.stop(errShutdown(), false); b.move(to) },
		"amid the move": func(b *bridge, to *load) {
			release := make(chan struct{})
			to.loop.Post(func() { <-release })
			b.home.Store(to) // as move does, before it posts
			b.stop(errShutdown(), false)
			b.move(to)
			close(release)
		},
		"to and fro": func(b *bridge, to *load) {
			b.stop(errShutdown(), false)
			b.move(to)
			to.loop.Post(func() { b.move(h.d.loads.all[0]) })
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := h.wire()
			f.t = t
			f.send(start())
			f.want(welcome)
			l := h.relayed()
			next := h.wire()
			next.t = t
			next.send(start(), query("echo x"))
			h.queued(1)
			h.d.onFront(func() { do(&l.bridge, h.d.loads.all[1]) })
			f.want("E(57P01)")
			f.want(".")
			next.want(welcome)
			next.want("D(x)C(echo)ZI")
			next.Close()
			h.empty()
			h.warm("orders", 1)
		})
	}
	if h.dials() != 2 {
		t.Errorf("%d dials", h.dials())
	}
}

// Proves with chance what the test before proves without.
func TestEndReachesLeasesThatMoveAllTheTime(t *testing.T) {
	h := build(t, twoLoops)
	for i := range 100 {
		f := h.wire()
		f.send(start())
		f.want(welcome)
		l := h.relayed()
		stop := h.unsettle(l)
		var all sync.WaitGroup
		all.Go(func() {
			<-time.After(time.Duration(rand.IntN(500)) * time.Microsecond)
			l.revoke(errShutdown(), i%2 == 0)
		})
		told := ""
		for !strings.HasSuffix(told, "E(57P01)") {
			f.SetWriteDeadline(time.Now().Add(10 * time.Second))
			if _, err := f.Write(query("echo x")); err != nil {
				break
			}
			if told = f.says(); told != "D(x)C(echo)ZI" && !strings.HasSuffix(told, "E(57P01)") {
				t.Fatalf("told %s", told)
			}
		}
		all.Wait()
		stop()
		h.empty()
	}
	h.warm("orders", 1)
}
