package certs

import (
	"bytes"
	"crypto"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"slices"
	"time"
)

// Material is a complete, validated set that has not been published. It is immutable and safe for concurrent use.
type Material struct {
	certificate *tls.Certificate
	chain       []*x509.Certificate
	anchors     []*x509.Certificate
	roots       *x509.CertPool
	notAfter    time.Time
	digest      [sha256.Size]byte
	purpose     Purpose
}

// PEMSet is a set as bytes, with the names to use for its parts in error sentences. Cert and Key go together; either
// Cert and Key or Roots may be empty, but not all three.
type PEMSet struct {
	Cert, Key, Roots             []byte
	CertPath, KeyPath, RootsPath string
	Purpose                      Purpose
}

// Parse validates the whole set at the given instant. Errors are of type *Error.
func (p PEMSet) Parse(now time.Time) (*Material, error) {
	m := &Material{digest: p.digest(), purpose: p.Purpose}
	if err := p.complete(); err != nil {
		return nil, err
	}
	if len(p.Cert) > 0 {
		if err := m.addClient(p, now); err != nil {
			return nil, err
		}
	}
	if len(p.Roots) > 0 {
		if err := m.addRoots(p, now); err != nil {
			return nil, err
		}
	}
	return m, nil
}

func (p PEMSet) complete() error {
	switch {
	case len(p.Cert) > 0 && len(p.Key) == 0:
		return refuse(Incomplete, p.CertPath, "client certificate %s has no private key: name its key file too", p.CertPath)
	case len(p.Key) > 0 && len(p.Cert) == 0:
		return refuse(Incomplete, p.KeyPath, "private key %s has no certificate: name its certificate file too", p.KeyPath)
	case len(p.Cert)+len(p.Roots) == 0:
		return refuse(Incomplete, "", "the identity has neither a certificate nor trust anchors: name cert and key, or roots")
	}
	return nil
}

// digest is SHA-256 over the three parts, each preceded by its length, so that bytes cannot move between parts unseen.
func (p PEMSet) digest() (sum [sha256.Size]byte) {
	h := sha256.New()
	for _, part := range [][]byte{p.Cert, p.Key, p.Roots} {
		_ = binary.Write(h, binary.BigEndian, uint64(len(part)))
		h.Write(part)
	}
	h.Sum(sum[:0])
	return sum
}

func (m *Material) addClient(p PEMSet, now time.Time) error {
	chain, err := parseCertificates(p.CertPath, p.Cert)
	if err != nil {
		return err
	}
	key, err := parseKey(p.KeyPath, p.Key)
	if err != nil {
		return err
	}
	if err := checkPair(p, chain, key); err != nil {
		return err
	}
	if err := checkChain(p.CertPath, chain, p.Purpose, now); err != nil {
		return err
	}
	m.chain = chain
	m.certificate = &tls.Certificate{PrivateKey: key, Leaf: chain[0]}
	m.notAfter = chain[0].NotAfter
	for _, c := range chain {
		m.certificate.Certificate = append(m.certificate.Certificate, c.Raw)
		if c.NotAfter.Before(m.notAfter) {
			m.notAfter = c.NotAfter
		}
	}
	return nil
}

// addRoots takes every certificate of the bundle as an anchor. Expired ones among others are harmless and common in
// bundles; a bundle of which nothing is valid could not verify any server.
func (m *Material) addRoots(p PEMSet, now time.Time) error {
	anchors, err := parseCertificates(p.RootsPath, p.Roots)
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(anchors, func(c *x509.Certificate) bool { return !now.After(c.NotAfter) }) {
		return refuse(Expired, p.RootsPath, "every trust anchor in %s has expired, the last one %s ago: get the current "+
			"CA certificates", p.RootsPath, span(now.Sub(latest(anchors))))
	}
	m.anchors, m.roots = anchors, x509.NewCertPool()
	for _, c := range anchors {
		m.roots.AddCert(c)
	}
	return nil
}

func latest(certificates []*x509.Certificate) (t time.Time) {
	for _, c := range certificates {
		if c.NotAfter.After(t) {
			t = c.NotAfter
		}
	}
	return t
}

// publicKey is what all public keys of the standard library have.
type publicKey interface{ Equal(crypto.PublicKey) bool }

func owns(key crypto.Signer, c *x509.Certificate) bool {
	public, ok := key.Public().(publicKey)
	return ok && public.Equal(c.PublicKey)
}

func checkPair(p PEMSet, chain []*x509.Certificate, key crypto.Signer) error {
	if owns(key, chain[0]) {
		return nil
	}
	for i, c := range chain[1:] {
		if owns(key, c) {
			return refuse(Incomplete, p.CertPath, "%s is in the wrong order, private key %s belongs to its certificate "+
				"number %d: write the leaf first, then its issuers", p.CertPath, p.KeyPath, i+2)
		}
	}
	return refuse(Mismatched, p.KeyPath, "private key %s does not belong to certificate %s: they come from two different "+
		"sets, or one of them is still being replaced", p.KeyPath, p.CertPath)
}

// Equal tells whether both sets were made of the same bytes.
func (m *Material) Equal(other *Material) bool {
	return m != nil && other != nil && bytes.Equal(m.digest[:], other.digest[:])
}
