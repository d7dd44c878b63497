package tlsstate_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"

	"pghandoff/tlsstate"
)

func TestEchoAgainstCryptoTLS(t *testing.T) {
	_, server, config := good(t)
	for _, direct := range []bool{false, true} {
		t.Run(fmt.Sprintf("direct %v", direct), func(t *testing.T) {
			config := config
			if direct {
				config.Negotiation = tlsstate.Direct
			}
			s, err := tlsstate.Client(background(t), serve(t, server, direct, echo), config)
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			if _, err := io.WriteString(s, "select 1"); err != nil {
				t.Fatal(err)
			}
			if err := s.CloseWrite(); err != nil {
				t.Fatal(err)
			}
			got, err := io.ReadAll(s) // the server answers our close_notify with its own
			if string(got) != "select 1" || err != nil {
				t.Fatalf("%q, %v", got, err)
			}
			i := s.Info()
			if i.VersionName() != "TLS 1.3" || !strings.HasPrefix(i.SuiteName(), "TLS_") || i.ALPN != "postgresql" || i.Curve == 0 ||
				i.ServerCertSHA256 != sha256.Sum256(server.Certificates[0].Certificate[0]) ||
				!bytes.Equal(i.EndpointBinding, i.ServerCertSHA256[:]) || i.ClientCertRequested || i.ClientCertSent {
				t.Errorf("%+v", i)
			}
		})
	}
}

func TestTenMegabytesEachWay(t *testing.T) {
	_, server, config := good(t)
	for _, wide := range []bool{false, true} {
		t.Run(fmt.Sprintf("buffered %v", wide), func(t *testing.T) {
			s, err := tlsstate.Client(background(t), serve(t, server, false, echo), config)
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			s.Buffered(wide)
			data := make([]byte, 10<<20)
			rand.Read(data)
			wrote := make(chan error, 1)
			go func() { // ends with its data, or with s; waited for below
				_, err := s.Write(data)
				wrote <- errors.Join(err, s.CloseWrite())
			}()
			sum := sha256.New()
			if _, err := io.Copy(sum, s); err != nil {
				t.Error(err)
			}
			if err := <-wrote; err != nil {
				t.Error(err)
			}
			if want := sha256.Sum256(data); !bytes.Equal(sum.Sum(nil), want[:]) {
				t.Error("other data came back")
			}
		})
	}
}

// After the handshake nothing of the application data has been read: all of it, tickets first, opens from the transport
// with the sequence number 0. crypto/tls sends its ticket in the same flight as its Finished, to a client that could use it.
func TestHandshakeLeavesAllDataInTheKernel(t *testing.T) {
	_, server, config := good(t)
	config.Handshaker = handshakerFunc(func(ctx context.Context, gate net.Conn, p tlsstate.Params) (r tlsstate.Result, err error) {
		tc := tls.Client(gate, &tls.Config{ServerName: p.ServerName, KeyLogWriter: p.KeyLog, InsecureSkipVerify: true,
			ClientSessionCache: tls.NewLRUClientSessionCache(1),
			VerifyConnection:   func(s tls.ConnectionState) error { return p.Verify(s.PeerCertificates) }})
		err = tc.Handshake()
		s := tc.ConnectionState()
		return tlsstate.Result{Version: s.Version, Suite: s.CipherSuite, PeerCertificates: s.PeerCertificates}, err
	})
	nc := serve(t, server, false, func(tc *tls.Conn) error {
		if _, err := io.WriteString(tc, "early words"); err != nil { // with the tickets, right behind the handshake
			return err
		}
		return tc.Close()
	})
	s, err := tlsstate.Client(background(t), nc, config)
	if err != nil {
		t.Fatal(err)
	}
	nc, conn, err := s.Detach()
	if err != nil {
		t.Fatal(err)
	}
	if in, out := conn.Seq(); in != 0 || out != 0 || len(conn.HeldIn())+len(conn.HeldOut())+len(conn.HeldPlain()) != 0 {
		t.Errorf("sequence numbers %d and %d", in, out)
	}
	raw, err := io.ReadAll(nc)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := openAll(conn, raw); string(got) != "early words" || err != io.EOF {
		t.Fatalf("%q, %v", got, err)
	}
	if in, _ := conn.Seq(); in < 3 {
		t.Errorf("%d records: where is the ticket?", in)
	}
}

func TestLibraryThatGoesTooFarIsRefused(t *testing.T) {
	_, server, config := good(t)
	cases := map[string]handshakerFunc{
		"reads on": func(ctx context.Context, gate net.Conn, p tlsstate.Params) (tlsstate.Result, error) {
			r, err := tlsstate.Std{}.Handshake(ctx, gate, p)
			io.ReadFull(gate, make([]byte, len("words")+22)) // one whole record
			return r, err
		},
		"reads half a header": func(ctx context.Context, gate net.Conn, p tlsstate.Params) (tlsstate.Result, error) {
			r, err := tlsstate.Std{}.Handshake(ctx, gate, p)
			gate.Read(make([]byte, 2))
			return r, err
		},
		"does not verify": func(ctx context.Context, gate net.Conn, p tlsstate.Params) (tlsstate.Result, error) {
			p.Verify = func([]*x509.Certificate) error { return nil }
			return tlsstate.Std{}.Handshake(ctx, gate, p)
		},
		"keeps the secrets": func(ctx context.Context, gate net.Conn, p tlsstate.Params) (tlsstate.Result, error) {
			p.KeyLog = io.Discard
			return tlsstate.Std{}.Handshake(ctx, gate, p)
		},
	}
	for name, library := range cases {
		t.Run(name, func(t *testing.T) {
			config := config
			config.Handshaker = library
			nc := serve(t, server, false, func(tc *tls.Conn) error {
				io.WriteString(tc, "words")
				io.Copy(io.Discard, tc)
				return nil
			})
			if _, err := tlsstate.Client(background(t), nc, config); !errors.Is(err, tlsstate.ErrHandover) {
				t.Fatal(err)
			}
		})
	}
}

