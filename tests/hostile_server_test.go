package tests

import (
	"bytes"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"pghandoff/pgwire"
)

// hostileServer is a server that, while it is bad, does what a script says in
// some place of its sessions, and is honest for the rest: as much of a PostgreSQL
// as the daemon and a function need, clean-up and start-up parameters included.
type hostileServer struct {
	script hostileScript
	config *tls.Config // nil: plaintext
	port   int
	bad    atomic.Bool
	dials  atomic.Int64 // connections so far, cancel requests included

	mu    sync.Mutex
	conns map[net.Conn]bool // nil once closed
	work  sync.WaitGroup
}

// hostileScript is where a server is not honest; what is nil is.
type hostileScript struct {
	accept func(*visit)                               // the whole connection
	login  func(*visit)                               // after the start-up message, up to ReadyForQuery
	hear   func(v *visit, typ byte, body []byte) bool // a message; true: it is answered
}

// visit is one connection to a hostileServer. What cannot be sent to a daemon
// that has given up is of no interest.
type visit struct {
	net.Conn
	tcp    *net.TCPConn
	frames *pgwire.FrameReader
	bound  [][]string // arguments of Bind messages without an answer yet
}

// startHostileServer starts one that ends with the test; it begins bad.
func startHostileServer(t testing.TB, config *tls.Config, script hostileScript) *hostileServer {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &hostileServer{script: script, config: config, port: l.Addr().(*net.TCPAddr).Port, conns: map[net.Conn]bool{}}
	s.bad.Store(true)
	s.work.Go(func() { // ended by the clean-up, which waits for it
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			s.mu.Lock()
			s.conns[c] = true
			s.mu.Unlock()
			s.dials.Add(1)
			s.work.Go(func() { // ends with the connection
				s.serve(c.(*net.TCPConn))
				s.mu.Lock()
				delete(s.conns, c)
				s.mu.Unlock()
				c.Close()
			})
		}
	})
	t.Cleanup(func() {
		l.Close()
		s.closeAll()
		s.work.Wait()
	})
	return s
}

// closeAll ends what is connected.
func (s *hostileServer) closeAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.conns {
		c.Close()
	}
}

// serve is one connection. A script that has had its say leaves it open: it is the
// daemon that has to end it.
func (s *hostileServer) serve(c *net.TCPConn) {
	v := &visit{Conn: c, tcp: c}
	script := s.script
	if !s.bad.Load() {
		script = hostileScript{}
	}
	if script.accept != nil {
		script.accept(v)
		io.Copy(io.Discard, c)
		return
	}
	code, err := readStartup(v)
	if err == nil && code == sslRequest {
		if code, err = v.encrypt(s.config); err == nil {
			code, err = readStartup(v)
		}
	}
	if err != nil || code == 80877102 { // a cancel request is served by closing
		return
	}
	v.frames = pgwire.NewFrameReader(v, 1<<20)
	if script.login != nil {
		script.login(v)
	} else {
		v.say(loggedIn())
	}
	for {
		typ, body, err := v.frames.Next()
		if err != nil || typ == 'X' {
			io.Copy(io.Discard, c)
			return
		}
		if script.hear == nil || !script.hear(v, typ, body) {
			v.answer(typ, body)
		}
	}
}

// encrypt puts TLS on the connection, by a record layer that can say anything.
func (v *visit) encrypt(config *tls.Config) (uint32, error) {
	if config == nil {
		return 0, errors.New("the daemon wants TLS")
	}
	v.say([]byte{'S'})
	r, err := serveRecords(v.tcp, config, rand.New(rand.NewPCG(1, 2)), new(updates))
	v.Conn = r
	return 0, err
}

func (v *visit) say(parts ...[]byte) { v.Write(bytes.Join(parts, nil)) }

// saySingly sends each byte in a packet, and in a record, of its own.
func (v *visit) saySingly(p []byte) {
	for i := range p {
		v.say(p[i : i+1])
	}
}

// hears reads a message and returns its body.
func (v *visit) hears() []byte {
	_, body, _ := v.frames.Next()
	return body
}

// alert sends an alert of TLS.
func (v *visit) alert(level, description byte) {
	v.Conn.(*records).seal(21, []byte{level, description})
}

