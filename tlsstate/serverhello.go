package tlsstate

import "encoding/binary"

const extensionSupportedVersions = 43

// notTLS reports whether the peer's first bytes cannot begin a TLS handshake: a record of type handshake or alert with a
// version 3.x. With fewer than three bytes nothing is said.
func notTLS(opening []byte) bool {
	return len(opening) >= 3 && (opening[0] != typeHandshake && opening[0] != typeAlert || opening[1] != 3)
}

// helloVersion finds the version that a ServerHello chose in the peer's first bytes, or 0 where there is no whole one.
// RFC 8446 section 4.1.3, in a plaintext record, here in its first one only:
//
//	22 | 3 x | uint16 length | 2 | uint24 length | uint16 legacy_version | random 32 | session id <0..32>
//	| uint16 suite | uint8 compression | extensions <6..2^16-1>: uint16 type | uint16 length | body
func helloVersion(opening []byte) uint16 {
	r := byteReader(opening)
	head := r.take(headerLen + messageHeaderLen)
	if head == nil || head[0] != typeHandshake || head[headerLen] != 2 {
		return 0
	}
	legacy := r.take(2)
	r.take(32)
	if n := r.take(1); n != nil {
		r.take(int(n[0]))
	}
	if r.take(3) == nil {
		return 0
	}
	version := binary.BigEndian.Uint16(legacy)
	size := r.take(2) // TLS 1.2 may leave the extensions out
	if size == nil {
		return version
	}
	for len(r) >= 4 {
		head := r.take(4)
		body := r.take(int(binary.BigEndian.Uint16(head[2:])))
		if body == nil {
			return 0
		}
		if binary.BigEndian.Uint16(head) == extensionSupportedVersions && len(body) == 2 {
			return binary.BigEndian.Uint16(body)
		}
	}
	return version
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
