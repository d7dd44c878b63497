package admin

import (
	"errors"
	"fmt"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// peer is the process at the other end, as the kernel names it.
type peer struct {
	uid uint32
	pid int32
	// pidfd refers to the process whatever becomes of its pid; -1: this kernel
	// does not give one (before Linux 6.5).
	pidfd int
}

// checkPeer returns nil for a process of our own uid and user namespace.
func checkPeer(c net.Conn) error {
	p, err := peerOf(c)
	if err != nil {
		return err
	}
	defer p.close()
	return p.check(os.Geteuid())
}

// peerOf asks the kernel; the caller closes the peer.
func peerOf(c net.Conn) (*peer, error) {
	u, ok := c.(*net.UnixConn)
	if !ok {
		return nil, errors.New("not a Unix socket")
	}
	raw, err := u.SyscallConn()
	if err != nil {
		return nil, err
	}
	var cred *unix.Ucred
	var credErr, pidfdErr error
	p := &peer{pidfd: -1}
	if err := raw.Control(func(fd uintptr) {
		cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
		p.pidfd, pidfdErr = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_PEERPIDFD)
	}); err != nil {
		return nil, err
	}
	if pidfdErr != nil {
		p.pidfd = -1
	}
	if credErr != nil {
		p.close()
		return nil, fmt.Errorf("peer credentials: %w", credErr)
	}
	if pidfdErr != nil && !errors.Is(pidfdErr, unix.ENOPROTOOPT) {
		return nil, fmt.Errorf("peer's process: %w", pidfdErr) // it has ended
	}
	p.uid, p.pid = cred.Uid, cred.Pid
	return p, nil
}

func (p *peer) close() {
	if p.pidfd >= 0 {
		unix.Close(p.pidfd)
	}
}

func (p *peer) check(own int) error {
	if int(p.uid) != own {
		return fmt.Errorf("the control socket serves only the daemon's own user (uid %d): run this command as that user", own)
	}
	var ours, theirs unix.Stat_t
	if unix.Stat("/proc/self/ns/user", &ours) != nil || unix.Stat(fmt.Sprintf("/proc/%d/ns/user", p.pid), &theirs) != nil ||
		ours.Dev != theirs.Dev || ours.Ino != theirs.Ino {
		return errors.New("the control socket serves only processes in the daemon's own user namespace")
	}
	if p.ended() { // then what was read may be another process's, with its pid
		return errors.New("the control socket serves only processes that wait for the answer: this one has ended")
	}
	return nil
}

// ended reports whether the process is known to have ended.
func (p *peer) ended() bool {
	if p.pidfd < 0 {
		return false
	}
	fds := []unix.PollFd{{Fd: int32(p.pidfd), Events: unix.POLLIN}}
	for {
		n, err := unix.Poll(fds, 0)
		if !errors.Is(err, unix.EINTR) {
			return n != 0 || err != nil
		}
	}
}
