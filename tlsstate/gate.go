package tlsstate

import (
	"crypto/tls"
	"encoding/binary"
	"fmt"
	"io"
	"net"
)

// gate is the connection as the TLS library sees it during the handshake. A Read ends at the end of a record header or of
// a record at the latest, and never begins the record after the one asked for by more than that, so that a library which
// takes what it can get still takes no byte of the application data. What is behind stays in the kernel.
//
// It counts the records of which there must be no other for the record state to be exact: with TLS 1.3 those that were
// begun after the library announced the server's application secret, none, and with TLS 1.2 those behind the peer's
// ChangeCipherSpec, the Finished. So the sequence number of the next record is known to be 0 or 1.
type gate struct {
	net.Conn
	header  [headerLen]byte
	have    int  // bytes of header given to the library; headerLen while the body is being read
	left    int  // bytes of the body not yet given
	marked  bool // the application secret was announced
	midway  bool // ... amid a record
	after   int  // records begun since
	changed int  // ChangeCipherSpecs of the peer
	behind  int  // records begun behind the first of them
	opening []byte
	sent    []byte // the beginning of what we sent
	open    bool   // the handshake is over and the library keeps the connection: everything passes
	ended   bool   // ... and the transport has come to its end

	// judge looks at the peer's first bytes at the end of each record until opening is full; its error ends the handshake.
	judge   func(opening []byte) error
	refused error // of judge
}

const (
	// maxOpening is how many of the first bytes of a side are kept, to name a failure and to have the randoms: a
	// ServerHello fits, a post-quantum key share of 1.1 KB included.
	maxOpening = 2 << 10 // 2 KiB

	typeChangeCipherSpec = 20
)

// Read gives at most what the current record header or body lacks.
func (g *gate) Read(p []byte) (int, error) {
	if g.refused != nil {
		return 0, g.refused
	}
	if g.open {
		n, err := g.Conn.Read(p)
		g.ended = g.ended || err == io.EOF
		return n, err
	}
	if len(p) == 0 {
		return 0, nil
	}
	if g.have < headerLen {
		return g.readHeader(p)
	}
	n, err := g.Conn.Read(p[:min(len(p), g.left)])
	g.left -= n
	keepOpening(&g.opening, p[:n])
	if refused := g.endBody(); refused != nil {
		return 0, refused
	}
	return n, err
}

func (g *gate) readHeader(p []byte) (int, error) {
	n, err := g.Conn.Read(p[:min(len(p), headerLen-g.have)])
	if n > 0 && g.have == 0 {
		g.begin(p[0])
	}
	copy(g.header[g.have:], p[:n])
	g.have += n
	keepOpening(&g.opening, p[:n])
	if g.have == headerLen {
		g.left = int(binary.BigEndian.Uint16(g.header[3:]))
		if refused := g.endBody(); refused != nil {
			return 0, refused
		}
	}
	return n, err
}

// begin counts a record of this type.
func (g *gate) begin(kind byte) {
	if g.marked {
		g.after++
	}
	if g.changed > 0 {
		g.behind++
	}
	if kind == typeChangeCipherSpec {
		g.changed++
	}
}

func (g *gate) endBody() error {
	if g.left > 0 {
		return nil
	}
	g.have = 0
	if g.judge != nil && len(g.opening) < maxOpening {
		g.refused = g.judge(g.opening)
	}
	return g.refused
}

// Write passes on what the library sends, unless the peer was refused.
func (g *gate) Write(p []byte) (int, error) {
	if g.refused != nil {
		return 0, g.refused
	}
	if !g.open {
		keepOpening(&g.sent, p)
	}
	return g.Conn.Write(p)
}

func keepOpening(opening *[]byte, p []byte) {
	*opening = append(*opening, p[:min(len(p), maxOpening-len(*opening))]...)
}

// mark notes that the library now has the server's application secret.
func (g *gate) mark() {
	g.marked = true
	g.midway = g.have != 0
}

// settled asserts that the library, in the role r, stopped exactly at the first application record. A server announces the
// secret when it sends its own Finished and reads the client's flight after that, so that there the count says nothing;
// what remains is that it reads by the record and ends with one.
func (g *gate) settled(version uint16, r role) error {
	switch {
	case g.have != 0:
		return fmt.Errorf("%w: a record is half read", ErrHandover)
	case version == tls.VersionTLS12 && (g.changed != 1 || g.behind != 1):
		return fmt.Errorf("%w: it read %d records behind %d changes of the cipher", ErrHandover, g.behind, g.changed)
	case version == tls.VersionTLS12:
		return nil
	case !g.marked:
		return fmt.Errorf("%w: it announced no application secret", ErrHandover)
	case r == roleServer:
		return nil
	case g.midway:
		return fmt.Errorf("%w: a record is half read", ErrHandover)
	case g.after != 0:
		return fmt.Errorf("%w: it read %d application records", ErrHandover, g.after)
	}
	return nil
}
