package tlsstate

import (
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
)

// A state as bytes, all numbers big endian, bytes<n> with their length in front, as few bytes of it as n needs:
//
//	"TLSS" | uint8 format | uint8 role | uint8 flags | uint8 owed
//	uint16 version | uint16 suite | uint16 curve | bytes<255> ALPN | bytes<255> endpoint binding | 32 certificate digest
//	receiving: bytes<255> secret | bytes<255> IV | uint64 sequence number | uint8 allowance | uint64 refilled
//	           | bytes<2^32-1> half a message | bytes<2^32-1> ciphertext | bytes<2^32-1> plaintext
//	sending:   bytes<255> secret | bytes<255> IV | uint64 sequence number | uint8 allowance | uint64 refilled
//	           | bytes<2^32-1> sealed and not sent
//
// The IV is there with TLS 1.2 only. Each state has one encoding.
const (
	stateMagic  = "TLSS"
	stateFormat = 1

	// MaxState is the most bytes that a State takes.
	MaxState = maxHandshake + MaxHeldIn + MaxPlain + MaxHeldOut + 2<<10
)

const (
	flagEOF uint8 = 1 << iota
	flagAsked
	flagClosed
	flagRetire
	flagRetry
	flagCertRequested
	flagCertSent
	flagsKnown = 1<<iota - 1
)

// ErrStateMalformed: the bytes are no state, or were cut or changed.
var ErrStateMalformed = errors.New("TLS state is malformed")

// StateFormatError says that a state was written in a format that this program does not know.
type StateFormatError struct{ Format uint8 }

func (e *StateFormatError) Error() string {
	return fmt.Sprintf("TLS state has format %d, and this program reads format %d: the two programs are of versions that cannot hand connections to each other; let the connections end",
		e.Format, stateFormat)
}

// AppendBinary appends the state to b: secrets and plaintext among it, so that whoever holds it owns the connection. s stays
// as it is; Erase it once the other side has confirmed. Info.PeerCertificates are left out: they were checked, and their
// digest and channel binding are there. Errors: ErrNoState.
func (s State) AppendBinary(b []byte) ([]byte, error) {
	if s.cargo == nil || s.cargo.parts == nil {
		return b, ErrNoState
	}
	c := s.cargo.parts
	b = slices.Grow(b, len(c.in.frag)+len(c.in.held)+len(c.in.plain)+len(c.out.held)+1<<10)
	b = append(b, stateMagic...)
	b = append(b, stateFormat, byte(c.in.role), c.flags(), byte(c.both.owed.Load()))
	b = binary.BigEndian.AppendUint16(b, c.info.Version)
	b = binary.BigEndian.AppendUint16(b, c.info.Suite)
	b = binary.BigEndian.AppendUint16(b, uint16(c.info.Curve))
	b = append(append(b, byte(len(c.info.ALPN))), c.info.ALPN...)
	b = append8(b, c.info.EndpointBinding)
	b = append(b, c.info.ServerCertSHA256[:]...)
	b = c.in.appendBinary(b, c.in.allowance)
	b = append32(b, c.in.frag)
	b = append32(b, c.in.held)
	b = append32(b, c.in.plain)
	b = c.out.appendBinary(b, c.out.updates)
	return append32(b, c.out.held), nil
}

func (c *parts) flags() (f uint8) {
	for i, on := range []bool{c.in.eof, c.in.asked, c.both.closed.Load(), c.both.retire.Load(),
		c.info.HelloRetryRequest, c.info.ClientCertRequested, c.info.ClientCertSent} {
		if on {
			f |= 1 << i
		}
	}
	return f
}

func (h *half) appendBinary(b []byte, a allowance) []byte {
	b = append8(b, h.secret)
	b = append8(b, h.iv[:h.suite.ivLen()])
	b = binary.BigEndian.AppendUint64(b, h.seq)
	b = append(b, byte(a.left))
	return binary.BigEndian.AppendUint64(b, uint64(a.refilled))
}

func append8(b, p []byte) []byte { return append(append(b, byte(len(p))), p...) }

func append32(b, p []byte) []byte {
	return append(binary.BigEndian.AppendUint32(b, uint32(len(p))), p...)
}

