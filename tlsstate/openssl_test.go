package tlsstate_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"pghandoff/tlsstate"
)

// opensslServer is a running `openssl s_server`. Lines written to stdin are sent to the client, save commands: k and K
// change its key.
type opensslServer struct {
	address string
	stdin   io.Writer
	lines   chan string // of stdout; closed when it ends
}

// startOpenSSL starts a server for direct TLS with this certificate, on a free port.
func startOpenSSL(t *testing.T, cert *tls.Certificate, dir string, args ...string) *opensslServer {
	t.Helper()
	path := needOpenSSL(t)
	certFile, keyFile := files(t, cert)
	args = append([]string{"s_server", "-accept", "127.0.0.1:0", "-cert", certFile, "-key", keyFile, "-alpn", "postgresql"}, args...)
	ctx, cancel := context.WithCancel(background(t))
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Dir = dir
	stdin, _ := cmd.StdinPipe()
	stdout, _ := cmd.StdoutPipe()
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	s := &opensslServer{stdin: stdin, lines: make(chan string, 10_000)}
	go func() { // ends with the process, which the clean-up ends and waits for
		defer close(s.lines)
		for r := bufio.NewScanner(stdout); r.Scan(); {
			s.lines <- r.Text()
		}
	}()
	t.Cleanup(func() {
		cancel()
		for range s.lines {
		}
		cmd.Wait()
		if t.Failed() {
			t.Logf("openssl: %s", &stderr)
		}
	})
	s.address = strings.TrimPrefix(s.await(t, "ACCEPT "), "ACCEPT ")
	return s
}

// await returns the next line that contains part.
func (s *opensslServer) await(t *testing.T, part string) string {
	t.Helper()
	for line := range s.lines {
		if strings.Contains(line, part) {
			return line
		}
	}
	t.Fatalf("openssl ended without %q", part)
	return ""
}

func (s *opensslServer) say(t *testing.T, line string) {
	t.Helper()
	if _, err := io.WriteString(s.stdin, line+"\n"); err != nil {
		t.Fatal(err)
	}
}

func (s *opensslServer) dial(t *testing.T, config tlsstate.Config) (*tlsstate.Stream, error) {
	t.Helper()
	nc, err := net.Dial("tcp", s.address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { nc.Close() })
	config.Negotiation = tlsstate.Direct
	return tlsstate.Client(background(t), nc, config)
}

func expect(t *testing.T, r io.Reader, want string) {
	t.Helper()
	got := make([]byte, len(want))
	if _, err := io.ReadFull(r, got); err != nil || string(got) != want {
		t.Fatalf("read %q, %v, not %q", got, err, want)
	}
}

func TestOpenSSLTalksThroughTicketsAndKeyUpdates(t *testing.T) {
	_, server, config := good(t)
	for _, suite := range suiteIDs {
		for _, tickets := range []int{0, 2, 5} {
			name := tls.CipherSuiteName(suite)
			t.Run(fmt.Sprintf("%s/%d tickets", name, tickets), func(t *testing.T) {
				o := startOpenSSL(t, &server.Certificates[0], "", "-ciphersuites", name, "-num_tickets", fmt.Sprint(tickets), "-msg")
				s, err := o.dial(t, config)
				if err != nil {
					t.Fatal(err)
				}
				defer s.Close()
				if i := s.Info(); i.Suite != suite || i.ALPN != "postgresql" {
					t.Fatalf("%+v", i)
				}
				io.WriteString(s, "to the server\n")
				o.await(t, "to the server")
				o.say(t, "to the client")
				expect(t, s, "to the client\n")
				for _, command := range []string{"k", "K", "k", "K"} {
					o.say(t, command)
					o.await(t, ">>> TLS 1.3, Handshake [length 0005], KeyUpdate")
					o.say(t, "after "+command)
					expect(t, s, "after "+command+"\n")
					if command == "K" { // answered at once, without a word of ours
						o.await(t, "<<< TLS 1.3, Handshake [length 0005], KeyUpdate")
					}
					io.WriteString(s, "heard "+command+"\n")
					o.await(t, "heard "+command)
				}
				ourKeyUpdates(t, o, s)
			})
		}
	}
}