func TestOldServerIsNamed(t *testing.T) {
	_, server, config := good(t)
	config.MinVersion = tls.VersionTLS13
	t.Run("that refuses", func(t *testing.T) {
		server := server.Clone()
		server.MaxVersion = tls.VersionTLS12
		_, err := tlsstate.Client(background(t), serve(t, server, false, nil), config)
		var old *tlsstate.VersionError
		if !errors.As(err, &old) || !strings.Contains(err.Error(), "ssl_max_protocol_version") {
			t.Fatal(err)
		}
	})
	t.Run("that goes on", func(t *testing.T) {
		client, nc := socketPair(t)
		run(t, func() error { return answerSSLRequest(nc, "S"+string(serverHello12())) })
		_, err := tlsstate.Client(background(t), client, config)
		var old *tlsstate.VersionError
		if !errors.As(err, &old) || old.Version != tls.VersionTLS12 || !strings.Contains(err.Error(), "only TLS 1.2") {
			t.Fatal(err)
		}
	})
}

func TestDirectNeedsALPN(t *testing.T) {
	_, server, config := good(t)
	config.Negotiation = tlsstate.Direct
	t.Run("server without ALPN", func(t *testing.T) {
		server := server.Clone()
		server.NextProtos = nil
		_, err := tlsstate.Client(background(t), serve(t, server, true, nil), config)
		if !errors.Is(err, tlsstate.ErrNoALPN) {
			t.Fatal(err)
		}
	})
	t.Run("server of something else", func(t *testing.T) {
		server := server.Clone()
		server.NextProtos = []string{"h2"}
		_, err := tlsstate.Client(background(t), serve(t, server, true, nil), config)
		var alert *tlsstate.AlertError
		if !errors.As(err, &alert) || alert.Code != 120 || alert.ClientCertificate() {
			t.Fatal(err)
		}
	})
	t.Run("negotiated does without", func(t *testing.T) {
		server := server.Clone()
		server.NextProtos = nil
		config := config
		config.Negotiation = tlsstate.Postgres
		s, err := tlsstate.Client(background(t), serve(t, server, false, nil), config)
		if err != nil || s.Info().ALPN != "" {
			t.Fatal(err)
		}
		s.Close()
	})
}

func TestServerNameIsSentForDNSNamesOnly(t *testing.T) {
	_, server, _ := good(t)
	for host, want := range map[string]string{"db1.example.com": "db1.example.com", "db1.example.com.": "db1.example.com",
		"10.0.0.1": "", "fe80::1%eth0": "", "[::1]": "", "": ""} {
		t.Run(host, func(t *testing.T) {
			got := "nothing"
			config := server.Clone()
			config.GetConfigForClient = func(h *tls.ClientHelloInfo) (*tls.Config, error) { got = h.ServerName; return nil, nil }
			s, err := tlsstate.Client(background(t), serve(t, config, false, nil), tlsstate.Config{Mode: tlsstate.Require, Host: host})
			if err != nil {
				t.Fatal(err)
			}
			s.Close()
			if got != want {
				t.Errorf("SNI %q", got)
			}
		})
	}
}

// With TLS 1.3 a server refuses our certificate after our handshake has ended: the first read tells.
func TestRefusedClientCertificateIsToldByTheFirstRead(t *testing.T) {
	ca, server, config := good(t)
	server.ClientAuth, server.ClientCAs = tls.RequireAndVerifyClientCert, ca.pool()
	other := newAuthority(t, "other CA")
	cases := []struct {
		name string
		cert *tls.Certificate
		code uint8
		want string
	}{
		{"none", nil, 116, "we sent none"},
		{"unknown authority", other.issue(t, nil), 48, "knows no authority that signed it"},
		{"expired", ca.issue(t, expired), 45, "it has expired"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			config := config
			config.Certificate = c.cert
			s, err := tlsstate.Client(background(t), serve(t, server, false, nil), config)
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			if i := s.Info(); !i.ClientCertRequested || i.ClientCertSent != (c.cert != nil) {
				t.Errorf("%+v", i)
			}
			for range 2 { // and so does every later one
				_, err = s.Read(make([]byte, 1))
				var alert *tlsstate.AlertError
				if !errors.As(err, &alert) || alert.Code != c.code || !alert.ClientCertificate() || !strings.Contains(err.Error(), c.want) {
					t.Fatal(err)
				}
			}
		})
	}
	t.Run("accepted", func(t *testing.T) {
		config := config
		config.Certificate = ca.issue(t, nil)
		s, err := tlsstate.Client(background(t), serve(t, server, false, echo), config)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		io.WriteString(s, "x")
		if _, err := s.Read(make([]byte, 1)); err != nil || !s.Info().ClientCertSent {
			t.Fatal(err)
		}
	})
}

// flipper changes a bit of the first protected record that it lets through.
type flipper struct {
	net.Conn
	next bool
}

func (f *flipper) Read(p []byte) (int, error) {
	n, err := f.Conn.Read(p)
	if f.next && n > 0 {
		p[0] ^= 1
	}
	f.next = n == 5 && p[0] == 23
	return n, err
}

func TestChangedHandshakeIsNamed(t *testing.T) {
	_, server, config := good(t)
	_, err := tlsstate.Client(background(t), &flipper{Conn: serve(t, server, false, nil)}, config)
	var broke *tlsstate.ProtocolError
	if !errors.As(err, &broke) || broke.Alert != 20 {
		t.Fatal(err)
	}
}
