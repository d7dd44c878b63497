package tests

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/sha256"
	"crypto/sha512"
	"crypto/tls"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"time"

	"golang.org/x/crypto/chacha20poly1305"
)

// records is the record layer of a TLS 1.3 server (RFC 8446 section 5) that
// changes its key, and asks the client to change its own, every so many bytes.
// crypto/tls does the handshake, but can only answer a KeyUpdate. It shares no
// code with package tlsstate, which it is there to test. One goroutine uses it.
type records struct {
	net.Conn
	in, out direction
	rest    []byte // opened, not yet taken
	random  *rand.Rand
	until   [2]int // bytes to be received and sent before the next change of keys
	counts  *updates
}

// updates counts what was said about keys.
type updates struct {
	mu                        sync.Mutex
	sent, asked, got, tickets int
}

func (u *updates) add(counter *int) {
	u.mu.Lock()
	defer u.mu.Unlock()
	*counter++
}

// averageGap is how many bytes are between two changes of keys, in the middle:
// few enough that a client which bounds records without data is content.
var averageGap = [2]int{512 << 10, 64 << 10} // received, sent

// serveRecords does the handshake and gives the record layer over.
func serveRecords(c net.Conn, config *tls.Config, random *rand.Rand, counts *updates) (net.Conn, error) {
	var log strings.Builder
	config = config.Clone()
	config.KeyLogWriter = &log
	// One record at a time, so that nothing is read of what follows the handshake.
	library := tls.Server(&byRecord{Conn: c}, config)
	if err := library.Handshake(); err != nil {
		return nil, err
	}
	r := &records{Conn: c, random: random, counts: counts}
	suite := library.ConnectionState().CipherSuite
	for way, label := range map[*direction]string{&r.in: "CLIENT_TRAFFIC_SECRET_0 ", &r.out: "SERVER_TRAFFIC_SECRET_0 "} {
		_, line, _ := strings.Cut(log.String(), label)
		line, _, _ = strings.Cut(line, "\n")
		_, secret, _ := strings.Cut(line, " ")
		var err error
		if way.secret, err = hex.DecodeString(secret); err != nil {
			return nil, err
		}
		if err := way.install(suite); err != nil {
			return nil, err
		}
	}
	r.until = [2]int{r.gap(0), r.gap(1)}
	return r, nil
}

func (r *records) gap(way int) int { return r.random.IntN(2 * averageGap[way]) }

// Read reads one record at least.
func (r *records) Read(p []byte) (int, error) {
	for len(r.rest) == 0 {
		record := make([]byte, 5, 17<<10)
		if _, err := io.ReadFull(r.Conn, record); err != nil {
			return 0, err
		}
		record = record[:5+int(binary.BigEndian.Uint16(record[3:]))]
		if _, err := io.ReadFull(r.Conn, record[5:]); err != nil {
			return 0, err
		}
		if err := r.open(record); err != nil {
			return 0, err
		}
	}
	n := copy(p, r.rest)
	r.rest = r.rest[n:]
	return n, nil
}

func (r *records) open(record []byte) error {
	inner, err := r.in.aead.Open(nil, r.in.nonce(), record[5:], record[:5])
	if err != nil {
		return fmt.Errorf("record %d since the last change of keys: %w", r.in.seq-1, err)
	}
	content := inner[:len(inner)-1]
	switch typ := inner[len(content)]; {
	case typ == 23:
		r.rest = content
		if r.until[0] -= len(content); r.until[0] < 0 {
			r.until[0] = r.gap(0)
			<-time.After(5 * time.Millisecond) // so that the client has to wait, too
			return r.update(true)
		}
	case typ == 21 && len(content) == 2 && content[1] == 0:
		return io.EOF // close_notify
	case typ == 22 && len(content) == 5 && content[0] == 24 && content[4] == 0:
		r.counts.add(&r.counts.got)
		return r.in.update()
	default:
		return fmt.Errorf("record of type %d: %x", typ, content)
	}
	return nil
}

