package utlshandshake

import (
	stdtls "crypto/tls"
	"slices"

	tls "github.com/refraction-networking/utls"

	"pghandoff/tlsstate"
)

// stdHybrid is the group that both sides of the post-quantum kind like best.
const stdHybrid = stdtls.X25519MLKEM768

// groups are those that the hello names, the most wanted first.
var groups = []tls.CurveID{tls.X25519MLKEM768, tls.X25519, tls.CurveP256, tls.CurveP384}

// hello is the ClientHello. It has a key share for X25519MLKEM768 always: utls cannot make one when a HelloRetryRequest
// asks for it, as it does not expect to be asked, so that to offer the group without a share would fail at a server that
// wants it. The other share is for the group of p, else for P-256.
func hello(p tlsstate.Params) *tls.ClientHelloSpec {
	spec := &tls.ClientHelloSpec{
		TLSVersMin: p.MinVersion, TLSVersMax: p.MaxVersion,
		CompressionMethods: []uint8{0},
	}
	add := func(e tls.TLSExtension) { spec.Extensions = append(spec.Extensions, e) }
	if p.ServerName != "" {
		add(&tls.SNIExtension{ServerName: p.ServerName})
	}
	add(&tls.ExtendedMasterSecretExtension{})
	add(&tls.RenegotiationInfoExtension{Renegotiation: tls.RenegotiateNever})
	add(&tls.SupportedCurvesExtension{Curves: slices.Clone(groups)})
	add(&tls.SupportedPointsExtension{SupportedPoints: []byte{0}})
	add(&tls.ALPNExtension{AlpnProtocols: slices.Clone(p.ALPN)})
	add(&tls.SignatureAlgorithmsExtension{SupportedSignatureAlgorithms: []tls.SignatureScheme{
		tls.PSSWithSHA256, tls.ECDSAWithP256AndSHA256, tls.Ed25519, tls.PSSWithSHA384, tls.PSSWithSHA512,
		tls.PKCS1WithSHA256, tls.PKCS1WithSHA384, tls.PKCS1WithSHA512, tls.ECDSAWithP384AndSHA384, tls.ECDSAWithP521AndSHA512,
	}})
	if p.MaxVersion >= tls.VersionTLS13 {
		spec.CipherSuites = []uint16{tls.TLS_AES_128_GCM_SHA256, tls.TLS_AES_256_GCM_SHA384, tls.TLS_CHACHA20_POLY1305_SHA256}
		versions := []uint16{tls.VersionTLS13}
		if p.MinVersion < tls.VersionTLS13 {
			versions = append(versions, tls.VersionTLS12)
		}
		add(&tls.SupportedVersionsExtension{Versions: versions})
		add(&tls.KeyShareExtension{KeyShares: keyShares(p.Group)})
	}
	if p.MinVersion < tls.VersionTLS13 {
		spec.CipherSuites = append(spec.CipherSuites, p.Suites...)
	}
	return spec
}

func keyShares(group stdtls.CurveID) []tls.KeyShare {
	second := tls.CurveID(group)
	if !slices.Contains(groups[1:], second) {
		second = tls.CurveP256
	}
	return []tls.KeyShare{{Group: tls.X25519MLKEM768}, {Group: second}}
}
