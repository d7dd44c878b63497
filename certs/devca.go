package certs

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"time"
)

const (
	devCALifetime = 10 * 365 * 24 * time.Hour
	backdate      = time.Minute // certificates begin a little early, for hosts whose clock is late
)

// DevCA is a certificate authority for development: one self-signed ECDSA P-256 certificate, its key in memory. It
// must never sign for anything that matters. Safe for concurrent use.
type DevCA struct {
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
}

// Issued is a certificate that a DevCA made, with its key.
type Issued struct {
	ChainPEM    []byte // the leaf
	KeyPEM      []byte // PKCS #8, in clear
	Certificate tls.Certificate
}

// NewDevCA makes a new authority, valid for ten years from the given instant.
func NewDevCA(now time.Time) (*DevCA, error) {
	serial, err := newSerial()
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber:          serial,
		Subject:               pkix.Name{CommonName: fmt.Sprintf("pghandoff development CA %x", serial.Bytes()[:4])},
		NotBefore:             now.Add(-backdate),
		NotAfter:              now.Add(devCALifetime),
		IsCA:                  true,
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make key of development CA: %w", err)
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("sign development CA: %w", err)
	}
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("read back development CA: %w", err)
	}
	return &DevCA{certificate: certificate, key: key}, nil
}

// Certificate returns the authority's own certificate.
func (ca *DevCA) Certificate() *x509.Certificate { return ca.certificate }

// RootsPEM returns the authority's certificate as a bundle of trust anchors.
func (ca *DevCA) RootsPEM() []byte { return certificatePEM(ca.certificate.Raw) }

// Roots returns a new pool that holds the authority.
func (ca *DevCA) Roots() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(ca.certificate)
	return pool
}

// IssueServer makes a server's certificate for DNS names and IP addresses, valid from now on for ttl.
func (ca *DevCA) IssueServer(names []string, ttl time.Duration) (*Issued, error) {
	template := &x509.Certificate{ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
	if len(names) > 0 {
		template.Subject.CommonName = names[0]
	}
	for _, name := range names {
		if ip := net.ParseIP(name); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, name)
		}
	}
	return ca.issueFor(template, time.Now(), ttl)
}

// IssueClient makes a client's certificate, valid from now on for ttl. PostgreSQL compares the common name with the
// database role.
func (ca *DevCA) IssueClient(commonName string, ttl time.Duration) (*Issued, error) {
	return ca.issueClientAt(commonName, time.Now(), ttl)
}

func (ca *DevCA) issueClientAt(commonName string, now time.Time, ttl time.Duration) (*Issued, error) {
	return ca.issueFor(&x509.Certificate{
		Subject:     pkix.Name{CommonName: commonName},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}, now, ttl)
}

func (ca *DevCA) issueFor(template *x509.Certificate, now time.Time, ttl time.Duration) (*Issued, error) {
	template.NotBefore, template.NotAfter = now.Add(-backdate), now.Add(ttl)
	return ca.Issue(template)
}

// Issue signs what the template says, however wrong, with a new key; it fills in the serial number and the key usage if
// they are unset. Tests use it to make certificates that must be refused.
func (ca *DevCA) Issue(template *x509.Certificate) (*Issued, error) {
	t := *template
	if t.SerialNumber == nil {
		serial, err := newSerial()
		if err != nil {
			return nil, err
		}
		t.SerialNumber = serial
	}
	if t.KeyUsage == 0 {
		t.KeyUsage = x509.KeyUsageDigitalSignature
	}
	t.BasicConstraintsValid = true
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make key: %w", err)
	}
	der, err := x509.CreateCertificate(rand.Reader, &t, ca.certificate, key.Public(), ca.key)
	if err != nil {
		return nil, fmt.Errorf("sign certificate for %s: %w", t.Subject, err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("read back certificate for %s: %w", t.Subject, err)
	}
	text, err := keyPEM(key)
	if err != nil {
		return nil, err
	}
	return &Issued{
		ChainPEM:    certificatePEM(der),
		KeyPEM:      text,
		Certificate: tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf},
	}, nil
}

// newSerial returns 128 random bits, never so few that the first four bytes are missing.
func newSerial() (*big.Int, error) {
	var b [16]byte
	if _, err := rand.Read(b[:]); err != nil {
		return nil, fmt.Errorf("make serial number: %w", err)
	}
	b[0] = b[0]&0x7f | 0x40
	return new(big.Int).SetBytes(b[:]), nil
}

func certificatePEM(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

func keyPEM(key *ecdsa.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("encode private key: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), nil
}

// String names the authority, never its key.
func (ca DevCA) String() string { return "certs.DevCA{key [redacted]}" }

// Format prints String for every verb.
func (ca DevCA) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, ca.String()) }

// MarshalText keeps encoders away from the key.
func (ca DevCA) MarshalText() ([]byte, error) { return []byte(ca.String()), nil }

// String hides the key.
func (i Issued) String() string { return "certs.Issued{key [redacted]}" }

// Format prints String for every verb.
func (i Issued) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, i.String()) }

// MarshalText keeps encoders away from the key.
func (i Issued) MarshalText() ([]byte, error) { return []byte(i.String()), nil }

// Revocations returns, in PEM, the authority's list of the certificates that it has revoked. The list is in its time from
// now on for ttl.
func (ca *DevCA) Revocations(ttl time.Duration, revoked ...*x509.Certificate) ([]byte, error) {
	number, err := newSerial()
	if err != nil {
		return nil, err
	}
	now := time.Now()
	list := &x509.RevocationList{Number: number, ThisUpdate: now.Add(-backdate), NextUpdate: now.Add(ttl)}
	for _, c := range revoked {
		list.RevokedCertificateEntries = append(list.RevokedCertificateEntries, x509.RevocationListEntry{SerialNumber: c.SerialNumber, RevocationTime: now.Add(-backdate)})
	}
	der, err := x509.CreateRevocationList(rand.Reader, list, ca.certificate, ca.key)
	if err != nil {
		return nil, fmt.Errorf("sign revocation list: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "X509 CRL", Bytes: der}), nil
}

// SignRequest signs a certificate request (PKCS #10, PEM) as a client's certificate, valid from now on for ttl: common
// name and other names are those asked for. It returns the chain, leaf first, PEM.
func (ca *DevCA) SignRequest(request []byte, now time.Time, ttl time.Duration) ([]byte, error) {
	block, _ := pem.Decode(request)
	if block == nil || block.Type != "CERTIFICATE REQUEST" {
		return nil, errors.New("not a certificate request in PEM")
	}
	asked, err := x509.ParseCertificateRequest(block.Bytes)
	if err == nil {
		err = asked.CheckSignature()
	}
	if err != nil {
		return nil, fmt.Errorf("certificate request: %w", err)
	}
	serial, err := newSerial()
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{SerialNumber: serial, Subject: pkix.Name{CommonName: asked.Subject.CommonName}, DNSNames: asked.DNSNames, IPAddresses: asked.IPAddresses,
		URIs: asked.URIs, NotBefore: now, NotAfter: now.Add(ttl), KeyUsage: x509.KeyUsageDigitalSignature, BasicConstraintsValid: true,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
	der, err := x509.CreateCertificate(rand.Reader, template, ca.certificate, asked.PublicKey, ca.key)
	if err != nil {
		return nil, fmt.Errorf("sign request: %w", err)
	}
	return certificatePEM(der), nil
}
