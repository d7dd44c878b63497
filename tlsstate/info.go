package tlsstate

import (
	"crypto"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"

	_ "crypto/sha512" // for crypto.SHA384 and SHA512 in EndpointBinding
)

// Info is what a handshake settled. Nothing in it is secret.
type Info struct {
	Version             uint16      // tls.VersionTLS12 or tls.VersionTLS13
	Suite               uint16      // IANA number
	ALPN                string      // protocol that the server selected; "" for none
	Curve               tls.CurveID // 0 where the library does not tell
	HelloRetryRequest   bool        // the server asked for another key share, which cost a round trip
	PeerCertificates    []*x509.Certificate
	EndpointBinding     []byte   // tls-server-end-point of RFC 5929 section 4; nil where it is undefined
	ServerCertSHA256    [32]byte // of the leaf's DER
	ClientCertRequested bool
	ClientCertSent      bool
}

// VersionName is, for instance, "TLS 1.3".
func (i *Info) VersionName() string { return tls.VersionName(i.Version) }

// SuiteName is the IANA name.
func (i *Info) SuiteName() string { return tls.CipherSuiteName(i.Suite) }

func newInfo(r Result) *Info {
	i := &Info{
		Version: r.Version, Suite: r.Suite, ALPN: r.ALPN, Curve: r.Curve, HelloRetryRequest: r.HelloRetryRequest,
		PeerCertificates: r.PeerCertificates, ClientCertRequested: r.ClientCertRequested, ClientCertSent: r.ClientCertSent,
	}
	if len(r.PeerCertificates) > 0 {
		leaf := r.PeerCertificates[0]
		i.ServerCertSHA256 = sha256.Sum256(leaf.Raw)
		i.EndpointBinding = endpointBinding(leaf)
	}
	return i
}

// endpointBinding is the tls-server-end-point channel binding (RFC 5929 section 4.1): the leaf's hash, by the hash of its
// own signature, with SHA-256 in place of MD5 and SHA-1. Ed25519 has no such hash, and PostgreSQL offers no binding then.
func endpointBinding(leaf *x509.Certificate) []byte {
	var h crypto.Hash
	switch leaf.SignatureAlgorithm {
	case x509.MD5WithRSA, x509.SHA1WithRSA, x509.DSAWithSHA1, x509.ECDSAWithSHA1,
		x509.SHA256WithRSA, x509.DSAWithSHA256, x509.ECDSAWithSHA256, x509.SHA256WithRSAPSS:
		h = crypto.SHA256
	case x509.SHA384WithRSA, x509.ECDSAWithSHA384, x509.SHA384WithRSAPSS:
		h = crypto.SHA384
	case x509.SHA512WithRSA, x509.ECDSAWithSHA512, x509.SHA512WithRSAPSS:
		h = crypto.SHA512
	default:
		return nil
	}
	d := h.New()
	d.Write(leaf.Raw)
	return d.Sum(nil)
}
