package utlshandshake

import (
	"context"
	stdtls "crypto/tls"
	"net"

	tls "github.com/refraction-networking/utls"

	"pghandoff/tlsstate"
)

// UTLS is a tlsstate.Handshaker. With TLS 1.2 it does not tell the group (Info.Curve is 0).
type UTLS struct{}

// Handshake implements tlsstate.Handshaker.
func (UTLS) Handshake(ctx context.Context, gate net.Conn, p tlsstate.Params) (tlsstate.Result, error) {
	_, r, err := handshake(ctx, gate, p)
	return r, err
}

// handshake also gives the connection of the library, whose state the tests compare with what the key log said.
func handshake(ctx context.Context, gate net.Conn, p tlsstate.Params) (*tls.UConn, tlsstate.Result, error) {
	var r tlsstate.Result
	keys := &keyPicker{Conn: gate}
	uc := tls.UClient(keys, config(p, &r), tls.HelloCustom)
	keys.uc = uc
	err := uc.ApplyPreset(hello(p))
	if err == nil {
		// Without a Done channel it starts no goroutine and closes nothing.
		err = uc.HandshakeContext(context.WithoutCancel(ctx))
	}
	if err != nil {
		return nil, tlsstate.Result{}, tlsstate.SortAlert(err, func(code uint8) string { return tls.AlertError(code).Error() })
	}
	state := uc.ConnectionState()
	r.Version, r.Suite, r.ALPN = state.Version, state.CipherSuite, state.NegotiatedProtocol
	r.PeerCertificates = state.PeerCertificates
	if r.Version == tls.VersionTLS13 && uc.HandshakeState.ServerHello != nil {
		r.Curve = stdtls.CurveID(uc.HandshakeState.ServerHello.ServerShare.Group)
	}
	return uc, r, nil
}

// config is made for one connection, as it carries the key log.
func config(p tlsstate.Params, r *tlsstate.Result) *tls.Config {
	return &tls.Config{
		ServerName:             p.ServerName,
		NextProtos:             p.ALPN,
		MinVersion:             p.MinVersion,
		MaxVersion:             p.MaxVersion,
		CipherSuites:           p.Suites,
		Time:                   p.Time,
		KeyLogWriter:           p.KeyLog,
		SessionTicketsDisabled: true,
		InsecureSkipVerify:     true, // p.Verify does it
		VerifyConnection:       func(s tls.ConnectionState) error { return p.Verify(s.PeerCertificates) },
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			r.ClientCertRequested = true
			if p.Certificate == nil {
				return &tls.Certificate{}, nil // means: send none
			}
			r.ClientCertSent = len(p.Certificate.Certificate) > 0
			return certificate(p.Certificate), nil
		},
	}
}

// certificate is the same in the other library's type.
func certificate(c *stdtls.Certificate) *tls.Certificate {
	out := &tls.Certificate{Certificate: c.Certificate, PrivateKey: c.PrivateKey, Leaf: c.Leaf}
	for _, s := range c.SupportedSignatureAlgorithms {
		out.SupportedSignatureAlgorithms = append(out.SupportedSignatureAlgorithms, tls.SignatureScheme(s))
	}
	return out
}
