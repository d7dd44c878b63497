package loop_test

import (
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pghandoff/proxy/loop"
)

type alarm func(*loop.Timer)

func (a alarm) Expired(t *loop.Timer) { a(t) }

// late is how late a timer may be on a machine that has other things to do.
const late = 5 * time.Second

func TestTimerExpiresInAnIdleLoop(t *testing.T) {
	l := start(t)
	durations := []time.Duration{300 * time.Millisecond, 60 * time.Millisecond, 7 * time.Millisecond, time.Microsecond, 0, -time.Hour}
	timers := make([]loop.Timer, len(durations))
	expired := make(chan time.Duration, len(durations))
	on(l, func() {
		for i, d := range durations {
			set := time.Now()
			l.Set(&timers[i], d, alarm(func(self *loop.Timer) {
				if took := time.Since(set); took < d || took > max(d, 0)+late {
					t.Errorf("a timer of %s took %s", d, took)
				}
				if self != &timers[i] || self.IsSet() {
					t.Error("it is another timer, or still set")
				}
				expired <- d
			}))
		}
	})
	for range durations {
		<-expired
	}
}

// Alarms come while events do, and may set their timer again.
func TestTimerExpiresInABusyLoop(t *testing.T) {
	l := start(t)
	a, b := pair(t)
	token := make(chan loop.Token, 1)
	var ticker loop.Timer
	ticks := make(chan time.Time, 10)
	on(l, func() {
		loop.Send(b, []byte("x"))
		one, _ := l.Add(a, handler(func(loop.Events) {}), loop.Readable) // stays readable
		token <- one
		l.Set(&ticker, 10*time.Millisecond, alarm(func(self *loop.Timer) {
			ticks <- time.Now()
			if len(ticks) < cap(ticks) {
				l.Set(self, 10*time.Millisecond, alarm(func(*loop.Timer) { t.Error("a timer that was moved calls its old alarm") }))
				l.Set(self, 10*time.Millisecond, again{l, ticks})
			}
		}))
	})
	last := <-ticks
	for range 5 {
		next := <-ticks
		if took := next.Sub(last); took < 10*time.Millisecond || took > late {
			t.Errorf("a timer of 10 ms took %s", took)
		}
		last = next
	}
	on(l, func() { l.Cancel(&ticker); l.Remove(<-token) })
}

type again struct {
	l     *loop.Loop
	ticks chan time.Time
}

func (a again) Expired(t *loop.Timer) {
	select {
	case a.ticks <- time.Now():
		a.l.Set(t, 10*time.Millisecond, a)
	default:
	}
}

func TestCancelledTimerIsNotCalled(t *testing.T) {
	l := start(t)
	var first, second, third loop.Timer
	done := make(chan struct{})
	on(l, func() {
		wrong := alarm(func(*loop.Timer) { t.Error("a cancelled alarm was called") })
		l.Cancel(&second)
		l.Set(&second, time.Millisecond, wrong)
		l.Cancel(&second)
		l.Cancel(&second)
		l.Set(&first, 0, alarm(func(*loop.Timer) { l.Cancel(&second) })) // due in the same turn
		l.Set(&second, 0, wrong)
		l.Set(&third, 20*time.Millisecond, alarm(func(*loop.Timer) { close(done) }))
	})
	<-done
}

// The order of a turn: what was posted, alarms, what was left for later.
func TestLaterComesLastInItsTurn(t *testing.T) {
	l := start(t)
	var order []string
	say := func(s string) func() { return func() { order = append(order, s) } }
	var timer loop.Timer
	done := make(chan struct{})
	on(l, func() {
		l.Later(say("later 1"))
		l.Set(&timer, 0, alarm(func(*loop.Timer) {
			say("alarm")()
			l.Later(say("later 2"))
		}))
		l.Later(func() {
			l.Later(say("later of later"))
			l.Post(say("posted by later"))
			l.Later(func() { l.Later(func() { close(done) }) }) // nothing else wakes the loop
		})
		l.Post(say("posted"))
		say("first")()
	})
	<-done
	if want := []string{"first", "later 1", "posted", "posted by later", "alarm", "later of later", "later 2"}; !slices.Equal(order, want) {
		t.Errorf("got %q", order)
	}
}

func TestRebindChangesWhoIsCalled(t *testing.T) {
	l := start(t)
	a, b := pair(t)
	called := make(chan int, 1)
	say := func(n int) handler {
		return func(e loop.Events) {
			if e != loop.Readable {
				t.Errorf("event %x", e)
			}
			loop.Receive(a, l.In)
			called <- n
		}
	}
	var token loop.Token
	on(l, func() { token, _ = l.Add(a, say(1), loop.Readable) })
	for want := 1; want <= 2; want++ {
		loop.Send(b, []byte("x"))
		if got := <-called; got != want {
			t.Errorf("handler %d was called, not %d", got, want)
		}
		on(l, func() { l.Rebind(token, say(want+1)) })
	}
	on(l, func() {
		l.Remove(token)
		l.Rebind(token, say(4))
		if l.Want(token, loop.Readable|loop.Writable) == nil {
			t.Error("a token that was removed is known again")
		}
	})
	unix.Shutdown(b, unix.SHUT_WR)
}