// Write sends p in records of any length, and changes the key between some.
func (r *records) Write(p []byte) (n int, err error) {
	for n < len(p) {
		chunk := p[n:min(len(p), n+1+r.random.IntN(16<<10))]
		if r.until[1] -= len(chunk); r.until[1] < 0 {
			r.until[1] = r.gap(1)
			if err := r.update(r.random.IntN(2) == 0); err != nil {
				return n, err
			}
		}
		if err := r.seal(23, chunk); err != nil {
			return n, err
		}
		n += len(chunk)
	}
	return n, nil
}

// update sends a KeyUpdate and changes the key; some are after a ticket.
func (r *records) update(ask bool) error {
	if r.random.IntN(4) == 0 {
		r.counts.add(&r.counts.tickets)
		if err := r.seal(22, []byte{4, 0, 0, 15, 0, 0, 0, 60, 1, 2, 3, 4, 0, 0, 2, 5, 6, 0, 0}); err != nil {
			return err
		}
	}
	r.counts.add(&r.counts.sent)
	request := byte(0)
	if ask {
		request = 1
		r.counts.add(&r.counts.asked)
	}
	if err := r.seal(22, []byte{24, 0, 0, 1, request}); err != nil {
		return err
	}
	return r.out.update()
}

func (r *records) seal(typ byte, content []byte) error {
	head := []byte{23, 3, 3, 0, 0}
	binary.BigEndian.PutUint16(head[3:], uint16(len(content)+1+16))
	_, err := r.Conn.Write(r.out.aead.Seal(head, r.out.nonce(), append(append([]byte(nil), content...), typ), head))
	return err
}

// direction is one direction of the traffic and its keys.
type direction struct {
	suite  uint16
	secret []byte
	aead   cipher.AEAD
	iv     []byte
	seq    uint64
}

// install derives the keys of the secret (section 7.3).
func (d *direction) install(suite uint16) (err error) {
	d.suite, d.seq = suite, 0
	size := map[uint16]int{tls.TLS_AES_128_GCM_SHA256: 16, tls.TLS_AES_256_GCM_SHA384: 32, tls.TLS_CHACHA20_POLY1305_SHA256: 32}[suite]
	if d.iv, err = d.expand("iv", 12); err != nil {
		return err
	}
	key, err := d.expand("key", size)
	if err != nil {
		return err
	}
	if suite == tls.TLS_CHACHA20_POLY1305_SHA256 {
		d.aead, err = chacha20poly1305.New(key)
		return err
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return err
	}
	d.aead, err = cipher.NewGCM(block)
	return err
}

// update goes on to the next secret (section 7.2).
func (d *direction) update() (err error) {
	if d.secret, err = d.expand("traffic upd", len(d.secret)); err != nil {
		return err
	}
	return d.install(d.suite)
}

// expand is HKDF-Expand-Label (section 7.1).
func (d *direction) expand(label string, n int) ([]byte, error) {
	label = "tls13 " + label
	info := string([]byte{byte(n >> 8), byte(n), byte(len(label))}) + label + "\x00"
	if d.suite == tls.TLS_AES_256_GCM_SHA384 {
		return hkdf.Expand(sha512.New384, d.secret, info, n)
	}
	return hkdf.Expand(sha256.New, d.secret, info, n)
}

// nonce is that of the next record (section 5.3).
func (d *direction) nonce() []byte {
	n := append([]byte(nil), d.iv...)
	binary.BigEndian.PutUint64(n[4:], binary.BigEndian.Uint64(n[4:])^d.seq)
	d.seq++
	return n
}

// byRecord gives a reader no more than it needs of a record.
type byRecord struct {
	net.Conn
	head []byte
	left int // of the body
}

func (b *byRecord) Read(p []byte) (int, error) {
	if b.left > 0 {
		n, err := b.Conn.Read(p[:min(len(p), b.left)])
		b.left -= n
		return n, err
	}
	n, err := b.Conn.Read(p[:min(len(p), 5-len(b.head))])
	if b.head = append(b.head, p[:n]...); len(b.head) == 5 {
		b.left, b.head = int(binary.BigEndian.Uint16(b.head[3:])), nil
	}
	return n, err
}
