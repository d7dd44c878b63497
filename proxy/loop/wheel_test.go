package loop

import (
	"math/rand/v2"
	"reflect"
	"testing"
	"time"
)

func TestWheelDoesAsItsModel(t *testing.T) {
	seeds, timers := 12, 1500
	if testing.Short() {
		seeds = 3
	}
	for seed := range uint64(seeds) {
		m := &model{t: t, random: rand.New(rand.NewPCG(seed, 1)), timers: make([]modelTimer, timers)}
		m.now = m.duration(1000 * 24 * time.Hour)
		for range 1500 {
			for range m.random.IntN(30) {
				m.change(&m.timers[m.random.IntN(timers)])
			}
			m.turn()
			step := m.duration(20 * 24 * time.Hour)
			if rest := m.wheel.rest(); m.random.IntN(2) == 0 && rest > 0 {
				step = rest // as the loop waits
			}
			m.now += max(0, step)
		}
		if m.fired < timers {
			t.Errorf("seed %d: only %d alarms", seed, m.fired)
		}
	}
}

type alarm func(*Timer)

func (a alarm) Expired(t *Timer) { a(t) }

// A loop that waits as long as the wheel says wakes at the due tick, and seldom
// before.
func TestWheelWakesInTimeAndNotOften(t *testing.T) {
	for d := time.Duration(1); d < 500*24*time.Hour; d = d*3/2 + 1 {
		var w wheel
		var timer Timer
		now := 3*time.Hour + 7*time.Millisecond
		set, done := now, false
		w.add(&timer, d, alarm(func(*Timer) { done = true }))
		w.advance(now)
		wakes := 0
		for ; !done; wakes++ {
			now += w.rest()
			w.advance(now)
			w.fire()
		}
		if late := now - set - d; late < 0 || late > tickLength {
			t.Errorf("a timer of %s is late by %s", d, late)
		}
		if limit := wheelLevels + int(d/(90*24*time.Hour)); wakes > limit {
			t.Errorf("a timer of %s takes %d wakes", d, wakes)
		}
	}
}

// A machine that was suspended does not count the ticks that it missed. Slot by
// slot this test would last for hours.
func TestWheelSkipsALongGap(t *testing.T) {
	var w wheel
	var timers [1000]Timer
	fired := 0
	for i := range timers {
		w.add(&timers[i], time.Duration(i+1)*time.Hour, alarm(func(*Timer) { fired++ }))
	}
	w.advance(0)
	w.advance(100 * 365 * 24 * time.Hour)
	w.fire()
	if fired != len(timers) || w.set != 0 || w.rest() >= 0 {
		t.Errorf("%d alarms, %d timers still set", fired, w.set)
	}
	w.add(&timers[0], time.Second, alarm(func(*Timer) { fired++ }))
	w.advance(w.now + time.Second)
	if w.rest() <= 0 || w.rest() > time.Second+tickLength {
		t.Errorf("after the gap a timer of a second rests for %s", w.rest())
	}
}

func TestCancelledTimerOfTheSameTickIsNotCalled(t *testing.T) {
	var w wheel
	var timers [3]Timer
	var called []int
	for i := range timers {
		w.add(&timers[i], time.Second, alarm(func(self *Timer) {
			called = append(called, i)
			w.remove(self) // does nothing
			w.remove(&timers[(i+1)%3])
			w.add(&timers[(i+2)%3], 0, alarm(func(*Timer) { called = append(called, 10+(i+2)%3) }))
		}))
	}
	w.advance(0)
	w.advance(2 * time.Second)
	w.fire()
	if !reflect.DeepEqual(called, []int{0}) || timers[0].IsSet() || timers[1].IsSet() || !timers[2].IsSet() {
		t.Errorf("called %v", called)
	}
	w.ripen()
	w.fire()
	if !reflect.DeepEqual(called, []int{0, 12}) || w.set != 0 {
		t.Errorf("called %v, %d still set", called, w.set)
	}
}

func TestWheelAllocatesNothing(t *testing.T) {
	if size := reflect.TypeFor[Timer]().Size(); size > 48 {
		t.Errorf("a timer has %d bytes", size)
	}
	var w wheel
	var timers [100]Timer
	a := alarm(func(t *Timer) {})
	again := alarm(func(t *Timer) { w.add(t, time.Minute, a) })
	now := time.Duration(0)
	if n := testing.AllocsPerRun(100, func() {
		for i := range timers {
			w.add(&timers[i], time.Duration(i)*time.Hour, again)
		}
		w.remove(&timers[50])
		now += 60 * time.Hour
		w.ripen()
		w.advance(now)
		w.fire()
	}); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkTimerSetCancel(b *testing.B) {
	var l Loop
	var t Timer
	a := alarm(func(*Timer) {})
	b.ReportAllocs()
	for b.Loop() {
		l.Set(&t, time.Minute, a)
		l.Cancel(&t)
	}
}

// What a timer costs that is moved each turn, the clock not counted.
func BenchmarkTimerMovedEachTurn(b *testing.B) {
	var w wheel
	timers := make([]Timer, 10000)
	a := alarm(func(*Timer) {})
	for i := range timers {
		w.add(&timers[i], time.Minute, a)
	}
	now, i := time.Duration(0), 0
	b.ReportAllocs()
	for b.Loop() {
		i = (i + 7) % len(timers)
		w.add(&timers[i], time.Minute, a)
		now += 10 * time.Microsecond
		w.advance(now)
		w.fire()
		w.rest()
	}
}

func BenchmarkTimerExpires(b *testing.B) {
	var w wheel
	var timers [64]Timer
	a := alarm(func(*Timer) {})
	now, i := time.Duration(0), 0
	b.ReportAllocs()
	for b.Loop() {
		w.add(&timers[i%64], 500*time.Millisecond, a)
		w.advance(now)
		w.fire()
		now += tickLength
		i++
	}
}
