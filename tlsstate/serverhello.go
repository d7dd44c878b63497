package tlsstate

import (
	"bytes"
	"crypto/sha256"
	"crypto/tls"
	"encoding/binary"
)

const (
	extensionSupportedVersions = 43
	extensionKeyShare          = 51
)

// ServerGroup is for Handshakers that must know the server's choice before their library does: the group for which the
// ServerHello in the server's first bytes has a key share; 0 with TLS 1.2. whole is false until the message is there.
func ServerGroup(opening []byte) (group tls.CurveID, whole bool) {
	h := parseServerHello(opening)
	return h.group, h.random != nil
}

// retryRandom tells a HelloRetryRequest from a ServerHello (RFC 8446 section 4.1.3).
var retryRandom = sha256.Sum256([]byte("HelloRetryRequest"))

// notTLS reports whether the peer's first bytes cannot begin a TLS handshake: a record of type handshake or alert with a
// version 3.x. With fewer than three bytes nothing is said.
func notTLS(opening []byte) bool {
	return len(opening) >= 3 && (opening[0] != typeHandshake && opening[0] != typeAlert || opening[1] != 3)
}

// serverHello is what a ServerHello chose. random is nil where there was no whole one.
type serverHello struct {
	version, suite uint16
	random         []byte
	retry          bool        // it is a HelloRetryRequest, and another one follows
	group          tls.CurveID // of the key share in it, or that it asks for; TLS 1.3 only
}

// parseServerHello finds the ServerHello in the first bytes that a server sends: plaintext records, then RFC 8446 section
// 4.1.3, which is that of TLS 1.2 (RFC 5246 section 7.4.1.3) but for the meaning of the extensions. A HelloRetryRequest
// reads the same. What is returned aliases nothing.
//
//	2 | uint24 length | uint16 legacy_version | random 32 | session id <0..32>
//	| uint16 suite | uint8 compression | extensions <6..2^16-1>: uint16 type | uint16 length | body
func parseServerHello(opening []byte) (none serverHello) {
	r := byteReader(firstMessage(opening))
	if head := r.take(messageHeaderLen); head == nil || head[0] != 2 {
		return none
	}
	legacy, random := r.take(2), r.take(32)
	if n := r.take(1); n != nil {
		r.take(int(n[0]))
	}
	chosen := r.take(3)
	if chosen == nil {
		return none
	}
	h := serverHello{binary.BigEndian.Uint16(legacy), binary.BigEndian.Uint16(chosen), random, bytes.Equal(random, retryRandom[:]), 0}
	if len(r) == 0 { // TLS 1.2 may leave the extensions out
		return h
	}
	size := r.take(2)
	if size == nil || len(r) != int(binary.BigEndian.Uint16(size)) {
		return none
	}
	for len(r) > 0 {
		head := r.take(4)
		if head == nil {
			return none
		}
		body := r.take(int(binary.BigEndian.Uint16(head[2:])))
		if body == nil {
			return none
		}
		switch kind := binary.BigEndian.Uint16(head); {
		case kind == extensionSupportedVersions && len(body) == 2:
			h.version = binary.BigEndian.Uint16(body)
		case kind == extensionKeyShare && len(body) >= 2:
			h.group = tls.CurveID(binary.BigEndian.Uint16(body))
		}
	}
	return h
}

// firstMessage puts the first handshake message together, which may lie in several records (RFC 8446 section 5.1) and have
// others behind it; nil where it is not whole. It is a copy.
func firstMessage(opening []byte) []byte {
	var message []byte
	for r := byteReader(opening); ; {
		head := r.take(headerLen)
		if head == nil || head[0] != typeHandshake {
			return nil
		}
		body := r.take(min(int(binary.BigEndian.Uint16(head[3:])), len(r)))
		if message = append(message, body...); len(message) < messageHeaderLen {
			continue
		}
		if size := messageHeaderLen + int(binary.BigEndian.Uint32(message)&0xff_ffff); len(message) >= size {
			return message[:size:size]
		}
	}
}

// byteReader takes bytes off the front; nil for more than there are, and for everything after that.
type byteReader []byte

func (r *byteReader) take(n int) []byte {
	if *r == nil || n > len(*r) {
		*r = nil
		return nil
	}
	taken := (*r)[:n:n]
	*r = (*r)[n:]
	return taken
}