// ourKeyUpdates detaches s and changes keys from our side, then ends the connection.
func ourKeyUpdates(t *testing.T, o *opensslServer, s *tlsstate.Stream) {
	nc, conn, err := s.Detach()
	if err != nil {
		t.Fatal(err)
	}
	for _, peerToo := range []bool{false, true, true} {
		wire, err := conn.RequestKeyUpdate(nil, peerToo)
		if err == nil {
			wire, err = conn.Seal(wire, []byte("with a new key\n"))
		}
		if err != nil {
			t.Fatal(err)
		}
		nc.Write(wire)
		o.await(t, "with a new key")
	}
	o.say(t, "still here")
	s = tlsstate.NewStream(nc, conn)
	expect(t, s, "still here\n")
	if err := s.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Read(make([]byte, 1)); err != io.EOF { // it answers our close_notify with its own
		t.Errorf("end of the connection: %v", err)
	}
}

func TestTenMegabytesFromOpenSSL(t *testing.T) {
	_, server, config := good(t)
	dir := t.TempDir()
	data := make([]byte, 10<<20)
	rand.Read(data)
	if err := os.WriteFile(filepath.Join(dir, "big"), data, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, suite := range suiteIDs {
		name := tls.CipherSuiteName(suite)
		t.Run(name, func(t *testing.T) {
			o := startOpenSSL(t, &server.Certificates[0], dir, "-ciphersuites", name, "-WWW")
			s, err := o.dial(t, config)
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			s.Buffered(true)
			io.WriteString(s, "GET /big HTTP/1.0\r\n\r\n")
			got, err := io.ReadAll(s)
			if err != nil {
				t.Fatal(err)
			}
			_, body, _ := bytes.Cut(got, []byte("\r\n\r\n"))
			if sha256.Sum256(body) != sha256.Sum256(data) {
				t.Errorf("%d bytes of other data", len(body))
			}
		})
	}
}

func TestOpenSSLWithClientCertificates(t *testing.T) {
	ca, server, config := good(t)
	caFile := filepath.Join(t.TempDir(), "ca.pem")
	writePEM(t, caFile, "CERTIFICATE", ca.cert.Raw)
	cases := []struct {
		name string
		cert *tls.Certificate
		code uint8 // 0: accepted
	}{
		{"accepted", ca.issue(t, nil), 0},
		{"none", nil, 116},
		{"unknown authority", newAuthority(t, "other CA").issue(t, nil), 48},
		{"expired", ca.issue(t, expired), 45},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			o := startOpenSSL(t, &server.Certificates[0], "", "-Verify", "1", "-verify_return_error", "-CAfile", caFile)
			config := config
			config.Certificate = c.cert
			s, err := o.dial(t, config)
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			if c.code == 0 {
				io.WriteString(s, "hello\n")
				o.await(t, "hello")
				return
			}
			_, err = s.Read(make([]byte, 1))
			var alert *tlsstate.AlertError
			if !errors.As(err, &alert) || alert.Code != c.code || !strings.Contains(err.Error(), "client certificate") {
				t.Fatal(err)
			}
		})
	}
}

func TestOpenSSLOfTLS12IsNamed(t *testing.T) {
	_, server, config := good(t)
	o := startOpenSSL(t, &server.Certificates[0], "", "-tls1_2")
	config.MinVersion = tls.VersionTLS13
	_, err := o.dial(t, config)
	var old *tlsstate.VersionError
	if !errors.As(err, &old) {
		t.Fatal(err)
	}
}

func TestOpenSSLCurveCostsAHelloRetryRequest(t *testing.T) {
	_, server, config := good(t)
	o := startOpenSSL(t, &server.Certificates[0], "", "-groups", "P-256") // as PostgreSQL up to 17
	s, err := o.dial(t, config)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if i := s.Info(); !i.HelloRetryRequest || i.Curve != tls.CurveP256 {
		t.Errorf("%+v", i)
	}
	o.say(t, "hello")
	expect(t, s, "hello\n")
}
