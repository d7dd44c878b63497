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
	"os"
	"syscall"
	"time"
)

// Client negotiates TLS on nc and does the handshake. It borrows nc: on success the Stream owns it, on error the caller
// still does and closes it. ctx bounds the whole; deadlines that were set on nc are replaced and cleared.
//
// Errors: ErrNotOffered leaves nc usable for plaintext (see there), every other error leaves it useless. The rest are
// *VerifyError, *AlertError, *VersionError, *SuiteError, ErrRefused, ErrNotPostgres, ErrNotTLS, ErrNoALPN, ErrHandover, what nc returned,
// or ctx's error. A client certificate that the server refuses is reported by the first Read only, as *AlertError, unless
// it is TLS 1.2.
func Client(ctx context.Context, nc net.Conn, cfg Config) (*Stream, error) {
	if err := cfg.Check(); err != nil {
		return nil, err
	}
	return within(ctx, nc, fmt.Sprintf("%q", cfg.Host), func() (*Stream, error) {
		if fips140.Enforced() {
			return wholeClient(ctx, nc, &cfg)
		}
		conn, err := client(ctx, nc, &cfg)
		if err != nil {
			return nil, err
		}
		return NewStream(nc, conn), nil
	})
}

// within does a handshake on nc that ctx bounds.
func within(ctx context.Context, nc net.Conn, peer string, handshake func() (*Stream, error)) (*Stream, error) {
	release := bind(ctx, nc)
	s, err := handshake()
	if ctxErr := release(err); ctxErr != nil {
		return nil, fmt.Errorf("TLS with %s was given up: %w", peer, ctxErr)
	}
	return s, err
}

func client(ctx context.Context, nc net.Conn, cfg *Config) (*Conn, error) {
	if cfg.Negotiation == Postgres {
		if err := negotiate(nc); err != nil {
			return nil, err
		}
	}
	g := &gate{Conn: nc, judge: judgeSuite}
	keys := &keylog{gate: g}
	defer keys.forget()
	verified := &verification{cfg: cfg}
	p := cfg.params(verified)
	p.KeyLog = keys
	result, err := cfg.handshaker().Handshake(ctx, g, p)
	if err != nil {
		return nil, explain(err, g, cfg.minVersion())
	}
	if err := agree(cfg, &result, verified.leaf); err != nil {
		return nil, err
	}
	if err := g.settled(result.Version, roleClient); err != nil {
		return nil, err
	}
	hello := parseServerHello(g.opening)
	result.HelloRetryRequest = hello.retry
	return keys.conn(roleClient, newInfo(result), hello)
}

// judgeSuite refuses a server's choice of cipher suite that we cannot protect, as soon as it is known and before a key is
// exchanged. An unknown version is the library's to refuse.
func judgeSuite(opening []byte) error {
	if hello := parseServerHello(opening); hello.version == tls.VersionTLS12 {
		_, err := suiteFor(hello.version, hello.suite)
		return err
	}
	return nil
}

// params is everything but the key log.
func (c *Config) params(v *verification) Params {
	sni, _ := c.serverName()
	return Params{
		ServerName: sni, ALPN: []string{alpnProtocol}, Certificate: c.Certificate,
		MinVersion: c.minVersion(), MaxVersion: c.maxVersion(), Suites: offeredSuites, Group: c.Group,
		Time: c.now, Verify: v.check,
	}
}

// agree checks what the library settled, whichever library it is.
func agree(cfg *Config, r *Result, verified *x509.Certificate) error {
	switch {
	case r.Version < cfg.minVersion() || r.Version > cfg.maxVersion():
		return &VersionError{Version: r.Version, Min: cfg.minVersion()}
	case len(r.PeerCertificates) == 0 || verified == nil || !r.PeerCertificates[0].Equal(verified):
		return fmt.Errorf("%w: the server's certificate was not given to us to verify", ErrHandover)
	case cfg.Negotiation == Direct && r.ALPN != alpnProtocol:
		return ErrNoALPN
	}
	return nil
}

// explain finds the plain sentence for a handshake that failed: what the server's first bytes say counts more than what
// the library made of them.
func explain(err error, g *gate, oldest uint16) error {
	if g.refused != nil {
		return fmt.Errorf("TLS handshake: %w", g.refused)
	}
	if notTLS(g.opening) {
		return fmt.Errorf("%w: %w", ErrNotTLS, err)
	}
	if v := parseServerHello(g.opening).version; v != 0 && v < oldest {
		return &VersionError{Version: v, Min: oldest, Err: err}
	}
	if alert, ok := errors.AsType[*AlertError](err); ok {
		if alert.Code == alertProtocolVersion {
			return &VersionError{Min: oldest, Err: err}
		}
		return fmt.Errorf("TLS handshake: %w", err)
	}
	// A server that closes with our hello unread resets the connection.
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) {
		return fmt.Errorf("TLS handshake: server closed the connection amid it; see the server's log: %w", io.ErrUnexpectedEOF)
	}
	return fmt.Errorf("TLS handshake: %w", err)
}

// bind makes ctx bound the reads and writes on nc, by deadlines. release undoes that, waits until nothing of it acts on
// nc any more, and returns the context's error if it is why err came to be, or if ctx ended before anything else did.
func bind(ctx context.Context, nc net.Conn) (release func(err error) error) {
	deadline, limited := ctx.Deadline()
	if limited {
		nc.SetDeadline(deadline)
	}
	fired := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(fired)
		nc.SetDeadline(time.Unix(1, 0))
	})
	return func(err error) error {
		if !stop() {
			<-fired
		}
		nc.SetDeadline(time.Time{})
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		// nc's clock may be a little ahead of the context's.
		if limited && errors.Is(err, os.ErrDeadlineExceeded) {
			return context.DeadlineExceeded
		}
		return nil
	}
}