// ParseState reads what AppendBinary wrote, the whole of b and nothing more. What it keeps is copied; overwriting b is the
// caller's. Errors: *StateFormatError, ErrStateMalformed.
func ParseState(b []byte) (State, error) {
	r := stateReader{rest: b}
	if string(r.take(len(stateMagic))) != stateMagic {
		return State{}, ErrStateMalformed
	}
	if format := r.uint8(); !r.bad && format != stateFormat {
		return State{}, &StateFormatError{format}
	}
	role, flags, owed := role(r.uint8()), r.uint8(), r.uint8()
	info := &Info{Version: r.uint16(), Suite: r.uint16(), Curve: tls.CurveID(r.uint16())}
	info.ALPN = string(r.bytes8())
	info.EndpointBinding = copied(r.bytes8())
	copy(info.ServerCertSHA256[:], r.take(len(info.ServerCertSHA256)))
	info.HelloRetryRequest, info.ClientCertRequested, info.ClientCertSent = flags&flagRetry != 0, flags&flagCertRequested != 0, flags&flagCertSent != 0
	s, err := suiteFor(info.Version, info.Suite)
	if r.bad || err != nil || role > roleServer || flags > flagsKnown || uint32(owed) > owedAnswer|owedRequest || s.tls12() && owed != 0 {
		return State{}, ErrStateMalformed
	}
	in := &inbound{half: half{suite: s, limit: s.records}, role: role, eof: flags&flagEOF != 0, asked: flags&flagAsked != 0}
	in.allowance = r.half(&in.half, maxAllowance)
	maxFrag := maxHandshake
	if s.tls12() {
		maxFrag = 0
	}
	in.frag, in.held, in.plain = r.bytes32(maxFrag), r.bytes32(MaxHeldIn), r.bytes32(MaxPlain)
	out := &outbound{half: half{suite: s, limit: s.records}}
	out.updates = r.half(&out.half, maxUpdates)
	out.held = r.bytes32(MaxHeldOut)
	c := &parts{info: info, in: in, out: out, both: &shared{}}
	if r.bad || len(r.rest) > 0 {
		(&Conn{c}).erase()
		return State{}, ErrStateMalformed
	}
	c.both.owed.Store(uint32(owed))
	c.both.closed.Store(flags&flagClosed != 0)
	c.both.retire.Store(flags&flagRetire != 0)
	return State{&cargo{c}}, nil
}

// stateReader takes values off the front; after the first that is not there, or not as it must be, all are empty.
type stateReader struct {
	rest []byte
	bad  bool
}

func (r *stateReader) take(n int) []byte {
	if r.bad || n > len(r.rest) {
		r.bad = true
		return nil
	}
	taken := r.rest[:n:n]
	r.rest = r.rest[n:]
	return taken
}

func (r *stateReader) uint(n int) (v uint64) {
	for _, b := range r.take(n) {
		v = v<<8 | uint64(b)
	}
	return v
}

func (r *stateReader) uint8() uint8   { return uint8(r.uint(1)) }
func (r *stateReader) uint16() uint16 { return uint16(r.uint(2)) }
func (r *stateReader) bytes8() []byte { return r.take(int(r.uint8())) }

// bytes32 is a copy of at most so many bytes.
func (r *stateReader) bytes32(most int) []byte {
	n := r.uint(4)
	if n > uint64(most) {
		r.bad = true
	}
	return copied(r.take(int(n)))
}

// half reads one direction.
func (r *stateReader) half(h *half, most int) allowance {
	secret, iv := r.bytes8(), r.bytes8()
	if len(secret) != h.suite.secretLen() || len(iv) != h.suite.ivLen() {
		r.bad = true
	}
	h.secret, h.seq = copied(secret), r.uint(8)
	a := allowance{int(r.uint8()), int64(r.uint(8))}
	if a.left > most || a.refilled < 0 {
		r.bad = true
	}
	if r.bad {
		return a
	}
	copy(h.iv[:], iv)
	if !h.suite.tls12() {
		derived, err := h.suite.expandLabel(h.secret, "iv", nonceLen)
		r.bad = err != nil
		copy(h.iv[:], derived)
	}
	return a
}

func copied(b []byte) []byte {
	if len(b) == 0 {
		return nil
	}
	return slices.Clone(b)
}
