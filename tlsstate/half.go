package tlsstate

import (
	"crypto/cipher"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
)

// half is the protection of one direction: the secret and what follows from it. The AEAD is built once a key, and anew
// after a rest; nonce and additional data have places of their own, so that a record costs no allocation.
type half struct {
	suite  *suite
	secret []byte // TLS 1.3: the traffic secret, from which key and IV follow; TLS 1.2: the key
	seq    uint64 // of the next record
	limit  uint64 // records under one key; suite.records unless a test lowers it

	aead  cipher.AEAD // nil at rest
	iv    [nonceLen]byte
	nonce [nonceLen]byte
	aad   [additionalLen]byte // TLS 1.2 only
}

// traffic is what protects one direction from some record on.
type traffic struct {
	secret []byte
	iv     []byte // TLS 1.2: as much as the key block has; TLS 1.3: nil, as it follows from the secret
	seq    uint64
}

// start begins at the record that t says, with a copy of what is in it.
func (h *half) start(t traffic) error {
	if !h.suite.tls12() {
		if err := h.install(t.secret); err != nil {
			return err
		}
		h.seq = t.seq
		return nil
	}
	if len(t.secret) != h.suite.keyLen || len(t.iv) != nonceLen-h.suite.explicit {
		return fmt.Errorf("key of %d and IV of %d bytes, which %s does not use", len(t.secret), len(t.iv), tls.CipherSuiteName(h.suite.id))
	}
	aead, err := h.suite.protection(t.secret)
	if err != nil {
		return err
	}
	h.aead, h.seq, h.secret = aead, t.seq, append([]byte(nil), t.secret...)
	copy(h.iv[:], t.iv)
	return nil
}

// install derives key and IV from secret (RFC 8446 section 7.3), keeps a copy of it, and starts at sequence number 0.
func (h *half) install(secret []byte) error {
	if len(secret) != h.suite.secretLen() {
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

var errSequence = errors.New("sequence numbers of this key are used up")

// next gives the nonce of the next record and uses its sequence number up: IV xor sequence number (RFC 8446 section 5.3,
// RFC 7905 section 2).
func (h *half) next() ([]byte, error) {
	if h.seq == math.MaxUint64 {
		return nil, errSequence
	}
	h.nonce = h.iv
	tail := h.nonce[nonceLen-8:]
	binary.BigEndian.PutUint64(tail, binary.BigEndian.Uint64(tail)^h.seq)
	h.seq++
	return h.nonce[:], nil
}

// forget overwrites the secrets. What an AEAD made of them is beyond our reach.
func (h *half) forget() {
	clear(h.secret)
	h.aead, h.secret = nil, nil
	h.iv, h.nonce = [nonceLen]byte{}, [nonceLen]byte{}
}
