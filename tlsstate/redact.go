package tlsstate

import (
	"fmt"
	"io"
)

// String describes the connection without its secrets, as every way to print it does. The methods have value receivers,
// so that a copy prints no more than a pointer; the secrets are two pointers deep besides, where fmt does not follow.
func (c Conn) String() string {
	if c.parts == nil {
		return "tlsstate.Conn{}"
	}
	return fmt.Sprintf("tlsstate.Conn{%s, %s, keys [redacted]}", c.info.VersionName(), c.info.SuiteName())
}

// GoString is String: %#v must show no more.
func (c Conn) GoString() string { return c.String() }

// Format is String for every verb.
func (c Conn) Format(f fmt.State, _ rune) { io.WriteString(f, c.String()) }

// MarshalText is String, for encoders of JSON and of logs.
func (c Conn) MarshalText() ([]byte, error) { return []byte(c.String()), nil }

// String describes the stream without the bytes in its buffers.
func (s *Stream) String() string {
	if s.stream == nil {
		return "tlsstate.Stream{}"
	}
	if s.whole != nil {
		return "tlsstate.Stream inside crypto/tls"
	}
	return "tlsstate.Stream over " + s.conn.String()
}

// GoString is String: %#v must show no more.
func (s *Stream) GoString() string { return s.String() }

// Format is String for every verb.
func (s *Stream) Format(f fmt.State, _ rune) { io.WriteString(f, s.String()) }
