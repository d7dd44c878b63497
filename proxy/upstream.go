package proxy

import (
	"encoding/hex"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"pghandoff/certs"
	"pghandoff/pgwire"
	"pghandoff/proxy/audit"
	"pghandoff/proxy/config"
	"pghandoff/proxy/loop"
	"pghandoff/tlsstate"
)

// Upstream is one authenticated connection to a server. Whoever holds it (pool,
// lease, reset) uses it alone.
type Upstream struct {
	end                    // owned
	info    *tlsstate.Info // of the handshake; nil: plaintext
	loop    *loop.Loop     // where it is used now; that of the lease it is given to
	tracker pgwire.Tracker

	own        bool // it has start-up parameters of one function and serves no other
	parameters *parameterSet
	pid        uint32
	secret     []byte // cancel key
	method     string // how the server authenticated us

	server   config.Server
	identity *certs.Snapshot // nil: none was used
	// of rotations, for its pool
	chance     float64 // from 0 to 1: its moment of the window
	trustEpoch uint64  // of the pool when its server was verified last
	distrusted bool    // its server's certificate chains to no anchor any more
	opened     time.Time
	retire     time.Time // replaced from then on; zero: never
	idleFrom   time.Time // since when it is in the pool
	asked      time.Time // when it was asked last whether its server is a standby
	standby    bool      // it was at the login
	newborn    bool      // it has not been found fit since it was made

	described *audit.Upstream // for the audit, all but the pid; shared

	cancels underway
	// doubtful says that a cancel request was sent and nobody knows whether the
	// server has acted on it: it could still hit whoever comes next.
	doubtful atomic.Bool
}

// onStandby reports whether the server has said last that it is a standby
// (PostgreSQL 14 and newer).
func (u *Upstream) onStandby() bool {
	v, _ := u.parameters.get("in_hot_standby")
	return v == "on"
}

// retired reports whether the upstream has served its time, or its keys have.
func (u *Upstream) retired(now time.Time) bool {
	return !u.retire.IsZero() && !now.Before(u.retire) || u.tls != nil && u.tls.Retire()
}

// peeked is what a look at an idle socket showed.
type peeked int

const (
	peekQuiet  peeked = iota // nothing there
	peekClosed               // the server has closed it
	peekBytes                // something arrived unasked
)

// peek looks at the socket without taking anything from it.
func (u *Upstream) peek() peeked {
	var b [1]byte
	n, err := loop.Peek(u.fd, b[:])
	switch {
	case err == unix.EAGAIN:
		return peekQuiet
	case err == nil && n > 0:
		return peekBytes
	}
	return peekClosed
}

// absorb takes in what a server said unasked to an idle session: notices,
// parameter reports, TLS's own messages. It reports whether the session is still
// fit to be handed out; a notification, an error, half a message, or no end of
// them make it unfit.
func (u *Upstream) absorb() bool {
	if u.tls != nil {
		if !u.note(u.tls.HeldPlain()) || u.tls.HoldPlain(nil) != nil {
			return false
		}
	}
	room := make([]byte, tlsstate.MaxRecord+absorbSize)
	for range absorbReads {
		plain, more, err := u.receive(room)
		if err != nil || !u.note(plain) {
			return false
		}
		if !more {
			return !u.holds()
		}
	}
	return false
}

// report takes note of what the server has reported, unless it is too much.
func (u *Upstream) report(reported []pgwire.Parameter) error {
	for _, p := range reported {
		if u.parameters = u.parameters.with(p); u.parameters.excessive() {
			return errParameters
		}
	}
	return nil
}

// note takes note of what came unasked, if it concerns nobody.
func (u *Upstream) note(p []byte) bool {
	reported, err := pgwire.Unasked(p)
	return u.report(reported) == nil && err == nil
}

const (
	// absorbSize is how much is read at a time of what came unasked. 16 KiB.
	absorbSize = 16 << 10
	// absorbReads is how often: a server that does not stop must not keep the
	// loop, which has others to serve.
	absorbReads = 4
)

// holds reports whether bytes of the server wait in user space.
func (u *Upstream) holds() bool {
	return u.tls != nil && (len(u.tls.HeldIn()) > 0 || len(u.tls.HeldPlain()) > 0)
}

// fit says whether an idle upstream can be handed out.
func (u *Upstream) fit() bool {
	switch u.peek() {
	case peekQuiet:
		return !u.holds() || u.absorb()
	case peekBytes:
		return u.absorb()
	}
	return false
}

// watch lets the upstream's loop call h for events.
func (u *Upstream) watch(h loop.Handler, events loop.Events) (err error) {
	if u.token == 0 {
		u.token, err = u.loop.Add(u.fd, h, events)
		return err
	}
	u.loop.Rebind(u.token, h)
	return u.loop.Want(u.token, events)
}

// leave takes the upstream out of its loop.
func (u *Upstream) leave() {
	if u.token != 0 {
		u.loop.Remove(u.token)
		u.token = 0
	}
}

// close ends the session politely and gives the descriptor back.
func (u *Upstream) close() { u.hangUp(pgwire.AppendTerminate(nil)) }

// underway counts cancel requests under way for a backend, which is not given to
// another function before they are through. Safe for concurrent use.
type underway struct {
	mu   sync.Mutex
	n    int
	then func()
}

func (c *underway) begin() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.n++
}

func (c *underway) end() {
	c.mu.Lock()
	c.n--
	var then func()
	if c.n == 0 {
		then, c.then = c.then, nil
	}
	c.mu.Unlock()
	if then != nil {
		then()
	}
}

// whenOver reports whether none is under way; else it has then called when the
// last one ends. No more must begin.
func (c *underway) whenOver(then func()) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.n > 0 {
		c.then = then
	}
	return c.n == 0
}

// audit says for the audit which backend this is.
func (u *Upstream) audit() *audit.Upstream {
	a := *u.described
	a.BackendPID = u.pid
	return &a
}

// describe says for the audit what kind of backend this is.
func (u *Upstream) describe() *audit.Upstream {
	a := &audit.Upstream{Address: u.server.String(), ChannelBinding: u.method == "scram-sha-256-plus"}
	if u.info != nil {
		a.TLSVersion, a.Cipher = u.info.VersionName(), u.info.SuiteName()
		a.ServerCertSHA256 = hex.EncodeToString(u.info.ServerCertSHA256[:])
		if len(u.info.PeerCertificates) > 0 {
			a.ServerCertNotAfter = &u.info.PeerCertificates[0].NotAfter
		}
	}
	if u.identity != nil {
		a.ClientCertSerial, a.Generation = u.identity.Serial(), u.identity.Generation
	}
	return a
}
