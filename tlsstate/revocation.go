package tlsstate

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"time"
)

// Revocations are certificate revocation lists (RFC 5280 section 5), read once for many connections. They are checked as
// libpq has OpenSSL do it (sslcrl): each certificate of the chain, the trust anchor too if it signed itself, needs a list of
// its issuer's that is signed by it and in its time, and must not be on it. A Revocations is not changed, so that it may be
// used by any goroutine; nil checks nothing.
type Revocations struct {
	lists map[string][]*revocationList // by the issuer's name, DER
}

type revocationList struct {
	*x509.RevocationList
	revoked map[string]time.Time // by serial number, big endian
}

// ParseRevocations reads lists: one in DER, or any number in PEM, among which other blocks are skipped, since OpenSSL's own
// files have certificates beside them. Errors: none there, a malformed one, and one that covers a part only (a delta, or one
// with an issuing distribution point): it would let pass what it does not tell of.
func ParseRevocations(data []byte) (*Revocations, error) {
	r := &Revocations{lists: map[string][]*revocationList{}}
	ders := [][]byte{data}
	if bytes.Contains(data, []byte("-----BEGIN")) {
		ders = nil
		for block, rest := pem.Decode(data); block != nil; block, rest = pem.Decode(rest) {
			if block.Type == "X509 CRL" {
				ders = append(ders, block.Bytes)
			}
		}
	}
	for _, der := range ders {
		if err := r.add(der); err != nil {
			return nil, err
		}
	}
	if len(r.lists) == 0 {
		return nil, errors.New("no revocation list there: a PEM block X509 CRL, or DER, is expected")
	}
	return r, nil
}

func (r *Revocations) add(der []byte) error {
	list, err := x509.ParseRevocationList(der)
	if err != nil {
		return fmt.Errorf("revocation list: %w", err)
	}
	for _, e := range list.Extensions {
		if e.Critical { // those that are always understood are never critical
			return fmt.Errorf("revocation list of %s has the critical extension %s, so it may cover a part only: a full list is needed",
				clean(list.Issuer.String()), e.Id)
		}
	}
	revoked := make(map[string]time.Time, len(list.RevokedCertificateEntries))
	for _, e := range list.RevokedCertificateEntries {
		revoked[string(e.SerialNumber.Bytes())] = e.RevocationTime
	}
	list.RevokedCertificateEntries = nil
	key := string(list.RawIssuer)
	r.lists[key] = append(r.lists[key], &revocationList{list, revoked})
	return nil
}

// check wants one of the chains, leaf first, to be free of revoked certificates.
func (r *Revocations) check(chains [][]*x509.Certificate, now time.Time) *VerifyError {
	if r == nil {
		return nil
	}
	var first *VerifyError
	for _, chain := range chains {
		err := r.checkChain(chain, now)
		if err == nil {
			return nil
		}
		if first == nil {
			first = err
		}
	}
	return first
}

func (r *Revocations) checkChain(chain []*x509.Certificate, now time.Time) *VerifyError {
	for i, c := range chain {
		issuer := c
		if i+1 < len(chain) {
			issuer = chain[i+1]
		} else if !bytes.Equal(c.RawIssuer, c.RawSubject) {
			return nil // an anchor that somebody else signed: nobody can say who may revoke it
		}
		if err := r.checkOne(c, issuer, now); err != nil {
			err.Above = i > 0
			return err
		}
	}
	return nil
}

func (r *Revocations) checkOne(c, issuer *x509.Certificate, now time.Time) *VerifyError {
	listed := false
	bad := &VerifyError{Kind: NoList, Cert: c, At: now}
	for _, list := range r.lists[string(c.RawIssuer)] {
		if err := list.CheckSignatureFrom(issuer); err != nil {
			bad.Kind, bad.Err = BadList, err
			continue
		}
		if at, ok := list.revoked[string(c.SerialNumber.Bytes())]; ok {
			return &VerifyError{Kind: Revoked, Cert: c, At: now, Since: at}
		}
		if now.Before(list.ThisUpdate) || !list.NextUpdate.IsZero() && now.After(list.NextUpdate) {
			bad.Kind, bad.Since = StaleList, list.NextUpdate
			continue
		}
		listed = true
	}
	if listed {
		return nil
	}
	return bad
}
