package handoff

import (
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// hungUp tells whether the peer has closed its end. A peer that has only shut down its sending side still waits for
// replies, and does not count: the kernel reports POLLHUP when both directions are shut.
func hungUp(fd uintptr) bool {
	poll := []unix.PollFd{{Fd: int32(fd)}}
	n, err := unix.Poll(poll, 0)
	return err == nil && n > 0 && poll[0].Revents&unix.POLLHUP != 0
}

// unread tells whether the peer has yet to read something that was sent. For a socket in the Unix domain the kernel
// counts there what lies in the peer's queue, which frees each message once its last byte is read.
func unread(raw syscall.RawConn) bool {
	left := 0
	err := raw.Control(func(fd uintptr) {
		if n, err := unix.IoctlGetInt(int(fd), unix.SIOCOUTQ); err == nil {
			left = n
		}
	})
	return err == nil && left > 0
}

// refuseDescriptors makes the kernel refuse descriptors that the peer wants to send (Linux 6.16 and later). Earlier
// kernels drop them, since they are read without room for them; but dropping closes them on the reader's time, which
// a peer can make long.
func refuseDescriptors(raw syscall.RawConn) {
	_ = raw.Control(func(fd uintptr) {
		_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_PASSRIGHTS, 0)
	})
}

// drain throws away what has arrived, a bounded amount: closing a socket with unread bytes in it would give the peer
// ECONNRESET instead of an end of stream behind the last reply.
func drain(raw syscall.RawConn) {
	buf := make([]byte, 16<<10)
	_ = raw.Control(func(fd uintptr) {
		for range 16 {
			if n, _, err := unix.Recvfrom(int(fd), buf, unix.MSG_DONTWAIT); n <= 0 || err != nil {
				return
			}
		}
	})
}

// withRights encodes the descriptor of a file, which it borrows, as ancillary data, and passes it on while the file cannot
// be closed.
func withRights(file syscall.Conn, send func(rights []byte) error) error {
	raw, err := file.SyscallConn()
	if err != nil {
		return err
	}
	var sendErr error
	err = raw.Control(func(fd uintptr) { sendErr = send(unix.UnixRights(int(fd))) })
	if err != nil {
		return err
	}
	return sendErr
}

// sendLine writes a line; file, if not nil, goes along on its first byte.
func sendLine(conn *net.UnixConn, line []byte, file syscall.Conn) error {
	sent := 0
	if file != nil {
		err := withRights(file, func(rights []byte) (err error) {
			sent, _, err = conn.WriteMsgUnix(line, rights, nil)
			return err
		})
		if err != nil {
			return err
		}
	}
	if sent == len(line) {
		return nil // not even an empty write, which fails if the peer has read the line and closed
	}
	_, err := conn.Write(line[sent:])
	return err
}
