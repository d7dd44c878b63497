package tlsstate

import (
	"crypto/sha256"
	"crypto/tls"
	"io"
)

// What the tests in package tlsstate_test reach into.

// NewTestConn makes a Conn from bare secrets, in the server's role if server.
func NewTestConn(server bool, suite uint16, receive, send []byte) (*Conn, error) {
	r := roleClient
	if server {
		r = roleServer
	}
	return newConn(r, &Info{Version: 0x0304, Suite: suite}, traffic{secret: receive}, traffic{secret: send})
}

// NewTestConn12 makes a Conn of TLS 1.2 from a master secret and the two randoms.
func NewTestConn12(server bool, suite uint16, master, clientRandom, serverRandom []byte) (*Conn, error) {
	s, err := suiteFor(0x0303, suite)
	if err != nil {
		return nil, err
	}
	c, srv := s.keyBlock(master, clientRandom, serverRandom)
	r := roleClient
	if server {
		r, c, srv = roleServer, srv, c
	}
	return newConn(r, &Info{Version: 0x0303, Suite: suite}, srv, c)
}

// HelloVersion is the version that a server's first bytes choose; 0: none.
func HelloVersion(opening []byte) uint16 { return parseServerHello(opening).version }

// Hello is what a server's first bytes choose, and how much of a random there is.
func Hello(opening []byte) (version, suite uint16, group tls.CurveID, retry bool, random []byte) {
	h := parseServerHello(opening)
	return h.version, h.suite, h.group, h.retry, h.random
}

// TrafficKey is the key that follows from a traffic secret.
func TrafficKey(suite uint16, secret []byte) ([]byte, error) {
	s, err := suiteFor(tls.VersionTLS13, suite)
	if err != nil {
		return nil, err
	}
	return s.expandLabel(secret, "key", s.keyLen)
}

// SplitKeyUpdate is a KeyUpdate in two records, the first with n of its five bytes; nothing with TLS 1.2, or after too many.
func (c *Conn) SplitKeyUpdate(dst []byte, request bool, n int) []byte {
	if c.out.suite.tls12() || !c.out.spend() {
		return dst
	}
	message := []byte{messageKeyUpdate, 0, 0, 1, updateNotRequested}
	if request {
		message[4] = updateRequested
	}
	dst = c.SealRaw(c.SealRaw(dst, typeHandshake, message[:n]), typeHandshake, message[n:])
	if err := c.out.update(); err != nil {
		panic(err)
	}
	return dst
}

// PRF12 is the pseudo-random function of TLS 1.2 with SHA-256.
func PRF12(secret []byte, label string, seed []byte, n int) []byte {
	return prf(sha256.New, secret, label, seed, n)
}

// SetLimit lowers the number of records that a key protects, in both directions.
func (c *Conn) SetLimit(n uint64) { c.in.limit, c.out.limit = n, n }

// SetSeq moves both sequence numbers.
func (c *Conn) SetSeq(n uint64) { c.in.seq, c.out.seq = n, n }

// SetReceiveSeq moves that of the receiving direction.
func (c *Conn) SetReceiveSeq(n uint64) { c.in.seq = n }

// Seq gives both sequence numbers.
func (c *Conn) Seq() (in, out uint64) { return c.in.seq, c.out.seq }

// UnboundedKeyUpdate is RequestKeyUpdate without its bound.
func (c *Conn) UnboundedKeyUpdate(dst []byte) []byte {
	c.out.earn()
	dst, err := c.RequestKeyUpdate(dst, false)
	if err != nil {
		panic(err)
	}
	return dst
}

// AlertNames are the alerts that have a name.
func AlertNames() map[uint8]string { return alertNames }

// HasHint reports whether the alert has a sentence of its own that says what to do.
func HasHint(code uint8) bool { return alertHints[code] != "" }

// SealRaw seals one record of any type and content.
func (c *Conn) SealRaw(dst []byte, kind byte, content []byte) []byte {
	dst, err := c.out.record(dst, kind, content)
	if err != nil {
		panic(err)
	}
	return dst
}

// ReceiveIV and SendIV show that the derivation is right.
func (c *Conn) ReceiveIV() []byte { return c.in.iv[:] }
func (c *Conn) SendIV() []byte    { return c.out.iv[:] }

// Secrets are all bytes that must never be printed.
func (c *Conn) Secrets() [][]byte {
	return [][]byte{c.in.secret, c.out.secret, c.in.iv[:], c.out.iv[:]}
}

// Frag is how much of a handshake message is held.
func (c *Conn) Frag() int { return len(c.in.frag) }

var (
	NotTLS          = notTLS
	EndpointBinding = endpointBinding
	StdAlert        = stdAlert
)

// KeyLog is a key log for one connection.
func KeyLog() io.Writer { return &keylog{gate: &gate{}} }
