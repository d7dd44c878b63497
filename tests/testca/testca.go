// Package testca makes certificates that are wrong in exactly one way, on top of certs.DevCA, and writes them to files.
// Each must be refused by whoever checks; what is right about them is the same for all.
package testca

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"pghandoff/certs"
)

// Fault is the one thing that is wrong.
type Fault int

const (
	None        Fault = iota
	Expired           // ended two hours ago
	NotYetValid       // begins in two hours
	WrongCA           // signed by another authority
	WrongName         // for other.example, in the name and the alternative names
	WrongUsage        // a client's for servers only, a server's for clients only
	CNOnly            // server: its name in the common name only
	IPOnly            // server: 127.0.0.1 as an address only, no DNS name
)

// String names the fault for the name of a subtest.
func (f Fault) String() string {
	return [...]string{"none", "expired", "not yet valid", "wrong CA", "wrong name", "wrong usage", "CN only", "IP only"}[f]
}

// New makes a CA.
func New(t testing.TB) *certs.DevCA {
	t.Helper()
	ca, err := certs.NewDevCA(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return ca
}

// Server makes a server's certificate for localhost and 127.0.0.1 with the fault.
func Server(t testing.TB, ca *certs.DevCA, fault Fault) *certs.Issued {
	t.Helper()
	c := &x509.Certificate{
		Subject:     pkix.Name{CommonName: "localhost"},
		DNSNames:    []string{"localhost"},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	switch fault {
	case WrongName:
		c.Subject.CommonName, c.DNSNames, c.IPAddresses = "other.example", []string{"other.example"}, nil
	case WrongUsage:
		c.ExtKeyUsage[0] = x509.ExtKeyUsageClientAuth
	case CNOnly:
		c.DNSNames, c.IPAddresses = nil, nil
	case IPOnly:
		c.DNSNames = nil
	}
	return issue(t, ca, c, fault)
}

// Client makes a client's certificate for the role with the fault; WrongName gives it another role's name. CNOnly and
// IPOnly do not exist for clients.
func Client(t testing.TB, ca *certs.DevCA, role string, fault Fault) *certs.Issued {
	t.Helper()
	c := &x509.Certificate{
		Subject:     pkix.Name{CommonName: role},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	switch fault {
	case WrongName:
		c.Subject.CommonName = "other.example"
	case WrongUsage:
		c.ExtKeyUsage[0] = x509.ExtKeyUsageServerAuth
	case CNOnly, IPOnly:
		t.Fatalf("a client's certificate cannot be %v", fault)
	}
	return issue(t, ca, c, fault)
}

func issue(t testing.TB, ca *certs.DevCA, c *x509.Certificate, fault Fault) *certs.Issued {
	t.Helper()
	const ago = 2*time.Hour + time.Minute
	now := time.Now()
	c.NotBefore, c.NotAfter = now.Add(-time.Minute), now.Add(time.Hour)
	switch fault {
	case Expired:
		c.NotBefore, c.NotAfter = now.Add(-2*ago), now.Add(-ago)
	case NotYetValid:
		c.NotBefore, c.NotAfter = now.Add(ago), now.Add(2*ago)
	case WrongCA:
		ca = New(t)
	}
	issued, err := ca.Issue(c)
	if err != nil {
		t.Fatal(err)
	}
	return issued
}

// Files are the paths of an identity on disk.
type Files = certs.FileSource

// Write writes certificate, key (0600) and the CA's roots into a new temporary folder.
func Write(t testing.TB, ca *certs.DevCA, issued *certs.Issued) Files {
	t.Helper()
	dir := t.TempDir()
	f := Files{Cert: filepath.Join(dir, "tls.crt"), Key: filepath.Join(dir, "tls.key"), Roots: filepath.Join(dir, "ca.crt")}
	for path, data := range map[string][]byte{f.Cert: issued.ChainPEM, f.Key: issued.KeyPEM, f.Roots: ca.RootsPEM()} {
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return f
}
