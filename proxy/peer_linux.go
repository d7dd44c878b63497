package proxy

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"pghandoff/proxy/audit"
	"pghandoff/proxy/loop"
)

// overflowID is how the kernel shows an id that our user namespace does not
// know (/proc/sys/kernel/overflowuid). It names nobody.
const overflowID = 65534

// Peer is the process at the other end of a Unix socket, as the kernel told
// when it connected, or a function on another host.
type Peer struct {
	UID uint32
	GID uint32
	PID int32 // 0: in a pid namespace that we do not see

	remote *remote // nil: on this host

	socket  int // to ask further; borrowed while access is decided
	root    answer
	grouped answer      // yes: groups are known
	groups  []uint32    // supplementary
	named   *audit.Peer // what the audit says about it; the audit's own once it has an event
	looked  bool        // for its program
}

// answer is what is known about a question that costs system calls of its own,
// and is asked only when a rule needs it.
type answer int

const (
	unasked answer = iota
	yes
	no
)

// peerOf asks the kernel who is at the other end of socket fd, which is borrowed
// for as long as access may have to be decided.
func peerOf(fd int) (*Peer, error) {
	cred, err := loop.Credentials(fd)
	if err != nil {
		return nil, fmt.Errorf("peer credentials: %w", err)
	}
	both := &struct {
		Peer
		named audit.Peer
	}{Peer{UID: cred.Uid, GID: cred.Gid, PID: cred.Pid, socket: fd}, audit.Peer{UID: cred.Uid, GID: cred.Gid, PID: cred.Pid}}
	both.Peer.named = &both.named
	return &both.Peer, nil
}

// holder is whose usage the peer's counts as.
func (p *Peer) holder() holder {
	if p.remote != nil {
		return holder{address: p.remote.address.Addr()}
	}
	return holder{uid: p.UID}
}

// String says who it is, as far as that decides about access.
func (p *Peer) String() string {
	if p.remote != nil {
		return p.remote.String()
	}
	return fmt.Sprintf("uid %d", p.UID)
}

// gone notes that the socket is closed, and so can answer nothing any more.
func (p *Peer) gone() {
	p.socket = -1
	if p.root == unasked {
		p.root = no
	}
	p.grouped = yes
}

// HostRoot reports whether uid 0 is root here, not root of a container. It is
// looked up when a rule first asks for it.
func (p *Peer) HostRoot() bool {
	if p.root == unasked {
		p.root = no
		if p.UID == 0 && isHostRoot(p.socket, p.PID) {
			p.root = yes
		}
	}
	return p.root == yes
}

// look looks up the peer's program before its first event, off the way of the
// grant. It may be gone by then: that is best effort and decides nothing.
func (p *Peer) look() {
	if !p.looked && p.PID > 0 {
		p.looked = true
		p.named.Exe, _ = os.Readlink("/proc/" + strconv.Itoa(int(p.PID)) + "/exe")
	}
}

// isHostRoot reports whether process pid, the peer of socket fd, is in our user
// and pid namespaces. That is looked up by its number, so the process is pinned
// meanwhile by a pidfd: should it have ended, its number may be another's.
// Before Linux 6.5 sockets have none, and the number has to do.
func isHostRoot(fd int, pid int32) bool {
	pidfd, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PEERPIDFD)
	if err == nil {
		defer unix.Close(pidfd)
	} else if err != unix.ENOPROTOOPT {
		return false // it has ended
	}
	if !sameNamespaces(pid) {
		return false
	}
	if err == unix.ENOPROTOOPT {
		return true
	}
	err = unix.PidfdSendSignal(pidfd, 0, nil, 0)
	return err == nil || err == unix.EPERM
}

// Groups returns the supplementary groups; none if the kernel does not tell.
func (p *Peer) Groups() []uint32 {
	if p.grouped == unasked {
		p.grouped = yes
		p.groups, _ = peerGroups(p.socket)
	}
	return p.groups
}

// sameNamespaces reports whether process pid is in our user and pid namespaces.
// What cannot be determined is not the same.
func sameNamespaces(pid int32) bool {
	if pid <= 0 {
		return false
	}
	for kind, own := range ownNamespaces() {
		theirs, err := namespaceOf(fmt.Sprintf("/proc/%d/ns/%s", pid, kind))
		switch {
		case err == unix.EACCES || err == unix.EPERM:
			return looksSame(pid) // a daemon without rights may not look at root
		case err != nil || theirs != own:
			return false
		}
	}
	return true
}

// looksSame compares what every user may read of process pid: it has a pid in
// one namespace only, that of our /proc, and its user ids are mapped as ours.
func looksSame(pid int32) bool {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return false
	}
	_, pids, found := strings.Cut(string(status), "\nNSpid:")
	pids, _, _ = strings.Cut(pids, "\n")
	if !found || len(strings.Fields(pids)) != 1 {
		return false
	}
	theirs, err := os.ReadFile(fmt.Sprintf("/proc/%d/uid_map", pid))
	if err != nil {
		return false
	}
	ours, err := os.ReadFile("/proc/self/uid_map")
	return err == nil && bytes.Equal(ours, theirs)
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

// ownNamespaces never change in this process; one that cannot be read is zero,
// and equal to no other.
var ownNamespaces = sync.OnceValue(func() map[string]namespace {
	own := map[string]namespace{}
	for _, kind := range []string{"user", "pid"} {
		own[kind], _ = namespaceOf("/proc/self/ns/" + kind)
	}
	return own
})
