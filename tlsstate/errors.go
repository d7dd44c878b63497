package tlsstate

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
)

var (
	// ErrNotOffered: the server answered SSLRequest with N. Nothing else was read or written, so that the connection is at
	// its start and a caller whose mode is prefer or allow may send a plaintext start-up message on it.
	ErrNotOffered = errors.New("server does not offer TLS on this port: set ssl = on there, or choose another tls.mode")
	// ErrRefused: the server answered SSLRequest with an error message. Its text is neither read nor shown, as anybody on
	// the path could have written it.
	ErrRefused = errors.New("server answered the request for TLS with an error message (unauthenticated, so not shown): " +
		"it may be out of connections or older than PostgreSQL 8.0; see the server's own log")
	// ErrNotPostgres: the answer to SSLRequest is none that a PostgreSQL server gives.
	ErrNotPostgres = errors.New("peer does not answer the request for TLS as a PostgreSQL server does: check host and port")
	// ErrNotTLS: the first bytes where a TLS handshake should begin are not TLS.
	ErrNotTLS = errors.New("peer does not speak TLS here: its first bytes are not a TLS record " +
		"(wrong port, a server without direct TLS, or plaintext injected behind the server's answer)")
	// ErrNoALPN: direct negotiation needs the server to select the protocol "postgresql".
	ErrNoALPN = errors.New("server did not select the application protocol postgresql: " +
		"direct negotiation needs PostgreSQL 17 or newer; set tls.negotiation to postgres")
	// ErrHandover: the library kept bytes or read too far, so that the record state would not be exact.
	ErrHandover = errors.New("the TLS library did not stop at the end of the handshake")
	// ErrDead: an earlier error, which is wrapped too, made the connection unusable.
	ErrDead = errors.New("TLS connection is dead")
	// ErrSendClosed: our close_notify or a fatal alert was already sealed; nothing may follow it.
	ErrSendClosed = errors.New("TLS connection is closed for sending")
	// ErrTruncated: the transport ended without the peer's close_notify. It wraps io.ErrUnexpectedEOF.
	ErrTruncated = fmt.Errorf("server closed the connection without ending TLS (it crashed, or the path cut it): %w", io.ErrUnexpectedEOF)
	// ErrTooMuchHeld: more bytes than a connection can have at rest.
	ErrTooMuchHeld = errors.New("more bytes at rest than a TLS connection may hold")
)

// VersionError says that the server has no TLS version that we speak. Version is what it chose, 0 where it only refused.
type VersionError struct {
	Version uint16
	Err     error
}

func (e *VersionError) Error() string {
	if e.Version == 0 {
		return "server refused TLS 1.3 and seems to speak only older versions: raise ssl_max_protocol_version there, or update its OpenSSL"
	}
	return fmt.Sprintf("server speaks only %s, and TLS 1.3 is needed: raise ssl_max_protocol_version there, or update its OpenSSL",
		tls.VersionName(e.Version))
}

func (e *VersionError) Unwrap() error { return e.Err }

// ProtocolError says that the peer broke TLS 1.3. The connection is dead; AppendAlert tells the peer.
type ProtocolError struct {
	Alert  uint8  // the alert that RFC 8446 section 6.2 names for this
	Reason string // our words, nothing of the peer's
}

func (e *ProtocolError) Error() string {
	return "peer broke the TLS protocol: " + e.Reason + " (" + alertName(e.Alert) + ")"
}

func broke(alert uint8, format string, args ...any) *ProtocolError {
	return &ProtocolError{Alert: alert, Reason: fmt.Sprintf(format, args...)}
}
