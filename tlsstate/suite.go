package tlsstate

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/sha256"
	"crypto/sha512"
	"crypto/tls"
	"encoding/binary"
	"fmt"
	"hash"
	"slices"

	"golang.org/x/crypto/chacha20poly1305"
)

// suite is a cipher suite of TLS 1.3 (RFC 8446 appendix B.4), or one of TLS 1.2 with an ephemeral key exchange and an AEAD
// (RFC 5289, RFC 7905). All have 12-byte nonces and 16-byte tags.
type suite struct {
	id       uint16
	version  uint16           // tls.VersionTLS13 or tls.VersionTLS12
	hash     func() hash.Hash // of the key derivation
	keyLen   int              // bytes
	explicit int              // bytes of the nonce that each record brings along: 8 for AES-GCM in TLS 1.2, else 0
	aead     func(key []byte) (cipher.AEAD, error)
	// records is how many records one key may protect before we change it, or with TLS 1.2 want the connection retired.
	// RFC 8446 section 5.5: 2^24.5 full records for AES-GCM; no practical limit for ChaCha20-Poly1305.
	records uint64
}

const (
	nonceLen = 12
	tagLen   = 16

	gcmRecords    = 1<<24 - 16
	chachaRecords = 1 << 48
)

var suites = [...]suite{
	{tls.TLS_AES_128_GCM_SHA256, tls.VersionTLS13, sha256.New, 16, 0, newGCM, gcmRecords},
	{tls.TLS_AES_256_GCM_SHA384, tls.VersionTLS13, sha512.New384, 32, 0, newGCM, gcmRecords},
	{tls.TLS_CHACHA20_POLY1305_SHA256, tls.VersionTLS13, sha256.New, 32, 0, chacha20poly1305.New, chachaRecords},

	{tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256, tls.VersionTLS12, sha256.New, 16, 8, newGCM, gcmRecords},
	{tls.TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256, tls.VersionTLS12, sha256.New, 16, 8, newGCM, gcmRecords},
	{tls.TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384, tls.VersionTLS12, sha512.New384, 32, 8, newGCM, gcmRecords},
	{tls.TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384, tls.VersionTLS12, sha512.New384, 32, 8, newGCM, gcmRecords},
	{tls.TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256, tls.VersionTLS12, sha256.New, 32, 0, chacha20poly1305.New, chachaRecords},
	{tls.TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256, tls.VersionTLS12, sha256.New, 32, 0, chacha20poly1305.New, chachaRecords},
}

// protectedSuites are ours of TLS 1.2.
var protectedSuites = []uint16{
	tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256, tls.TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
	tls.TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384, tls.TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
	tls.TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256, tls.TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
}

// offeredSuites are those of TLS 1.2 that a client's hello names. The ones that we cannot protect stand there too, behind
// the others, so that a server which has nothing better answers with its choice, which is then refused by its name (see
// SuiteError) before a key is exchanged; to a hello without them it would say "handshake failure" only.
var offeredSuites = append(slices.Clone(protectedSuites),
	tls.TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA, tls.TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA,
	tls.TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA, tls.TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA,
	tls.TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA256, tls.TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA256,
	tls.TLS_RSA_WITH_AES_128_GCM_SHA256, tls.TLS_RSA_WITH_AES_256_GCM_SHA384,
	tls.TLS_RSA_WITH_AES_128_CBC_SHA, tls.TLS_RSA_WITH_AES_256_CBC_SHA, tls.TLS_RSA_WITH_AES_128_CBC_SHA256,
)

// suiteFor finds the suite with this number, for this version.
func suiteFor(version, id uint16) (*suite, error) {
	for i := range suites {
		if suites[i].id == id && suites[i].version == version {
			return &suites[i], nil
		}
	}
	return nil, &SuiteError{Version: version, Suite: id}
}

func newGCM(key []byte) (cipher.AEAD, error) {
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	return cipher.NewGCM(block)
}

// tls12 tells the suites of TLS 1.2.
func (s *suite) tls12() bool { return s.version == tls.VersionTLS12 }

// secretLen is how many bytes half.secret has: a traffic secret, or with TLS 1.2 the key itself.
func (s *suite) secretLen() int {
	if s.tls12() {
		return s.keyLen
	}
	return s.hash().Size()
}

// ivLen is how many bytes of half.iv do not follow from the secret.
func (s *suite) ivLen() int {
	if s.tls12() {
		return nonceLen - s.explicit
	}
	return 0
}

// expandLabel is HKDF-Expand-Label with an empty context (RFC 8446 section 7.1):
//
//	uint16 length | uint8 n | "tls13 " label | uint8 0
func (s *suite) expandLabel(secret []byte, label string, length int) ([]byte, error) {
	info := binary.BigEndian.AppendUint16(nil, uint16(length))
	info = append(info, byte(len("tls13 ")+len(label)))
	info = append(info, "tls13 "...)
	info = append(info, label...)
	info = append(info, 0)
	return hkdf.Expand(s.hash, secret, string(info), length)
}

// protection builds the AEAD of a traffic secret, or of a key of TLS 1.2.
func (s *suite) protection(secret []byte) (cipher.AEAD, error) {
	key := secret
	if !s.tls12() {
		var err error
		if key, err = s.expandLabel(secret, "key", s.keyLen); err != nil {
			return nil, err
		}
		defer clear(key)
	}
	aead, err := s.aead(key)
	if err != nil {
		return nil, fmt.Errorf("record protection of %s: %w", tls.CipherSuiteName(s.id), err)
	}
	return aead, nil
}
