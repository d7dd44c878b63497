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
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pghandoff/tlsstate"
)

// listener is an authority and a configuration of Server that every client may connect to.
func listener(t testing.TB) (*authority, tlsstate.ServerConfig) {
	ca := newAuthority(t, "test CA")
	return ca, tlsstate.ServerConfig{Certificate: ca.issue(t, nil), Negotiation: tlsstate.Direct}
}

// accept runs Server on one end and session over it, and returns the other end.
func accept(t testing.TB, config tlsstate.ServerConfig, session func(*tlsstate.Stream, error) error) net.Conn {
	t.Helper()
	client, server := socketPair(t)
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second) // the client may end the test first
	t.Cleanup(cancel)
	run(t, func() error {
		s, err := tlsstate.Server(ctx, server, config)
		if err == nil {
			defer s.Close()
		}
		err = session(s, err)
		server.Close()
		return err
	})
	t.Cleanup(func() { client.Close() }) // before the wait for the server
	return client
}

func echoStream(s *tlsstate.Stream, err error) error {
	if err != nil {
		return err
	}
	if _, err := io.Copy(s, s); err != nil {
		return err
	}
	return s.CloseWrite()
}

// halfCloser is what the clients below have in common.
type halfCloser interface {
	net.Conn
	CloseWrite() error
}

// Every client library talks to Server in both versions, and in TLS 1.2 with every suite.
func TestServerAgainstClients(t *testing.T) {
	data := make([]byte, 2<<20)
	rand.Read(data)
	want := sha256.Sum256(data)
	try := func(name string, rsa bool, dial func(*testing.T, *authority, net.Conn) (halfCloser, error)) {
		t.Run(name, func(t *testing.T) {
			ca, config := listener(t)
			if rsa {
				config.Certificate = ca.issueFor(t, rsaKey(t), nil)
			}
			c, err := dial(t, ca, accept(t, config, echoStream))
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			wrote := make(chan error, 1)
			go func() { // ends with its data, or with c; waited for below
				_, err := c.Write(data)
				wrote <- errors.Join(err, c.CloseWrite())
			}()
			sum := sha256.New()
			if _, err := io.Copy(sum, c); err != nil {
				t.Error(err)
			}
			if err := <-wrote; err != nil {
				t.Error(err)
			}
			if !bytes.Equal(sum.Sum(nil), want[:]) {
				t.Error("other data came back")
			}
		})
	}
	std := func(version, suite uint16) func(*testing.T, *authority, net.Conn) (halfCloser, error) {
		return func(t *testing.T, ca *authority, nc net.Conn) (halfCloser, error) {
			config := &tls.Config{RootCAs: ca.pool(), ServerName: "db1.example.com", NextProtos: []string{"postgresql"},
				MaxVersion: version, ClientSessionCache: tls.NewLRUClientSessionCache(1)}
			if suite != 0 {
				config.CipherSuites = []uint16{suite}
			}
			tc := tls.Client(nc, config)
			return tc, tc.Handshake()
		}
	}
	try("crypto/tls", false, std(tls.VersionTLS13, 0))
	for _, suite := range suite12IDs {
		name := tls.CipherSuiteName(suite)
		try("crypto/tls/"+name, strings.Contains(name, "_RSA_"), std(tls.VersionTLS12, suite))
	}
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		try("ours/"+tls.VersionName(version), false, func(t *testing.T, ca *authority, nc net.Conn) (halfCloser, error) {
			return tlsstate.Client(background(t), nc, tlsstate.Config{Host: "db1.example.com", Roots: ca.pool(),
				Negotiation: tlsstate.Direct, MaxVersion: version})
		})
	}
}

