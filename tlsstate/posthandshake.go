package tlsstate

import "encoding/binary"

// Handshake messages after the handshake (RFC 8446 section 4):
//
//	uint8 type | uint24 length | body
const (
	messageNewSessionTicket   = 4
	messageCertificateRequest = 13
	messageKeyUpdate          = 24

	messageHeaderLen = 4
	maxHandshake     = 64 << 10 // 64 KiB, header included: what one unfinished message may make us hold

	updateNotRequested = 0
	updateRequested    = 1
)

// handshake takes the content of a handshake record: messages, whole or in part.
func (c *Conn) handshake(content []byte) error {
	if len(content) == 0 {
		return broke(alertUnexpectedMessage, "empty handshake record")
	}
	if err := c.in.spend(); err != nil {
		return err
	}
	rest := content
	if len(c.in.frag) > 0 {
		rest = append(c.in.frag, content...)
	}
	for len(rest) >= messageHeaderLen {
		size := messageHeaderLen + int(binary.BigEndian.Uint32(rest)&0xff_ffff)
		if size > maxHandshake {
			return broke(alertDecodeError, "handshake message of %d bytes is longer than %d", size, maxHandshake)
		}
		if len(rest) < size {
			break
		}
		if err := c.message(rest[0], rest[messageHeaderLen:size], size == len(rest)); err != nil {
			return err
		}
		rest = rest[size:]
	}
	if len(rest) == 0 {
		c.in.frag = nil // what a peer made us hold is not kept as spare capacity
		return nil
	}
	c.in.frag = append([]byte(nil), rest...)
	return nil
}

// message acts on one whole handshake message; last tells that it ends its record.
func (c *Conn) message(kind byte, body []byte, last bool) error {
	switch {
	case kind == messageKeyUpdate:
		return c.keyUpdate(body, last)
	case kind == messageNewSessionTicket && c.in.role == roleClient:
		return checkTicket(body)
	case kind == messageCertificateRequest:
		return broke(alertUnexpectedMessage, "request for a client certificate after the handshake, which was not offered")
	}
	return broke(alertUnexpectedMessage, "handshake message of type %d after the handshake", kind)
}

// keyUpdate is RFC 8446 section 4.6.3. Section 5.1: it ends its record, as the next one has the next key.
func (c *Conn) keyUpdate(body []byte, last bool) error {
	switch {
	case len(body) != 1:
		return broke(alertDecodeError, "KeyUpdate of %d bytes", len(body))
	case body[0] > updateRequested:
		return broke(alertIllegalParameter, "KeyUpdate with the value %d", body[0])
	case !last:
		return broke(alertUnexpectedMessage, "KeyUpdate does not end its record")
	}
	if body[0] == updateRequested {
		c.both.owed.Or(owedAnswer) // one answer is enough for several that came before it
	}
	c.in.asked = false
	return c.in.update()
}

// checkTicket reads a NewSessionTicket (RFC 8446 section 4.6.1) and forgets it: nothing is ever resumed.
//
//	uint32 lifetime | uint32 age_add | nonce<0..255> | ticket<1..2^16-1> | extensions<0..2^16-2>
func checkTicket(body []byte) error {
	malformed := broke(alertDecodeError, "malformed session ticket")
	if len(body) < 9 {
		return malformed
	}
	rest := body[8:]
	if rest = rest[1:]; len(rest) < int(body[8])+2 {
		return malformed
	}
	rest = rest[body[8]:]
	n := int(binary.BigEndian.Uint16(rest))
	if rest = rest[2:]; n == 0 || len(rest) < n+2 {
		return malformed
	}
	rest = rest[n:]
	if int(binary.BigEndian.Uint16(rest)) != len(rest)-2 {
		return malformed
	}
	return nil
}
