package certs_test

import (
	"bytes"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pghandoff/certs"
)

var clientOnly = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}

// set is a folder with a good identity that a test spoils in one way.
type set struct {
	t                *testing.T
	ca               *certs.DevCA
	now              time.Time
	source           certs.FileSource
	cert, key, roots []byte
}

func newSet(t *testing.T) *set {
	t.Helper()
	now := time.Now()
	ca, err := certs.NewDevCA(now)
	if err != nil {
		t.Fatal(err)
	}
	issued, err := ca.IssueClient("app", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	s := &set{t: t, ca: ca, now: now, cert: issued.ChainPEM, key: issued.KeyPEM, roots: ca.RootsPEM()}
	s.source = certs.FileSource{Cert: filepath.Join(dir, "tls.crt"), Key: filepath.Join(dir, "tls.key"),
		Roots: filepath.Join(dir, "ca.crt")}
	s.write()
	return s
}

func (s *set) write() {
	s.t.Helper()
	writeFile(s.t, s.source.Cert, s.cert, 0o644)
	writeFile(s.t, s.source.Key, s.key, 0o600)
	writeFile(s.t, s.source.Roots, s.roots, 0o644)
}

// issue replaces the pair by one made from the template, whose validity defaults to an hour around now.
func (s *set) issue(template x509.Certificate) {
	s.t.Helper()
	if template.NotBefore.IsZero() {
		template.NotBefore = s.now.Add(-time.Minute)
	}
	if template.NotAfter.IsZero() {
		template.NotAfter = s.now.Add(time.Hour)
	}
	issued, err := s.ca.Issue(&template)
	if err != nil {
		s.t.Fatal(err)
	}
	s.cert, s.key = issued.ChainPEM, issued.KeyPEM
}

func writeFile(t *testing.T, path string, data []byte, mode os.FileMode) {
	t.Helper()
	if err := os.WriteFile(path, data, mode); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, mode); err != nil {
		t.Fatal(err)
	}
}

func TestGoodSetLoadsWhole(t *testing.T) {
	s := newSet(t)
	id := certs.NewIdentity("orders-client", s.source)
	if id.Current() != nil {
		t.Fatal("an identity has a snapshot before its first load")
	}
	if changed, err := id.Reload(t.Context(), s.now); err != nil || !changed {
		t.Fatalf("changed %v, error %v", changed, err)
	}
	snap := id.Current()
	if snap.Generation != 1 || snap.Leaf.Subject.CommonName != "app" || snap.Roots == nil || snap.Serial() == "" {
		t.Errorf("unexpected snapshot: %v", snap)
	}
	if !snap.NotAfter.Equal(snap.Leaf.NotAfter) || !snap.Trusts(s.ca.Certificate()) {
		t.Error("end or anchors are wrong")
	}
	if err := snap.Check(s.now.Add(3 * time.Hour)); err == nil || !strings.Contains(err.Error(), "expired 2 h ago") &&
		!strings.Contains(err.Error(), "expired 119 min ago") {
		t.Errorf("an expired snapshot says: %v", err)
	}
}

func TestRefusals(t *testing.T) {
	cases := []struct {
		name   string
		spoil  func(s *set)
		reason certs.Reason
		says   string
	}{
		{"chain file cut in the middle of its second block", func(s *set) {
			s.cert = append(s.cert, s.roots...)
			s.cert = s.cert[:len(s.cert)-40]
		}, certs.Malformed, "cut off"},
		{"bundle cut in the middle", func(s *set) { s.roots = s.roots[:len(s.roots)/2] }, certs.Malformed, "cut off"},
		{"file without its first line", func(s *set) { _, s.cert, _ = bytes.Cut(s.cert, []byte("\n")) },
			certs.Malformed, "cut off"},
		{"text after the last block", func(s *set) { s.cert = append(s.cert, "# the rest is mis"...) },
			certs.Malformed, "text after its last block"},
		{"a hole of zero bytes", func(s *set) { s.roots = append(s.roots, make([]byte, 64)...) }, certs.Malformed, "not text"},
		{"damaged base64", func(s *set) { s.cert[60] = '!' }, certs.Malformed, "damaged"},
		{"key where certificates are expected", func(s *set) { s.cert = append(s.cert, s.key...) },
			certs.Malformed, "only CERTIFICATE"},
		{"certificate where the key is expected", func(s *set) { s.key = s.cert }, certs.Malformed, "private key is expected"},
		{"two keys", func(s *set) { s.key = append(s.key, s.key...) }, certs.Malformed, "nothing else"},
		{"unparseable key", func(s *set) {
			s.key = pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: []byte("secret-bytes")})
		}, certs.Malformed, "cannot be parsed"},
		{"encrypted PKCS #8", func(s *set) {
			s.key = pem.EncodeToMemory(&pem.Block{Type: "ENCRYPTED PRIVATE KEY", Bytes: []byte("x")})
		}, certs.Encrypted, "passphrase"},
		{"encrypted the old way", func(s *set) {
			s.key = pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: []byte("x"),
				Headers: map[string]string{"Proc-Type": "4,ENCRYPTED", "DEK-Info": "AES-256-CBC,00"}})
		}, certs.Encrypted, "passphrase"},
		{"key of another certificate", func(s *set) { other := newSet(s.t); s.key = other.key }, certs.Mismatched,
			"does not belong"},
		{"issuer before leaf", func(s *set) { s.cert = append(bytes.Clone(s.roots), s.cert...) }, certs.Incomplete,
			"wrong order"},
		{"stranger in the chain", func(s *set) { s.cert = append(s.cert, newSet(s.t).roots...) }, certs.Incomplete,
			"not signed by the next"},
		{"expired", func(s *set) {
			s.issue(x509.Certificate{NotBefore: s.now.Add(-5 * time.Hour), NotAfter: s.now.Add(-2*time.Hour - time.Minute)})
		}, certs.Expired, "expired 2 h ago (notAfter "},
		{"not yet valid", func(s *set) {
			s.issue(x509.Certificate{NotBefore: s.now.Add(61 * time.Minute), NotAfter: s.now.Add(5 * time.Hour)})
		}, certs.NotYetValid, "valid only in 60 min"},
		{"for servers only", func(s *set) {
			s.issue(x509.Certificate{ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}})
		}, certs.WrongPurpose, "lacks clientAuth"},
		{"key usage without signatures", func(s *set) {
			s.issue(x509.Certificate{ExtKeyUsage: clientOnly, KeyUsage: x509.KeyUsageKeyEncipherment})
		}, certs.WrongPurpose, "lacks digitalSignature"},
		{"empty file", func(s *set) { s.roots = []byte{} }, certs.Unreadable, "empty"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			s := newSet(t)
			c.spoil(s)
			s.write()
			_, err := s.source.Load(t.Context(), s.now)
			checkRefusal(t, err, c.reason, c.says)
		})
	}
}

