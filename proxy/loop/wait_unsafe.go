package loop

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// shortWait is how long the first wait lasts, in milliseconds.
const shortWait = 1

// wait waits for events and returns how many there are in l.events.
//
// It waits in two steps. The first, short one is a raw system call, after which
// the runtime does not have to find this thread a processor again: that saves a
// sixth of the CPU of a small transaction. But the runtime cannot stop a thread
// in a raw call for the garbage collector, so the second, long one tells it.
func (l *Loop) wait() (int, error) {
	l.waiting.Store(true)
	defer l.waiting.Store(false)
	timeout := shortWait
	if l.pending() {
		timeout = 0
	}
	n, _, errno := unix.RawSyscall6(unix.SYS_EPOLL_PWAIT, uintptr(l.epoll), uintptr(unsafe.Pointer(&l.events[0])), uintptr(len(l.events)), uintptr(timeout), 0, 0)
	switch {
	case errno == unix.EINTR:
		// The runtime's signal that wants this thread to stop, which it can do
		// only in Go code: not in another wait.
		return 0, nil
	case errno != 0:
		return 0, errno
	case n > 0 || timeout == 0:
		return int(n), nil
	}
	return l.longWait()
}

// longWait waits without an end, in a way that the runtime knows of.
func (l *Loop) longWait() (int, error) {
	n, err := unix.EpollWait(l.epoll, l.events, -1)
	if err == unix.EINTR {
		return 0, nil
	}
	return n, err
}

// Receive reads what is there into p without waiting. Errors are
// syscall.Errno; EAGAIN says that nothing is there. The end of the stream is 0
// and no error.
func Receive(fd int, p []byte) (int, error) {
	for {
		n, _, errno := unix.RawSyscall6(unix.SYS_RECVFROM, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(p))), uintptr(len(p)), unix.MSG_DONTWAIT, 0, 0)
		if errno == unix.EINTR {
			continue
		}
		if errno != 0 {
			return 0, errno
		}
		return int(n), nil
	}
}

// Send writes as much of p as there is room for, without waiting. Errors are
// syscall.Errno; EAGAIN says that there is no room.
func Send(fd int, p []byte) (int, error) {
	for {
		n, _, errno := unix.RawSyscall6(unix.SYS_SENDTO, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(p))), uintptr(len(p)), unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, 0, 0)
		if errno == unix.EINTR {
			continue
		}
		if errno != 0 {
			return 0, errno
		}
		return int(n), nil
	}
}
