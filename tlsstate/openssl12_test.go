package tlsstate_test

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pghandoff/tlsstate"
)

// opensslName is what OpenSSL calls a suite of TLS 1.2.
func opensslName(suite uint16) string {
	name := strings.TrimPrefix(tls.CipherSuiteName(suite), "TLS_")
	name = strings.Replace(name, "_WITH_", "-", 1)
	name = strings.Replace(name, "AES_", "AES", 1)
	name = strings.TrimSuffix(strings.ReplaceAll(name, "_", "-"), "-SHA256")
	if strings.Contains(name, "GCM") && !strings.HasSuffix(name, "384") {
		name += "-SHA256"
	}
	return name
}

// OpenSSL begins its explicit nonces at random, so that they must be taken from the records.
func TestTLS12AgainstOpenSSL(t *testing.T) {
	dir := t.TempDir()
	data := make([]byte, 3<<20)
	rand.Read(data)
	if err := os.WriteFile(filepath.Join(dir, "big"), data, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, suite := range suite12IDs {
		t.Run(tls.CipherSuiteName(suite), func(t *testing.T) {
			_, server, config := old(t, suite)
			o := startOpenSSL(t, &server.Certificates[0], dir, "-tls1_2", "-cipher", opensslName(suite), "-WWW")
			s, err := o.dial(t, config)
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			if i := s.Info(); i.Suite != suite || i.Version != tls.VersionTLS12 || i.Curve == 0 {
				t.Errorf("%+v", i)
			}
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

func TestOpenSSLThatRenegotiatesIsRefused(t *testing.T) {
	_, server, config := old(t, suite12IDs[0])
	o := startOpenSSL(t, &server.Certificates[0], "", "-tls1_2")
	s, err := o.dial(t, config)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	o.say(t, "before")
	expect(t, s, "before\n")
	o.say(t, "r")
	_, err = s.Read(make([]byte, 1))
	var broke *tlsstate.ProtocolError
	if !errors.As(err, &broke) || broke.Alert != 100 || !strings.Contains(err.Error(), "negotiate TLS anew") {
		t.Fatal(err)
	}
}

func TestOpenSSLOfOldSuitesIsNamed(t *testing.T) {
	_, server, config := old(t, tls.TLS_RSA_WITH_AES_128_CBC_SHA)
	for cipher, want := range map[string]string{
		"ECDHE-RSA-AES256-SHA": "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA", "AES128-SHA": "TLS_RSA_WITH_AES_128_CBC_SHA",
		"AES128-GCM-SHA256": "TLS_RSA_WITH_AES_128_GCM_SHA256", "ECDHE-RSA-AES128-SHA256": "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA256",
	} {
		t.Run(cipher, func(t *testing.T) {
			o := startOpenSSL(t, &server.Certificates[0], "", "-tls1_2", "-cipher", cipher)
			_, err := o.dial(t, config)
			var refused *tlsstate.SuiteError
			if !errors.As(err, &refused) || !strings.Contains(err.Error(), want) {
				t.Fatal(err)
			}
		})
	}
}
