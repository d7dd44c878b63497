package tlsstate

import "slices"

const (
	recordOverhead = headerLen + explicitLen + tagLen              // bytes that protection adds to a record at most
	keyUpdateLen   = headerLen + messageHeaderLen + 1 + 1 + tagLen // bytes of a KeyUpdate on the wire
	maxOwed        = 3 * keyUpdateLen                              // answer, request, and one for our own limit
)

// SealedLen is the capacity in bytes that Seal needs at most for n bytes of data, so that a buffer can be sized once. The
// control records are counted as if all were due, and the records as those of TLS 1.2, which are 7 bytes longer.
func SealedLen(n int) int {
	return n + (n+MaxPlain-1)/MaxPlain*recordOverhead + maxOwed
}

// Seal appends to dst the records that carry p, 16 KiB in each but the last, behind what Owes tells of. Seal(dst, nil)
// gives only that. It allocates nothing when dst has room for SealedLen(len(p)) bytes. p must not overlap the room.
//
// What was returned has to be written, in this order and once; on error dst comes back as it was and the connection is
// dead (ErrDead), except for ErrSendClosed. ErrExhausted kills it too: see Retire.
func (c *Conn) Seal(dst, p []byte) ([]byte, error) {
	if err := c.sendable(); err != nil {
		return dst, err
	}
	out := dst
	if len(p) > 0 {
		out = slices.Grow(out, SealedLen(len(p)))
	}
	out, err := c.appendOwed(out)
	for len(p) > 0 && err == nil {
		chunk := p[:min(len(p), MaxPlain)]
		p = p[len(chunk):]
		out, err = c.appendData(out, chunk)
	}
	return c.sealed(dst, out, err)
}

// RequestKeyUpdate appends a KeyUpdate and changes our key; with peerToo the peer is told to change its own. Some servers
// are said to dislike several within 100 ms: the caller keeps them apart. Errors: ErrNoKeyUpdate with TLS 1.2,
// ErrKeyUpdateRate, and then nothing changed.
func (c *Conn) RequestKeyUpdate(dst []byte, peerToo bool) ([]byte, error) {
	if err := c.sendable(); err != nil {
		return dst, err
	}
	if c.out.suite.tls12() {
		return dst, ErrNoKeyUpdate
	}
	if !c.out.spend() {
		return dst, ErrKeyUpdateRate
	}
	out, err := c.appendOwed(dst)
	if err == nil {
		value := byte(updateNotRequested)
		if peerToo {
			value = updateRequested
		}
		out, err = c.out.keyUpdate(out, value)
	}
	return c.sealed(dst, out, err)
}

// AppendCloseNotify appends the close_notify after which nothing more is sent; receiving goes on. Appends nothing the
// second time.
func (c *Conn) AppendCloseNotify(dst []byte) ([]byte, error) {
	if c.both.closed.Load() {
		return dst, nil
	}
	if err := c.dead(); err != nil {
		return dst, err
	}
	out, err := c.out.record(dst, typeAlert, []byte{alertWarning, alertCloseNotify})
	c.both.closed.Store(true)
	return c.sealed(dst, out, err)
}

func (c *Conn) sendable() error {
	if err := c.dead(); err != nil {
		return err
	}
	if c.both.closed.Load() {
		return ErrSendClosed
	}
	return nil
}

// sealed ends a sealing method: after an error nothing of it is handed out, and nothing more will be sealed.
func (c *Conn) sealed(before, after []byte, err error) ([]byte, error) {
	if err != nil {
		c.out.broken = true
		return before, c.fail(err)
	}
	return after, nil
}

// appendOwed seals the KeyUpdates that the receiving direction asked for.
func (c *Conn) appendOwed(dst []byte) (_ []byte, err error) {
	owed := c.both.owed.Swap(0)
	if owed&owedAnswer != 0 {
		dst, err = c.out.keyUpdate(dst, updateNotRequested)
	}
	if owed&owedRequest != 0 && err == nil {
		dst, err = c.out.keyUpdate(dst, updateRequested)
	}
	return dst, err
}

// appendData seals one record of data, and before it changes a key that has protected enough.
func (c *Conn) appendData(dst, p []byte) (_ []byte, err error) {
	switch {
	case c.out.seq < c.out.limit:
	case c.out.suite.tls12():
		c.both.retire.Store(true)
		if c.out.seq-c.out.limit >= c.out.limit*2/5 { // 2^24.5 in all
			return dst, ErrExhausted
		}
	default:
		if dst, err = c.out.keyUpdate(dst, updateNotRequested); err != nil {
			return dst, err
		}
	}
	c.out.earn()
	return c.out.record(dst, typeApplication, p)
}

// keyUpdate seals a KeyUpdate under the old key and installs the next.
func (out *outbound) keyUpdate(dst []byte, value byte) ([]byte, error) {
	dst, err := out.record(dst, typeHandshake, []byte{messageKeyUpdate, 0, 0, 1, value})
	if err != nil {
		return dst, err
	}
	return dst, out.update()
}

// record seals one record: the plaintext is laid where the ciphertext will stand and is encrypted in place.
func (out *outbound) record(dst []byte, kind byte, p []byte) ([]byte, error) {
	if out.suite.tls12() {
		return out.record12(dst, kind, p)
	}
	aead, err := out.awake()
	if err != nil {
		return dst, err
	}
	nonce, err := out.next()
	if err != nil {
		return dst, err
	}
	start, body := len(dst), len(p)+1+tagLen
	dst = slices.Grow(dst, headerLen+body)
	dst = append(dst, typeApplication, 3, 3, byte(body>>8), byte(body))
	dst = append(dst, p...)
	dst = append(dst, kind)
	inner := dst[start+headerLen:]
	aead.Seal(inner[:0], nonce, inner, dst[start:start+headerLen])
	return dst[:start+headerLen+body], nil
}
