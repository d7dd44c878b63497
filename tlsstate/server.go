package tlsstate

import (
	"context"
	"crypto/fips140"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"
	"time"
)

// ClientAuth says what a Server does about client certificates.
type ClientAuth int

const (
	NoClientCert       ClientAuth = iota // none is asked for
	OptionalClientCert                   // one that is sent must verify
	RequireClientCert                    // one must be sent and verify
)

var clientAuthNames = [...]string{"none", "optional", "required"}

func (a ClientAuth) String() string {
	if a < 0 || int(a) >= len(clientAuthNames) {
		return fmt.Sprintf("ClientAuth(%d)", int(a))
	}
	return clientAuthNames[a]
}

// ServerConfig is what a Server shows and wants. It needs a Certificate; a nil pointer or a zero elsewhere is the default.
type ServerConfig struct {
	// Certificate is ours, key included. Whoever rotates it gives each connection the one of the moment.
	Certificate *tls.Certificate
	// ClientAuth other than NoClientCert needs ClientRoots, the trust anchors of clients. The system's are never used for
	// them: any holder of a certificate for anything would be let in.
	ClientAuth  ClientAuth
	ClientRoots *x509.CertPool
	// Revocations are the lists that client certificates are looked up in; nil means that revocation is not checked.
	Revocations *Revocations
	// Negotiation says how the first TLS byte came: with Direct the client must select the protocol "postgresql" by ALPN;
	// with Postgres the caller has read the SSLRequest and answered it.
	Negotiation Negotiation
	// MinVersion and MaxVersion are as in Config.
	MinVersion, MaxVersion uint16
	// Time is the clock for the validity of certificates; nil means time.Now.
	Time func() time.Time
}

func (c *ServerConfig) check() error {
	shared := Config{Mode: Require, Negotiation: c.Negotiation, MinVersion: c.MinVersion, MaxVersion: c.MaxVersion}
	switch {
	case c.Certificate == nil || len(c.Certificate.Certificate) == 0:
		return errors.New("tls: a server needs a certificate")
	case c.ClientAuth < NoClientCert || c.ClientAuth > RequireClientCert:
		return fmt.Errorf("tls: client certificates %s do not exist", c.ClientAuth)
	case c.ClientAuth != NoClientCert && c.ClientRoots == nil:
		return errors.New("tls: client certificates are asked for, but no trust anchors are given to check them with")
	}
	return shared.Check()
}

// Server does the server's side of a handshake on nc, the first byte of which is TLS; SSLRequest is the caller's. It
// borrows nc: on success the Stream owns it, on error the caller still does and closes it. ctx bounds the whole; deadlines
// that were set on nc are replaced and cleared.
//
// There are no session tickets, and of TLS 1.2 only the suites with ECDHE and an AEAD. The peer's certificates in Info are
// the client's, EndpointBinding and ServerCertSHA256 are of our own. Errors: *VerifyError with Client set, *AlertError
// with FromClient set, ErrNotTLS, ErrClientNoALPN, ErrHandover, what nc returned, or ctx's error.
func Server(ctx context.Context, nc net.Conn, cfg ServerConfig) (*Stream, error) {
	if err := cfg.check(); err != nil {
		return nil, err
	}
	return within(ctx, nc, "a client", func() (*Stream, error) {
		if fips140.Enforced() {
			return wholeServer(ctx, nc, &cfg)
		}
		conn, err := server(ctx, nc, &cfg)
		if err != nil {
			return nil, err
		}
		return NewStream(nc, conn), nil
	})
}

func server(ctx context.Context, nc net.Conn, cfg *ServerConfig) (*Conn, error) {
	g := &gate{Conn: nc}
	keys := &keylog{gate: g}
	defer keys.forget()
	tc := tls.Server(g, cfg.std(keys))
	// Without a Done channel crypto/tls starts no goroutine and closes nothing.
	if err := tc.HandshakeContext(context.WithoutCancel(ctx)); err != nil {
		return nil, explainClient(stdAlert(err), g)
	}
	state := tc.ConnectionState()
	if cfg.Negotiation == Direct && state.NegotiatedProtocol != alpnProtocol {
		return nil, ErrClientNoALPN
	}
	if err := g.settled(state.Version, roleServer); err != nil {
		return nil, err
	}
	info, err := cfg.info(state)
	if err != nil {
		return nil, err
	}
	return keys.conn(roleServer, info, parseServerHello(g.sent))
}

// std is crypto/tls's configuration for one connection, as it carries the key log.
func (c *ServerConfig) std(keys io.Writer) *tls.Config {
	shared := Config{MinVersion: c.MinVersion, MaxVersion: c.MaxVersion, Time: c.Time}
	out := &tls.Config{
		Certificates:           []tls.Certificate{*c.Certificate},
		NextProtos:             []string{alpnProtocol},
		MinVersion:             shared.minVersion(),
		MaxVersion:             shared.maxVersion(),
		CipherSuites:           protectedSuites,
		SessionTicketsDisabled: true,
		Time:                   shared.now,
		KeyLogWriter:           keys,
		VerifyConnection: func(s tls.ConnectionState) error {
			return c.verify(s.PeerCertificates, shared.now())
		},
	}
	if c.ClientAuth != NoClientCert {
		// It only asks, and tells the client which authorities may have signed; the rest is verify's.
		out.ClientAuth, out.ClientCAs = tls.RequestClientCert, c.ClientRoots
	}
	return out
}

// verify checks what the client sent, as certificate of a client.
func (c *ServerConfig) verify(chain []*x509.Certificate, now time.Time) error {
	switch {
	case c.ClientAuth == NoClientCert, c.ClientAuth == OptionalClientCert && len(chain) == 0:
		return nil
	case len(chain) == 0:
		return &VerifyError{Kind: NoCertificate, Client: true}
	}
	chains, err := verifyChain(c.ClientRoots, chain, now, x509.ExtKeyUsageClientAuth)
	bad := c.Revocations.check(chains, now)
	if err != nil {
		bad = sortVerifyError(chain[0], now, err)
	}
	if bad != nil {
		bad.Client = true
		return bad
	}
	return nil
}

func (c *ServerConfig) info(s tls.ConnectionState) (*Info, error) {
	leaf := c.Certificate.Leaf
	if leaf == nil {
		var err error
		if leaf, err = x509.ParseCertificate(c.Certificate.Certificate[0]); err != nil {
			return nil, fmt.Errorf("our certificate: %w", err)
		}
	}
	i := newInfo(Result{Version: s.Version, Suite: s.CipherSuite, ALPN: s.NegotiatedProtocol, Curve: s.CurveID,
		HelloRetryRequest: s.HelloRetryRequest, PeerCertificates: []*x509.Certificate{leaf},
		ClientCertRequested: c.ClientAuth != NoClientCert, ClientCertSent: len(s.PeerCertificates) > 0})
	i.PeerCertificates = s.PeerCertificates
	return i, nil
}

// explainClient finds the plain sentence for a handshake that a client failed.
func explainClient(err error, g *gate) error {
	if notTLS(g.opening) {
		return fmt.Errorf("%w: %w", ErrNotTLS, err)
	}
	if alert, ok := errors.AsType[*AlertError](err); ok {
		alert.FromClient = true
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) {
		return fmt.Errorf("TLS handshake: client closed the connection amid it: %w", io.ErrUnexpectedEOF)
	}
	return fmt.Errorf("TLS handshake: %w", err)
}
