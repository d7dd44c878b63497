package tlsstate

import (
	"crypto/hmac"
	"hash"
)

// prf is the pseudo-random function of TLS 1.2 (RFC 5246 section 5): P_hash over label and seed.
func prf(h func() hash.Hash, secret []byte, label string, seed []byte, length int) []byte {
	mac := hmac.New(h, secret)
	seed = append([]byte(label), seed...)
	mac.Write(seed)
	a := mac.Sum(nil) // A(1)
	var out []byte
	for len(out) < length {
		mac.Reset()
		mac.Write(a)
		mac.Write(seed)
		out = mac.Sum(out)
		mac.Reset()
		mac.Write(a)
		a = mac.Sum(a[:0])
	}
	clear(out[length:])
	return out[:length:length]
}

// masterLen is what a master secret has, in bytes (RFC 5246 section 8.1).
const masterLen = 48

// keyBlock cuts what protects the two directions of TLS 1.2 out of the key block (RFC 5246 section 6.3; an AEAD has no MAC
// keys). Both begin at 1, as each Finished took the number 0. They share one array; forget clears it.
//
//	client key | server key | client IV | server IV
func (s *suite) keyBlock(master, clientRandom, serverRandom []byte) (client, server traffic) {
	ivLen := nonceLen - s.explicit
	seed := append(append([]byte(nil), serverRandom...), clientRandom...)
	r := byteReader(prf(s.hash, master, "key expansion", seed, 2*s.keyLen+2*ivLen))
	client.secret, server.secret = r.take(s.keyLen), r.take(s.keyLen)
	client.iv, server.iv = r.take(ivLen), r.take(ivLen)
	client.seq, server.seq = 1, 1
	return client, server
}

func (t *traffic) forget() {
	clear(t.secret)
	clear(t.iv)
	*t = traffic{}
}
