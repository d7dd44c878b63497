package tlsstate_test

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"pghandoff/tests/testpg"
	"pghandoff/tlsstate"
)

// libpqAccepts lets psql connect to a server with this certificate and reports whether it went on behind the handshake.
func libpqAccepts(t *testing.T, cert *tls.Certificate, conninfo ...string) (accepted bool, said string) {
	t.Helper()
	psql := testpg.Require(t, "psql", "postgresql-client")
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, port, _ := net.SplitHostPort(l.Addr().String())
	cmd := exec.CommandContext(background(t), psql, "-X", "-w", strings.Join(append(conninfo, "hostaddr=127.0.0.1", "port="+port, "gssencmode=disable", "connect_timeout=10"), " "))
	var out strings.Builder
	cmd.Stderr = &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	nc, err := l.Accept()
	if err == nil {
		if err = answerSSLRequest(nc, "S"); err == nil {
			tc := tls.Server(nc, &tls.Config{Certificates: []tls.Certificate{*cert}})
			n, _ := tc.Read(make([]byte, 8)) // of the start-up message
			accepted = n > 0
		}
		nc.Close()
	}
	cmd.Wait() // it fails, as nobody answers the start-up message
	return accepted, out.String()
}

// The real libpq comes to the same, but where we are stricter on purpose.
func TestLibpqAgrees(t *testing.T) {
	ca, other := newAuthority(t, "test CA"), newAuthority(t, "other CA")
	dns := func(names ...string) func(*x509.Certificate) {
		return func(c *x509.Certificate) { c.DNSNames = names; c.Subject.CommonName = "" }
	}
	ip := func(addresses ...string) func(*x509.Certificate) {
		return func(c *x509.Certificate) {
			c.DNSNames, c.Subject.CommonName = nil, ""
			for _, a := range addresses {
				c.IPAddresses = append(c.IPAddresses, net.ParseIP(a))
			}
		}
	}
	cn := func(name string, more func(*x509.Certificate)) func(*x509.Certificate) {
		return func(c *x509.Certificate) { c.DNSNames = nil; more(c); c.Subject.CommonName = name }
	}
	none := func(*x509.Certificate) {}
	const host = "db1.example.com"
	for _, c := range []struct {
		name     string
		by       *authority
		change   func(*x509.Certificate)
		host     string
		accepted bool
		stricter bool // libpq accepts, we do not
	}{
		{"exact", ca, dns(host), host, true, false},
		{"other case", ca, dns("DB1.Example.COM"), host, true, false},
		{"second of several", ca, dns("a.example", host, "b.example"), host, true, false},
		{"none of several", ca, dns("a.example", "b.example"), host, false, false},
		{"wildcard", ca, dns("*.example.com"), host, true, false},
		{"wildcard for two labels", ca, dns("*.com"), host, false, false},
		{"wildcard for no label", ca, dns("*.db1.example.com"), host, false, false},
		{"wildcard in a label", ca, dns("db*.example.com"), host, false, false},
		{"wildcard in the second label", ca, dns("db1.*.com"), host, false, false},
		{"wildcard alone", ca, dns("*"), host, false, false},
		{"wildcard in another case", ca, dns("*.EXAMPLE.com"), host, true, false},
		{"suffix", ca, dns("example.com"), host, false, false},
		{"address", ca, ip("10.0.0.1", "127.0.0.9"), "127.0.0.9", true, false},
		{"IPv6 address", ca, ip("2001:db8::1"), "2001:db8:0::1", true, false},
		{"other address", ca, ip("10.0.0.1"), "127.0.0.9", false, false},
		{"address for a name", ca, ip("10.0.0.1"), host, false, false},
		{"name for an address", ca, dns(host), "127.0.0.9", false, false},
		{"address as a DNS name", ca, dns("127.0.0.9"), "127.0.0.9", true, true},
		{"common name only", ca, cn(host, none), host, true, true},
		{"wildcard common name only", ca, cn("*.example.com", none), host, true, true},
		{"common name beside other names", ca, cn(host, func(c *x509.Certificate) { c.DNSNames = []string{"a.example"} }), host, false, false},
		{"common name beside an address", ca, cn(host, ip("10.0.0.1")), host, true, true},
		{"other authority", other, dns(host), host, false, false},
		{"expired", ca, expired, host, false, false},
		{"not yet valid", ca, future, host, false, false},
		{"for clients", ca, clientOnly, host, false, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			cert := c.by.issue(t, c.change)
			roots := filepath.Join(t.TempDir(), "root.crt")
			writePEM(t, roots, "CERTIFICATE", ca.cert.Raw)
			for _, mode := range []tlsstate.Mode{tlsstate.VerifyFull, tlsstate.VerifyCA, tlsstate.Require} {
				theirs, said := libpqAccepts(t, cert, "host="+c.host, "sslmode="+mode.String(), "sslrootcert="+roots)
				s, err := tlsstate.Client(background(t), serve(t, &tls.Config{Certificates: []tls.Certificate{*cert}}, false, nil),
					tlsstate.Config{Mode: mode, Host: c.host, Roots: ca.pool()})
				if err == nil {
					s.Close()
				}
				ours := err == nil
				if mode == tlsstate.VerifyFull && theirs != c.accepted {
					t.Errorf("libpq accepts: %v %s", theirs, said)
				}
				if ours != theirs && !(c.stricter && mode == tlsstate.VerifyFull && !ours) {
					t.Errorf("%s: libpq accepts %v (%s), we %v (%v)", mode, theirs, said, ours, err)
				}
				if cn := cert.Leaf.Subject.CommonName != "" && c.stricter && mode == tlsstate.VerifyFull; cn != strings.Contains(fmt.Sprint(err), "its common name would have matched") {
					t.Errorf("%s: %v", mode, err)
				}
			}
		})
	}
	t.Run("revocation", func(t *testing.T) {
		root, middle, leaf := chained(t)
		dir := t.TempDir()
		roots, crl := filepath.Join(dir, "root.crt"), filepath.Join(dir, "root.crl")
		writePEM(t, roots, "CERTIFICATE", root.cert.Raw)
		for _, c := range revocationCases(t, root, middle, leaf.Leaf) {
			if err := os.WriteFile(crl, c.lists, 0o600); err != nil {
				t.Fatal(err)
			}
			theirs, said := libpqAccepts(t, leaf, "host="+host, "sslmode=verify-full", "sslrootcert="+roots, "sslcrl="+crl)
			if theirs != (c.kind < 0) {
				t.Errorf("%s: libpq accepts %v: %s", c.name, theirs, said)
			}
		}
	})
}
