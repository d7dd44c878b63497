package certs

import (
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"time"
)

// Snapshot is one generation of an identity. It is immutable: nothing reachable from it may be changed. All of it is
// safe for concurrent use.
type Snapshot struct {
	Name        string              // the identity's name in the configuration
	Generation  uint64              // counts up from 1 within the identity
	Certificate *tls.Certificate    // chain and private key, leaf first, Leaf set; nil: the identity has none
	Leaf        *x509.Certificate   // nil if Certificate is
	Chain       []*x509.Certificate // what is sent to the server, leaf first; nil if Certificate is
	Roots       *x509.CertPool      // to verify the server; nil: the identity brought none
	Anchors     []*x509.Certificate // the certificates in Roots
	NotAfter    time.Time           // the earliest end in Chain; zero if Certificate is nil
	Digest      [sha256.Size]byte   // over the source's bytes; equal digests mean equal sets
	purpose     Purpose
}

func newSnapshot(name string, generation uint64, m *Material) *Snapshot {
	s := &Snapshot{Name: name, Generation: generation, Certificate: m.certificate, Chain: m.chain, Roots: m.roots,
		Anchors: m.anchors, NotAfter: m.notAfter, Digest: m.digest, purpose: m.purpose}
	if len(m.chain) > 0 {
		s.Leaf = m.chain[0]
	}
	return s
}

// Serial returns the leaf's serial number in lower-case hexadecimal, or "" without a certificate. PostgreSQL's
// pg_stat_ssl shows the same number in decimal.
func (s *Snapshot) Serial() string {
	if s.Leaf == nil {
		return ""
	}
	return s.Leaf.SerialNumber.Text(16)
}

// Check returns an *Error with reason Expired or NotYetValid if the certificate cannot be used at the given instant.
// Without a certificate it returns nil. A dial asks before it dials: the server would only say so after the handshake.
func (s *Snapshot) Check(now time.Time) error {
	for i, c := range s.Chain {
		if err := checkValidity("", fmt.Sprintf("%s of identity %q", s.purpose.label(i), s.Name), c, now); err != nil {
			return err
		}
	}
	return nil
}

// Trusts tells whether the snapshot's anchors still hold the given one; it finds the connections whose verified chain
// ends in an anchor that a rotation removed. A snapshot without anchors of its own says yes.
func (s *Snapshot) Trusts(anchor *x509.Certificate) bool {
	for _, c := range s.Anchors {
		if c.Equal(anchor) {
			return true
		}
	}
	return s.Roots == nil
}

// String names the snapshot, never its key.
func (s Snapshot) String() string {
	return fmt.Sprintf("certs.Snapshot{%s generation %d, serial %s, key [redacted]}", s.Name, s.Generation, s.Serial())
}

// Format prints String for every verb.
func (s Snapshot) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, s.String()) }

// MarshalText keeps encoders (JSON, YAML, loggers) away from the key.
func (s Snapshot) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// String names the set, never its key.
func (m Material) String() string {
	return fmt.Sprintf("certs.Material{%x, key [redacted]}", m.digest[:4])
}

// Format prints String for every verb.
func (m Material) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, m.String()) }

// MarshalText keeps encoders away from the key.
func (m Material) MarshalText() ([]byte, error) { return []byte(m.String()), nil }

// String hides the bytes of the key.
func (p PEMSet) String() string { return "certs.PEMSet{[redacted]}" }

// Format prints String for every verb.
func (p PEMSet) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, p.String()) }

// MarshalText keeps encoders away from the key.
func (p PEMSet) MarshalText() ([]byte, error) { return []byte(p.String()), nil }