// The client's first words come in one flight with its Finished; they stay in the kernel, and we send no ticket.
func TestServerLeavesEarlyWordsInTheKernel(t *testing.T) {
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		t.Run(tls.VersionName(version), func(t *testing.T) {
			ca, config := listener(t)
			config.MaxVersion = version
			nc := accept(t, config, func(s *tlsstate.Stream, err error) error {
				if err != nil {
					return err
				}
				nc, conn, err := s.Detach()
				if err != nil {
					return err
				}
				start := uint64(0)
				if version == tls.VersionTLS12 {
					start = 1
				}
				if in, out := conn.Seq(); in != start || out != start || len(conn.HeldIn())+len(conn.HeldOut()) != 0 {
					return fmt.Errorf("sequence numbers %d and %d", in, out)
				}
				raw, err := io.ReadAll(nc)
				if err != nil {
					return err
				}
				if got, err := openAll(conn, raw); string(got) != "early words" || err != io.EOF {
					return fmt.Errorf("%q, %w", got, err)
				}
				last, err := conn.AppendCloseNotify(nil)
				if err == nil {
					_, err = nc.Write(last)
				}
				return err
			})
			tc := tls.Client(nc, &tls.Config{RootCAs: ca.pool(), ServerName: "db1.example.com", NextProtos: []string{"postgresql"}})
			if _, err := io.WriteString(tc, "early words"); err != nil {
				t.Fatal(err)
			}
			if err := tc.CloseWrite(); err != nil {
				t.Fatal(err)
			}
			nc.(*net.TCPConn).CloseWrite()
			if got, err := io.ReadAll(tc); len(got) > 0 || err != nil {
				t.Fatal(got, err)
			}
		})
	}
}

func TestServerChecksClientCertificates(t *testing.T) {
	ca, config := listener(t)
	config.ClientRoots = ca.pool()
	other := newAuthority(t, "other CA")
	serverOnly := func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth} }
	for _, c := range []struct {
		name string
		auth tlsstate.ClientAuth
		cert *tls.Certificate
		kind tlsstate.VerifyKind
		want string // "": accepted
	}{
		{"none asked", tlsstate.NoClientCert, ca.issue(t, nil), 0, ""},
		{"none sent", tlsstate.OptionalClientCert, nil, 0, ""},
		{"none sent, required", tlsstate.RequireClientCert, nil, tlsstate.NoCertificate, "client sent no certificate"},
		{"good", tlsstate.RequireClientCert, ca.issue(t, nil), 0, ""},
		{"good, optional", tlsstate.OptionalClientCert, ca.issue(t, nil), 0, ""},
		{"other authority", tlsstate.OptionalClientCert, other.issue(t, nil), tlsstate.UnknownAuthority, "client certificate is signed by an unknown"},
		{"expired", tlsstate.RequireClientCert, ca.issue(t, expired), tlsstate.Expired, "client certificate expired"},
		{"a server's", tlsstate.RequireClientCert, ca.issue(t, serverOnly), tlsstate.WrongUsage, "not meant for clients"},
	} {
		for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
			t.Run(c.name+"/"+tls.VersionName(version), func(t *testing.T) {
				config := config
				config.ClientAuth = c.auth
				nc := accept(t, config, func(s *tlsstate.Stream, err error) error {
					var verify *tlsstate.VerifyError
					if c.want == "" && err == nil {
						if i := s.Info(); i.ClientCertSent != (c.cert != nil && c.auth != 0) || len(i.PeerCertificates) > 0 != i.ClientCertSent || i.EndpointBinding == nil {
							return fmt.Errorf("%+v", i)
						}
						return echoStream(s, nil)
					}
					if !errors.As(err, &verify) || verify.Kind != c.kind || !strings.Contains(err.Error(), c.want) || c.want == "" {
						return fmt.Errorf("wrong error: %w", err)
					}
					return nil
				})
				s, err := tlsstate.Client(background(t), nc, tlsstate.Config{Host: "db1.example.com", Roots: ca.pool(),
					Negotiation: tlsstate.Direct, MaxVersion: version, Certificate: c.cert})
				if err == nil {
					defer s.Close()
					s.CloseWrite()
					_, err = io.Copy(io.Discard, s)
				}
				if (err == nil) != (c.want == "") {
					t.Error(err)
				}
			})
		}
	}
}

