package loop_test

import (
	"bytes"
	"runtime"
	"runtime/debug"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pghandoff/proxy/loop"
)

// start runs a loop until the test ends.
func start(t testing.TB) *loop.Loop {
	t.Helper()
	l, err := loop.New()
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- l.Run() }()
	t.Cleanup(func() {
		l.Stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if l.Post(func() {}) {
			t.Error("a stopped loop takes requests")
		}
		l.Free()
	})
	return l
}

// on runs f on the loop and waits for it.
func on(l *loop.Loop, f func()) {
	done := make(chan struct{})
	l.Post(func() { f(); close(done) })
	<-done
}

func pair(t testing.TB) (a, b int) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fds[0]); unix.Close(fds[1]) })
	return fds[0], fds[1]
}

type handler func(loop.Events)

func (h handler) Ready(e loop.Events) { h(e) }

func TestLoopTellsWhatIsReady(t *testing.T) {
	l := start(t)
	a, b := pair(t)
	got := make(chan []byte)
	var token loop.Token
	on(l, func() {
		token, _ = l.Add(a, handler(func(e loop.Events) {
			n, err := loop.Receive(a, l.In)
			if err != nil || e&loop.Readable == 0 {
				t.Error(e, err)
			}
			if n == 0 {
				l.Remove(token)
			}
			got <- append([]byte(nil), l.In[:n]...)
		}), loop.Readable)
	})
	for _, want := range []string{"one", "two", "three"} {
		loop.Send(b, []byte(want))
		if p := <-got; string(p) != want {
			t.Errorf("got %q", p)
		}
	}
	unix.Shutdown(b, unix.SHUT_WR)
	if p := <-got; len(p) != 0 {
		t.Errorf("got %q at the end", p)
	}
}

func TestLoopPostsInOrderAndFromAnywhere(t *testing.T) {
	l := start(t)
	var all sync.WaitGroup
	counts := make([]int, 8)
	for i := range counts {
		all.Go(func() {
			for n := range 10000 {
				l.Post(func() {
					if counts[i] != n {
						t.Errorf("%d came as number %d", n, counts[i])
					}
					counts[i]++
				})
			}
		})
	}
	all.Wait()
	on(l, func() {
		for i, n := range counts {
			if n != 10000 {
				t.Errorf("%d of %d's", n, i)
			}
		}
	})
}

// A descriptor that is removed by a handler is not told of an event that the
// kernel reported in the same turn, nor is whoever gets its slot.
func TestLoopForgetsAtOnce(t *testing.T) {
	l := start(t)
	a1, b1 := pair(t)
	a2, b2 := pair(t)
	a3, _ := pair(t)
	called := make(chan int, 10)
	var t1, t2 loop.Token
	on(l, func() {
		first := func(me int, other *loop.Token) handler {
			return func(loop.Events) {
				called <- me
				l.Remove(*other)
				l.Add(a3, handler(func(loop.Events) { called <- 3 }), loop.Readable)
				l.Remove(t1)
				l.Remove(t2)
			}
		}
		t1, _ = l.Add(a1, first(1, &t2), loop.Readable)
		t2, _ = l.Add(a2, first(2, &t1), loop.Readable)
		loop.Send(b1, []byte("x"))
		loop.Send(b2, []byte("x"))
	})
	<-called
	on(l, func() {})
	on(l, func() {})
	select {
	case n := <-called:
		t.Errorf("handler %d was called too", n)
	default:
	}
}

func TestLoopSleepsThroughAHangupIfAsked(t *testing.T) {
	l := start(t)
	a, b := pair(t)
	events := make(chan loop.Events, 100)
	var token loop.Token
	on(l, func() {
		token, _ = l.Add(a, handler(func(e loop.Events) { events <- e; l.Want(token, 0) }), 0)
	})
	unix.Close(b)
	on(l, func() {})
	if len(events) != 0 {
		t.Error("it was told although it wants nothing")
	}
	on(l, func() { l.Want(token, loop.Readable) })
	if e := <-events; e&loop.Closed == 0 {
		t.Errorf("got %x", e)
	}
	on(l, func() { l.Remove(token) })
}

// The garbage collector must not wait for a loop, idle or busy: the pauses in
// which everything stands still stay short.
func TestLoopDoesNotHoldUpTheGarbageCollector(t *testing.T) {
	l := start(t)
	a, b := pair(t)
	on(l, func() {
		l.Add(a, handler(func(loop.Events) {
			n, _ := loop.Receive(a, l.In)
			loop.Send(a, l.In[:n])
		}), loop.Readable)
	})
	stop := make(chan struct{})
	var echo sync.WaitGroup
	echo.Go(func() {
		p, q := bytes.Repeat([]byte("x"), 100), make([]byte, 4096)
		for {
			select {
			case <-stop:
				return
			default:
				loop.Send(b, p)
				loop.Receive(b, q)
			}
		}
	})
	pauses := func(n int) (longest time.Duration) {
		for range n {
			runtime.GC()
		}
		var stats debug.GCStats
		debug.ReadGCStats(&stats)
		return slices.Max(stats.Pause[:n])
	}
	busy := pauses(50)
	close(stop)
	echo.Wait()
	idle := pauses(50)
	t.Logf("longest pause beside a busy loop %s, beside an idle one %s", busy, idle)
	if max(busy, idle) > 250*time.Millisecond {
		t.Error("that is too long")
	}
}

func TestWantThatFailsChangesNothing(t *testing.T) {
	l := start(t)
	a, b := pair(t)
	file, err := unix.Open(t.TempDir()+"/file", unix.O_RDWR|unix.O_CREAT|unix.O_CLOEXEC, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(file)
	told := make(chan loop.Events, 1)
	on(l, func() {
		var token loop.Token
		token, _ = l.Add(file, handler(func(e loop.Events) { l.Remove(token); told <- e }), 0)
		for range 2 {
			if l.Want(token, loop.Readable) == nil {
				t.Error("a file can be waited for")
			}
		}
		unix.Dup3(a, file, unix.O_CLOEXEC) // now it can
		if err := l.Want(token, loop.Readable); err != nil {
			t.Error(err)
		}
	})
	unix.Write(b, []byte("x"))
	if e := <-told; e&loop.Readable == 0 {
		t.Errorf("told %v", e)
	}
}
