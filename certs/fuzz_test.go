package certs_test

import (
	"errors"
	"testing"
	"time"

	"pghandoff/certs"
)

// Whatever the bytes, a set is either refused with an *Error or complete; cutting an accepted file anywhere but in
// blank space at its end, or at the end of a block, makes it refused.
func FuzzParse(f *testing.F) {
	now := time.Now()
	ca, err := certs.NewDevCA(now)
	if err != nil {
		f.Fatal(err)
	}
	issued, err := ca.IssueClient("app", 24*365*time.Hour)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(issued.ChainPEM, issued.KeyPEM, ca.RootsPEM())
	f.Add(append(issued.ChainPEM, ca.RootsPEM()...), issued.KeyPEM, []byte(nil))
	f.Add([]byte("-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----"), []byte("-----BEGIN"), []byte("\x00"))
	f.Fuzz(func(t *testing.T, cert, key, roots []byte) {
		set := certs.PEMSet{Cert: cert, Key: key, Roots: roots, CertPath: "c", KeyPath: "k", RootsPath: "r"}
		m, err := set.Parse(now)
		var e *certs.Error
		if err != nil && !errors.As(err, &e) {
			t.Errorf("untyped error: %v", err)
		}
		if (m == nil) == (err == nil) {
			t.Errorf("set %v with error %v", m, err)
		}
	})
}

func TestEveryCutIsSeen(t *testing.T) {
	s := newSet(t)
	whole := append(append([]byte("comment\n"), s.cert...), s.roots...)
	blockEnd := map[int]bool{len("comment\n") + len(s.cert): true, len(whole): true}
	for n := 1; n < len(whole); n++ {
		_, err := certs.PEMSet{Cert: whole[:n], Key: s.key}.Parse(s.now)
		if accepted := err == nil; accepted && !blockEnd[n] && !blockEnd[n+1] {
			t.Errorf("accepted when cut at %d of %d", n, len(whole))
		}
	}
}
