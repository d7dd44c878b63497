package proxy

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"pghandoff/pgwire"
	"pghandoff/proxy/audit"
	"pghandoff/proxy/config"
)

// backend is a server that knows a handful of statements, and what its upstreams
// begin with. It ends each connection when the daemon's end is closed.
//
//	BEGIN, COMMIT, ROLLBACK    change the transaction status
//	DISCARD ALL, RESET ROLE…   are what a reset sends
//	echo X                     answers X
//	hang                       says so in hung, and answers only once the gate is open
//	fail                       is refused
//	die                        ends the session with a FATAL error
//
// Parameters are set unless their name is "refused"; if gated, once the gate is
// open.
type backend struct {
	parameters *parameterSet
	secret     []byte                 // of the upstreams
	server     config.Server          // where cancels go
	gated      atomic.Bool            // parameters wait too
	refuses    atomic.Pointer[string] // the name of a parameter that is refused from now on
	hung       chan string            // what waits at the gate
	gate       chan struct{}          // one value lets one answer pass
	over       chan struct{}          // closed: all of them pass

	mu   sync.Mutex
	fail error      // of the next dials
	ends []net.Conn // of what was dialled
	said []string   // by the functions and the daemon
	all  sync.WaitGroup
}

func newBackend() *backend {
	return &backend{parameters: newParameterSet([]pgwire.Parameter{{Name: "server_version", Value: "15.1"}, {Name: "TimeZone", Value: "UTC"}}),
		hung: make(chan string, 1000), gate: make(chan struct{}, 1000), over: make(chan struct{})}
}

func (b *backend) dial(context.Context) (*Upstream, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.fail != nil {
		return nil, b.fail
	}
	p, err := newPair()
	if err != nil {
		return nil, err
	}
	conn := connOf(p.theirs)
	b.ends = append(b.ends, conn)
	b.all.Go(func() { // ended by the close of either end
		b.serve(conn)
		conn.Close()
	})
	return &Upstream{end: end{fd: p.ours}, pid: uint32(len(b.ends)), secret: b.secret, server: b.server, parameters: b.parameters,
		opened: time.Now(), described: new(audit.Upstream)}, nil
}

// connOf makes a connection of a descriptor, which it owns.
func connOf(fd int) *net.UnixConn {
	f := os.NewFile(uintptr(fd), "end")
	defer f.Close()
	c, err := net.FileConn(f)
	if err != nil {
		panic(err)
	}
	return c.(*net.UnixConn)
}

// refuse lets the next dials fail.
func (b *backend) refuse(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.fail = err
}

// hangUp ends the connections that there are.
func (b *backend) hangUp() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, c := range b.ends {
		c.Close()
	}
}

// heard returns what was said so far.
func (b *backend) heard() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return strings.Join(b.said, "; ")
}

func (b *backend) hear(sql string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.said = append(b.said, sql[:min(len(sql), 40)])
}

// dials returns how many upstreams were made.
func (b *backend) dials() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.ends)
}

func (b *backend) serve(conn net.Conn) {
	status := byte('I')
	var settings []pgwire.Parameter
	for {
		typ, body, err := readFrame(conn)
		if err != nil || typ == 'X' {
			return
		}
		var out []byte
		switch typ {
		case 'Q':
			sql := string(body[:len(body)-1])
			b.hear(sql)
			if out = b.answer(sql, &status); sql == "die" {
				conn.Write(out)
				return
			}
		case 'B':
			settings = append(settings, bound(body))
			continue
		case 'S':
			if out, settings = b.set(settings), nil; out[len(out)-1] != 'I' { // it ends with FATAL
				conn.Write(out)
				return
			}
		default:
			continue
		}
		if _, err := conn.Write(out); err != nil {
			return
		}
	}
}

// answer is what the server says to a statement.
func (b *backend) answer(sql string, status *byte) (out []byte) {
	word, rest, _ := strings.Cut(sql, " ")
	switch word {
	case "BEGIN":
		*status = 'T'
	case "COMMIT", "ROLLBACK":
		*status = 'I'
	case "DISCARD":
		word = "DISCARD ALL"
		out = pgwire.AppendParameterStatus(out, pgwire.Parameter{Name: "TimeZone", Value: "UTC"})
	case "RESET":
		out = complete(complete(out, "RESET"), "SELECT 1")
		return pgwire.AppendReadyForQuery(out, *status)
	case "hang":
		b.wait(sql)
	case "echo":
		out = message(out, 'D', "\x00\x01"+string(binary.BigEndian.AppendUint32(nil, uint32(len(rest))))+rest)
	case "fail":
		return pgwire.AppendReadyForQuery(pgwire.AppendError(nil, pgwire.Notice{Severity: "ERROR", Code: "42601", Message: word}), *status)
	case "die":
		return pgwire.AppendError(nil, pgwire.Notice{Severity: "FATAL", Code: "57P01", Message: word})
	}
	return pgwire.AppendReadyForQuery(complete(out, word), *status)
}

// wait waits at the gate.
func (b *backend) wait(what string) {
	b.hung <- what
	select {
	case <-b.gate:
	case <-b.over:
	}
}

// set is what the server says to a batch of parameters.
func (b *backend) set(settings []pgwire.Parameter) (out []byte) {
	if b.gated.Load() {
		b.wait("settings")
	}
	var names []string
	for _, p := range settings {
		names = append(names, p.Name+"="+p.Value)
		if n := b.refuses.Load(); p.Name == "refused" || n != nil && p.Name == *n {
			if settings[0].Name == "exit_on_error" {
				return pgwire.AppendError(out, pgwire.Notice{Severity: "FATAL", Code: "22023", Message: "no"})
			}
			return pgwire.AppendReadyForQuery(pgwire.AppendError(out, pgwire.Notice{Severity: "ERROR", Code: "22023", Message: "no"}), 'I')
		}
		if p.Value == "europe/berlin" {
			p.Value = "Europe/Berlin"
		}
		out = complete(message(out, 'D', "\x00\x01"+string(binary.BigEndian.AppendUint32(nil, uint32(len(p.Value))))+p.Value), "SELECT 1")
		if p.Name == "TimeZone" {
			out = pgwire.AppendParameterStatus(out, p)
		}
	}
	b.hear("set " + strings.Join(names, ", "))
	return pgwire.AppendReadyForQuery(out, 'I')
}

// bound reads name and value from a Bind message: two empty names, no formats,
// three arguments.
func bound(body []byte) pgwire.Parameter {
	args := body[6:]
	n := binary.BigEndian.Uint32(args)
	m := binary.BigEndian.Uint32(args[4+n:])
	return pgwire.Parameter{Name: string(args[4 : 4+n]), Value: string(args[8+n : 8+n+m])}
}

// message appends one message.
func message(dst []byte, typ byte, body string) []byte {
	dst = binary.BigEndian.AppendUint32(append(dst, typ), uint32(len(body)+4))
	return append(dst, body...)
}

func complete(dst []byte, tag string) []byte { return message(dst, 'C', tag+"\x00") }

// readFrame reads one message.
func readFrame(r io.Reader) (typ byte, body []byte, err error) {
	var header [5]byte
	if _, err := io.ReadFull(r, header[:]); err != nil {
		return 0, nil, err
	}
	n := binary.BigEndian.Uint32(header[1:])
	if n < 4 || n > 64<<20 {
		return 0, nil, fmt.Errorf("message %q of %d bytes", header[0], n)
	}
	body = make([]byte, n-4)
	if _, err := io.ReadFull(r, body); err != nil {
		return 0, nil, errors.Join(io.ErrUnexpectedEOF, err)
	}
	return header[0], body, nil
}
