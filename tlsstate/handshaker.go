package tlsstate

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"time"
)

// Handshaker is a TLS library, used for client handshakes only.
//
// Handshake runs one over gate, which it borrows and must not close, and returns when the client's Finished is written and
// nothing after it. It must not read on afterwards, must call p.Verify with the server's chain before it trusts it, and
// must write the key log lines to p.KeyLog at the moment when it changes to these keys. With TLS 1.2 there is no resumption:
// the server's Finished is the last record. Alerts of the peer are
// *AlertError; errors of p.Verify are returned so that errors.As finds them. ctx carries values only: deadline and
// cancellation act on gate.
type Handshaker interface {
	Handshake(ctx context.Context, gate net.Conn, p Params) (Result, error)
}

// Params is what a handshake needs, in no library's types.
type Params struct {
	ServerName  string           // SNI; "" sends none
	ALPN        []string         // protocols to offer
	Certificate *tls.Certificate // client certificate; nil: none. Sent whatever authorities the server names
	MinVersion  uint16
	MaxVersion  uint16
	Suites      []uint16    // of TLS 1.2, to offer; a choice that is not ours is refused by gate
	Group       tls.CurveID // to send a key share for, beside what the library likes; 0: its choice
	Time        func() time.Time
	Verify      func(chain []*x509.Certificate) error // never nil; leaf first
	KeyLog      io.Writer                             // never nil; holds secrets, one line a Write
}

// Result is what a handshake settled. See Info for the fields.
type Result struct {
	Version             uint16
	Suite               uint16
	ALPN                string
	Curve               tls.CurveID
	HelloRetryRequest   bool // set by Client, from what the server sent
	PeerCertificates    []*x509.Certificate
	ClientCertRequested bool
	ClientCertSent      bool
}

// Std is crypto/tls.
type Std struct{}

// Handshake implements Handshaker.
func (s Std) Handshake(ctx context.Context, gate net.Conn, p Params) (Result, error) {
	_, r, err := s.handshake(ctx, gate, p)
	return r, err
}

// handshake also gives the connection of the library, for the case that it has to stay there.
func (Std) handshake(ctx context.Context, gate net.Conn, p Params) (*tls.Conn, Result, error) {
	var r Result
	tc := tls.Client(gate, stdConfig(p, &r))
	// Without a Done channel crypto/tls starts no goroutine and closes nothing.
	if err := tc.HandshakeContext(context.WithoutCancel(ctx)); err != nil {
		return nil, Result{}, stdAlert(err)
	}
	state := tc.ConnectionState()
	r.Version, r.Suite, r.ALPN = state.Version, state.CipherSuite, state.NegotiatedProtocol
	r.Curve = state.CurveID
	r.PeerCertificates = state.PeerCertificates
	return tc, r, nil
}

// stdConfig is made for one connection, as it carries the key log. Verification is ours (see verify.go), so that all
// libraries and all modes go one way; crypto/tls still checks that the server holds the leaf's key.
func stdConfig(p Params, r *Result) *tls.Config {
	return &tls.Config{
		ServerName:         p.ServerName,
		NextProtos:         p.ALPN,
		MinVersion:         p.MinVersion,
		MaxVersion:         p.MaxVersion,
		CipherSuites:       p.Suites,
		CurvePreferences:   stdGroups(p.Group),
		Time:               p.Time,
		KeyLogWriter:       p.KeyLog,
		InsecureSkipVerify: true,
		VerifyConnection:   func(s tls.ConnectionState) error { return p.Verify(s.PeerCertificates) },
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			r.ClientCertRequested = true
			if p.Certificate == nil {
				return &tls.Certificate{}, nil // means: send none
			}
			r.ClientCertSent = len(p.Certificate.Certificate) > 0
			return p.Certificate, nil
		},
	}
}

// SortAlert is for Handshakers: it turns an alert, which crypto/tls and its like hide in a net.OpError, into an error of
// ours, the peer's into *AlertError, one that the library sent itself into *ProtocolError, and gives back any other. The
// alert's type is not exported there, while it prints as text says: so the code is the one that prints as this one does.
func SortAlert(err error, text func(code uint8) string) error {
	op, ok := errors.AsType[*net.OpError](err)
	if !ok || op.Err == nil {
		return err
	}
	for code := range 256 {
		if op.Err.Error() != text(uint8(code)) {
			continue
		}
		switch op.Op {
		case "remote error":
			return &AlertError{Code: uint8(code)}
		case "local error":
			return broke(uint8(code), "a message of its handshake is not valid")
		}
	}
	return err
}

func stdAlert(err error) error {
	return SortAlert(err, func(code uint8) string { return tls.AlertError(code).Error() })
}

// stdGroups makes crypto/tls send a key share for this group. It sends one for the first of those that it may use, in an
// order of its own, and where that is a hybrid one for the classical half too: so the hybrids in front of the group's own
// are left out. nil, for 0, is the library's choice.
func stdGroups(first tls.CurveID) []tls.CurveID {
	classical := []tls.CurveID{tls.X25519, tls.CurveP256, tls.CurveP384, tls.CurveP521}
	switch first {
	case tls.CurveP256, tls.SecP256r1MLKEM768:
		return append(classical, tls.SecP256r1MLKEM768)
	case tls.CurveP384, tls.SecP384r1MLKEM1024:
		return append(classical, tls.SecP384r1MLKEM1024)
	case tls.CurveP521:
		return []tls.CurveID{tls.CurveP521}
	}
	return nil
}
