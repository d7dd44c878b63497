package loop

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Events are what a descriptor is waited for, or is ready for.
type Events uint32

// The events. Closed is reported whether asked for or not: the other side is
// gone in both directions, or there was an error.
const (
	Readable Events = unix.EPOLLIN
	Writable Events = unix.EPOLLOUT
	Closed   Events = unix.EPOLLHUP | unix.EPOLLERR
)

// whole adds what is reported anyway.
func (e Events) whole() Events {
	if e != 0 {
		e |= Closed
	}
	return e
}

// Handler is told about a descriptor. It runs on the loop's thread and must not
// block.
type Handler interface {
	Ready(Events)
}

// Token names a descriptor that was added to a loop.
type Token uint64

// BufferSize is the size of the loop's buffers, in bytes. 64 KiB and room for
// one TLS record that began in the read before, or for what sealing adds.
const BufferSize = 64<<10 + 20<<10

// Loop is an event loop. Only Post and Stop may be called from other threads.
type Loop struct {
	// In and Out are for handlers to read into and to build in; what they hold
	// is void when the handler returns.
	In, Out []byte

	epoll, wake int
	slots       []slot
	free        []uint32
	events      []unix.EpollEvent

	wheel wheel
	began time.Time // what the wheel's time counts from
	later []func()
	busy  int // turns that these have waited
	// The slices that take turns with later and queue.
	spareLater, spare []func()

	waiting atomic.Bool
	mu      sync.Mutex // guards the fields below
	queue   []func()
	stopped bool
}

// slot is one added descriptor. The generation tells an event for it from one
// for whoever had the slot before.
type slot struct {
	handler    Handler
	fd         int
	generation uint32
	events     Events
	asleep     bool // out of epoll, so that not even Closed is reported
}

// wakeToken is the token of the loop's own eventfd.
const wakeToken = ^Token(0)

// New returns a loop that is not running yet. Free frees one that never ran.
func New() (*Loop, error) {
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("epoll_create1", err)
	}
	wake, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		unix.Close(epoll)
		return nil, os.NewSyscallError("eventfd", err)
	}
	l := &Loop{In: make([]byte, BufferSize), Out: make([]byte, 0, BufferSize), epoll: epoll, wake: wake,
		events: make([]unix.EpollEvent, 256), began: time.Now()}
	if err := l.control(unix.EPOLL_CTL_ADD, wake, Readable, wakeToken); err != nil {
		l.Free()
		return nil, err
	}
	return l, nil
}

// Free frees the loop's own descriptors. It must not be running.
func (l *Loop) Free() {
	unix.Close(l.epoll)
	unix.Close(l.wake)
}

// Run runs the loop on a thread of its own until Stop. Descriptors that are
// still added then stay open; whoever owns them closes them.
func (l *Loop) Run() error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for !l.stopped { // which only this thread writes
		n, err := l.wait()
		if err != nil {
			return fmt.Errorf("wait for events: %w", err)
		}
		for i := range n {
			l.dispatch(&l.events[i])
		}
		l.runQueue()
		l.runAlarms()
		l.runLater(n)
	}
	l.runQueue() // what was posted until it was stopped
	l.callLater()
	return nil
}

// runAlarms calls the alarms that are due. The clock is read only for a timer.
func (l *Loop) runAlarms() {
	if l.wheel.set == 0 {
		return
	}
	l.wheel.advance(time.Since(l.began))
	l.wheel.fire()
}

func (l *Loop) dispatch(e *unix.EpollEvent) {
	token := tokenOf(e)
	if token == wakeToken {
		var b [8]byte
		unix.Read(l.wake, b[:]) // only to empty it
		return
	}
	s := l.slot(token)
	if s == nil || s.asleep {
		return // removed by a handler earlier in this turn
	}
	s.handler.Ready(Events(e.Events))
}

func (l *Loop) slot(t Token) *slot {
	i := uint32(t)
	if int(i) >= len(l.slots) || l.slots[i].generation != uint32(t>>32) || l.slots[i].handler == nil {
		return nil
	}
	return &l.slots[i]
}

// Add waits for events of fd, which is borrowed and must be non-blocking, and
// calls h for them. With no events not even Closed is reported.
func (l *Loop) Add(fd int, h Handler, events Events) (Token, error) {
	events = events.whole()
	var i uint32
	if n := len(l.free); n > 0 {
		i, l.free = l.free[n-1], l.free[:n-1]
	} else {
		i = uint32(len(l.slots))
		l.slots = append(l.slots, slot{})
	}
	s := &l.slots[i]
	s.generation++
	s.handler, s.fd, s.events, s.asleep = h, fd, events, events == 0
	t := Token(s.generation)<<32 | Token(i)
	if !s.asleep {
		if err := l.control(unix.EPOLL_CTL_ADD, fd, events, t); err != nil {
			l.forget(i)
			return 0, err
		}
	}
	return t, nil
}

// Want changes what is waited for. With no events not even Closed is reported,
// so that a descriptor whose other side is gone can be left for later. On an error
// it stays as it was.
func (l *Loop) Want(t Token, events Events) error {
	s := l.slot(t)
	if s == nil {
		return errors.New("no such descriptor in the loop")
	}
	events = events.whole()
	if s.events == events {
		return nil
	}
	op := unix.EPOLL_CTL_MOD
	switch {
	case events == 0:
		op = unix.EPOLL_CTL_DEL
	case s.asleep:
		op = unix.EPOLL_CTL_ADD
	}
	if err := l.control(op, s.fd, events, t); err != nil {
		return err
	}
	s.events, s.asleep = events, events == 0
	return nil
}

// Rebind lets h be called for a descriptor from now on. What is waited for stays.
// A token that the loop does not know is ignored.
func (l *Loop) Rebind(t Token, h Handler) {
	if s := l.slot(t); s != nil {
		s.handler = h
	}
}

// Remove forgets a descriptor, which its owner then may close. Removing it
// twice does nothing.
func (l *Loop) Remove(t Token) {
	s := l.slot(t)
	if s == nil {
		return
	}
	if !s.asleep {
		l.control(unix.EPOLL_CTL_DEL, s.fd, 0, t)
	}
	l.forget(uint32(t))
}

// Close forgets a descriptor and closes it, for whoever owned it. It takes one
// system call less than Remove and closing: what is closed is waited for no more.
// A token that the loop does not know is ignored, and so is a negative fd.
func (l *Loop) Close(t Token, fd int) {
	if l.slot(t) != nil {
		l.forget(uint32(t))
	}
	if fd >= 0 {
		unix.Close(fd)
	}
}

func (l *Loop) forget(i uint32) {
	l.slots[i].handler = nil
	l.free = append(l.free, i)
}

func (l *Loop) control(op, fd int, events Events, t Token) error {
	e := unix.EpollEvent{Events: uint32(events)}
	setToken(&e, t)
	return os.NewSyscallError("epoll_ctl", unix.EpollCtl(l.epoll, op, fd, &e))
}

// An epoll event carries eight bytes of the caller's, which x/sys shows as two
// fields.
func setToken(e *unix.EpollEvent, t Token) { e.Fd, e.Pad = int32(t), int32(t>>32) }

func tokenOf(e *unix.EpollEvent) Token { return Token(uint32(e.Fd)) | Token(uint32(e.Pad))<<32 }
