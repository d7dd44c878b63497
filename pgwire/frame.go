package pgwire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// A frame after start-up (PostgreSQL, "Messages"):
//
//	+------+----------------+------------------+
//	| type | length, 4 B BE | body, length-4 B |
//	+------+----------------+------------------+
//
// The length counts itself and not the type. A start-up packet has no type.
const (
	headerLen = 5
	// maxFrontendLength bounds the length of a function's message as
	// PostgreSQL does (PQ_LARGE_MESSAGE_LIMIT, 1 GiB - 1).
	maxFrontendLength = 1<<30 - 1
	// maxLoginLength bounds a server's message during login; the largest
	// honest ones are ParameterStatus and errors. 64 KiB.
	maxLoginLength = 64 << 10
)

// ErrProtocol marks bytes that are not the PostgreSQL protocol. The session
// they came from cannot be understood any further and must be closed.
var ErrProtocol = errors.New("protocol violation")

// Kinds of [ErrProtocol] for which PostgreSQL has a SQLSTATE of their own.
var (
	// ErrVersion marks a start-up message of another protocol: 0A000.
	ErrVersion = errors.New("unsupported protocol version")
	// ErrNoValue marks a start-up option without a value: 42601.
	ErrNoValue = errors.New("option without a value")
)

// protocolError is an [ErrProtocol]. Its text is what a function is told, in
// PostgreSQL's words where it has some.
type protocolError struct {
	text string
	kind error // ErrVersion, ErrNoValue or nil
}

func (e *protocolError) Error() string { return e.text }

func (e *protocolError) Is(target error) bool { return target == ErrProtocol || target == e.kind }

func protocolErrorf(format string, args ...any) error {
	return &protocolError{text: fmt.Sprintf(format, args...)}
}

// FrameReader reads whole frames from a connection and never a byte beyond the
// frame it returns. It is meant for the login and for short exchanges, not for
// relaying. Not safe for concurrent use.
type FrameReader struct {
	r   io.Reader
	max int
	buf []byte
}

// NewFrameReader returns a reader of frames whose length field is at most max
// bytes (0: 64 KiB); a longer one is an [ErrProtocol].
func NewFrameReader(r io.Reader, max int) *FrameReader {
	if max <= 0 {
		max = maxLoginLength
	}
	return &FrameReader{r: r, max: max}
}

// Next returns the next frame. The body is valid until the next call. At the
// end of the stream between two frames the error is io.EOF, within one
// io.ErrUnexpectedEOF.
func (f *FrameReader) Next() (typ byte, body []byte, err error) {
	var header [headerLen]byte
	if _, err := io.ReadFull(f.r, header[:]); err != nil {
		return 0, nil, err
	}
	length := int64(binary.BigEndian.Uint32(header[1:]))
	if length < 4 {
		return 0, nil, protocolErrorf("message %q announces a length of %d bytes", header[0], length)
	}
	if length > int64(f.max) {
		return 0, nil, protocolErrorf("message %q announces a length of %d bytes, at most %d are expected here", header[0], length, f.max)
	}
	n := int(length) - 4
	if cap(f.buf) < n {
		f.buf = make([]byte, n)
	}
	f.buf = f.buf[:n]
	if _, err := io.ReadFull(f.r, f.buf); err != nil {
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		return 0, nil, err
	}
	return header[0], f.buf, nil
}

// Parameter is a name and a value, as start-up messages and ParameterStatus
// carry them.
type Parameter struct{ Name, Value string }

// cutString takes a NUL-terminated string from the head of p.
func cutString(p []byte) (s string, rest []byte, ok bool) {
	for i, c := range p {
		if c == 0 {
			return string(p[:i]), p[i+1:], true
		}
	}
	return "", p, false
}

// ParseParameterStatus reads the body of a ParameterStatus message; errors wrap
// [ErrProtocol].
func ParseParameterStatus(body []byte) (Parameter, error) {
	name, rest, ok := cutString(body)
	if !ok || name == "" {
		return Parameter{}, protocolErrorf("malformed ParameterStatus message")
	}
	value, rest, ok := cutString(rest)
	if !ok || len(rest) != 0 {
		return Parameter{}, protocolErrorf("malformed ParameterStatus message")
	}
	return Parameter{Name: name, Value: value}, nil
}
