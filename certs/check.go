package certs

import (
	"crypto/x509"
	"slices"
	"time"
)

// checkChain refuses a chain that is not leaf first and each signed by the next, that holds a certificate outside its
// validity, or whose leaf may not be a TLS client.
func checkChain(path string, chain []*x509.Certificate, now time.Time) error {
	for i, c := range chain {
		if err := checkValidity(path, label(i), c, now); err != nil {
			return err
		}
	}
	for i := 0; i+1 < len(chain); i++ {
		if err := chain[i].CheckSignatureFrom(chain[i+1]); err != nil {
			return brokenChain(path, chain, i, err)
		}
	}
	return checkPurpose(path, chain[0])
}

func label(position int) string {
	if position == 0 {
		return "client certificate"
	}
	return "intermediate certificate"
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

// checkPurpose applies what the server's TLS library (OpenSSL's purpose "sslclient") will apply: without the extension
// anything goes; with it, it must allow clients. PostgreSQL reports a refusal only after the handshake, so it is better
// told here.
func checkPurpose(path string, leaf *x509.Certificate) error {
	usages := leaf.ExtKeyUsage
	if len(usages)+len(leaf.UnknownExtKeyUsage) > 0 &&
		!slices.Contains(usages, x509.ExtKeyUsageClientAuth) && !slices.Contains(usages, x509.ExtKeyUsageAny) {
		return refuse(WrongPurpose, path, "client certificate %s (%s) may not be used by a client, its extended key usage "+
			"lacks clientAuth: issue one with clientAuth", path, leaf.Subject)
	}
	signs := x509.KeyUsageDigitalSignature | x509.KeyUsageKeyAgreement
	if leaf.KeyUsage != 0 && leaf.KeyUsage&signs == 0 {
		return refuse(WrongPurpose, path, "client certificate %s (%s) may not sign, its key usage lacks digitalSignature: "+
			"issue one with digitalSignature", path, leaf.Subject)
	}
	return nil
}
