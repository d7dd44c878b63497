package tlsstate_test

import (
	"context"
	"crypto/fips140"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"pghandoff/tlsstate"
)

// Under GODEBUG=fips140=only the connection stays inside crypto/tls: the test runs itself again in that mode.
func TestUnderFIPSOnly(t *testing.T) {
	if !fips140.Enforced() {
		if tlsstate.Notice() != "" {
			t.Error(tlsstate.Notice())
		}
		cmd := exec.CommandContext(background(t), os.Args[0], "-test.run=^TestUnderFIPSOnly$", "-test.v")
		cmd.Env = append(os.Environ(), "GODEBUG=fips140=only")
		if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "PASS: TestUnderFIPSOnly/") {
			t.Fatalf("%v\n%s", err, out)
		}
		return
	}
	if n := tlsstate.Notice(); !strings.Contains(n, "fips140=only") || strings.Contains(n, "\n") {
		t.Errorf("%q", n)
	}
	ca, listening := listener(t)
	listening.ClientAuth, listening.ClientRoots = tlsstate.RequireClientCert, ca.pool()
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		t.Run(tls.VersionName(version), func(t *testing.T) {
			nc := accept(t, listening, echoStream)
			config := tlsstate.Config{Host: "db1.example.com", Roots: ca.pool(), Negotiation: tlsstate.Direct, MaxVersion: version, Certificate: ca.issue(t, nil)}
			s, err := tlsstate.Client(background(t), nc, config)
			if err != nil {
				t.Fatal(err)
			}
			if _, _, err := s.Detach(); err != tlsstate.ErrNotDetachable || s.Detachable() {
				t.Fatal(err)
			}
			if i := s.Info(); i.Version != version || !i.ClientCertSent || i.EndpointBinding == nil || i.ALPN != "postgresql" {
				t.Errorf("%+v", i)
			}
			io.WriteString(s, "hello")
			if err := s.CloseWrite(); err != nil {
				t.Fatal(err)
			}
			if got, err := io.ReadAll(s); string(got) != "hello" || err != nil {
				t.Fatalf("%q, %v", got, err)
			}
			if s.Held() != 0 || !strings.Contains(s.String(), "inside crypto/tls") {
				t.Error(s)
			}
			s.Close()
			if err := errors.Join(s.Close()); err != nil {
				t.Error(err)
			}
			if _, err := s.Read(make([]byte, 1)); !errors.Is(err, net.ErrClosed) {
				t.Error(err)
			}
		})
	}
	t.Run("errors", func(t *testing.T) {
		_, server, config := good(t)
		config.Host = "db2.example.com"
		_, err := tlsstate.Client(background(t), serve(t, server, false, nil), config)
		var verify *tlsstate.VerifyError
		if !errors.As(err, &verify) || verify.Kind != tlsstate.WrongName {
			t.Error(err)
		}
		config.Host = "db1.example.com"
		server = server.Clone() // the first one may still be at work
		server.ClientAuth = tls.RequireAnyClientCert
		s, err := tlsstate.Client(background(t), serve(t, server, false, nil), config)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		_, err = s.Read(make([]byte, 1))
		var alert *tlsstate.AlertError
		if !errors.As(err, &alert) || alert.Code != 116 {
			t.Error(err)
		}
	})
	t.Run("cut", func(t *testing.T) {
		_, server, config := good(t)
		cut := make(chan struct{})
		nc := serve(t, server, false, func(tc *tls.Conn) error {
			err := tc.HandshakeContext(context.Background())
			<-cut
			return errors.Join(err, tc.NetConn().Close())
		})
		s, err := tlsstate.Client(background(t), nc, config)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		s.SetReadDeadline(time.Now().Add(10 * time.Millisecond))
		if _, err := s.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Error(err)
		}
		s.SetReadDeadline(time.Time{})
		close(cut)
		if _, err := s.Read(make([]byte, 1)); !errors.Is(err, tlsstate.ErrTruncated) {
			t.Error(err)
		}
	})
}
