package tlsstate

import (
	"encoding/binary"
	"fmt"
	"net"
)

// gate is the connection as the TLS library sees it during the handshake. A Read ends at the end of a record header or of
// a record at the latest, and never begins the record after the one asked for by more than that, so that a library which
// takes what it can get still takes no byte of the application data. What is behind stays in the kernel.
//
// It counts the records that were begun after the library announced the server's application secret, of which there must
// be none: the sequence number of the next record is then known to be 0.
type gate struct {
	net.Conn
	header  [headerLen]byte
	have    int  // bytes of header given to the library; headerLen while the body is being read
	left    int  // bytes of the body not yet given
	begun   int  // records begun
	marked  bool // the application secret was announced
	midway  bool // ... amid a record
	after   int  // records begun since
	opening []byte
}

// maxOpening is how much of the server's first bytes is kept, to name a failure: a ServerHello fits, a post-quantum key
// share of 1.1 KB included.
const maxOpening = 2 << 10 // 2 KiB

// Read gives at most what the current record header or body lacks.
func (g *gate) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	if g.have < headerLen {
		return g.readHeader(p)
	}
	n, err := g.Conn.Read(p[:min(len(p), g.left)])
	g.left -= n
	g.keep(p[:n])
	g.endBody()
	return n, err
}

func (g *gate) readHeader(p []byte) (int, error) {
	n, err := g.Conn.Read(p[:min(len(p), headerLen-g.have)])
	if n > 0 && g.have == 0 {
		g.begun++
		if g.marked {
			g.after++
		}
	}
	copy(g.header[g.have:], p[:n])
	g.have += n
	g.keep(p[:n])
	if g.have == headerLen {
		g.left = int(binary.BigEndian.Uint16(g.header[3:]))
		g.endBody()
	}
	return n, err
}

func (g *gate) endBody() {
	if g.left == 0 {
		g.have = 0
	}
}

func (g *gate) keep(p []byte) {
	g.opening = append(g.opening, p[:min(len(p), maxOpening-len(g.opening))]...)
}

// mark notes that the library now has the server's application secret.
func (g *gate) mark() {
	g.marked = true
	g.midway = g.have != 0
}

// settled asserts that the library stopped exactly at the first application record.
func (g *gate) settled() error {
	switch {
	case !g.marked:
		return fmt.Errorf("%w: it announced no application secret", ErrHandover)
	case g.midway || g.have != 0:
		return fmt.Errorf("%w: a record is half read", ErrHandover)
	case g.after != 0:
		return fmt.Errorf("%w: it read %d application records", ErrHandover, g.after)
	}
	return nil
}
