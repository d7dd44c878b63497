package loop

import (
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The system calls of handlers are raw, as the short wait is: none of them
// waits, and the runtime need not know.

// Receive reads what is there into p without waiting. Errors are
// syscall.Errno; EAGAIN says that nothing is there. The end of the stream is 0
// and no error.
func Receive(fd int, p []byte) (int, error) { return receive(fd, p, 0) }

// Peek is Receive that leaves there what it reads.
func Peek(fd int, p []byte) (int, error) { return receive(fd, p, unix.MSG_PEEK) }

func receive(fd int, p []byte, flags uintptr) (int, error) {
	for {
		n, _, errno := unix.RawSyscall6(unix.SYS_RECVFROM, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(p))), uintptr(len(p)), flags|unix.MSG_DONTWAIT, 0, 0)
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

// SendRights is Send with the descriptor pass beside the first byte, which the
// kernel duplicates. Once a byte is written the other side has it. fd is a Unix
// socket, p must not be empty.
func SendRights(fd int, p []byte, pass int) (int, error) {
	rights := struct {
		unix.Cmsghdr
		pass int32
		_    int32 // the length of a message is a multiple of eight
	}{pass: int32(pass)}
	rights.Level, rights.Type = unix.SOL_SOCKET, unix.SCM_RIGHTS
	rights.SetLen(unix.CmsgLen(4))
	data := unix.Iovec{Base: unsafe.SliceData(p)}
	data.SetLen(len(p))
	message := unix.Msghdr{Iov: &data, Control: (*byte)(unsafe.Pointer(&rights))}
	message.SetIovlen(1)
	message.SetControllen(unix.CmsgSpace(4))
	for {
		n, _, errno := unix.RawSyscall(unix.SYS_SENDMSG, uintptr(fd), uintptr(unsafe.Pointer(&message)), unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
		runtime.KeepAlive(&data) // message alone is known to be used
		runtime.KeepAlive(&rights)
		runtime.KeepAlive(p)
		if errno == unix.EINTR {
			continue
		}
		if errno != 0 {
			return 0, errno
		}
		return int(n), nil
	}
}

// Accept takes a connection that waits at fd, a listening socket, which must be
// non-blocking: then this does not wait either. The caller owns the new
// descriptor; it is non-blocking and closed by exec. Errors are syscall.Errno;
// EAGAIN says that nobody waits.
func Accept(fd int) (int, error) {
	for {
		conn, _, errno := unix.RawSyscall6(unix.SYS_ACCEPT4, uintptr(fd), 0, 0, unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0, 0)
		if errno == unix.EINTR {
			continue
		}
		if errno != 0 {
			return -1, errno
		}
		return int(conn), nil
	}
}

// Credentials returns who connected to the Unix socket fd (SO_PEERCRED). Errors
// are syscall.Errno.
func Credentials(fd int) (unix.Ucred, error) {
	var cred unix.Ucred
	size := uint32(unix.SizeofUcred)
	_, _, errno := unix.RawSyscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.SOL_SOCKET, unix.SO_PEERCRED, uintptr(unsafe.Pointer(&cred)), uintptr(unsafe.Pointer(&size)), 0)
	if errno != 0 {
		return cred, errno
	}
	return cred, nil
}
