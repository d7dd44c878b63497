package handofftest

import (
	"context"
	"fmt"
	"os"
	"slices"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"pghandoff/handoff"
)

// Fake is a Broker that grants socketpairs. The database named decides: "wait" blocks until nobody waits any more,
// "denied" is refused with 28000, "" with 3D000, and "plain" is a lease that ends with its connection; all others are
// granted.
type Fake struct {
	Waiting   chan struct{} // an acquire waits
	Abandoned chan struct{} // an acquire that waited was abandoned
	Ended     chan struct{} // a lease ended with its connection
	Claims    chan string   // requests to cancel and release: operation, lease, owner and secret

	mu    sync.Mutex
	n     int
	far   map[string]*os.File // the daemon's ends
	calls []handoff.Call
}

// NewFake returns a Fake whose descriptors are closed when the test is over. The test must read what it sends, at the
// latest after a hundred.
func NewFake(t testing.TB) *Fake {
	f := &Fake{far: map[string]*os.File{}, Waiting: make(chan struct{}, 100), Abandoned: make(chan struct{}, 100),
		Ended: make(chan struct{}, 100), Claims: make(chan string, 100)}
	t.Cleanup(f.CloseEnds)
	return f
}

// Acquire is part of Broker.
func (f *Fake) Acquire(ctx context.Context, c handoff.Call) (*Grant, error) {
	f.mu.Lock()
	f.calls = append(f.calls, c)
	f.mu.Unlock()
	switch c.Database {
	case "wait":
		f.Waiting <- struct{}{}
		<-ctx.Done()
		f.Abandoned <- struct{}{}
		return nil, ctx.Err()
	case "denied":
		return nil, &handoff.Refusal{SQLState: "28000", Message: "not you", Hint: "be another"}
	case "":
		return nil, &handoff.Refusal{SQLState: "3D000", Message: "name one of 2 routes"}
	}
	return f.grant(c)
}

func (f *Fake) grant(c handoff.Call) (*Grant, error) {
	near, far, err := Pair()
	if err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.n++
	secret := handoff.Secret(1000 + f.n)
	lease := fmt.Sprintf("lease-%d", f.n)
	f.far[lease] = far
	g := &Grant{File: near, Granted: handoff.Granted{Lease: lease, Database: c.Database, Transport: handoff.Bridge, State: c.State,
		Tx: 'I', PID: uint32(f.n), Secret: &secret, Parameters: []handoff.Parameter{{Name: "server_version", Value: "17.2"}}}}
	if c.Database == "plain" {
		g.Transport = handoff.Plain
		g.Ended = func() { f.Ended <- struct{}{} }
	}
	return g, nil
}

// Cancel is part of Broker.
func (f *Fake) Cancel(_ context.Context, c handoff.Claim) error { return f.claim("cancel", c) }

// Release is part of Broker.
func (f *Fake) Release(_ context.Context, c handoff.Claim) error { return f.claim("release", c) }

func (f *Fake) claim(op string, c handoff.Claim) error {
	secret := "none"
	if c.Secret != nil {
		secret = fmt.Sprint(uint32(*c.Secret))
	}
	f.Claims <- fmt.Sprintf("%s %s owner=%v secret=%s", op, c.Lease, c.Owner, secret)
	return nil
}

// Asked returns the acquires so far.
func (f *Fake) Asked() []handoff.Call {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.calls)
}

// DaemonEnd returns the other end of a lease's descriptor. The Fake owns it.
func (f *Fake) DaemonEnd(lease string) *os.File {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.far[lease]
}

// CloseEnds closes the other ends of all leases so far.
func (f *Fake) CloseEnds() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, file := range f.far {
		_ = file.Close()
	}
	clear(f.far)
}

// Pair returns two connected sockets, which the caller owns.
func Pair() (near, far *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, os.NewSyscallError("socketpair", err)
	}
	return os.NewFile(uintptr(fds[0]), "near"), os.NewFile(uintptr(fds[1]), "far"), nil
}
