package proxy

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"pghandoff/pgwire"
)

// function is the function's end of a connection.
type function struct {
	*net.UnixConn
	t *testing.T
}

// connect lets a function come in by serve, and returns when it has been looked at.
func (h *house) connect(serve func(o *door, fd int, peer *Peer)) *function {
	h.t.Helper()
	p, err := newPair()
	if err != nil {
		h.t.Fatal(err)
	}
	peer, err := peerOf(p.ours)
	if err != nil {
		h.t.Fatal(err)
	}
	f := &function{connOf(p.theirs), h.t}
	h.t.Cleanup(func() { f.Close() })
	h.d.onFront(func() { serve(h.door, p.ours, peer) })
	return f
}

// wire is a function that has come by the wire socket.
func (h *house) wire() *function { h.t.Helper(); return h.connect(h.d.serveWire) }

func (f *function) send(parts ...[]byte) {
	f.t.Helper()
	f.SetWriteDeadline(time.Now().Add(10 * time.Second))
	if _, err := f.Write(bytes.Join(parts, nil)); err != nil {
		f.t.Fatal(err)
	}
}

// start is a start-up message with pairs of names and values.
func start(parameters ...string) []byte {
	body := binary.BigEndian.AppendUint32(nil, pgwire.Version30)
	for _, s := range append([]string{"user", "app", "database", "orders"}, parameters...) {
		body = append(append(body, s...), 0)
	}
	body = append(body, 0)
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(body)+4)), body...)
}

// query is a simple query.
func query(sql string) []byte { return pgwire.AppendQuery(nil, sql) }

// says reads messages up to ReadyForQuery, FATAL or the end of the stream and
// writes them down: type, and value, tag, code, parameter or status within.
func (f *function) says() string {
	f.t.Helper()
	var b strings.Builder
	for {
		f.SetReadDeadline(time.Now().Add(10 * time.Second))
		typ, body, err := readFrame(f)
		switch {
		case errors.Is(err, io.EOF):
			return b.String() + "."
		case err != nil:
			f.t.Fatalf("%v, after %s", err, b.String())
		}
		b.WriteByte(typ)
		switch typ {
		case 'D':
			b.WriteString("(" + string(body[6:]) + ")")
		case 'C':
			b.WriteString("(" + string(body[:len(body)-1]) + ")")
		case 'S':
			name, value, _ := strings.Cut(string(body[:len(body)-1]), "\x00")
			b.WriteString("(" + name + "=" + value + ")")
		case 'E', 'N':
			e, _ := pgwire.ParseError(body)
			b.WriteString("(" + e.Code + ")")
			if e.Severity == "FATAL" {
				return b.String()
			}
		case 'Z':
			return b.String() + string(body)
		}
	}
}

// want fails unless the function is told that.
func (f *function) want(told string) {
	f.t.Helper()
	if got := f.says(); got != told {
		f.t.Fatalf("told %s, want %s", got, told)
	}
}

// welcome is what a function is told at its start.
const welcome = "RS(server_version=15.1)S(TimeZone=UTC)KZI"

// safeBuffer collects what several goroutines write.
type safeBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *safeBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *safeBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}
