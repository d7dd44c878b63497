package tlsstate

import (
	"encoding/binary"
	"math"
	"slices"
)

// A protected record of TLS 1.2 (RFC 5246 section 6.2.3.3, RFC 5288, RFC 7905). The explicit part of the nonce is there
// with AES-GCM only:
//
//	type | 3 3 | uint16 length | explicit nonce 8 | AEAD( content ) with a tag of 16 bytes
//
// and the additional data that it is bound to:
//
//	uint64 sequence number | type | 3 3 | uint16 length of the content
const (
	additionalLen = 8 + headerLen

	explicitLen = 8
)

// additional lays out the additional data of the next record.
func (h *half) additional(header []byte, content int) []byte {
	binary.BigEndian.PutUint64(h.aad[:], h.seq)
	copy(h.aad[8:], header[:3])
	binary.BigEndian.PutUint16(h.aad[11:], uint16(content))
	return h.aad[:]
}

// nonce12 is the nonce of the next record, whose sequence number it uses up. explicit is the part that the record carries
// (RFC 5288 section 3): the peer chooses its own, and whether it counts is not our business.
func (h *half) nonce12(explicit []byte) ([]byte, error) {
	if len(explicit) == 0 {
		return h.next()
	}
	if h.seq == math.MaxUint64 {
		return nil, errSequence
	}
	h.seq++
	h.nonce = h.iv
	copy(h.nonce[nonceLen-explicitLen:], explicit)
	return h.nonce[:], nil
}

// record12 is record for TLS 1.2. The explicit nonce is the sequence number, which never comes twice.
func (out *outbound) record12(dst []byte, kind byte, p []byte) ([]byte, error) {
	aead, err := out.awake()
	if err != nil {
		return dst, err
	}
	start, explicit := len(dst), out.suite.explicit
	body := explicit + len(p) + tagLen
	dst = slices.Grow(dst, headerLen+body)
	dst = append(dst, kind, 3, 3, byte(body>>8), byte(body))
	if explicit > 0 {
		dst = binary.BigEndian.AppendUint64(dst, out.seq)
	}
	dst = append(dst, p...)
	aad := out.additional(dst[start:], len(p))
	content := dst[start+headerLen+explicit:]
	nonce, err := out.nonce12(dst[start+headerLen : start+headerLen+explicit])
	if err != nil {
		return dst[:start], err
	}
	aead.Seal(content[:0], nonce, content, aad)
	return dst[:start+headerLen+body], nil
}

// open12 is open for TLS 1.2.
func (in *inbound) open12(record []byte) (kind byte, content []byte, err error) {
	aead, err := in.awake()
	if err != nil {
		return 0, nil, err
	}
	explicit := in.suite.explicit
	body := record[headerLen+explicit:]
	aad := in.additional(record, len(body)-tagLen)
	nonce, err := in.nonce12(record[headerLen : headerLen+explicit])
	if err != nil {
		return 0, nil, err
	}
	content, err = aead.Open(body[:0], nonce, body, aad)
	if err != nil {
		return 0, nil, broke(alertBadRecordMAC, "record does not decrypt")
	}
	if len(content) > MaxPlain {
		return 0, nil, broke(alertRecordOverflow, "record carries %d bytes, more than %d", len(content), MaxPlain)
	}
	return record[0], content, nil
}

// handshake12 refuses what may come after the handshake of TLS 1.2: a new one. It is refused by its first byte, so that no
// message is ever put together. Empty records are not allowed (RFC 5246 section 6.2.1).
func handshake12(content []byte) error {
	const messageHelloRequest = 0
	switch {
	case len(content) == 0:
		return broke(alertUnexpectedMessage, "empty handshake record")
	case content[0] == messageHelloRequest, content[0] == 1: // a ClientHello, in the server's role
		return broke(alertNoRenegotiation, "the peer wants to negotiate TLS anew amid the connection, which is refused")
	}
	return broke(alertUnexpectedMessage, "handshake message of type %d after the handshake", content[0])
}