// answer answers honestly.
func (v *visit) answer(typ byte, body []byte) {
	switch typ {
	case 'Q':
		v.say(answerTo(strings.TrimSuffix(string(body), "\x00")))
	case 'P':
		v.say(message('1', ""))
	case 'B':
		v.bound = append(v.bound, boundArguments(body))
		v.say(message('2', ""))
	case 'E':
		v.say(row(v.bound[len(v.bound)-1][1]), message('C', "SELECT 1\x00"))
	case 'C':
		v.say(message('3', ""))
	case 'S':
		v.bound = nil
		v.say(message('Z', "I"))
	}
}

// answerTo answers a simple query: the daemon's own as PostgreSQL does, others
// with what they ask.
func answerTo(sql string) []byte {
	tag := func(s string) []byte { return message('C', s+"\x00") }
	description := message('T', "\x00\x01a\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x19\xff\xff\xff\xff\xff\xff\x00\x00")
	ready := message('Z', "I")
	switch {
	case sql == "DISCARD ALL":
		return append(tag(sql), ready...)
	case strings.HasPrefix(sql, "RESET ROLE;"):
		return bytes.Join([][]byte{tag("RESET"), description, row(""), tag("SELECT 1"), ready}, nil)
	}
	return bytes.Join([][]byte{description, row(sql), tag("SELECT 1"), ready}, nil)
}

// row is a DataRow with one value.
func row(value string) []byte {
	var b bytes.Buffer
	writeRow(&b, []byte(value))
	return b.Bytes()
}

// boundArguments reads the arguments of a Bind message of the daemon's.
func boundArguments(body []byte) (arguments []string) {
	at := bytes.IndexByte(body, 0) + 1
	at += bytes.IndexByte(body[at:], 0) + 1
	at += 2 + 2*int(binary.BigEndian.Uint16(body[at:]))
	n := int(binary.BigEndian.Uint16(body[at:]))
	at += 2
	for range n {
		size := int(binary.BigEndian.Uint32(body[at:]))
		arguments = append(arguments, string(body[at+4:at+4+size]))
		at += 4 + size
	}
	return arguments
}

// routes are further routes of a configuration, one for each server.
func (s *hostileServer) route(name, password, pool string) string {
	mode := "disable"
	if s.config != nil {
		mode = "verify-full, identity: app"
	}
	return fmt.Sprintf(`
  %s:
    servers: ["127.0.0.1:%d"]
    user: app
    password: {file: %q}
    tls: {mode: %s}
    pool: {min_idle: 0, max: 2, wait_timeout: 4s, %s}
    timeouts: {connect: 2s, login: 1s}
    allow: [any: true]`, name, s.port, password, mode, pool)
}

// ask opens a connection to the wire socket and starts up on a route.
func (d *daemon) ask(route string, pairs ...string) *raw {
	d.t.Helper()
	r := d.dialWire()
	r.send(startupMessage(pgwire.Version30, append([]string{"user", "app", "database", route}, pairs...)...))
	return r
}

// told reads what a function is told up to ReadyForQuery or the end of the
// stream, which is a dot, or three amid a message: the types of the messages, with the values of rows and
// with the words of errors. Reports of parameters are left out, but for long ones.
func (r *raw) told() string {
	var b strings.Builder
	for {
		typ, body, err := r.frames.Next()
		switch {
		case errors.Is(err, io.EOF):
			return b.String() + "."
		case errors.Is(err, io.ErrUnexpectedEOF):
			return b.String() + "…"
		case err != nil:
			return b.String() + " " + err.Error()
		case typ == 'S' && len(body) < 8<<10:
			continue
		}
		b.WriteByte(typ)
		switch typ {
		case 'S':
			fmt.Fprintf(&b, "(%d)", len(body))
		case 'D':
			fmt.Fprintf(&b, "(%s)", body[6:])
		case 'E':
			e, err := pgwire.ParseError(body)
			if err != nil {
				return b.String() + " " + err.Error()
			}
			fmt.Fprintf(&b, "(%s: %s)", e.Code, e.Message)
		case 'Z':
			return b.String()
		}
	}
}
