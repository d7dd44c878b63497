package tlsstate_test

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"pghandoff/tlsstate"
)

// background is a context that ends with the test and, in any case, in time for the test to say why.
func background(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// run runs a server in the background and fails the test with its error. The test waits for it.
func run(t testing.TB, server func() error) {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- server() }() // the clean-up waits for it; the end of its connection ends it
	t.Cleanup(func() {
		if err := <-done; err != nil {
			t.Errorf("server: %v", err)
		}
	})
}

// answerSSLRequest is a PostgreSQL server's side of the negotiation.
func answerSSLRequest(nc net.Conn, answer string) error {
	var request [8]byte
	if _, err := io.ReadFull(nc, request[:]); err != nil {
		return err
	}
	if request != [8]byte{0, 0, 0, 8, 4, 210, 22, 47} {
		return errors.New("no SSLRequest")
	}
	_, err := io.WriteString(nc, answer)
	return err
}

// serve runs a PostgreSQL-like crypto/tls server on one end of a socket pair and returns the other end. session gets the
// connection before its handshake; nil means: handshake, then read until the end.
func serve(t testing.TB, config *tls.Config, direct bool, session func(*tls.Conn) error) net.Conn {
	t.Helper()
	client, server := socketPair(t)
	run(t, func() error {
		defer server.Close()
		if !direct {
			if err := answerSSLRequest(server, "S"); err != nil {
				return err
			}
		}
		tc := tls.Server(server, config)
		if session != nil {
			return session(tc)
		}
		io.Copy(io.Discard, tc) // the client may refuse us
		return nil
	})
	t.Cleanup(func() { client.Close() }) // before the wait for the server
	return client
}

// good is an authority and a server's configuration that passes every check for db1.example.com.
func good(t testing.TB) (*authority, *tls.Config, tlsstate.Config) {
	t.Helper()
	ca := newAuthority(t, "test CA")
	server := &tls.Config{Certificates: []tls.Certificate{*ca.issue(t, nil)}, NextProtos: []string{"postgresql"}}
	return ca, server, tlsstate.Config{Host: "db1.example.com", Roots: ca.pool()}
}

func echo(tc *tls.Conn) error {
	if _, err := io.Copy(tc, tc); err != nil {
		return err
	}
	return tc.CloseWrite()
}

// handshakerFunc is a Handshaker for tests.
type handshakerFunc func(ctx context.Context, gate net.Conn, p tlsstate.Params) (tlsstate.Result, error)

func (f handshakerFunc) Handshake(ctx context.Context, gate net.Conn, p tlsstate.Params) (tlsstate.Result, error) {
	return f(ctx, gate, p)
}
