package tlsstate

import (
	"crypto/x509"
	"errors"
	"time"
)

// verification is the check of one server's certificate, as Config.Mode names it. leaf is set once it has passed, so that
// Client can tell that the library asked.
type verification struct {
	cfg  *Config
	leaf *x509.Certificate
}

// check is Params.Verify. The chain is judged first and the name last, so that each error names one thing.
func (v *verification) check(chain []*x509.Certificate) error {
	if len(chain) == 0 {
		return &VerifyError{Kind: NoCertificate, Host: v.cfg.Host}
	}
	leaf := chain[0]
	if v.cfg.verifies() {
		now := v.cfg.now()
		chains, err := verifyChain(v.cfg.Roots, chain, now, x509.ExtKeyUsageServerAuth)
		if err != nil {
			return v.failed(leaf, now, err)
		}
		if err := v.cfg.Revocations.check(chains, now); err != nil {
			err.Host = v.cfg.Host
			return err
		}
		if v.cfg.Mode == VerifyFull {
			_, name := v.cfg.serverName()
			if err := leaf.VerifyHostname(name); err != nil {
				return v.failed(leaf, now, err)
			}
		}
	}
	v.leaf = leaf
	return nil
}

// verifyChain finds the ways from the leaf to a trust anchor on which all may be used for this. roots nil are the system's.
func verifyChain(roots *x509.CertPool, chain []*x509.Certificate, now time.Time, usage x509.ExtKeyUsage) ([][]*x509.Certificate, error) {
	opts := x509.VerifyOptions{Roots: roots, Intermediates: x509.NewCertPool(), CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{usage}}
	for _, c := range chain[1:] {
		opts.Intermediates.AddCert(c)
	}
	return chain[0].Verify(opts)
}

func (v *verification) failed(leaf *x509.Certificate, now time.Time, err error) error {
	e := sortVerifyError(leaf, now, err)
	e.Host = v.cfg.Host
	return e
}

// sortVerifyError sorts an error of crypto/x509.
func sortVerifyError(leaf *x509.Certificate, now time.Time, err error) *VerifyError {
	e := &VerifyError{Kind: Invalid, Cert: leaf, At: now, Err: err}
	if _, ok := errors.AsType[x509.HostnameError](err); ok {
		e.Kind = WrongName
		if noSAN(leaf) {
			e.Kind = NoSAN
		}
	}
	if _, ok := errors.AsType[x509.UnknownAuthorityError](err); ok {
		e.Kind = UnknownAuthority
	}
	if _, ok := errors.AsType[x509.SystemRootsError](err); ok {
		e.Kind = NoRoots
	}
	if invalid, ok := errors.AsType[x509.CertificateInvalidError](err); ok {
		e.Kind = reasonKind(invalid, now)
		if invalid.Cert != nil {
			e.Cert, e.Above = invalid.Cert, !invalid.Cert.Equal(leaf)
		}
	}
	return e
}

func reasonKind(e x509.CertificateInvalidError, now time.Time) VerifyKind {
	switch e.Reason {
	case x509.Expired: // means outside of its validity
		if e.Cert != nil && now.Before(e.Cert.NotBefore) {
			return NotYetValid
		}
		return Expired
	case x509.IncompatibleUsage:
		return WrongUsage
	case x509.NotAuthorizedToSign, x509.TooManyIntermediates, x509.CANotAuthorizedForThisName, x509.CANotAuthorizedForExtKeyUsage,
		x509.NameConstraintsWithoutSANs, x509.UnconstrainedName, x509.NameMismatch:
		return Forbidden
	}
	return Invalid
}

func noSAN(c *x509.Certificate) bool {
	return len(c.DNSNames) == 0 && len(c.IPAddresses) == 0 && len(c.EmailAddresses) == 0 && len(c.URIs) == 0
}
