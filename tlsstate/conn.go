package tlsstate

import (
	"errors"
	"fmt"
	"sync/atomic"
)

// Conn is one live TLS connection as a value: keys, sequence numbers and the bytes at rest. It has no descriptor, no
// goroutine and no clock running; whoever owns it reads and writes the transport.
//
// Open, HoldIn, HeldIn, HoldPlain and HeldPlain are the receiving direction, the other methods but Info, Owes and Retire
// the sending one. Each direction belongs to one caller at a time, and the two may be used at the same time by two
// goroutines. Info, Owes and Retire may be called by anybody.
//
// After any error but io.EOF, ErrSendClosed and ErrTooMuchHeld a Conn is dead: opening and sealing return ErrDead together
// with the first error. AppendAlert alone still works then.
type Conn struct{ *parts }

// parts is behind a pointer, and what it holds behind further ones: fmt calls no method on an unexported field of another
// struct and follows one pointer with a verb that does not fit it, but never two. See redact.go.
type parts struct {
	info *Info
	in   *inbound
	out  *outbound
	both *shared
}

type role uint8

const (
	roleClient role = iota
	roleServer
)

// inbound is the receiving direction. All of it is plain data, so that it can be written down.
type inbound struct {
	half
	role      role
	eof       bool      // close_notify was received
	asked     bool      // the peer was asked to change its key since the last change
	frag      []byte    // beginning of a handshake message that further records complete; at most maxHandshake
	allowance allowance // records without data that the peer may still send, see spend
	held      []byte    // ciphertext read, not yet opened
	plain     []byte    // opened, not yet taken
}

// outbound is the sending direction.
type outbound struct {
	half
	updates allowance // KeyUpdates that our caller may still send
	broken  bool      // sealing itself failed: not even an alert may follow
	held    []byte    // sealed, not yet accepted by the kernel
}

// shared is what one direction tells the other.
type shared struct {
	owed   atomic.Uint32 // owedAnswer, owedRequest
	closed atomic.Bool   // close_notify or a fatal alert was sealed; set by the sending direction
	retire atomic.Bool   // a key of TLS 1.2 has protected enough
	failed atomic.Pointer[failure]
}

type failure struct{ err error }

const (
	owedAnswer  uint32 = 1 << iota // KeyUpdate with update_not_requested, for the peer's update_requested
	owedRequest                    // KeyUpdate with update_requested, as the peer's key protected enough records
)

// newConn makes a connection whose next records are those that receive and send name; both are copied.
func newConn(r role, info *Info, receive, send traffic) (*Conn, error) {
	s, err := suiteFor(info.Version, info.Suite)
	if err != nil {
		return nil, err
	}
	c := &Conn{&parts{
		info: info,
		in:   &inbound{half: half{suite: s, limit: s.records}, role: r, allowance: newAllowance(maxAllowance)},
		out:  &outbound{half: half{suite: s, limit: s.records}, updates: newAllowance(maxUpdates)},
		both: &shared{},
	}}
	if err := c.in.start(receive); err != nil {
		return nil, err
	}
	if err := c.out.start(send); err != nil {
		return nil, err
	}
	return c, nil
}

// Rest drops what can be derived again from the secrets: expanded keys, 1.7 KB with AES-256-GCM, most of what an
// idle connection takes. The next record of each direction derives them anew, which takes some microseconds. Neither
// direction may be in use meanwhile.
func (c *Conn) Rest() {
	c.in.aead, c.out.aead = nil, nil
}

// Info tells what the handshake settled. It does not change; do not modify it.
func (c *Conn) Info() *Info { return c.info }

// Owes reports whether there is something to send although there is no data: the answer to the peer's KeyUpdate, or a
// request to it. Seal(dst, nil) gives it.
func (c *Conn) Owes() bool {
	return c.both.owed.Load() != 0 && !c.both.closed.Load() && c.both.failed.Load() == nil
}

// Retire reports whether the connection should be replaced at the next chance, because a key has protected as many records
// as it should (RFC 8446 section 5.5 for the number) and TLS 1.2 has no way to change it. Data can still be sealed until
// two fifths as many again have been; then Seal returns ErrExhausted. Never with TLS 1.3, where keys change by themselves.
func (c *Conn) Retire() bool { return c.both.retire.Load() }

// ErrForgotten is why a Conn is dead after Forget.
var ErrForgotten = errors.New("the TLS connection was given up")

// Forget makes the connection dead, overwrites its secrets and the bytes at rest as far as Go allows, and drops them; its
// owner closed the transport. Neither direction may be in use. It may be called twice.
func (c *Conn) Forget() {
	c.fail(ErrForgotten)
	c.erase()
}

func (c *Conn) erase() {
	c.in.forget()
	c.out.forget()
	c.out.broken = true
	for _, b := range []*[]byte{&c.in.frag, &c.in.held, &c.in.plain, &c.out.held} {
		clear(*b)
		*b = nil
	}
}

// fail makes the connection dead because of err, the first of which counts, and returns err.
func (c *Conn) fail(err error) error {
	c.both.failed.CompareAndSwap(nil, &failure{err})
	return err
}

// dead tells why nothing more can be done; nil on a living connection.
func (c *Conn) dead() error {
	if f := c.both.failed.Load(); f != nil {
		return fmt.Errorf("%w after: %w", ErrDead, f.err)
	}
	return nil
}
