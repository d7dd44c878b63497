package pgwire

import (
	"encoding/binary"
	"strings"

	"github.com/jackc/pgproto3/v2"
)

// The messages that pghandoff itself says to a function, each appended to dst
// as a whole frame.

// AppendAuthenticationOk appends AuthenticationOk.
func AppendAuthenticationOk(dst []byte) []byte {
	return append(dst, 'R', 0, 0, 0, 8, 0, 0, 0, 0)
}

// AppendParameterStatus appends a ParameterStatus message. Bytes from a NUL on
// are left out, since the message could not carry them.
func AppendParameterStatus(dst []byte, p Parameter) []byte {
	return mustEncode(dst, &pgproto3.ParameterStatus{Name: untilNUL(p.Name), Value: untilNUL(p.Value)})
}

// AppendBackendKeyData appends a BackendKeyData message whose key is secret and
// what comes behind it: nothing, unless the function speaks protocol 3.2, in which
// keys may be up to 256 bytes long.
func AppendBackendKeyData(dst []byte, pid, secret uint32, more ...byte) []byte {
	dst = binary.BigEndian.AppendUint32(append(dst, 'K'), uint32(12+len(more)))
	dst = binary.BigEndian.AppendUint32(dst, pid)
	return append(binary.BigEndian.AppendUint32(dst, secret), more...)
}

// AppendReadyForQuery appends ReadyForQuery with a transaction status 'I', 'T'
// or 'E'.
func AppendReadyForQuery(dst []byte, status byte) []byte {
	return append(dst, 'Z', 0, 0, 0, 5, status)
}

// AppendNegotiateProtocolVersion appends the answer to a start-up message that
// asked for a newer minor version than [VersionLatest] or for protocol options
// that we do not know. It says the version that is spoken: never a newer one
// than asked, which libpq 18 would take as an error.
func AppendNegotiateProtocolVersion(dst []byte, asked uint32, options []string) []byte {
	n := 12
	for _, o := range options {
		n += len(o) + 1
	}
	dst = append(dst, 'v')
	dst = binary.BigEndian.AppendUint32(dst, uint32(n))
	dst = binary.BigEndian.AppendUint32(dst, min(asked, VersionLatest))
	dst = binary.BigEndian.AppendUint32(dst, uint32(len(options)))
	for _, o := range options {
		dst = append(append(dst, o...), 0)
	}
	return dst
}

// Notice is an error or notice as the protocol carries it.
type Notice struct {
	Severity string // "FATAL", "ERROR", "NOTICE", …
	Code     string // SQLSTATE, five characters
	Message  string
	Detail   string
	Hint     string
}

// AppendError appends an ErrorResponse.
func AppendError(dst []byte, n Notice) []byte {
	return mustEncode(dst, &pgproto3.ErrorResponse{
		Severity: n.Severity, SeverityUnlocalized: n.Severity, Code: untilNUL(n.Code),
		Message: untilNUL(n.Message), Detail: untilNUL(n.Detail), Hint: untilNUL(n.Hint),
	})
}

// AppendNotice appends a NoticeResponse.
func AppendNotice(dst []byte, n Notice) []byte {
	return mustEncode(dst, &pgproto3.NoticeResponse{
		Severity: n.Severity, SeverityUnlocalized: n.Severity, Code: untilNUL(n.Code),
		Message: untilNUL(n.Message), Detail: untilNUL(n.Detail), Hint: untilNUL(n.Hint),
	})
}

// ServerError is an ErrorResponse of the server. It is the server's own word:
// during login it comes from a peer whose certificate was checked as far as
// the TLS mode says.
type ServerError struct{ Notice }

// Error returns severity, message and SQLSTATE as psql would show them.
func (e *ServerError) Error() string {
	s := e.Severity + ": " + e.Message
	if e.Code != "" {
		s += " (SQLSTATE " + e.Code + ")"
	}
	return s
}

// ParseError reads the body of an ErrorResponse. An error without a code gets
// XX000, as libpq's users would otherwise see an empty one.
func ParseError(body []byte) (*ServerError, error) {
	var m pgproto3.ErrorResponse
	if err := m.Decode(body); err != nil {
		return nil, protocolErrorf("malformed ErrorResponse")
	}
	severity := m.SeverityUnlocalized
	if severity == "" {
		severity = m.Severity
	}
	if severity == "" {
		severity = "FATAL"
	}
	if m.Code == "" {
		m.Code = "XX000"
	}
	return &ServerError{Notice{Severity: severity, Code: m.Code, Message: m.Message, Detail: m.Detail, Hint: m.Hint}}, nil
}

type encoder interface {
	Encode(dst []byte) ([]byte, error)
}

// mustEncode encodes a message of ours. Its fields are bounded by the callers
// far below the 1 GB at which pgproto3 refuses; should it refuse all the same,
// nothing is appended.
func mustEncode(dst []byte, m encoder) []byte {
	n := len(dst)
	out, err := m.Encode(dst)
	if err != nil {
		return dst[:n]
	}
	return out
}

func untilNUL(s string) string {
	if i := strings.IndexByte(s, 0); i >= 0 {
		return s[:i]
	}
	return s
}