func checkRefusal(t *testing.T, err error, reason certs.Reason, says string) {
	t.Helper()
	var e *certs.Error
	if !errors.As(err, &e) {
		t.Fatalf("got %v, want an *Error", err)
	}
	if e.Reason != reason || !strings.Contains(err.Error(), says) {
		t.Errorf("got %v: %v, want %v with %q", e.Reason, err, reason, says)
	}
	if e.Path != "" && !strings.Contains(err.Error(), e.Path) {
		t.Errorf("the sentence does not name the file: %v", err)
	}
	if strings.Contains(err.Error(), "secret-bytes") {
		t.Error("the sentence quotes the file")
	}
}

func TestExpiredAnchorsAreRefusedOnlyIfAllAre(t *testing.T) {
	s := newSet(t)
	old, err := certs.NewDevCA(s.now.Add(-20 * 365 * 24 * time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	s.roots = append(s.roots, old.RootsPEM()...)
	s.write()
	if _, err := s.source.Load(t.Context(), s.now); err != nil {
		t.Errorf("one good anchor among expired ones: %v", err)
	}
	s.roots = old.RootsPEM()
	s.write()
	_, err = s.source.Load(t.Context(), s.now)
	checkRefusal(t, err, certs.Expired, "every trust anchor")
}

func TestFormsThatAreAccepted(t *testing.T) {
	cases := map[string]func(s *set){
		"extended key usage absent":    func(s *set) { s.issue(x509.Certificate{Subject: pkix.Name{CommonName: "app"}}) },
		"any extended key usage":       func(s *set) { s.issue(x509.Certificate{ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}}) },
		"root at the end of chain":     func(s *set) { s.cert = append(s.cert, s.roots...) },
		"comments before blocks":       func(s *set) { s.roots = append([]byte("# Société ☂\n\n"), s.roots...) },
		"DOS line ends":                func(s *set) { s.cert = bytes.ReplaceAll(s.cert, []byte("\n"), []byte("\r\n")) },
		"no line break at the end":     func(s *set) { s.key = bytes.TrimSpace(s.key) },
		"blank lines at the end":       func(s *set) { s.cert = append(s.cert, "\n \n"...) },
		"no trust anchors":             func(s *set) { s.source.Roots = "" },
		"trust anchors without client": func(s *set) { s.source.Cert, s.source.Key = "", "" },
	}
	for name, change := range cases {
		t.Run(name, func(t *testing.T) {
			s := newSet(t)
			paths := s.source
			change(s)
			writeFile(t, paths.Cert, s.cert, 0o644)
			writeFile(t, paths.Key, s.key, 0o600)
			writeFile(t, paths.Roots, s.roots, 0o644)
			if _, err := s.source.Load(t.Context(), s.now); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestHalfASourceIsRefused(t *testing.T) {
	s := newSet(t)
	_, err := certs.FileSource{Cert: s.source.Cert}.Load(t.Context(), s.now)
	checkRefusal(t, err, certs.Incomplete, "has no private key")
	_, err = certs.FileSource{Key: s.source.Key}.Load(t.Context(), s.now)
	checkRefusal(t, err, certs.Incomplete, "has no certificate")
	_, err = certs.FileSource{}.Load(t.Context(), s.now)
	checkRefusal(t, err, certs.Incomplete, "neither")
}
