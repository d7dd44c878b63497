package loop

import (
	"math/bits"
	"time"
)

// The shape of the wheel: five levels of 64 slots. A slot of the first level is
// one tick, one of each next level is all of the level before. That is 99 days.
// A longer timer goes round once more.
const (
	tickLength  = 8 * time.Millisecond
	wheelBits   = 6
	wheelSlots  = 1 << wheelBits
	wheelLevels = 5
	wheelSpan   = 1 << (wheelBits * wheelLevels) // in ticks
)

// The lists that a timer can be in, after the slots of all levels.
const (
	fresh     = wheelLevels*wheelSlots + iota // set since the clock was read; due is then a duration
	soon                                      // due in the next turn
	ripe                                      // due in this turn
	listCount = ripe + 1
)

// Timer calls its Alarm once, after a while. The zero value is unset. It is
// embedded in what it belongs to, and must not be copied or freed for other use
// while it is set. Only its loop's thread may touch it.
type Timer struct {
	next, prev *Timer // in the circle of its list; nil: unset
	alarm      Alarm
	due        uint64 // tick
	list       uint16
}

// Alarm is told that a timer has expired. It runs on the loop's thread and must
// not block. The timer is unset by then; the alarm may set and cancel any.
type Alarm interface {
	Expired(*Timer)
}

// IsSet reports whether the alarm is still to come. On the loop's thread only.
func (t *Timer) IsSet() bool { return t.next != nil }

// Set makes t call a after the duration: never earlier, and later by at most a
// tick of 8 ms, a short wait of 5 ms and what handlers take. If it is zero or
// less that is in the next turn. A timer that was set is moved. On the loop's
// thread only, and always on the same loop.
func (l *Loop) Set(t *Timer, after time.Duration, a Alarm) { l.wheel.add(t, after, a) }

// Cancel makes t not call its alarm, not even if it was due in this turn.
// Cancelling an unset timer does nothing. On the loop's thread only.
func (l *Loop) Cancel(t *Timer) { l.wheel.remove(t) }

// wheel is a hierarchical timer wheel. It knows no clock: it is told what time
// it is, counted from any beginning.
//
// A timer is in the level in which its due tick first differs from the present
// one, so that it moves down at most four times. Nothing is done for ticks in
// which no slot begins that has a timer.
type wheel struct {
	now      time.Duration // as told last
	tick     uint64        // timers due by it have left their slots
	set      int           // how many timers are set
	occupied [wheelLevels]uint64
	first    [listCount]*Timer
}

// add sets or moves t. It needs no time: the duration counts from the next
// reading of the clock, which is later, so that the alarm is not early.
func (w *wheel) add(t *Timer, after time.Duration, a Alarm) {
	w.remove(t)
	t.alarm = a
	if after <= 0 {
		w.link(t, soon)
		return
	}
	t.due = uint64(after)
	w.link(t, fresh)
}

func (w *wheel) remove(t *Timer) {
	if t.IsSet() {
		w.unlink(t)
		t.alarm = nil
	}
}

// ripen makes the timers that were due in the next turn due in this one.
func (w *wheel) ripen() {
	for t := w.first[soon]; t != nil; t = w.first[soon] {
		w.unlink(t)
		w.link(t, ripe)
	}
}

// advance makes ripe what is due by now. It goes from one slot that has a timer
// to the next, however long ago it was called last.
func (w *wheel) advance(now time.Duration) {
	w.now = now
	present := uint64(now / tickLength)
	for {
		level, begin := w.next()
		if level < 0 || begin > present {
			break
		}
		w.tick = begin
		list := slotAt(level, begin)
		for t := w.first[list]; t != nil; t = w.first[list] {
			w.unlink(t)
			w.place(t)
		}
	}
	w.tick = max(w.tick, present)
	for t := w.first[fresh]; t != nil; t = w.first[fresh] {
		w.unlink(t)
		t.due = (uint64(now) + t.due + uint64(tickLength-1)) / uint64(tickLength)
		w.place(t)
	}
}

// fire calls the alarms of what is ripe. What they set is not.
func (w *wheel) fire() {
	for t := w.first[ripe]; t != nil; t = w.first[ripe] {
		a := t.alarm
		w.remove(t)
		a.Expired(t)
	}
}

// rest is how long nothing gets ripe, or moves down, after the time told last.
// It is negative if nothing will. Fresh timers are not looked at.
func (w *wheel) rest() time.Duration {
	if w.first[ripe] != nil {
		return 0
	}
	level, begin := w.next()
	if level < 0 {
		return -1
	}
	return max(0, time.Duration(begin)*tickLength-w.now)
}

// next returns the slot with a timer that begins first, as its level and its
// first tick. That is in the lowest level that has one, for a higher slot
// begins only after all lower ones. The level is negative if there is none.
func (w *wheel) next() (level int, begin uint64) {
	for level := range w.occupied {
		if w.occupied[level] == 0 {
			continue
		}
		present := w.tick >> (level * wheelBits)
		from := (present + 1) % wheelSlots
		ahead := bits.TrailingZeros64(bits.RotateLeft64(w.occupied[level], -int(from)))
		return level, (present + 1 + uint64(ahead)) << (level * wheelBits)
	}
	return -1, 0
}

// place puts t where its due tick belongs.
func (w *wheel) place(t *Timer) {
	if t.due <= w.tick {
		w.link(t, ripe)
		return
	}
	level := min((bits.Len64(t.due^w.tick)-1)/wheelBits, wheelLevels-1)
	w.link(t, slotAt(level, min(t.due, w.tick+wheelSpan-1)))
}

// slotAt is the list of the slot of a level that has the tick.
func slotAt(level int, tick uint64) int {
	return level*wheelSlots + int(tick>>(level*wheelBits)%wheelSlots)
}

func (w *wheel) link(t *Timer, list int) {
	t.list = uint16(list)
	w.set++
	if first := w.first[list]; first != nil {
		t.next, t.prev = first, first.prev
		t.prev.next, first.prev = t, t
		return
	}
	t.next, t.prev, w.first[list] = t, t, t
	if list < fresh {
		w.occupied[list/wheelSlots] |= 1 << (list % wheelSlots)
	}
}

func (w *wheel) unlink(t *Timer) {
	list := int(t.list)
	w.set--
	switch {
	case t.next != t:
		t.next.prev, t.prev.next = t.prev, t.next
		if w.first[list] == t {
			w.first[list] = t.next
		}
	default:
		w.first[list] = nil
		if list < fresh {
			w.occupied[list/wheelSlots] &^= 1 << (list % wheelSlots)
		}
	}
	t.next, t.prev = nil, nil
}
