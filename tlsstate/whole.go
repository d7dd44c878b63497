package tlsstate

import (
	"context"
	"crypto/fips140"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
)

// Under GODEBUG=fips140=only Go's AES-GCM takes no nonce from outside, and ChaCha20-Poly1305 is refused, so that no record
// layer but crypto/tls's own can work. A Stream is then a tls.Conn with our checks in front of it: all works but what needs
// the connection as a value.

// ErrNotDetachable: the Stream is inside crypto/tls and cannot be taken apart. It goes on working as a net.Conn.
var ErrNotDetachable = errors.New("under GODEBUG=fips140=only a TLS connection stays inside crypto/tls and cannot be detached: " +
	"relay it as a net.Conn, or run with fips140=on")

// Notice is one line to say at start about what this process cannot do; "" when there is nothing to say.
func Notice() string {
	if !fips140.Enforced() {
		return ""
	}
	return "GODEBUG=fips140=only: TLS stays inside crypto/tls, which costs more CPU and memory for each connection, and it cannot be " +
		"moved to another process or to the kernel: run with fips140=on, which has no such limits"
}

// Detachable reports whether Detach can work.
func (s *Stream) Detachable() bool { return s.whole == nil }

// wholeClient does the handshake without giving the secrets out, and leaves the connection in the library.
func wholeClient(ctx context.Context, nc net.Conn, cfg *Config) (*Stream, error) {
	if cfg.Negotiation == Postgres {
		if err := negotiate(nc); err != nil {
			return nil, err
		}
	}
	g := &gate{Conn: nc, judge: judgeSuite}
	verified := &verification{cfg: cfg}
	p := cfg.params(verified)
	tc, result, err := Std{}.handshake(ctx, g, p)
	if err != nil {
		return nil, explain(err, g, cfg.minVersion())
	}
	if err := agree(cfg, &result, verified.leaf); err != nil {
		return nil, err
	}
	result.HelloRetryRequest = parseServerHello(g.opening).retry
	return newWhole(nc, g, tc, newInfo(result)), nil
}

// wholeServer is wholeClient for Server.
func wholeServer(ctx context.Context, nc net.Conn, cfg *ServerConfig) (*Stream, error) {
	g := &gate{Conn: nc}
	tc := tls.Server(g, cfg.std(nil))
	if err := tc.HandshakeContext(context.WithoutCancel(ctx)); err != nil {
		return nil, explainClient(stdAlert(err), g)
	}
	state := tc.ConnectionState()
	if cfg.Negotiation == Direct && state.NegotiatedProtocol != alpnProtocol {
		return nil, ErrClientNoALPN
	}
	info, err := cfg.info(state)
	if err != nil {
		return nil, err
	}
	return newWhole(nc, g, tc, info), nil
}

func newWhole(nc net.Conn, g *gate, tc *tls.Conn, info *Info) *Stream {
	g.open, g.opening, g.sent = true, nil, nil
	return &Stream{&stream{nc: nc, whole: tc, gate: g, info: info}}
}

// readWhole is Read for a tls.Conn, with the errors of Open.
func (s *Stream) readWhole(p []byte) (int, error) {
	if err := s.over(); err != nil {
		return 0, err
	}
	n, err := s.whole.Read(p)
	switch {
	case err == nil:
		return n, nil
	case s.over() != nil:
		return n, s.over()
	case errors.Is(err, io.ErrUnexpectedEOF), err == io.EOF && s.gate.ended: // crypto/tls lets the latter pass
		return n, ErrTruncated
	case err == io.EOF:
		return n, err
	}
	return n, fmt.Errorf("read from TLS: %w", stdAlert(err))
}

func (s *Stream) writeWhole(p []byte) (int, error) {
	if err := s.over(); err != nil {
		return 0, err
	}
	n, err := s.whole.Write(p)
	if err != nil {
		return n, fmt.Errorf("write to TLS: %w", stdAlert(err))
	}
	return n, nil
}
