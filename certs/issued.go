package certs

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// Issuer signs certificate requests: a certificate authority, or what leads to one.
type Issuer interface {
	// Issue returns the chain for a request (PKCS #10, PEM), leaf first, PEM.
	Issue(ctx context.Context, request []byte) (chain []byte, err error)
}

// IssuedSource is an identity whose certificate an [Issuer] signs. The key is made here and never leaves the folder in
// which the set is kept, so that a restart needs no authority. A Load in the last third of the certificate's life asks
// for the next one, with a new key. Several processes may use one folder.
type IssuedSource struct {
	CommonName string   // of the certificate: the database role, or what pg_ident.conf maps to it
	Names      []string // subject alternative names: DNS names, IP addresses, URIs
	Dir        string   // created with mode 0700; holds identity.pem (0600: chain and key) and lock
	Roots      string   // path of trust anchors for the server's certificate; empty: none
	Issuer     Issuer
	Patience   time.Duration // for one request; zero means 30 s
}

// issuedFile holds chain and key in one, so that no crash can part them.
const issuedFile = "identity.pem"

// Load returns the set that is kept, renewed if it is time to. If that fails while the set is good, both are returned.
func (s IssuedSource) Load(ctx context.Context, now time.Time) (*Material, error) {
	if s.CommonName == "" {
		return nil, refuse(Incomplete, "", "the identity has no common name: give it the database role's name")
	}
	unlock, err := lockDir(s.Dir)
	if err != nil {
		return nil, err
	}
	defer unlock()
	kept, keptErr := s.kept(now)
	if keptErr == nil && !s.due(kept, now) {
		return kept, nil
	}
	m, err := s.renew(ctx, now)
	switch {
	case err == nil:
		return m, nil
	case keptErr == nil:
		return kept, err
	}
	var of *Error
	if errors.Is(keptErr, os.ErrNotExist) || errors.As(keptErr, &of) && of.Reason == Expired {
		return nil, err
	}
	return nil, fmt.Errorf("%w; and what was kept cannot be used: %w", err, keptErr)
}

// due reports whether a set is in the last third of its life, or not the one that is wanted.
func (s IssuedSource) due(m *Material, now time.Time) bool {
	leaf := m.chain[0]
	return leaf.Subject.CommonName != s.CommonName || m.notAfter.Sub(now) < m.notAfter.Sub(leaf.NotBefore)/3
}

// kept reads the set in the folder.
func (s IssuedSource) kept(now time.Time) (*Material, error) {
	path := filepath.Join(s.Dir, issuedFile)
	data, err := readFile(path, path, maxFileSize, true)
	if err != nil {
		return nil, err
	}
	return s.parse(path, data, now)
}

// parse takes the set apart that renew has put together, chain first; every byte of it goes through the strict parsers.
func (s IssuedSource) parse(path string, data []byte, now time.Time) (*Material, error) {
	set := PEMSet{CertPath: path, KeyPath: path, RootsPath: s.Roots, Cert: data}
	if at := bytes.Index(data, []byte(keyHeader)); at >= 0 {
		set.Cert, set.Key = data[:at], data[at:]
	}
	var err error
	if set.Roots, err = readFile(s.Roots, s.Roots, maxFileSize, false); err != nil {
		return nil, err
	}
	return set.Parse(now)
}

// keyHeader begins the key in the file.
const keyHeader = "-----BEGIN PRIVATE KEY-----"

// renew makes a key, has it certified and keeps both.
func (s IssuedSource) renew(ctx context.Context, now time.Time) (*Material, error) {
	ctx, cancel := context.WithTimeout(ctx, or(s.Patience, 30*time.Second))
	defer cancel()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make key: %w", err)
	}
	request, err := s.request(key)
	if err != nil {
		return nil, err
	}
	asked := time.Now()
	chain, err := s.Issuer.Issue(ctx, request)
	now = now.Add(time.Since(asked)) // it may begin only then
	if err != nil {
		return nil, &Error{Reason: Unissued, Sentence: fmt.Sprintf("no certificate was issued for %s: %v", s.CommonName, err), Err: err}
	}
	text, err := keyPEM(key)
	if err != nil {
		return nil, err
	}
	path := filepath.Join(s.Dir, issuedFile)
	whole := append(append(bytes.TrimSpace(chain), '\n'), text...)
	m, err := s.parse(path, whole, now)
	if err != nil {
		return nil, fmt.Errorf("what the issuer has answered is not used: %w", err)
	}
	if got := m.chain[0].Subject.CommonName; got != s.CommonName {
		return nil, refuse(Mismatched, "", "the issuer has changed the common name from %s to %s, by which the database would know "+
			"somebody else: let it issue what is asked for, or ask for that name", s.CommonName, got)
	}
	if err := writeWhole(path, whole, 0o600); err != nil {
		return nil, err
	}
	return m, nil
}

// request is a PKCS #10 request for the common name and the other names.
func (s IssuedSource) request(key *ecdsa.PrivateKey) ([]byte, error) {
	template := &x509.CertificateRequest{Subject: pkix.Name{CommonName: s.CommonName}}
	for _, name := range s.Names {
		ip := net.ParseIP(name)
		switch {
		case ip != nil:
			template.IPAddresses = append(template.IPAddresses, ip)
		case strings.Contains(name, "://"):
			u, err := url.Parse(name)
			if err != nil {
				return nil, refuse(Malformed, "", "%q is not a URI", name)
			}
			template.URIs = append(template.URIs, u)
		default:
			template.DNSNames = append(template.DNSNames, name)
		}
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, template, key)
	if err != nil {
		return nil, fmt.Errorf("make certificate request: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}), nil
}
