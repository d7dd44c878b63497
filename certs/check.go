package certs

import (
	"crypto/x509"
	"slices"
	"time"
)

// checkChain refuses a chain that is not leaf first and each signed by the next, that holds a certificate outside its
// validity, or whose leaf may not be used for the purpose.
func checkChain(path string, chain []*x509.Certificate, p Purpose, now time.Time) error {
	for i, c := range chain {
		if err := checkValidity(path, p.label(i), c, now); err != nil {
			return err
		}
	}
	for i := 0; i+1 < len(chain); i++ {
		if err := chain[i].CheckSignatureFrom(chain[i+1]); err != nil {
			return brokenChain(path, chain, i, err)
		}
	}
	return checkPurpose(path, chain[0], p)
}

// Purpose is what a certificate is to be used for. The zero value is ForClient.
type Purpose uint8

const (
	ForClient Purpose = iota // to show a server who we are
	ForServer                // to show clients who we are
	ForBoth
)

// label names a certificate of a chain in a sentence.
func (p Purpose) label(position int) string {
	switch {
	case position > 0:
		return "intermediate certificate"
	case p == ForServer:
		return "server certificate"
	}
	return "client certificate"
}

// brokenChain says why certificate i is not followed by its issuer.
func brokenChain(path string, chain []*x509.Certificate, i int, cause error) error {
	var e *Error
	issuer := slices.IndexFunc(chain, func(c *x509.Certificate) bool { return chain[i].CheckSignatureFrom(c) == nil })
	if issuer >= 0 && issuer != i {
		e = refuse(Incomplete, path, "%s is in the wrong order, certificate %d is signed by number %d: write the leaf "+
			"first, then each certificate's issuer", path, i+1, issuer+1)
	} else {
		e = refuse(Incomplete, path, "%s is not a chain, certificate %d (%s) is not signed by the next one (%s): add the "+
			"missing issuer %s or remove what does not belong there", path, i+1, chain[i].Subject, chain[i+1].Subject,
			chain[i].Issuer)
	}
	e.Err = cause
	return e
}

func checkValidity(path, what string, c *x509.Certificate, now time.Time) error {
	if path != "" {
		what += " " + path
	}
	switch {
	case now.After(c.NotAfter):
		return refuse(Expired, path, "%s (%s) expired %s ago (notAfter %s): renew it", what, c.Subject,
			span(now.Sub(c.NotAfter)), stamp(c.NotAfter))
	case now.Before(c.NotBefore):
		return refuse(NotYetValid, path, "%s (%s) is valid only in %s (notBefore %s): check this host's clock, or wait",
			what, c.Subject, span(c.NotBefore.Sub(now)), stamp(c.NotBefore))
	}
	return nil
}

// checkPurpose applies what the peer's TLS library (OpenSSL's purposes "sslclient" and "sslserver") will apply: without
// the extension anything goes; with it, it must allow the purpose. PostgreSQL reports a refusal only after the handshake,
// so it is better told here.
func checkPurpose(path string, leaf *x509.Certificate, p Purpose) error {
	if p != ForServer && !allows(leaf, x509.ExtKeyUsageClientAuth) {
		return refuse(WrongPurpose, path, "client certificate %s (%s) may not be used by a client, its extended key usage "+
			"lacks clientAuth: issue one with clientAuth", path, leaf.Subject)
	}
	if p != ForClient && !allows(leaf, x509.ExtKeyUsageServerAuth) {
		return refuse(WrongPurpose, path, "server certificate %s (%s) may not be used by a server, its extended key usage "+
			"lacks serverAuth: issue one with serverAuth", path, leaf.Subject)
	}
	signs := x509.KeyUsageDigitalSignature | x509.KeyUsageKeyAgreement
	if leaf.KeyUsage != 0 && leaf.KeyUsage&signs == 0 {
		return refuse(WrongPurpose, path, "%s %s (%s) may not sign, its key usage lacks digitalSignature: "+
			"issue one with digitalSignature", p.label(0), path, leaf.Subject)
	}
	return nil
}

func allows(leaf *x509.Certificate, usage x509.ExtKeyUsage) bool {
	usages := leaf.ExtKeyUsage
	return len(usages)+len(leaf.UnknownExtKeyUsage) == 0 || slices.Contains(usages, usage) || slices.Contains(usages, x509.ExtKeyUsageAny)
}
