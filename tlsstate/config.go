package tlsstate

import (
	"cmp"
	"crypto/fips140"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"
)

// alpnProtocol is the only application protocol that is offered (PostgreSQL 17 protocol documentation, "SSL Session
// Encryption"). Servers before 17 ignore it.
const alpnProtocol = "postgresql"

// Config says whom to talk to and what to check. The zero value checks everything, but needs a Host.
type Config struct {
	Mode        Mode
	Negotiation Negotiation
	// Host is the DNS name or IP address as configured. A DNS name is sent as SNI; an IP address is not.
	Host string
	// Roots are the trust anchors; nil means the system's, which go with VerifyFull only, as libpq's sslrootcert=system: their
	// authorities sign for everybody, so that without the name the check says nothing. With Require, Prefer and Allow nil means no verification, and
	// non-nil the verification of verify-ca: libpq does so when a root file is there.
	Roots *x509.CertPool
	// Revocations are the lists that the server's certificate and those above it are looked up in; nil means that
	// revocation is not checked, as in libpq without sslcrl.
	Revocations *Revocations
	// Certificate is our client certificate; nil means none. It is sent whatever authorities the server names.
	Certificate *tls.Certificate
	// MinVersion is the oldest version that is accepted, tls.VersionTLS12 or tls.VersionTLS13; 0 means TLS 1.2, as libpq.
	MinVersion uint16
	// MaxVersion is the newest that is offered; 0 means TLS 1.3. It is for tests and for servers whose TLS 1.3 is broken.
	MaxVersion uint16
	// Group is what to send a key share for; 0 means the library's choice. Give what a server chose with a
	// HelloRetryRequest (Info.Curve) to spare the next connection to it that round trip. It is a hint: with Std a server
	// that has since lost the group refuses the handshake only if it was P-521; forget it after any failed handshake.
	Group tls.CurveID
	// Handshaker is the library that does the handshake; nil means Std.
	Handshaker Handshaker
	// Time is the clock for the validity of certificates; nil means time.Now.
	Time func() time.Time
}

// Check refuses what cannot be meant. These are programming or configuration errors, found before a byte is sent.
func (c *Config) Check() error {
	switch {
	case c.Mode < VerifyFull || c.Mode > Disable:
		return fmt.Errorf("tls: mode %s does not exist", c.Mode)
	case c.Mode == Disable:
		return errors.New("tls: mode is disable, yet a TLS connection was asked for")
	case c.Negotiation != Postgres && c.Negotiation != Direct:
		return fmt.Errorf("tls: negotiation %s does not exist", c.Negotiation)
	case c.Negotiation == Direct && c.Mode > Require:
		return fmt.Errorf("tls: mode %s cannot be used with direct negotiation: use require or stronger", c.Mode)
	case !known(c.minVersion()) || !known(c.maxVersion()) || c.minVersion() > c.maxVersion():
		return fmt.Errorf("tls: versions from %s to %s: TLS 1.2 and TLS 1.3 are spoken", tls.VersionName(c.MinVersion), tls.VersionName(c.MaxVersion))
	case c.Mode == VerifyCA && c.Roots == nil:
		return errors.New("tls: mode verify-ca with the system's trust anchors lets in whoever has any certificate: use verify-full, or give tls.roots")
	case c.Revocations != nil && !c.verifies():
		return fmt.Errorf("tls: revocation lists are given, but mode %s without tls.roots checks no certificate", c.Mode)
	case c.Handshaker != nil && c.Handshaker != Handshaker(Std{}) && fips140.Enforced():
		return errors.New("tls: under GODEBUG=fips140=only crypto/tls alone may do the handshake: set tls.handshaker to std")
	case c.Host == "" && c.Mode == VerifyFull:
		return errors.New("tls: mode verify-full needs a host name to compare the server's certificate with")
	}
	return nil
}

func known(version uint16) bool { return version == tls.VersionTLS12 || version == tls.VersionTLS13 }

func (c *Config) minVersion() uint16 { return cmp.Or(c.MinVersion, tls.VersionTLS12) }
func (c *Config) maxVersion() uint16 { return cmp.Or(c.MaxVersion, tls.VersionTLS13) }

func (c *Config) now() time.Time {
	if c.Time != nil {
		return c.Time()
	}
	return time.Now()
}

func (c *Config) handshaker() Handshaker {
	if c.Handshaker != nil {
		return c.Handshaker
	}
	return Std{}
}

// verifies reports whether the chain is checked at all.
func (c *Config) verifies() bool {
	return c.Mode == VerifyFull || c.Mode == VerifyCA || c.Roots != nil
}

// serverName splits Host into what is sent as SNI and what a certificate's names are compared with. Brackets and the
// zone of an IPv6 address are notation, not name. RFC 6066 section 3 allows no IP address as SNI.
func (c *Config) serverName() (sni, name string) {
	host := c.Host
	if strings.HasPrefix(host, "[") && strings.HasSuffix(host, "]") {
		host = host[1 : len(host)-1]
	}
	if addr, err := netip.ParseAddr(host); err == nil {
		return "", addr.WithZone("").String()
	}
	host = strings.TrimSuffix(host, ".")
	return host, host
}
