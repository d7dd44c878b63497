package proxy

import (
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"pghandoff/certs"
	"pghandoff/pgwire"
	"pghandoff/proxy/audit"
	"pghandoff/proxy/config"
	"pghandoff/tlsstate"
)

// Upstream is one authenticated connection to a server. Whoever holds it (pool,
// lease, reset) uses it alone.
type Upstream struct {
	conn    net.Conn // owned; a *tlsstate.Stream where there is TLS
	raw     syscall.RawConn
	tracker pgwire.Tracker

	parameters parameterSet
	pid        uint32
	secret     []byte // cancel key
	method     string // how the server authenticated us

	server   config.Server
	tls      *tlsstate.Info  // nil: plaintext
	identity *certs.Snapshot // nil: none was used
	opened   time.Time
	retire   time.Time // replaced from then on; zero: never
	idleFrom time.Time // since when it is in the pool

	// cancels counts cancel requests under way for this backend; it is not
	// given to another function before they are through.
	cancels sync.WaitGroup
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
	result := peekClosed
	err := u.raw.Control(func(fd uintptr) {
		var b [1]byte
		n, _, err := unix.Recvfrom(int(fd), b[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
		switch {
		case err == unix.EAGAIN || err == unix.EINTR:
			result = peekQuiet
		case err == nil && n > 0:
			result = peekBytes
		}
	})
	if err != nil {
		return peekClosed
	}
	return result
}

// absorbPatience is how long a message that began to arrive may take to end.
const absorbPatience = 100 * time.Millisecond

// absorb takes in what a server said unasked to an idle session: notices,
// parameter reports, TLS tickets. It reports whether the session is still fit
// to be handed out; a notification or an error makes it unfit.
func (u *Upstream) absorb() bool {
	frames := pgwire.NewFrameReader(u.conn, 0)
	for u.peek() == peekBytes || u.holds() {
		u.conn.SetReadDeadline(time.Now().Add(absorbPatience))
		typ, body, err := frames.Next()
		u.conn.SetReadDeadline(time.Time{})
		if errors.Is(err, os.ErrDeadlineExceeded) && u.peek() == peekQuiet && !u.holds() {
			return frames.Untouched() // only TLS's own messages came
		}
		if err != nil {
			return false
		}
		switch typ {
		case 'N':
		case 'S':
			p, err := pgwire.ParseParameterStatus(body)
			if err != nil {
				return false
			}
			u.parameters.set(p)
		default:
			return false
		}
	}
	return u.peek() == peekQuiet
}

// holds reports whether bytes of the server wait in user space.
func (u *Upstream) holds() bool {
	s, ok := u.conn.(*tlsstate.Stream)
	return ok && s.Held() > 0
}

// fit says whether an idle upstream can be handed out. It may take
// absorbPatience if the server has said something.
func (u *Upstream) fit() bool {
	switch u.peek() {
	case peekQuiet:
		return !u.holds() || u.absorb()
	case peekBytes:
		return u.absorb()
	}
	return false
}

// exchange runs a script of ours on the quiet session within limit.
func (u *Upstream) exchange(request []byte, ready int, limit time.Duration) (*pgwire.Outcome, error) {
	u.conn.SetDeadline(time.Now().Add(limit))
	out, err := pgwire.Exchange(u.conn, request, ready)
	if err != nil {
		return nil, err
	}
	u.conn.SetDeadline(time.Time{})
	for _, p := range out.Reported {
		u.parameters.set(p)
	}
	return out, nil
}

// closePatience is how long the polite end of an upstream may take.
const closePatience = time.Second

// close ends the session politely, which may take closePatience.
func (u *Upstream) close() {
	u.conn.SetDeadline(time.Now().Add(closePatience))
	u.conn.Write(pgwire.AppendTerminate(nil)) // the server may be gone
	u.conn.Close()
}

// audit describes the backend.
func (u *Upstream) audit() *audit.Upstream {
	a := &audit.Upstream{Address: u.server.String(), BackendPID: u.pid, ChannelBinding: u.method == "scram-sha-256-plus"}
	if u.tls != nil {
		a.TLSVersion, a.Cipher = u.tls.VersionName(), u.tls.SuiteName()
		a.ServerCertSHA256 = hex.EncodeToString(u.tls.ServerCertSHA256[:])
		if len(u.tls.PeerCertificates) > 0 {
			a.ServerCertNotAfter = &u.tls.PeerCertificates[0].NotAfter
		}
	}
	if u.identity != nil {
		a.ClientCertSerial, a.Generation = u.identity.Serial(), u.identity.Generation
	}
	return a
}

// String names the upstream for errors.
func (u *Upstream) String() string { return fmt.Sprintf("backend %d of %s", u.pid, u.server) }