func TestServerSaysWhatIsWrongWithClients(t *testing.T) {
	ca, config := listener(t)
	expect := func(name, want string, target error, client func(net.Conn)) {
		t.Run(name, func(t *testing.T) {
			nc := accept(t, config, func(_ *tlsstate.Stream, err error) error {
				if err == nil || !strings.Contains(err.Error(), want) || target != nil && !errors.Is(err, target) {
					return fmt.Errorf("wrong error: %w", err)
				}
				return nil
			})
			client(nc)
			io.Copy(io.Discard, nc)
		})
	}
	library := func(c *tls.Config) func(net.Conn) {
		return func(nc net.Conn) {
			c.ServerName = "db1.example.com"
			tls.Client(nc, c).Handshake()
		}
	}
	expect("plaintext", "does not speak TLS", tlsstate.ErrNotTLS, func(nc net.Conn) { io.WriteString(nc, "GET / HTTP/1.1\r\n") })
	expect("no ALPN", "sslnegotiation=postgres", tlsstate.ErrClientNoALPN, library(&tls.Config{RootCAs: ca.pool()}))
	expect("other ALPN", "application protocols", nil, library(&tls.Config{RootCAs: ca.pool(), NextProtos: []string{"h2"}}))
	expect("unknown root", "the client refused our certificate", nil, library(&tls.Config{NextProtos: []string{"postgresql"}, RootCAs: x509.NewCertPool()}))
	expect("old version", "versions", nil, library(&tls.Config{RootCAs: ca.pool(), MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11}))
	expect("old suites", "cipher suite", nil, library(&tls.Config{RootCAs: ca.pool(), MaxVersion: tls.VersionTLS12, NextProtos: []string{"postgresql"},
		CipherSuites: []uint16{tls.TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA}}))
	expect("gone", "closed the connection", io.ErrUnexpectedEOF, func(nc net.Conn) { nc.(*net.TCPConn).CloseWrite() })
}

func TestServerConfigurationThatCannotBeMeantIsRefused(t *testing.T) {
	ca, good := listener(t)
	for name, change := range map[string]func(*tlsstate.ServerConfig){
		"no certificate": func(c *tlsstate.ServerConfig) { c.Certificate = nil },
		"no roots":       func(c *tlsstate.ServerConfig) { c.ClientAuth = tlsstate.OptionalClientCert },
		"no such policy": func(c *tlsstate.ServerConfig) { c.ClientAuth, c.ClientRoots = 9, ca.pool() },
		"TLS 1.1":        func(c *tlsstate.ServerConfig) { c.MinVersion = tls.VersionTLS11 },
	} {
		c := good
		change(&c)
		if _, err := tlsstate.Server(t.Context(), nil, c); err == nil {
			t.Error(name)
		}
	}
}

func TestServerAgainstOpenSSL(t *testing.T) {
	path := needOpenSSL(t)
	ca, config := listener(t)
	caFile := filepath.Join(t.TempDir(), "ca.pem")
	writePEM(t, caFile, "CERTIFICATE", ca.cert.Raw)
	ours := ca.issue(t, nil)
	certFile, keyFile := files(t, ours)
	config.ClientAuth, config.ClientRoots = tlsstate.RequireClientCert, ca.pool()
	for _, version := range []string{"-tls1_2", "-tls1_3"} {
		t.Run(version, func(t *testing.T) {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			ctx, cancel := context.WithCancel(background(t))
			cmd := exec.CommandContext(ctx, path, "s_client", "-connect", l.Addr().String(), version, "-alpn", "postgresql", "-quiet",
				"-CAfile", caFile, "-verify_return_error", "-verify_hostname", "db1.example.com", "-cert", certFile, "-key", keyFile)
			stdin, _ := cmd.StdinPipe()
			stdout, _ := cmd.StdoutPipe()
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			defer cmd.Wait()
			defer cancel()
			nc, err := l.Accept()
			if err != nil {
				t.Fatal(err)
			}
			defer nc.Close()
			s, err := tlsstate.Server(ctx, nc, config)
			if err != nil {
				t.Fatal(err)
			}
			io.WriteString(stdin, "to the server\n")
			expect(t, s, "to the server\n")
			io.WriteString(s, "to the client\n")
			expect(t, stdout, "to the client\n")
			if version == "-tls1_3" {
				nc, conn, err := s.Detach()
				if err != nil {
					t.Fatal(err)
				}
				wire, err := conn.RequestKeyUpdate(nil, true)
				if err == nil {
					wire, err = conn.Seal(wire, []byte("with a new key\n"))
				}
				if err != nil {
					t.Fatal(err)
				}
				nc.Write(wire)
				expect(t, stdout, "with a new key\n")
				s = tlsstate.NewStream(nc, conn)
				io.WriteString(stdin, "mine, too\n")
				expect(t, s, "mine, too\n")
			}
			s.Close()
		})
	}
}
