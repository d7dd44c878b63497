package tlsstate

import (
	"errors"
	"fmt"
	"io"
)

var (
	// ErrExported is why a Conn is dead after Export: the connection goes on in the State, and a second owner would use
	// nonces twice.
	ErrExported = errors.New("the TLS connection was exported and goes on elsewhere")
	// ErrNoState: the State is empty: it was adopted, or erased, or never filled.
	ErrNoState = errors.New("TLS state is empty: it was adopted or erased before")
)

// State is a connection between two owners, taken out of its Conn by Export and put into one by Adopt, in this process or
// in another one (AppendBinary, ParseState). It holds all that the record layer knows: secrets, sequence numbers, ciphertext
// not opened, plaintext not taken, sealed bytes not sent, half a handshake message. Copies of a State are the same State.
type State struct{ *cargo }

// cargo is behind a pointer for the reason of parts, and so that only one Adopt gets it.
type cargo struct{ parts *parts }

// Export takes the connection out of c, which is dead from then on and holds no secrets and no bytes any more. Neither
// direction may be in use. Whoever hands the State on and fails adopts it again; nobody may use both. Errors: ErrDead, and
// then nothing changed.
func (c *Conn) Export() (State, error) {
	if err := c.dead(); err != nil {
		return State{}, fmt.Errorf("export TLS connection: %w", err)
	}
	moved := &parts{info: c.info, in: c.in, out: c.out, both: &shared{}}
	moved.both.owed.Store(c.both.owed.Load())
	moved.both.closed.Store(c.both.closed.Load())
	moved.both.retire.Store(c.both.retire.Load())
	moved.in.aead, moved.out.aead = nil, nil
	c.in = &inbound{half: half{suite: moved.in.suite}, role: moved.in.role}
	c.out = &outbound{half: half{suite: moved.out.suite}, broken: true}
	c.fail(ErrExported)
	return State{&cargo{moved}}, nil
}

// Adopt makes a Conn of s, which is empty afterwards. What was at rest comes first, as after Stream.Detach. Errors:
// ErrNoState.
func Adopt(s State) (*Conn, error) {
	if s.cargo == nil || s.cargo.parts == nil {
		return nil, ErrNoState
	}
	c := &Conn{s.cargo.parts}
	s.cargo.parts = nil
	return c, nil
}

// Erase overwrites the secrets in s, as far as Go allows, and empties it. The connection is then lost, unless somebody read
// what AppendBinary wrote. It may be called twice.
func (s State) Erase() {
	if c, err := Adopt(s); err == nil {
		c.Forget()
	}
}

// String describes the state without its secrets, as every way to print it does.
func (s State) String() string {
	if s.cargo == nil || s.cargo.parts == nil {
		return "tlsstate.State{}"
	}
	return "tlsstate.State of " + Conn{s.cargo.parts}.String()
}

// GoString is String: %#v must show no more.
func (s State) GoString() string { return s.String() }

// Format is String for every verb.
func (s State) Format(f fmt.State, _ rune) { io.WriteString(f, s.String()) }

// MarshalText is String, for encoders of JSON and of logs. It is not the state's encoding: see AppendBinary.
func (s State) MarshalText() ([]byte, error) { return []byte(s.String()), nil }
