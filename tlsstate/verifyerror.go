package tlsstate

import (
	"crypto/sha256"
	"crypto/x509"
	"fmt"
	"strings"
	"time"
	"unicode"
)

// VerifyKind says what is wrong with a peer's certificate.
type VerifyKind int

const (
	Invalid          VerifyKind = iota // something else; Err tells
	NoCertificate                      // the peer sent none
	Expired                            // see VerifyError.Above for whose
	NotYetValid                        //
	UnknownAuthority                   // no chain to a trust anchor
	NoRoots                            // the system's trust anchors cannot be read
	WrongName                          // valid, but for other names
	NoSAN                              // no subjectAltName; a common name does not count
	WrongUsage                         // not for servers, or not for clients
	Forbidden                          // an authority above may not sign this certificate
	Revoked                            // on a revocation list, see VerifyError.Since
	NoList                             // revocation is checked, and there is no list of its issuer's
	StaleList                          // ... or none in its time, see VerifyError.Since
	BadList                            // ... or none that its issuer signed
)

var verifyKindNames = [...]string{"invalid", "no_certificate", "expired", "not_yet_valid", "unknown_authority", "no_roots",
	"wrong_name", "no_san", "wrong_usage", "forbidden", "revoked", "no_crl", "stale_crl", "bad_crl"}

func (k VerifyKind) String() string {
	if k < 0 || int(k) >= len(verifyKindNames) {
		return fmt.Sprintf("VerifyKind(%d)", int(k))
	}
	return verifyKindNames[k]
}

// VerifyError says why the peer's certificate was not accepted. Texts that come out of the certificate are shown with
// control characters replaced and long ones cut.
type VerifyError struct {
	Kind   VerifyKind
	Host   string            // as configured
	Cert   *x509.Certificate // the one that is wrong; nil only for NoCertificate
	Above  bool              // Cert is not the peer's own, but an authority's above it
	Client bool              // the peer is a client, and we are the server
	At     time.Time         // when it was judged
	Since  time.Time         // Revoked: from when on; StaleList: when a newer one was promised, zero if it was not
	Err    error             // of crypto/x509
}

func (e *VerifyError) Unwrap() error { return e.Err }

func (e *VerifyError) Error() string {
	if e.Cert == nil {
		return e.peer() + " sent no certificate" + map[bool]string{true: ", and one is needed: give it one, with its key"}[e.Client]
	}
	return e.sentence() + " (" + summary(e.Cert) + ")"
}

func (e *VerifyError) peer() string {
	if e.Client {
		return "client"
	}
	return "server"
}

func (e *VerifyError) sentence() string {
	whose := e.peer() + " certificate"
	if e.Above {
		whose = "certificate of an authority above the " + e.peer() + "'s"
	}
	switch e.Kind {
	case Expired:
		return fmt.Sprintf("%s expired %s ago (notAfter %s): renew it there, and compare the clocks",
			whose, span(e.At.Sub(e.Cert.NotAfter)), stamp(e.Cert.NotAfter))
	case NotYetValid:
		return fmt.Sprintf("%s becomes valid in %s (notBefore %s): compare the clocks",
			whose, span(e.Cert.NotBefore.Sub(e.At)), stamp(e.Cert.NotBefore))
	case UnknownAuthority:
		return fmt.Sprintf("%s certificate is signed by an unknown authority %s: check tls.roots, and that the %s sends its intermediates",
			e.peer(), clean(e.Cert.Issuer.String()), e.peer())
	case NoRoots:
		return "the system's trust anchors cannot be read: install ca-certificates, or set tls.roots"
	case WrongName:
		return fmt.Sprintf("server certificate is valid for %s, not %s: check the route's host", names(e.Cert), clean(e.Host)) + e.commonName()
	case NoSAN:
		return fmt.Sprintf("server certificate has no subjectAltName, only a common name %s, which is not compared with %s: issue one with a subjectAltName",
			clean(e.Cert.Subject.CommonName), clean(e.Host)) + e.commonName()
	case WrongUsage:
		return fmt.Sprintf("%s is not meant for %ss: issue one whose extended key usage has %sAuth", whose, e.peer(), e.peer())
	case Forbidden:
		return "an authority above the " + e.peer() + " certificate may not sign it: " + clean(e.Err.Error())
	}
	if s := e.revocation(whose); s != "" {
		return s
	}
	if e.Err != nil {
		return whose + " is not acceptable: " + clean(e.Err.Error())
	}
	return whose + " is not acceptable"
}

