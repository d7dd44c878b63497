package tlsstate_test

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"math/big"
	"net"
	"strings"
	"testing"
	"time"

	"pghandoff/tlsstate"
)

func expired(c *x509.Certificate) {
	c.NotAfter = time.Now().Add(-3 * time.Hour)
	c.NotBefore = c.NotAfter.Add(-time.Hour)
}
func future(c *x509.Certificate)   { c.NotBefore = time.Now().Add(3 * time.Hour) }
func nameless(c *x509.Certificate) { c.DNSNames = nil }
func otherNames(c *x509.Certificate) {
	c.DNSNames = []string{"a.example", "b.example", "evil\x1b[2J.example"}
	c.IPAddresses = []net.IP{net.IPv4(10, 0, 0, 9)}
}
func address(c *x509.Certificate) {
	c.IPAddresses = []net.IP{net.IPv4(10, 0, 0, 1), net.ParseIP("fe80::1")}
}
func clientOnly(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth} }

func TestEveryModeChecksWhatItNames(t *testing.T) {
	ca, other := newAuthority(t, "test CA"), newAuthority(t, "other CA")
	const ok = tlsstate.VerifyKind(-1)
	const host = "db1.example.com"
	cases := []struct {
		name     string
		cert     *tls.Certificate
		host     string
		full, ca tlsstate.VerifyKind // what verify-full and verify-ca find
		sentence string              // of verify-full
	}{
		{"good", ca.issue(t, nil), host, ok, ok, ""},
		{"good with a dot", ca.issue(t, nil), host + ".", ok, ok, ""},
		{"good address", ca.issue(t, address), "10.0.0.1", ok, ok, ""},
		{"good address with a zone", ca.issue(t, address), "fe80::1%eth0", ok, ok, ""},
		{"address in brackets", ca.issue(t, address), "[fe80::1]", ok, ok, ""},
		{"wrong authority", other.issue(t, nil), host, tlsstate.UnknownAuthority, tlsstate.UnknownAuthority,
			"signed by an unknown authority CN=other CA: check tls.roots"},
		{"wrong name", ca.issue(t, otherNames), host, tlsstate.WrongName, ok,
			"server certificate is valid for a.example, b.example, evil?[2J.example, 10.0.0.9, not db1.example.com"},
		{"wrong address", ca.issue(t, address), "10.0.0.2", tlsstate.WrongName, ok, "is valid for db1.example.com, 10.0.0.1, fe80::1, not 10.0.0.2"},
		{"no address", ca.issue(t, nil), "10.0.0.1", tlsstate.WrongName, ok, "not 10.0.0.1"},
		{"common name only", ca.issue(t, nameless), host, tlsstate.NoSAN, ok,
			"server certificate has no subjectAltName, only a common name db1.example.com"},
		{"expired", ca.issue(t, expired), host, tlsstate.Expired, tlsstate.Expired, "server certificate expired 3 h ago (notAfter 20"},
		{"not yet valid", ca.issue(t, future), host, tlsstate.NotYetValid, tlsstate.NotYetValid, "server certificate becomes valid in 2 h"},
		{"for clients only", ca.issue(t, clientOnly), host, tlsstate.WrongUsage, tlsstate.WrongUsage, "serverAuth"},
	}
	for _, c := range cases {
		for _, m := range []struct {
			mode  tlsstate.Mode
			roots *x509.CertPool
			want  tlsstate.VerifyKind
		}{
			{tlsstate.VerifyFull, ca.pool(), c.full}, {tlsstate.VerifyCA, ca.pool(), c.ca}, {tlsstate.Require, ca.pool(), c.ca},
			{tlsstate.Prefer, ca.pool(), c.ca}, {tlsstate.Allow, ca.pool(), c.ca},
			{tlsstate.Require, nil, ok}, {tlsstate.Prefer, nil, ok}, {tlsstate.Allow, nil, ok},
			{tlsstate.VerifyFull, nil, tlsstate.UnknownAuthority},
		} {
			if m.roots == nil && m.want != ok && c.name != "good" {
				continue // the system's roots know none of them
			}
			t.Run(fmt.Sprintf("%s/%s/roots %v", c.name, m.mode, m.roots != nil), func(t *testing.T) {
				nc := serve(t, &tls.Config{Certificates: []tls.Certificate{*c.cert}}, false, nil)
				s, err := tlsstate.Client(background(t), nc, tlsstate.Config{Mode: m.mode, Host: c.host, Roots: m.roots})
				if err == nil {
					s.Close()
				}
				if m.want == ok {
					if err != nil {
						t.Fatal(err)
					}
					return
				}
				var bad *tlsstate.VerifyError
				if !errors.As(err, &bad) || bad.Kind != m.want || bad.Above {
					if m.roots == nil && bad != nil && bad.Kind == tlsstate.NoRoots {
						return // a machine without roots
					}
					t.Fatalf("error %v", err)
				}
				if m.mode == tlsstate.VerifyFull && m.roots != nil && !strings.Contains(err.Error(), c.sentence) {
					t.Errorf("says %q", err)
				}
			})
		}
	}
}

