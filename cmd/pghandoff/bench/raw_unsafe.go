package bench

import (
	"fmt"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The calls below block without telling Go's scheduler. A client through the
// scheduler would measure the scheduler: after each millisecond of waiting it
// needs 100 µs to get going again. They may be used on a locked thread only,
// towards another process, for as long as rawTimeout at most: for so long the
// garbage collector is held up.

// rawTimeout bounds each receive.
const rawTimeout = 10 * time.Second

// rawConnect returns a connected socket.
func rawConnect(path string) (fd int, err error) {
	address := unix.RawSockaddrUnix{Family: unix.AF_UNIX}
	if len(path) >= len(address.Path) {
		return -1, fmt.Errorf("connect: the path %s is too long", path)
	}
	for i := range path {
		address.Path[i] = int8(path[i])
	}
	fd, err = unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("socket: %w", err)
	}
	for {
		_, _, errno := unix.RawSyscall(unix.SYS_CONNECT, uintptr(fd), uintptr(unsafe.Pointer(&address)), unsafe.Sizeof(address))
		if errno == 0 {
			return fd, nil
		}
		if errno != unix.EINTR {
			_ = unix.Close(fd)
			return -1, fmt.Errorf("connect %s: %w", path, errno)
		}
	}
}

// rawLimit makes each receive fail with EAGAIN after rawTimeout.
func rawLimit(fd int) error {
	limit := unix.NsecToTimeval(rawTimeout.Nanoseconds())
	return unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &limit)
}

func rawSend(fd int, p []byte) error {
	for len(p) > 0 {
		n, _, errno := unix.RawSyscall6(unix.SYS_SENDTO, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(p))), uintptr(len(p)), unix.MSG_NOSIGNAL, 0, 0)
		switch {
		case errno == unix.EINTR:
		case errno != 0:
			return fmt.Errorf("send: %w", errno)
		default:
			p = p[n:]
		}
	}
	return nil
}

// rawReceive waits for something; the end of the stream is an error.
func rawReceive(fd int, p []byte) (int, error) {
	for {
		n, _, errno := unix.RawSyscall6(unix.SYS_RECVFROM, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(p))), uintptr(len(p)), 0, 0, 0)
		switch {
		case errno == unix.EINTR:
		case errno != 0:
			return 0, fmt.Errorf("receive: %w", errno)
		case n == 0:
			return 0, fmt.Errorf("receive: %w", errClosed)
		default:
			return int(n), nil
		}
	}
}

// rawReceiveFile is rawReceive for bytes that may bring a descriptor; it is -1
// if they do not.
func rawReceiveFile(fd int, p []byte) (n, file int, err error) {
	var control [64]byte
	buffer := unix.Iovec{Base: unsafe.SliceData(p)}
	buffer.SetLen(len(p))
	message := unix.Msghdr{Iov: &buffer, Iovlen: 1, Control: &control[0]}
	for {
		message.SetControllen(len(control))
		got, _, errno := unix.RawSyscall(unix.SYS_RECVMSG, uintptr(fd), uintptr(unsafe.Pointer(&message)), unix.MSG_CMSG_CLOEXEC)
		switch {
		case errno == unix.EINTR:
			continue
		case errno != 0:
			return 0, -1, fmt.Errorf("receive: %w", errno)
		case got == 0:
			return 0, -1, fmt.Errorf("receive: %w", errClosed)
		}
		header := (*unix.Cmsghdr)(unsafe.Pointer(&control[0]))
		if uint64(message.Controllen) < uint64(unix.CmsgLen(4)) || header.Level != unix.SOL_SOCKET || header.Type != unix.SCM_RIGHTS {
			return int(got), -1, nil
		}
		return int(got), int(*(*int32)(unsafe.Pointer(&control[unix.CmsgLen(0)]))), nil
	}
}

// rawSleep is short: being interrupted does no harm.
func rawSleep(d time.Duration) {
	t := unix.NsecToTimespec(d.Nanoseconds())
	_, _, _ = unix.RawSyscall(unix.SYS_NANOSLEEP, uintptr(unsafe.Pointer(&t)), 0, 0)
}
