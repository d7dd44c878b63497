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
	end     // owned
	loop    *loop.Loop
	tracker pgwire.Tracker

	parameters parameterSet
	pid        uint32
	secret     []byte // cancel key
	method     string // how the server authenticated us

	server   config.Server
	identity *certs.Snapshot // nil: none was used
	opened   time.Time
	retire   time.Time // replaced from then on; zero: never
	idleFrom time.Time // since when it is in the pool

	// cancels counts cancel requests under way for this backend; it is not
	// given to another function before they are through.
	cancels sync.WaitGroup
	// doubtful says that a cancel request was sent and nobody knows whether the
	// server has acted on it: it could still hit whoever comes next.
	doubtful atomic.Bool
}

// retired reports whether the upstream has served its time.
func (u *Upstream) retired(now time.Time) bool { return !u.retire.IsZero() && !now.Before(u.retire) }

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
	n, _, err := unix.Recvfrom(u.fd, b[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
	switch {
	case err == unix.EAGAIN || err == unix.EINTR:
		return peekQuiet
	case err == nil && n > 0:
		return peekBytes
	}
	return peekClosed
}

// absorb takes in what a server said unasked to an idle session: notices,
// parameter reports, TLS's own messages. It reports whether the session is still
// fit to be handed out; a notification, an error, or half a message make it
// unfit.
func (u *Upstream) absorb() bool {
	if u.tls != nil {
		if !u.note(u.tls.HeldPlain()) || u.tls.HoldPlain(nil) != nil {
			return false
		}
	}
	room := make([]byte, tlsstate.MaxRecord+absorbSize)
	for {
		plain, more, err := u.receive(room)
		if err != nil || !u.note(plain) {
			return false
		}
		if !more {
			return !u.holds()
		}
	}
}

// note takes note of what came unasked, if it concerns nobody.
func (u *Upstream) note(p []byte) bool {
	reported, err := pgwire.Unasked(p)
	for _, p := range reported {
		u.parameters.set(p)
	}
	return err == nil
}

// absorbSize is how much is read at a time of what came unasked. 16 KiB.
const absorbSize = 16 << 10

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

// close ends the session politely and gives the descriptor back.
func (u *Upstream) close() { u.hangUp(pgwire.AppendTerminate(nil)) }

// audit describes the backend.
func (u *Upstream) audit() *audit.Upstream {
	a := &audit.Upstream{Address: u.server.String(), BackendPID: u.pid, ChannelBinding: u.method == "scram-sha-256-plus"}
	if u.tls != nil {
		info := u.tls.Info()
		a.TLSVersion, a.Cipher = info.VersionName(), info.SuiteName()
		a.ServerCertSHA256 = hex.EncodeToString(info.ServerCertSHA256[:])
		if len(info.PeerCertificates) > 0 {
			a.ServerCertNotAfter = &info.PeerCertificates[0].NotAfter
		}
	}
	if u.identity != nil {
		a.ClientCertSerial, a.Generation = u.identity.Serial(), u.identity.Generation
	}
	return a
}
