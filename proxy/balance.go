package proxy

import (
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"pghandoff/proxy/loop"
)

// Leases are gathered on as few loops as have room for them: a loop that is busy
// finds more to do each time it wakes, so that one loop needs less CPU for the
// same work than two that are half idle. All leases begin on the front loop.
// When a loop has no room, the leases that keep it busy move to another one, one
// at a time and between two turns; when there is room again on a loop before it,
// they move back. Leases that do nothing stay where they are.
//
// Room is measured, not guessed: by the CPU clock of the loop's thread.
const (
	// sampleEvery is after how many turns of leases a loop looks at its clock.
	sampleEvery = 512
	// sampleAtLeast is how much time a sample must cover to say something.
	sampleAtLeast = 20 * time.Millisecond
	// fullLoad is the part of a CPU above which a loop gives leases away,
	// roomyLoad that below which it takes them, gatherLoad what two loops
	// together must be below to become one again.
	fullLoad   = 80 // per cent
	roomyLoad  = 50
	gatherLoad = 60
	// shedAtOnce is how many leases move after one sample.
	shedAtOnce = 4
)

// load is how busy one loop is. All but percent belongs to the loop.
type load struct {
	loop    *loop.Loop
	percent atomic.Int32 // of a CPU, as of the last sample; read by other loops
	at      atomic.Int64 // when that was, in nanoseconds since began

	turns int           // of leases, since the last sample
	cpu   time.Duration // the thread's clock then
	shed  int           // leases still to be given away
	to    *load         // where they go
}

// loads are the loops in the order in which they are filled.
type loads struct {
	began time.Time
	all   []*load
}

// turn counts a turn of a lease and says where it is to move; nil: nowhere.
func (s *loads) turn(l *load) *load {
	l.turns++
	if l.turns >= sampleEvery {
		s.sample(l)
	}
	if l.shed == 0 {
		return nil
	}
	l.shed--
	return l.to
}

// sample measures the load since the last sample and decides what follows.
func (s *loads) sample(l *load) {
	now := time.Since(s.began)
	since := now - time.Duration(l.at.Load())
	if since < sampleAtLeast {
		return
	}
	l.turns = 0
	cpu := threadCPU()
	percent := int32(100 * (cpu - l.cpu) / since)
	l.cpu = cpu
	l.at.Store(int64(now))
	l.percent.Store(percent)
	l.shed, l.to = 0, nil
	passed := false
	for _, other := range s.all {
		if other == l {
			passed = true
			continue
		}
		theirs := other.now(now)
		full := percent >= fullLoad && theirs < roomyLoad
		fits := !passed && theirs+percent < gatherLoad
		if full || fits {
			l.shed, l.to = shedAtOnce, other
			return
		}
	}
}

// now is the load as far as is known: a loop whose leases do nothing takes no
// samples.
func (l *load) now(now time.Duration) int32 {
	if now-time.Duration(l.at.Load()) > time.Second {
		return 0
	}
	return l.percent.Load()
}

// threadCPU is the CPU time of the calling thread.
func threadCPU() time.Duration {
	var t unix.Timespec
	if unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t) != nil {
		return 0
	}
	return time.Duration(t.Nano())
}
