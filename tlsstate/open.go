package tlsstate

import (
	"encoding/binary"
	"io"
)

// A protected record of TLS 1.3 (RFC 8446 section 5.2; record12.go has that of TLS 1.2) and what is inside once it is opened:
//
//	23 | 3 3 | uint16 length | AEAD( content | type | zeros ) with a tag of 16 bytes
const (
	headerLen = 5
	// MaxPlain is the most data that a record carries, in bytes.
	MaxPlain = 16 << 10 // 16 KiB
	// MaxRecord is the most bytes that a record takes on the wire.
	MaxRecord = headerLen + maxBody

	maxBody = MaxPlain + 256
	minBody = 1 + tagLen

	typeAlert       = 21
	typeHandshake   = 22
	typeApplication = 23
)

// Need tells how many bytes buf lacks for its first record to be whole: 0 when it is. With less than a header it is what
// the header lacks, so that a reader which may not read past the record asks twice. The length is not checked; Open does.
func Need(buf []byte) int {
	if len(buf) < headerLen {
		return headerLen - len(buf)
	}
	return max(0, headerLen+int(binary.BigEndian.Uint16(buf[3:]))-len(buf))
}

// Open opens the first whole record in buf, in place: plain aliases buf, whose first n bytes are used up. With n 0 and no
// error, buf holds no whole record yet. plain is empty for records that carry no data (ticket, KeyUpdate); look at Owes
// after these. Bytes held by HoldIn are not looked at: put them in front.
//
// Errors: io.EOF after the peer's close_notify (sending is still possible), *AlertError when the peer gave up,
// *ProtocolError when it broke TLS, ErrDead later on.
func (c *Conn) Open(buf []byte) (plain []byte, n int, err error) {
	if err := c.dead(); err != nil {
		return nil, 0, err
	}
	if c.in.eof {
		return nil, 0, io.EOF
	}
	if len(buf) < headerLen {
		return nil, 0, nil
	}
	n = headerLen + int(binary.BigEndian.Uint16(buf[3:]))
	if err := c.in.checkHeader(buf[0], n-headerLen); err != nil {
		return nil, 0, c.fail(err)
	}
	if len(buf) < n {
		return nil, 0, nil
	}
	kind, content, err := c.in.open(buf[:n])
	if err == nil {
		plain, err = c.accept(kind, content)
	}
	if err != nil && err != io.EOF {
		c.fail(err)
	}
	return plain, n, err
}

// checkHeader judges a record by its header alone, the length first. The version field is ignored, as RFC 8446 section 5.1
// wants; the AEAD covers it. The type stands in the header with TLS 1.2 only; that of TLS 1.3 is always the same. TLS 1.2
// would allow longer bodies, but no suite of ours makes them.
func (in *inbound) checkHeader(kind byte, body int) error {
	minBody := minBody
	if in.suite.tls12() {
		minBody = in.suite.explicit + tagLen
		if kind == typeAlert || kind == typeHandshake {
			kind = typeApplication
		}
	}
	switch {
	case body > maxBody:
		return broke(alertRecordOverflow, "record of %d bytes is longer than %d", body, maxBody)
	case kind != typeApplication:
		return broke(alertUnexpectedMessage, "unprotected record of type %d after the handshake", kind)
	case body < minBody:
		return broke(alertBadRecordMAC, "record of %d bytes is too short to be protected", body)
	}
	return nil
}

// open decrypts one whole record in place and takes the padding off.
func (in *inbound) open(record []byte) (kind byte, content []byte, err error) {
	if in.suite.tls12() {
		return in.open12(record)
	}
	aead, err := in.awake()
	if err != nil {
		return 0, nil, err
	}
	nonce, err := in.next()
	if err != nil {
		return 0, nil, err
	}
	body := record[headerLen:]
	inner, err := aead.Open(body[:0], nonce, body, record[:headerLen])
	if err != nil {
		return 0, nil, broke(alertBadRecordMAC, "record does not decrypt")
	}
	if len(inner) > MaxPlain+1 {
		return 0, nil, broke(alertRecordOverflow, "record carries %d bytes, more than %d", len(inner)-1, MaxPlain)
	}
	for i := len(inner) - 1; i >= 0; i-- {
		if inner[i] != 0 {
			return inner[i], inner[:i], nil
		}
	}
	return 0, nil, broke(alertUnexpectedMessage, "record of padding only")
}

// accept acts on an opened record and returns the data in it, if it is data.
func (c *Conn) accept(kind byte, content []byte) ([]byte, error) {
	if c.in.seq >= c.in.limit {
		c.receivedEnough()
	}
	if kind != typeHandshake && len(c.in.frag) > 0 {
		return nil, broke(alertUnexpectedMessage, "record of type %d amid a handshake message", kind)
	}
	switch kind {
	case typeApplication:
		if len(content) == 0 {
			return nil, c.in.spend()
		}
		c.in.earn()
		return content, nil
	case typeHandshake:
		if c.in.suite.tls12() {
			return nil, handshake12(content)
		}
		return nil, c.handshake(content)
	case typeAlert:
		return nil, c.in.alert(content)
	}
	return nil, broke(alertUnexpectedMessage, "record of type %d after the handshake", kind)
}

// receivedEnough has the peer's key changed, once a key, or the connection retired.
func (c *Conn) receivedEnough() {
	switch {
	case c.in.suite.tls12():
		c.both.retire.Store(true)
	case !c.in.asked:
		c.in.asked = true
		c.both.owed.Or(owedRequest)
	}
}

// alert takes an alert (RFC 8446 section 6). All but two are fatal whatever their level says; with TLS 1.2 the level
// counts, and warnings change nothing (RFC 5246 section 7.2).
func (in *inbound) alert(content []byte) error {
	if len(content) != 2 {
		return broke(alertDecodeError, "alert of %d bytes", len(content))
	}
	switch content[1] {
	case alertCloseNotify:
		in.eof = true
		return io.EOF
	case alertUserCanceled: // close_notify follows
		return in.spend()
	}
	if in.suite.tls12() && content[0] == alertWarning {
		return in.spend()
	}
	return &AlertError{Code: content[1], FromClient: in.role == roleServer}
}