func TestExpiredAuthorityIsNamed(t *testing.T) {
	ca := newAuthority(t, "test CA")
	nc := serve(t, &tls.Config{Certificates: []tls.Certificate{*ca.issue(t, func(c *x509.Certificate) { c.NotAfter = time.Now().Add(100 * time.Hour) })}}, false, nil)
	_, err := tlsstate.Client(background(t), nc, tlsstate.Config{Host: "db1.example.com", Roots: ca.pool(),
		Time: func() time.Time { return time.Now().Add(75 * time.Hour) }})
	var bad *tlsstate.VerifyError
	if !errors.As(err, &bad) || bad.Kind != tlsstate.Expired || !bad.Above || !strings.Contains(err.Error(), "authority above the server's expired 2 days ago") {
		t.Fatal(err)
	}
}

// RFC 5929 section 4.1.
func TestEndpointBindingFollowsTheSignature(t *testing.T) {
	for algorithm, size := range map[x509.SignatureAlgorithm]int{
		x509.MD5WithRSA: 32, x509.SHA1WithRSA: 32, x509.ECDSAWithSHA1: 32, x509.SHA256WithRSA: 32, x509.ECDSAWithSHA256: 32,
		x509.SHA256WithRSAPSS: 32, x509.SHA384WithRSA: 48, x509.ECDSAWithSHA384: 48, x509.SHA384WithRSAPSS: 48,
		x509.SHA512WithRSA: 64, x509.ECDSAWithSHA512: 64, x509.SHA512WithRSAPSS: 64, x509.PureEd25519: 0, x509.UnknownSignatureAlgorithm: 0,
	} {
		got := tlsstate.EndpointBinding(&x509.Certificate{Raw: []byte("der"), SignatureAlgorithm: algorithm})
		if len(got) != size {
			t.Errorf("%s: %d bytes", algorithm, len(got))
		}
	}
}

func TestEd25519ServerHasNoEndpointBinding(t *testing.T) {
	_, key, _ := ed25519.GenerateKey(rand.Reader)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{"db1.example.com"}, NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	nc := serve(t, &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}}, false, nil)
	s, err := tlsstate.Client(background(t), nc, tlsstate.Config{Mode: tlsstate.Require})
	if err != nil || s.Info().EndpointBinding != nil {
		t.Fatal(err)
	}
	s.Close()
}

func TestVerifyErrorsAreSentences(t *testing.T) {
	many := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{"a", "b", "c", "d", "e", "f", strings.Repeat("g", 500)}}
	now := time.Now()
	at := func(d time.Duration) *x509.Certificate {
		return &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: now.Add(-d)}
	}
	for _, c := range []struct {
		err  tlsstate.VerifyError
		want string
	}{
		{tlsstate.VerifyError{Kind: tlsstate.NoCertificate}, "server sent no certificate"},
		{tlsstate.VerifyError{Kind: tlsstate.WrongName, Host: "h", Cert: many}, "valid for a, b, c, d, e and 2 more names, not h"},
		{tlsstate.VerifyError{Kind: tlsstate.WrongName, Host: "h", Cert: at(0)}, "valid for no host name at all"},
		{tlsstate.VerifyError{Kind: tlsstate.Expired, Cert: at(3 * time.Second), At: now}, "expired 3 s ago"},
		{tlsstate.VerifyError{Kind: tlsstate.Expired, Cert: at(90 * time.Minute), At: now}, "expired 90 min ago"},
		{tlsstate.VerifyError{Kind: tlsstate.Expired, Cert: at(50 * time.Hour), At: now}, "expired 2 days ago"},
		{tlsstate.VerifyError{Kind: tlsstate.NoRoots, Cert: many}, "ca-certificates"},
		{tlsstate.VerifyError{Kind: tlsstate.Forbidden, Cert: many, Err: errors.New("bad\nnews")}, "may not sign it: bad?news"},
		{tlsstate.VerifyError{Cert: many}, "not acceptable"},
		{tlsstate.VerifyError{Cert: many, Err: errors.New("odd")}, "not acceptable: odd"},
	} {
		if got := c.err.Error(); !strings.Contains(got, c.want) || len(got) > 600 {
			t.Errorf("%s: %q", c.err.Kind, got)
		}
	}
}
