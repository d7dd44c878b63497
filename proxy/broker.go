package proxy

import (
	"context"
	"net"
	"os"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"pghandoff/handoff"
	"pghandoff/pgwire"
)

// broker answers one connection of the handoff socket.
type broker struct {
	d     *Daemon
	peer  *Peer
	door  *door
	wrong atomic.Int32 // wrong secrets so far
}

// Acquire grants a lease over a socketpair.
func (b *broker) Acquire(ctx context.Context, c handoff.Call) (*handoff.Grant, error) {
	if c.Transport != handoff.Any && c.Transport != handoff.Bridge {
		return nil, &handoff.Refusal{SQLState: codeNotSupported, Message: "transport \"" + string(c.Transport) + "\" cannot be had on this route",
			Hint: "ask for bridge or any"}
	}
	a := ask{peer: b.peer, door: b.door, way: "handoff", database: c.Database, user: c.User, application: c.ApplicationName, wait: c.Wait}
	if a.database == "" {
		name, err := b.d.onlyRoute(b.door, b.peer)
		if err != nil {
			return nil, refusalOf(err)
		}
		a.database = name
	}
	if a.user == "" {
		return nil, &handoff.Refusal{SQLState: codeNotAuthorized, Message: "no user name was given", Hint: "name one in \"user\""}
	}
	for name, value := range c.Parameters {
		a.parameters = append(a.parameters, pgwire.Parameter{Name: name, Value: value})
	}
	if c.ApplicationName != "" {
		a.parameters = append(a.parameters, pgwire.Parameter{Name: "application_name", Value: c.ApplicationName})
	}
	l, err := b.d.grant(ctx, a)
	if err != nil {
		return nil, refusalOf(err)
	}
	return b.hand(l, c.State)
}

// refusalOf is a Failure as the handoff socket says it.
func refusalOf(err error) error {
	f := failureOf(err)
	return &handoff.Refusal{SQLState: f.SQLState, Message: f.Message, Hint: f.Hint, Retry: f.Retry}
}

// hand makes the function's end of a granted lease and starts to serve ours.
func (b *broker) hand(l *Lease, state handoff.State) (*handoff.Grant, error) {
	ours, theirs, err := socketpair()
	if err != nil {
		b.d.finish(l, ending{outcome: "no descriptor"})
		return nil, refusalOf(err)
	}
	secret := handoff.Secret(l.secret)
	g := &handoff.Grant{File: theirs, Granted: handoff.Granted{Lease: l.id, Database: l.route.name, Transport: handoff.Bridge,
		State: state, Tx: 'I', PID: l.up.pid, Secret: &secret, Parameters: l.up.parameters.toMap()}}
	g.Withdraw = func(reason error) {
		l.revoke(&Failure{SQLState: codeShutdown, Message: "this lease was withdrawn: " + reason.Error(), Hint: "read the grant as soon as it comes", Retry: true, Reason: "withdrawn"}, true)
	}
	b.d.work.Go(func() { b.d.announce(l) }) // ends at once
	if state == handoff.Ready {
		b.d.relay(l, ours)
		return g, nil
	}
	conn, err := giveDescriptor(ours)
	if err != nil {
		theirs.Close()
		b.d.finish(l, ending{outcome: "no descriptor"})
		return nil, refusalOf(err)
	}
	l.mu.Lock()
	l.conn = conn
	l.mu.Unlock()
	s := &session{d: b.d, conn: conn.(*net.UnixConn), peer: b.peer, door: b.door, way: "handoff", lease: l}
	b.d.work.Go(func() { s.serve(b.d.base) }) // ends with the start-up; Run waits for it
	return g, nil
}

// socketpair returns two connected ends, both close-on-exec; the caller owns
// them. Ours does not block; the function's does, as most runtimes expect of a
// descriptor that they inherit.
func socketpair() (ours int, theirs *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, nil, os.NewSyscallError("socketpair", err)
	}
	if err := unix.SetNonblock(fds[0], true); err != nil {
		unix.Close(fds[0])
		unix.Close(fds[1])
		return -1, nil, os.NewSyscallError("fcntl", err)
	}
	return fds[0], os.NewFile(uintptr(fds[1]), "lease"), nil
}

// wrongSecretDelay grows with each wrong secret of a connection, up to the
// bound: guessing 32 bits must not be worth trying.
const (
	wrongSecretDelay    = 50 * time.Millisecond
	maxWrongSecretDelay = 2 * time.Second
)

// claim finds the lease that c names and checks that its bearer may have it.
func (b *broker) claim(ctx context.Context, c handoff.Claim) (*Lease, error) {
	l := b.d.leases.withID(c.Lease)
	if l != nil && (c.Owner || c.Secret != nil && uint32(*c.Secret) == l.secret) && l.ask.peer.UID == b.peer.UID {
		return l, nil
	}
	delay := min(wrongSecretDelay*time.Duration(b.wrong.Add(1)), maxWrongSecretDelay)
	pause(ctx, delay)
	return nil, &handoff.Refusal{SQLState: codeNotAuthorized, Message: "there is no such lease, or the secret is not its own"}
}

// Cancel cancels what the lease's backend is doing.
func (b *broker) Cancel(ctx context.Context, c handoff.Claim) error {
	l, err := b.claim(ctx, c)
	if err != nil {
		return err
	}
	b.d.cancelLease(ctx, l, b.peer)
	return nil
}

// Release ends the lease as if the function had closed its descriptor.
func (b *broker) Release(ctx context.Context, c handoff.Claim) error {
	l, err := b.claim(ctx, c)
	if err != nil {
		return err
	}
	l.revoke(&Failure{SQLState: codeShutdown, Message: "this lease was released", Reason: reasonReleased}, true)
	return nil
}
