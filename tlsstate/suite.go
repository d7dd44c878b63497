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
	"math"

	"golang.org/x/crypto/chacha20poly1305"
)

// suite is a TLS 1.3 cipher suite (RFC 8446 appendix B.4). All have 12-byte nonces and 16-byte tags.
type suite struct {
	id     uint16
	hash   func() hash.Hash
	keyLen int // bytes
	aead   func(key []byte) (cipher.AEAD, error)
	// records is how many records one key may protect before we change it. RFC 8446 section 5.5: 2^24.5 full records for
	// AES-GCM; no practical limit for ChaCha20-Poly1305.
	records uint64
}

const (
	nonceLen = 12
	tagLen   = 16
)

var suites = [...]suite{
	{tls.TLS_AES_128_GCM_SHA256, sha256.New, 16, newGCM, 1<<24 - 16},
	{tls.TLS_AES_256_GCM_SHA384, sha512.New384, 32, newGCM, 1<<24 - 16},
	{tls.TLS_CHACHA20_POLY1305_SHA256, sha256.New, 32, chacha20poly1305.New, 1 << 48},
}

func suiteByID(id uint16) (*suite, error) {
	for i := range suites {
		if suites[i].id == id {
			return &suites[i], nil
		}
	}
	return nil, fmt.Errorf("no record protection for cipher suite %s", tls.CipherSuiteName(id))
}

func newGCM(key []byte) (cipher.AEAD, error) {
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	return cipher.NewGCM(block)
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

// half is the protection of one direction: the traffic secret and what follows from it. The AEAD is built once a key,
// and anew after a rest; the nonce has a place of its own, so that a record costs no allocation.
type half struct {
	suite  *suite
	secret []byte
	seq    uint64 // of the next record
	limit  uint64 // records under one key; suite.records unless a test lowers it

	aead  cipher.AEAD // nil at rest
	iv    [nonceLen]byte
	nonce [nonceLen]byte
}

// install derives key and IV from secret (RFC 8446 section 7.3), keeps a copy of it, and starts at sequence number 0.
func (h *half) install(secret []byte) error {
	if len(secret) != h.suite.hash().Size() {
		return fmt.Errorf("traffic secret has %d bytes, which %s does not use", len(secret), tls.CipherSuiteName(h.suite.id))
	}
	iv, err := h.suite.expandLabel(secret, "iv", nonceLen)
	if err != nil {
		return err
	}
	aead, err := h.suite.protection(secret)
	if err != nil {
		return err
	}
	old := h.secret
	h.secret = append([]byte(nil), secret...)
	clear(old)
	h.aead, h.seq = aead, 0
	copy(h.iv[:], iv)
	return nil
}

// protection builds the AEAD of a traffic secret.
func (s *suite) protection(secret []byte) (cipher.AEAD, error) {
	key, err := s.expandLabel(secret, "key", s.keyLen)
	if err != nil {
		return nil, err
	}
	defer clear(key)
	aead, err := s.aead(key)
	if err != nil {
		return nil, fmt.Errorf("record protection of %s: %w", tls.CipherSuiteName(s.id), err)
	}
	return aead, nil
}

// awake returns the AEAD, which a rest has dropped.
func (h *half) awake() (cipher.AEAD, error) {
	if h.aead == nil {
		aead, err := h.suite.protection(h.secret)
		if err != nil {
			return nil, err
		}
		h.aead = aead
	}
	return h.aead, nil
}

// update moves on to the next traffic secret (RFC 8446 section 7.2).
func (h *half) update() error {
	next, err := h.suite.expandLabel(h.secret, "traffic upd", len(h.secret))
	if err != nil {
		return err
	}
	defer clear(next)
	return h.install(next)
}

// next gives the nonce of the next record and uses its sequence number up (RFC 8446 section 5.3): IV xor sequence number.
func (h *half) next() ([]byte, error) {
	if h.seq == math.MaxUint64 {
		return nil, fmt.Errorf("sequence numbers of this key are used up")
	}
	h.nonce = h.iv
	tail := h.nonce[nonceLen-8:]
	binary.BigEndian.PutUint64(tail, binary.BigEndian.Uint64(tail)^h.seq)
	h.seq++
	return h.nonce[:], nil
}
