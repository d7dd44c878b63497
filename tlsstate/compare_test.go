package tlsstate_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"math"
	"net"
	"testing"

	"pghandoff/tlsstate"
)

// memory is a transport that keeps what is written until it is read.
type memory struct {
	net.Conn
	bytes.Buffer
}

func (m *memory) Read(p []byte) (int, error)  { return m.Buffer.Read(p) }
func (m *memory) Write(p []byte) (int, error) { return m.Buffer.Write(p) }

// switched is a connection whose transport changes after the handshake.
type switched struct {
	net.Conn
	to *memory
}

func (s *switched) Read(p []byte) (int, error) {
	if s.to != nil {
		return s.to.Read(p)
	}
	return s.Conn.Read(p)
}

func (s *switched) Write(p []byte) (int, error) {
	if s.to != nil {
		return s.to.Write(p)
	}
	return s.Conn.Write(p)
}

// One record sealed and opened again, by us and by crypto/tls, both without system calls.
func BenchmarkRoundTrip(b *testing.B) {
	for _, suite := range recordSuites {
		for _, size := range []int{100, 1 << 10, 16 << 10} {
			name := fmt.Sprintf("%s/%d", tls.CipherSuiteName(suite), size)
			data := make([]byte, size)
			b.Run("ours/"+name, func(b *testing.B) {
				client, server := pair(b, suite)
				client.SetLimit(math.MaxUint64)
				server.SetLimit(math.MaxUint64)
				buf := make([]byte, 0, tlsstate.SealedLen(size))
				b.ReportAllocs()
				b.SetBytes(int64(size))
				for b.Loop() {
					sealed, err := client.Seal(buf, data)
					if err != nil {
						b.Fatal(err)
					}
					if _, _, err := server.Open(sealed); err != nil {
						b.Fatal(err)
					}
				}
			})
			b.Run("crypto-tls/"+name, func(b *testing.B) {
				client, server := stdPair(b, suite)
				got := make([]byte, size)
				b.ReportAllocs()
				b.SetBytes(int64(size))
				for b.Loop() {
					if _, err := client.Write(data); err != nil {
						b.Fatal(err)
					}
					for n := 0; n < size; {
						m, err := server.Read(got[n:])
						if err != nil {
							b.Fatal(err)
						}
						n += m
					}
				}
			})
		}
	}
}

// stdPair is a client and a server of crypto/tls with this suite, over memory.
func stdPair(b *testing.B, suite uint16) (client, server *tls.Conn) {
	b.Helper()
	ca, config, _ := good(b)
	config.DynamicRecordSizingDisabled = true
	ours := &tls.Config{RootCAs: ca.pool(), ServerName: "db1.example.com", DynamicRecordSizingDisabled: true}
	if suite > 0x1400 {
		ours.MaxVersion, ours.CipherSuites = tls.VersionTLS12, []uint16{suite}
	}
	x, y := socketPair(b)
	a, z := &switched{Conn: x}, &switched{Conn: y}
	client, server = tls.Client(a, ours), tls.Server(z, config)
	config.SessionTicketsDisabled = true
	done := make(chan error, 1)
	go func() { done <- server.HandshakeContext(context.Background()) }() // waited for below
	if err := client.Handshake(); err != nil {
		b.Fatal(err)
	}
	if err := <-done; err != nil {
		b.Fatal(err)
	}
	if got := client.ConnectionState().CipherSuite; got != suite {
		b.Skipf("crypto/tls chooses %s by itself", tls.CipherSuiteName(got))
	}
	wire := &memory{}
	a.to, z.to = wire, wire
	return client, server
}
