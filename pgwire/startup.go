package pgwire

import (
	"encoding/binary"
	"fmt"
	"strings"
)

// Codes of the first packet on a connection (PostgreSQL, "Message Formats").
const (
	codeCancelRequest  = 80877102
	codeSSLRequest     = 80877103
	codeGSSENCRequest  = 80877104
	maxStartupLength   = 10004 // bytes: PostgreSQL's MAX_STARTUP_PACKET_LENGTH and the length field itself
	minStartupLength   = 8     // bytes: length and code
	maxCancelKeyLength = 256   // bytes, protocol 3.2
)

// Protocol versions, major in the upper 16 bits.
const (
	Version30 = 3 << 16
	// VersionLatest is the newest version that the emulated start-up speaks.
	VersionLatest = 3<<16 | 2
)

// StartupKind says what the first packet of a connection asks for.
type StartupKind int

// The packets that may open a connection.
const (
	StartupMessage StartupKind = iota
	SSLRequest
	GSSENCRequest
	CancelRequest
)

// String returns the name of the packet in PostgreSQL's documentation.
func (k StartupKind) String() string {
	switch k {
	case StartupMessage:
		return "StartupMessage"
	case SSLRequest:
		return "SSLRequest"
	case GSSENCRequest:
		return "GSSENCRequest"
	case CancelRequest:
		return "CancelRequest"
	}
	return "unknown"
}

// Startup is the first packet of a connection.
type Startup struct {
	Kind StartupKind
	// Version is the protocol version asked for; StartupMessage only.
	Version uint32
	// Parameters in the order sent, without protocol options.
	Parameters []Parameter
	// Options are the names that begin with "_pq_.".
	Options []string
	// PID and Secret belong to a CancelRequest; Secret is 4 to 256 bytes.
	PID    uint32
	Secret []byte
}

// Get returns the last value given for a start-up parameter, as PostgreSQL
// takes the last of several.
func (s *Startup) Get(name string) (value string, ok bool) {
	for _, p := range s.Parameters {
		if p.Name == name {
			value, ok = p.Value, true
		}
	}
	return value, ok
}

// StartupLength reads the length field of a start-up packet (it counts itself)
// and checks it against PostgreSQL's bounds, 8 to 10,004 bytes, so that the
// caller may allocate for it.
func StartupLength(field [4]byte) (int, error) {
	n := binary.BigEndian.Uint32(field[:])
	if n < minStartupLength || n > maxStartupLength {
		return 0, protocolErrorf("invalid length of startup packet: %d bytes", n)
	}
	return int(n), nil
}

// ParseStartup reads a start-up packet without its length field. The result
// keeps no reference to p.
func ParseStartup(p []byte) (Startup, error) {
	if len(p) < 4 {
		return Startup{}, protocolErrorf("startup packet of %d bytes is too short", len(p))
	}
	code, rest := binary.BigEndian.Uint32(p), p[4:]
	switch code {
	case codeSSLRequest, codeGSSENCRequest:
		if len(rest) != 0 {
			return Startup{}, protocolErrorf("encryption request of %d bytes is too long", len(p))
		}
		if code == codeSSLRequest {
			return Startup{Kind: SSLRequest}, nil
		}
		return Startup{Kind: GSSENCRequest}, nil
	case codeCancelRequest:
		if len(rest) < 8 || len(rest) > 4+maxCancelKeyLength {
			return Startup{}, protocolErrorf("cancel request with a key of %d bytes", len(rest)-4)
		}
		return Startup{Kind: CancelRequest, PID: binary.BigEndian.Uint32(rest), Secret: append([]byte(nil), rest[4:]...)}, nil
	}
	return parseStartupMessage(code, rest)
}

func parseStartupMessage(version uint32, rest []byte) (Startup, error) {
	s := Startup{Kind: StartupMessage, Version: version}
	if version>>16 != 3 {
		return s, &protocolError{fmt.Sprintf("unsupported frontend protocol %d.%d: server supports 3.0 to 3.2", version>>16, version&0xffff), ErrVersion}
	}
	for {
		name, after, ok := cutString(rest)
		if !ok {
			return s, protocolErrorf("invalid startup packet layout: expected terminator as last byte")
		}
		rest = after
		if name == "" {
			break
		}
		value, after, ok := cutString(rest)
		if !ok {
			return s, protocolErrorf("invalid startup packet layout: expected terminator as last byte")
		}
		rest = after
		if strings.HasPrefix(name, "_pq_.") {
			s.Options = append(s.Options, name)
			continue
		}
		s.Parameters = append(s.Parameters, Parameter{Name: name, Value: value})
	}
	if len(rest) != 0 {
		return s, protocolErrorf("invalid startup packet layout: expected terminator as last byte")
	}
	return s, nil
}

// AppendCancelRequest appends a CancelRequest for the backend that announced
// pid and secret in its BackendKeyData.
func AppendCancelRequest(dst []byte, pid uint32, secret []byte) []byte {
	dst = binary.BigEndian.AppendUint32(dst, uint32(12+len(secret)))
	dst = binary.BigEndian.AppendUint32(dst, codeCancelRequest)
	dst = binary.BigEndian.AppendUint32(dst, pid)
	return append(dst, secret...)
}
