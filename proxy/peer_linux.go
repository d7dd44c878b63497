package proxy

import (
	"fmt"
	"net"
	"os"

	"golang.org/x/sys/unix"

	"pghandoff/proxy/audit"
)

// overflowID is how the kernel shows an id that our user namespace does not
// know (/proc/sys/kernel/overflowuid). It names nobody.
const overflowID = 65534

// Peer is the process at the other end of a Unix socket, as the kernel told
// when it connected.
type Peer struct {
	UID    uint32
	GID    uint32
	Groups []uint32 // supplementary
	PID    int32    // 0: in a pid namespace that we do not see
	Exe    string   // best effort; for the audit, never for a decision
	// HostRoot says that uid 0 is root here, not root of a container.
	HostRoot bool
}

// peerOf asks the kernel who is at the other end of c, which is borrowed.
func peerOf(c *net.UnixConn) (*Peer, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return nil, fmt.Errorf("peer credentials: %w", err)
	}
	p := new(Peer)
	var inner error
	if err := raw.Control(func(fd uintptr) { inner = p.read(int(fd)) }); err != nil {
		return nil, fmt.Errorf("peer credentials: %w", err)
	}
	if inner != nil {
		return nil, fmt.Errorf("peer credentials: %w", inner)
	}
	if p.PID > 0 {
		p.Exe, _ = os.Readlink(fmt.Sprintf("/proc/%d/exe", p.PID))
	}
	p.HostRoot = p.UID == 0 && sameNamespace(p.PID, "user") && sameNamespace(p.PID, "pid")
	return p, nil
}

func (p *Peer) read(fd int) error {
	cred, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil {
		return err
	}
	p.UID, p.GID, p.PID = cred.Uid, cred.Gid, cred.Pid
	p.Groups, err = peerGroups(fd)
	return err
}

// sameNamespace reports whether process pid is in our namespace of that kind.
// What cannot be determined is not the same.
func sameNamespace(pid int32, kind string) bool {
	if pid <= 0 {
		return false
	}
	var ours, theirs unix.Stat_t
	if unix.Stat("/proc/self/ns/"+kind, &ours) != nil || unix.Stat(fmt.Sprintf("/proc/%d/ns/%s", pid, kind), &theirs) != nil {
		return false
	}
	return ours.Ino == theirs.Ino && ours.Dev == theirs.Dev
}

func (p *Peer) audit() *audit.Peer {
	return &audit.Peer{UID: p.UID, GID: p.GID, PID: p.PID, Exe: p.Exe}
}