// commonName says so where libpq would have taken the common name: it does when there is no subjectAltName of the host's
// kind, DNS or address.
func (e *VerifyError) commonName() string {
	cn := e.Cert.Subject.CommonName
	c := Config{Host: e.Host}
	sni, name := c.serverName()
	if sni != "" && len(e.Cert.DNSNames) > 0 || sni == "" && len(e.Cert.IPAddresses) > 0 {
		return ""
	}
	if cn == "" || !strings.EqualFold(cn, name) && (&x509.Certificate{DNSNames: []string{cn}}).VerifyHostname(name) != nil {
		return ""
	}
	return "; its common name would have matched, as in libpq, but common names are not compared here (RFC 9525)"
}

func (e *VerifyError) revocation(whose string) string {
	switch e.Kind {
	case Revoked:
		return fmt.Sprintf("%s was revoked on %s: issue a new one", whose, stamp(e.Since))
	case NoList:
		return fmt.Sprintf("no revocation list of %s is there, so that it cannot be told whether the %s is revoked: add it to the lists",
			clean(e.Cert.Issuer.String()), whose)
	case StaleList:
		promised := ""
		if !e.Since.IsZero() {
			promised = fmt.Sprintf(" (a newer one was due on %s)", stamp(e.Since))
		}
		return fmt.Sprintf("the revocation list of %s is not in its time%s: get a new one, and compare the clocks", clean(e.Cert.Issuer.String()), promised)
	case BadList:
		return fmt.Sprintf("the revocation list of %s is not signed by the authority of that name that signed the %s: %s",
			clean(e.Cert.Issuer.String()), whose, clean(e.Err.Error()))
	}
	return ""
}

// summary names a certificate so that it can be found.
func summary(c *x509.Certificate) string {
	sum := sha256.Sum256(c.Raw)
	return fmt.Sprintf("subject %s, issuer %s, serial %x, sha256 %x", clean(c.Subject.String()), clean(c.Issuer.String()), c.SerialNumber, sum[:8])
}

// names lists what a certificate is valid for, at most five names of it.
func names(c *x509.Certificate) string {
	const most = 5
	var all []string
	for _, n := range c.DNSNames {
		all = append(all, clean(n))
	}
	for _, ip := range c.IPAddresses {
		all = append(all, ip.String())
	}
	switch {
	case len(all) == 0:
		return "no host name at all"
	case len(all) > most:
		return fmt.Sprintf("%s and %d more names", strings.Join(all[:most], ", "), len(all)-most)
	}
	return strings.Join(all, ", ")
}

// clean makes a text that the peer chose safe to show on one line.
func clean(s string) string {
	const most = 120
	count := 0
	s = strings.Map(func(r rune) rune {
		if count++; count > most {
			return -1
		}
		if !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, s)
	if count > most {
		s += "..."
	}
	if s == "" {
		return `""`
	}
	return s
}

// span is a duration in its largest whole unit.
func span(d time.Duration) string {
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%d s", d/time.Second)
	case d < 2*time.Hour:
		return fmt.Sprintf("%d min", d/time.Minute)
	case d < 48*time.Hour:
		return fmt.Sprintf("%d h", d/time.Hour)
	}
	return fmt.Sprintf("%d days", d/(24*time.Hour))
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }
