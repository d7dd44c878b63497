package tlsstate_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"pghandoff/tlsstate"
)

// Both sides are ours, send at the same time, change keys and owners at random, and in the end have the same. Here the peer
// begins KeyUpdates, too, and in pieces, so that some owners are changed amid a handshake message.
func TestBothSidesMoveAtRandom(t *testing.T) {
	const size = 4 << 20
	data := make([]byte, size)
	rand.Read(data)
	want := sha256.Sum256(data)
	for _, suite := range slices.Concat(suiteIDs, suite12IDs) {
		name := tls.CipherSuiteName(suite)
		t.Run(name, func(t *testing.T) {
			ca, listening := listener(t)
			if strings.Contains(name, "_RSA_") {
				listening.Certificate = ca.issueFor(t, rsaKey(t), nil)
			}
			client, server := bothSides(t, ca, listening, suite)
			client.split, server.split = true, true
			done := make(chan error, 1)
			go func() { done <- server.transferAll(data) }() // waited for below
			err := errors.Join(client.transferAll(data), <-done)
			if err != nil {
				t.Fatal(err)
			}
			for _, o := range []*owner{client, server} {
				if !bytes.Equal(o.sum.Sum(nil), want[:]) || o.moves < 20 {
					t.Errorf("%d bytes after %d moves", o.got, o.moves)
				}
				if messages := o.seen["message"]; (messages > 0) != slices.Contains(suiteIDs, suite) {
					t.Errorf("%d moves amid a message", messages)
				}
				t.Logf("%d moves, %v", o.moves, o.seen)
			}
		})
	}
}

// bothSides are two owners, of a client's and of a server's Conn, that use this suite.
func bothSides(t *testing.T, ca *authority, listening tlsstate.ServerConfig, suite uint16) (client, server *owner) {
	t.Helper()
	a, b := socketPair(t)
	if slices.Contains(suiteIDs, suite) { // crypto/tls chooses among these by itself
		c, s := pair(t, suite)
		return newOwner(t, tlsstate.NewStream(a, c), 6), newOwner(t, tlsstate.NewStream(b, s), 6)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	t.Cleanup(cancel)
	type result struct {
		s   *tlsstate.Stream
		err error
	}
	accepted := make(chan result, 1)
	go func() { // ends with the handshake; waited for below
		s, err := tlsstate.Server(ctx, b, listening)
		accepted <- result{s, err}
	}()
	config := tlsstate.Config{Host: "db1.example.com", Roots: ca.pool(), Negotiation: tlsstate.Direct, Handshaker: onlySuite(suite), MaxVersion: tls.VersionTLS12}
	s, err := tlsstate.Client(ctx, a, config)
	r := <-accepted
	if err = errors.Join(err, r.err); err != nil {
		t.Fatal(err)
	}
	if s.Info().Suite != suite {
		t.Fatalf("%s", s.Info().SuiteName())
	}
	return newOwner(t, s, 6), newOwner(t, r.s, 6)
}

// onlySuite offers nothing else.
func onlySuite(suite uint16) tlsstate.Handshaker {
	return handshakerFunc(func(ctx context.Context, gate net.Conn, p tlsstate.Params) (tlsstate.Result, error) {
		p.Suites = []uint16{suite}
		return tlsstate.Std{}.Handshake(ctx, gate, p)
	})
}

// transferAll sends all of data and receives as much.
func (o *owner) transferAll(data []byte) error {
	if err := o.transfer(data, len(data)); err != nil && err != io.EOF {
		return err
	}
	for len(o.conn.HeldOut()) > 0 { // the last bytes
		if err := o.send(nil); err != nil {
			return err
		}
		if len(o.conn.HeldOut()) > 0 {
			if err := o.wait(true); err != nil {
				return err
			}
		}
	}
	return nil
}
