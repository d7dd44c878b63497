package loop

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"
	"sync/atomic"

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

	mu      sync.Mutex
	queue   []func()
	spare   []func() // the other of two slices that take turns
	waiting atomic.Bool
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

// New returns a loop that is not running yet. Close frees one that never ran.
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
	l := &Loop{In: make([]byte, BufferSize), Out: make([]byte, 0, BufferSize), epoll: epoll, wake: wake, events: make([]unix.EpollEvent, 256)}
	if err := l.control(unix.EPOLL_CTL_ADD, wake, Readable, wakeToken); err != nil {
		l.Close()
		return nil, err
	}
	return l, nil
}

// Close frees the loop's descriptors. It must not be running.
func (l *Loop) Close() {
	unix.Close(l.epoll)
	unix.Close(l.wake)
}

// Post makes the loop call f soon, after what was posted before. It never
// blocks, and reports false if the loop has stopped and f will not be called.
// Safe from any goroutine.
func (l *Loop) Post(f func()) bool {
	l.mu.Lock()
	if l.stopped {
		l.mu.Unlock()
		return false
	}
	l.queue = append(l.queue, f)
	first := len(l.queue) == 1
	l.mu.Unlock()
	if first && l.waiting.Load() {
		l.ring()
	}
	return true
}

// ring wakes the loop.
func (l *Loop) ring() {
	one := [8]byte{1}
	unix.Write(l.wake, one[:]) // full means that it is awake
}

// Stop makes Run return once what was posted before is done. Safe from any
// goroutine.
func (l *Loop) Stop() {
	l.Post(func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.stopped = true
	})
}

// Run runs the loop on a thread of its own until Stop. Descriptors that are
// still added then stay open; whoever owns them closes them.
func (l *Loop) Run() error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for {
		if done := l.runQueue(); done {
			return nil
		}
		n, err := l.wait()
		if err != nil {
			return fmt.Errorf("wait for events: %w", err)
		}
		for i := range n {
			l.dispatch(&l.events[i])
		}
	}
}

// runQueue calls what was posted. What these post runs in the next turn.
func (l *Loop) runQueue() (done bool) {
	l.mu.Lock()
	queue := l.queue
	l.queue, l.spare = l.spare[:0], nil
	l.mu.Unlock()
	for i, f := range queue {
		f()
		queue[i] = nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.spare = queue[:0]
	return l.stopped
}

// pending reports whether something was posted.
func (l *Loop) pending() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.queue) > 0
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
// so that a descriptor whose other side is gone can be left for later.
func (l *Loop) Want(t Token, events Events) error {
	s := l.slot(t)
	if s == nil {
		return errors.New("no such descriptor in the loop")
	}
	if s.events == events {
		return nil
	}
	s.events = events
	switch {
	case events == 0:
		s.asleep = true
		return l.control(unix.EPOLL_CTL_DEL, s.fd, 0, t)
	case s.asleep:
		s.asleep = false
		return l.control(unix.EPOLL_CTL_ADD, s.fd, events, t)
	}
	return l.control(unix.EPOLL_CTL_MOD, s.fd, events, t)
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
