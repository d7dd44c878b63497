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
	// ErrClientNoALPN: a client that begins with TLS must select the protocol "postgresql" (PostgreSQL 17 protocol).
	ErrClientNoALPN = errors.New("client began with TLS at once but did not offer the application protocol postgresql: " +
		"use libpq 17 or newer, or sslnegotiation=postgres")
	// ErrHandover: the library kept bytes or read too far, so that the record state would not be exact.
	ErrHandover = errors.New("the TLS library did not stop at the end of the handshake")
	// ErrDead: an earlier error, which is wrapped too, made the connection unusable.
	ErrDead = errors.New("TLS connection is dead")
	// ErrSendClosed: our close_notify or a fatal alert was already sealed; nothing may follow it.
	ErrSendClosed = errors.New("TLS connection is closed for sending")
	// ErrTruncated: the transport ended without the peer's close_notify. It wraps io.ErrUnexpectedEOF.
	ErrTruncated = fmt.Errorf("peer closed the connection without ending TLS (it crashed, or the path cut it): %w", io.ErrUnexpectedEOF)
	// ErrNoKeyUpdate: TLS 1.2 cannot change a key. Nothing happened.
	ErrNoKeyUpdate = errors.New("TLS 1.2 has no KeyUpdate: replace the connection to have new keys")
	// ErrKeyUpdateRate: more KeyUpdates of ours in a row than peers put up with. Nothing happened; send data, or wait.
	ErrKeyUpdateRate = errors.New("too many KeyUpdates in a row: send data in between, or wait some seconds")
	// ErrExhausted: a key of TLS 1.2 has protected as many records as is safe (RFC 8446 section 5.5), and Retire was not
	// heeded. The connection is dead.
	ErrExhausted = errors.New("the keys of this TLS 1.2 connection have protected as much as they safely can: use a new connection, or TLS 1.3")
	// ErrTooMuchHeld: more bytes than a connection can have at rest.
	ErrTooMuchHeld = errors.New("more bytes at rest than a TLS connection may hold")
)

// VersionError says that the server has no TLS version that we speak.
type VersionError struct {
	Version uint16 // what the server chose; 0 where it only refused
	Min     uint16 // the oldest that we accept; 0 where it is not known
	Err     error
}

func (e *VersionError) Error() string {
	const do = "raise ssl_max_protocol_version there, or update its OpenSSL"
	needed := "a newer one"
	if e.Min != 0 {
		needed = tls.VersionName(e.Min)
	}
	if e.Version == 0 {
		return fmt.Sprintf("server refused the TLS versions that were offered, %s at least, and seems to speak only older ones: %s", needed, do)
	}
	return fmt.Sprintf("server speaks only %s, and %s is needed: %s", tls.VersionName(e.Version), needed, do)
}

func (e *VersionError) Unwrap() error { return e.Err }

// SuiteError says that the server chose a cipher suite that is refused here: one without an ephemeral key exchange, where
// whoever gets the server's key later can read what was recorded, or without an AEAD.
type SuiteError struct {
	Version uint16
	Suite   uint16 // the server's choice, IANA number
}

func (e *SuiteError) Error() string {
	return fmt.Sprintf("server chose the cipher suite %s, and one with ECDHE and AES-GCM or ChaCha20-Poly1305 is needed: "+
		"put one, for instance ECDHE-RSA-AES128-GCM-SHA256, first in its ssl_ciphers, or let it speak TLS 1.3", tls.CipherSuiteName(e.Suite))
}

// ProtocolError says that the peer broke TLS. The connection is dead; AppendAlert tells the peer.
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
