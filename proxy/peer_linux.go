package proxy

import (
	"fmt"
	"net"
	"os"
	"sync"

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
	own := ownNamespaces()
	if pid <= 0 || own[kind] == (namespace{}) {
		return false
	}
	theirs, err := namespaceOf(fmt.Sprintf("/proc/%d/ns/%s", pid, kind))
	return err == nil && theirs == own[kind]
}

// namespace is what tells two namespaces apart (namespaces(7)).
type namespace struct{ dev, ino uint64 }

func namespaceOf(path string) (namespace, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return namespace{}, err
	}
	return namespace{dev: uint64(st.Dev), ino: st.Ino}, nil
}

// ownNamespaces never change in this process; one that cannot be read is zero.
var ownNamespaces = sync.OnceValue(func() map[string]namespace {
	own := map[string]namespace{}
	for _, kind := range []string{"user", "pid"} {
		own[kind], _ = namespaceOf("/proc/self/ns/" + kind)
	}
	return own
})

// audit describes the peer. Its program is looked up only now, off the way of
// the grant, and may be gone: that is best effort and decides nothing.
func (p *Peer) audit() *audit.Peer {
	a := &audit.Peer{UID: p.UID, GID: p.GID, PID: p.PID}
	if p.PID > 0 {
		a.Exe, _ = os.Readlink(fmt.Sprintf("/proc/%d/exe", p.PID))
	}
	return a
}
