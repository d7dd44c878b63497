package utlshandshake

import (
	"bufio"
	"context"
	stdtls "crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"pghandoff/tests/testpg"
	"pghandoff/tlsstate"
)

// openssl starts `openssl s_server` that sends everything back reversed by lines, and returns its address.
func openssl(t *testing.T, cert stdtls.Certificate, args ...string) string {
	t.Helper()
	path := testpg.Require(t, "openssl", "openssl")
	file := filepath.Join(t.TempDir(), "both.pem")
	der, err := x509.MarshalPKCS8PrivateKey(cert.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	text := append(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Certificate[0]}),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})...)
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(background(t))
	cmd := exec.CommandContext(ctx, path, append([]string{"s_server", "-accept", "127.0.0.1:0", "-cert", file, "-key", file, "-rev", "-alpn", "postgresql"}, args...)...)
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(stdout)
	address := ""
	for address == "" && lines.Scan() {
		address, _ = strings.CutPrefix(lines.Text(), "ACCEPT ")
		if address == lines.Text() {
			address = ""
		}
	}
	t.Cleanup(func() { cancel(); io.Copy(io.Discard, stdout); cmd.Wait() })
	return address
}

func TestOpenSSLAsPostgreSQLIsSparedARoundTrip(t *testing.T) {
	for _, c := range []struct {
		name, kind string
		args       []string
	}{
		{"TLS 1.3", "RSA", []string{"-groups", "P-256", "-tls1_3"}},
		{"TLS 1.2 RSA", "RSA", []string{"-groups", "P-256", "-tls1_2"}},
		{"TLS 1.2 ECDSA", "P-256", []string{"-groups", "P-256", "-tls1_2", "-cipher", "ECDHE-ECDSA-CHACHA20-POLY1305"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, config := pair(t, c.kind)
			cert, roots := issue(t, c.kind)
			config.Roots = roots
			nc, err := net.Dial("tcp", openssl(t, cert, append(c.args, "-serverpref")...))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { nc.Close() })
			s, err := tlsstate.Client(background(t), nc, config)
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			i := s.Info()
			if i.HelloRetryRequest || i.Version == stdtls.VersionTLS13 && i.Curve != stdtls.CurveP256 {
				t.Errorf("%+v", i)
			}
			io.WriteString(s, "abc\n")
			got := make([]byte, 4)
			if _, err := io.ReadFull(s, got); err != nil || string(got) != "cba\n" {
				t.Fatalf("%q, %v", got, err)
			}
		})
	}
}
