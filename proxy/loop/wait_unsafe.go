package loop

import (
	"math"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// shortWait is how long the first wait lasts, in milliseconds.
const shortWait = 5

// wait waits for events, or until the wheel has something to do, and returns
// how many there are in l.events.
//
// It waits in two steps. The first, short one is a raw system call, after which
// the runtime does not have to find this thread a processor again: that saves a
// sixth of the CPU of a small transaction. But in a raw call the runtime can
// stop this thread only by a signal, and cannot use its processor meanwhile. So
// the second, long wait tells it.
func (l *Loop) wait() (int, error) {
	l.waiting.Store(true)
	defer l.waiting.Store(false)
	if len(l.later) > 0 && !l.pending() {
		return l.briefWait()
	}
	timeout := l.patience()
	n, _, errno := unix.RawSyscall6(unix.SYS_EPOLL_PWAIT, uintptr(l.epoll), uintptr(unsafe.Pointer(&l.events[0])), uintptr(len(l.events)), uintptr(timeout), 0, 0)
	switch {
	case errno == unix.EINTR:
		// The runtime's signal that wants this thread to stop, which it can do
		// only in Go code: not in another wait.
		return 0, nil
	case errno != 0:
		return 0, errno
	case n > 0 || timeout < shortWait:
		return int(n), nil
	}
	return l.longWait()
}

// laterWait is how long there must be no event for work for later, in
// nanoseconds: as long as a function's first question takes to be asked and to be
// answered. 500 µs.
const laterWait = 500_000

// briefWait waits for events for a moment. Before Linux 5.11 it does not.
func (l *Loop) briefWait() (int, error) {
	timeout := unix.Timespec{Nsec: laterWait}
	if l.wheel.ripen(); l.wheel.first[ripe] != nil {
		timeout.Nsec = 0
	}
	n, _, errno := unix.RawSyscall6(unix.SYS_EPOLL_PWAIT2, uintptr(l.epoll), uintptr(unsafe.Pointer(&l.events[0])), uintptr(len(l.events)), uintptr(unsafe.Pointer(&timeout)), 0, 0)
	switch errno {
	case 0:
		return int(n), nil
	case unix.EINTR, unix.ENOSYS:
		return 0, nil
	}
	return 0, errno
}

// patience is how long the short wait may last, in milliseconds. It goes by the
// turn's reading of the clock. Timers set since then come after this wait.
func (l *Loop) patience() int {
	l.wheel.ripen()
	if l.pending() {
		return 0
	}
	if left := milliseconds(l.wheel.rest()); left >= 0 {
		return min(shortWait, left)
	}
	return shortWait
}

// longWait waits without an end but the next timer's, in a way that the runtime
// knows of.
func (l *Loop) longWait() (int, error) {
	timeout := -1
	if l.wheel.set > 0 {
		l.wheel.advance(time.Since(l.began))
		timeout = milliseconds(l.wheel.rest())
	}
	if timeout == 0 {
		return 0, nil // an alarm is due
	}
	n, err := unix.EpollWait(l.epoll, l.events, timeout)
	if err == unix.EINTR {
		return 0, nil
	}
	return n, err
}

// milliseconds rounds up, so as not to wake before the time, to what a wait can
// be told. Less than nothing is -1, a wait without an end.
func milliseconds(d time.Duration) int {
	if d < 0 {
		return -1
	}
	return int(min((d+time.Millisecond-1)/time.Millisecond, math.MaxInt32))
}
