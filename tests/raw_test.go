package tests

import (
	"encoding/binary"
	"net"
	"path/filepath"
	"testing"
	"time"

	"pghandoff/pgwire"
)

// raw is a function that speaks the protocol byte by byte.
type raw struct {
	t      testing.TB
	conn   net.Conn
	frames *pgwire.FrameReader
	pid    uint32
	secret []byte
}

// startupMessage builds a start-up packet.
func startupMessage(version uint32, pairs ...string) []byte {
	body := binary.BigEndian.AppendUint32(nil, version)
	for _, p := range pairs {
		body = append(append(body, p...), 0)
	}
	body = append(body, 0)
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(body)+4)), body...)
}

// message builds a typed message.
func message(typ byte, body string) []byte {
	return append(binary.BigEndian.AppendUint32([]byte{typ}, uint32(len(body)+4)), body...)
}

func rawOn(t testing.TB, conn net.Conn) *raw {
	t.Cleanup(func() { conn.Close() })
	conn.SetDeadline(time.Now().Add(20 * time.Second))
	return &raw{t: t, conn: conn, frames: pgwire.NewFrameReader(conn, 1<<20)}
}

// dialWire opens a connection to the wire socket.
func (d *daemon) dialWire() *raw {
	d.t.Helper()
	conn, err := net.Dial("unix", filepath.Join(d.runDir, ".s.PGSQL.5432"))
	if err != nil {
		d.t.Fatal(err)
	}
	return rawOn(d.t, conn)
}

// session opens a connection and starts up.
func (d *daemon) session(pairs ...string) *raw {
	d.t.Helper()
	r := d.dialWire()
	r.send(startupMessage(pgwire.Version30, append([]string{"user", "app", "database", "orders"}, pairs...)...))
	for {
		typ, body := r.next()
		switch typ {
		case 'K':
			r.pid, r.secret = binary.BigEndian.Uint32(body), append([]byte(nil), body[4:]...)
		case 'Z':
			return r
		case 'E':
			e, _ := pgwire.ParseError(body)
			d.t.Fatalf("start-up: %v", e)
		}
	}
}

func (r *raw) send(p []byte) {
	r.t.Helper()
	if _, err := r.conn.Write(p); err != nil {
		r.t.Fatal(err)
	}
}

func (r *raw) next() (byte, []byte) {
	r.t.Helper()
	typ, body, err := r.frames.Next()
	if err != nil {
		r.t.Fatal(err)
	}
	return typ, body
}

// until reads up to a message of the given type and returns its body.
func (r *raw) until(typ byte) []byte {
	r.t.Helper()
	for {
		got, body := r.next()
		if got == typ {
			return body
		}
	}
}

// failure reads up to an error and returns it.
func (r *raw) failure() *pgwire.ServerError {
	r.t.Helper()
	e, err := pgwire.ParseError(r.until('E'))
	if err != nil {
		r.t.Fatal(err)
	}
	return e
}
