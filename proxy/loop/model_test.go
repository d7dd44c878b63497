package loop

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

// model does what the wheel does, by looking at every timer every time.
type model struct {
	t      *testing.T
	random *rand.Rand
	wheel  wheel
	now    time.Duration
	timers []modelTimer
	fired  int
	last   uint64 // the due tick of what was fired last in this turn
}

type modelTimer struct {
	Timer
	state   int // unset, waiting, or the list: fresh, soon or ripe
	after   time.Duration
	dueTick uint64
}

const (
	unset = iota
	waiting
)

func (m *model) Expired(t *Timer) {
	for i := range m.timers {
		if &m.timers[i].Timer == t {
			m.expired(&m.timers[i])
			return
		}
	}
	m.t.Fatal("an unknown timer has expired")
}

func (m *model) expired(t *modelTimer) {
	if t.state != ripe || t.IsSet() {
		m.t.Fatalf("at %s a timer expired in state %d, set: %v", m.now, t.state, t.IsSet())
	}
	if t.dueTick < m.last {
		m.t.Fatalf("tick %d expired after %d", t.dueTick, m.last)
	}
	m.last, t.state = t.dueTick, unset
	m.fired++
	for range m.random.IntN(3) {
		m.change(&m.timers[m.random.IntN(len(m.timers))])
	}
	if m.random.IntN(4) == 0 {
		m.change(t)
	}
}

// change sets, moves or cancels a timer.
func (m *model) change(t *modelTimer) {
	if m.random.IntN(3) == 0 {
		m.wheel.remove(&t.Timer)
		t.state = unset
		return
	}
	t.after = m.duration(400 * 24 * time.Hour)
	if m.random.IntN(1000) == 0 {
		t.after = math.MaxInt64
	}
	t.state = fresh
	if t.after <= 0 {
		t.state, t.dueTick = soon, 0
	}
	m.wheel.add(&t.Timer, t.after, m)
}

// duration is up to the longest, with all sizes equally likely, or nothing.
func (m *model) duration(longest time.Duration) time.Duration {
	if m.random.IntN(50) == 0 {
		return -time.Duration(m.random.IntN(2))
	}
	d := time.Duration(math.Exp(m.random.Float64() * math.Log(float64(longest))))
	if m.random.IntN(2) == 0 {
		d = d / tickLength * tickLength
	}
	return d
}

// turn does what a turn of the loop does at a time.
func (m *model) turn() {
	m.wheel.ripen()
	m.wheel.advance(m.now)
	m.last = 0
	for i := range m.timers {
		t := &m.timers[i]
		switch t.state {
		case fresh:
			due := uint64(m.now) + uint64(t.after)
			t.state, t.dueTick = waiting, due/uint64(tickLength)
			if due%uint64(tickLength) > 0 {
				t.dueTick++
			}
		case soon:
			t.state = ripe
		}
		if t.state == waiting && t.dueTick <= uint64(m.now/tickLength) {
			t.state = ripe
		}
	}
	m.wheel.fire()
	m.check()
}

// check compares the model's states with the wheel's.
func (m *model) check() {
	var set int
	next := uint64(math.MaxUint64)
	for i := range m.timers {
		t := &m.timers[i]
		if t.IsSet() != (t.state != unset) {
			m.t.Fatalf("at %s timer %d is in state %d, set: %v", m.now, i, t.state, t.IsSet())
		}
		switch t.state {
		case ripe:
			m.t.Fatalf("at %s timer %d was due and has not expired", m.now, i)
		case waiting:
			next = min(next, t.dueTick)
		}
		if t.IsSet() {
			set++
		}
	}
	if set != m.wheel.set {
		m.t.Fatalf("at %s %d timers are set, the wheel counts %d", m.now, set, m.wheel.set)
	}
	rest := m.wheel.rest()
	if rest < 0 != (next == math.MaxUint64) || rest == 0 {
		m.t.Fatalf("at %s the rest is %s, the next due tick %d", m.now, rest, next)
	}
	if next < math.MaxInt64/uint64(tickLength) && rest > time.Duration(next)*tickLength-m.now {
		m.t.Fatalf("at %s the rest of %s goes past the next due tick %d", m.now, rest, next)
	}
}
