package handoff

import "golang.org/x/sys/unix"

// The functions of this file are for the daemon's end of a connection in the Unix domain. They borrow the descriptor and
// never block.

// HungUp tells whether the peer has closed its end. A peer that has only shut down its sending side still waits for
// replies, and does not count: the kernel reports POLLHUP when both directions are shut.
func HungUp(fd int) bool {
	poll := []unix.PollFd{{Fd: int32(fd)}}
	n, err := unix.Poll(poll, 0)
	return err == nil && n > 0 && poll[0].Revents&unix.POLLHUP != 0
}

// Unread tells whether the peer has yet to read something that was sent. The kernel counts there (SIOCOUTQ) what lies in
// the peer's queue, which frees each message once its last byte is read. There is no event for that.
func Unread(fd int) bool {
	left, err := unix.IoctlGetInt(fd, unix.SIOCOUTQ)
	return err == nil && left > 0
}

// RefuseDescriptors makes the kernel refuse descriptors that the peer wants to send (Linux 6.16 and later). Earlier
// kernels drop them, since they are read without room for them; but dropping closes them on the reader's time, which
// a peer can make long.
func RefuseDescriptors(fd int) {
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PASSRIGHTS, 0)
}

// Drain throws away what has arrived, up to 256 KiB. It goes before the close that follows a last reply: closing a socket
// with unread bytes in it would give the peer ECONNRESET instead of an end of stream behind that reply.
func Drain(fd int) {
	buf := make([]byte, 16<<10)
	for range 16 {
		if n, _, err := unix.Recvfrom(fd, buf, unix.MSG_DONTWAIT); n <= 0 || err != nil {
			return
		}
	}
}
