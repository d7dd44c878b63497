package tests

import (
	"bytes"
	"crypto/tls"
	"io"
	"math/rand/v2"
	"net"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"pghandoff/pgwire"
	"pghandoff/proxy/admin"
	"pghandoff/proxy/audit"
	"pghandoff/tests/testpg"
)

// noise is what the connections of one test send: what is valid, and what is made
// of it.
type noise struct {
	*outside
	tls *tls.Config // of a function whom the listener knows
}

// Proves that thousands of connections to the wire socket, the handoff socket and
// the TCP listener with random bytes, valid beginnings that are cut or changed,
// and ends of every kind leave the daemon with as many descriptors and goroutines
// as before, no more memory, a warm pool, and able to serve.
func TestRandomConnections(t *testing.T) {
	count := 2000
	if whole() {
		count = 10_000
	}
	o := listenTo(t, testpg.Shared(t), true, false, settings{Pool: "min_idle: 2, max: 30, wait_timeout: 2s, idle_timeout: 500ms"})
	n := &noise{outside: o, tls: &tls.Config{RootCAs: o.ca.Roots(), ServerName: "localhost", Certificates: []tls.Certificate{o.pair("fn")}}}
	from := seed(t)
	n.make(from, 0, 200) // what a daemon keeps in stock, it has then
	before := n.emptied()
	n.make(from, 200, count)
	after := n.emptied()
	eventually(t, "as many descriptors as before", func() bool { after = n.footprint(); return after.descriptors <= before.descriptors })
	granted, denied := 0, 0
	for _, e := range n.events() {
		switch e.Event {
		case audit.LeaseGranted:
			granted++
		case audit.LeaseDenied:
			denied++
		}
	}
	t.Logf("%+v before, %+v after %d connections, of which %d got a lease and %d were refused one", before, after, count, granted, denied)
	if granted < count/50 || denied < count/50 {
		t.Error("that is not the mixture that it should be")
	}
	if after.threads > before.threads+8 || after.resident > before.resident+24<<20 && !raceEnabled {
		t.Error("that is more than before")
	}
	if got := query(t, o.connect(), "select 'served'"); got != "served" {
		t.Errorf("a function gets %s", got)
	}
	if c, err := o.dial(o.cert("fn")); err != nil || query(t, c, "select 1") != "1" {
		t.Errorf("a function at the listener: %v", err)
	}
	if idle, got := idleGoroutines(t, o.config), n.goroutines(); got > idle+4 { // two sessions are open
		t.Errorf("%d goroutines, %d in a daemon that has done nothing", got, idle)
	}
}

// emptied waits until the pool has no more than it keeps at all times, and returns
// what the daemon takes then.
func (n *noise) emptied() footprint {
	n.t.Helper()
	n.await("the pool to be as it is kept", func(s *admin.Status) bool {
		r := &s.Routes[0]
		return r.Idle == r.MinIdle && r.Leased+r.Dialling == 0
	})
	return n.atRest()
}

// make makes the connections from one number to another, 32 at a time. Each of
// them depends on the seed and its number alone.
func (n *noise) make(from uint64, first, last int) {
	numbers := make(chan int)
	var work sync.WaitGroup
	for range 32 {
		work.Go(func() { // ends with the numbers; waited for below
			for i := range numbers {
				n.connection(rand.New(rand.NewPCG(from, uint64(i))))
			}
		})
	}
	for i := first; i < last; i++ {
		numbers <- i
	}
	close(numbers)
	work.Wait()
}

// connection makes one connection, says something, and ends it somehow.
func (n *noise) connection(r *rand.Rand) {
	door := r.IntN(3)
	c, err := n.knock(r, door)
	if err != nil { // at the listener: the handshake was not to be
		return
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(time.Duration(r.IntN(50)) * time.Millisecond))
	for range 1 + r.IntN(3) {
		p := n.something(r, door)
		if r.IntN(20) == 0 { // byte by byte
			for i := range p {
				c.Write(p[i : i+1])
			}
		} else {
			c.Write(p)
		}
		if r.IntN(2) == 0 {
			c.Read(make([]byte, 1+r.IntN(4096)))
		}
	}
	hangUp(r, c)
}

// knock opens a connection: 0 is the wire socket, 1 the handoff socket, 2 the
// listener, with TLS or without.
func (n *noise) knock(r *rand.Rand, door int) (net.Conn, error) {
	switch door {
	case 0:
		return net.Dial("unix", filepath.Join(n.runDir, ".s.PGSQL.5432"))
	case 1:
		return net.Dial("unix", filepath.Join(n.runDir, "handoff.sock"))
	}
	c, err := net.Dial("tcp", n.address)
	if err != nil || r.IntN(2) == 0 {
		return c, err
	}
	config := n.tls.Clone()
	if r.IntN(2) == 0 {
		config.NextProtos = []string{"postgresql"}
	} else {
		c.Write([]byte("\x00\x00\x00\x08\x04\xd2\x16\x2f"))
		io.ReadFull(c, make([]byte, 1))
	}
	if r.IntN(4) == 0 {
		config.Certificates = nil
	}
	secure := tls.Client(c, config)
	c.SetDeadline(time.Now().Add(2 * time.Second))
	if err := secure.Handshake(); err != nil {
		c.Close()
		return nil, err
	}
	return secure, nil
}

// something is what one write sends.
func (n *noise) something(r *rand.Rand, door int) []byte {
	var valid []byte
	switch kind := r.IntN(8); {
	case kind == 0:
		return random(r, r.IntN(300))
	case door == 1:
		valid = []byte(requests[r.IntN(len(requests))])
	case kind < 5:
		valid = bytes.Join([][]byte{starts[r.IntN(len(starts))], messages[r.IntN(len(messages))]}, nil)
		if r.IntN(2) == 0 { // the start-up is valid, what comes then is not
			return append(bytes.Clone(starts[0]), mutated(r, messages[r.IntN(len(messages))])...)
		}
	default:
		valid = messages[r.IntN(len(messages))]
	}
	if r.IntN(3) == 0 {
		return valid
	}
	return mutated(r, valid)
}

// The valid beginnings, by socket, and what may be said after a start-up.
var (
	starts = [][]byte{
		startupMessage(pgwire.Version30, "user", "app", "database", "orders"),
		startupMessage(pgwire.Version30, "user", "app", "database", "orders", "TimeZone", "Asia/Tokyo", "options", "-c work_mem=2MB"),
		startupMessage(pgwire.Version30, "user", "app", "database", "nowhere"),
		startupMessage(3<<16|9999, "user", "app", "database", "orders", "_pq_.grease", "1"),
		{0, 0, 0, 8, 4, 210, 22, 47}, {0, 0, 0, 8, 4, 210, 22, 48},
		pgwire.AppendCancelRequest(nil, 7, []byte{1, 2, 3, 4}),
	}
	messages = [][]byte{
		message('Q', "select 1\x00"), message('Q', "begin; select pg_sleep(0.01)\x00"), message('Q', "copy (select 1) to stdout\x00"),
		message('Q', "create temporary table t (a int); copy t from stdin\x00"), message('d', "1\n"), message('c', ""), message('f', "no\x00"),
		extended("select 'x'"), extended("select 1/0"), message('S', ""), message('H', ""), message('F', "\x00\x00\x00\x01"), message('X', ""),
		message('Q', "select repeat('x', 100000)\x00"), message('p', "password\x00"),
	}
	requests = []string{
		`{"v":1,"op":"ping"}` + "\n",
		`{"v":1,"id":"a","op":"acquire","database":"orders","user":"app","state":"ready"}` + "\n",
		`{"v":1,"id":"b","op":"acquire","database":"orders","user":"app","wait_ms":10,"parameters":{"TimeZone":"UTC"}}` + "\n",
		`{"v":1,"op":"acquire","database":"nowhere","user":"app","transport":"plain"}` + "\n",
		`{"v":1,"op":"cancel","lease":"0190","secret":1}` + "\n", `{"v":1,"op":"release","lease":"0190","secret":1}` + "\n",
	}
)

func random(r *rand.Rand, n int) []byte {
	p := make([]byte, n)
	for i := range p {
		p[i] = byte(r.Uint32())
	}
	return p
}

// mutated is p with some bytes changed, put in, or taken out, or its end cut off.
func mutated(r *rand.Rand, p []byte) []byte {
	p = bytes.Clone(p)
	for range 1 + r.IntN(4) {
		if len(p) == 0 {
			break
		}
		at := r.IntN(len(p))
		switch r.IntN(4) {
		case 0:
			p[at] = byte(r.Uint32())
		case 1:
			p = append(p[:at], append(random(r, 1+r.IntN(8)), p[at:]...)...)
		case 2:
			p = append(p[:at], p[min(len(p), at+1+r.IntN(8)):]...)
		default:
			p = p[:at]
		}
	}
	return p
}

// hangUp ends a connection in one of the ways that there are: at once, in one
// direction first, or by a reset. What was handed over is never read, or is.
func hangUp(r *rand.Rand, c net.Conn) {
	switch r.IntN(4) {
	case 0:
		if h, ok := c.(interface{ CloseWrite() error }); ok {
			h.CloseWrite()
			c.SetReadDeadline(time.Now().Add(time.Duration(r.IntN(300)) * time.Millisecond))
			io.Copy(io.Discard, c)
		}
	case 1:
		if t, ok := c.(*net.TCPConn); ok {
			t.SetLinger(0)
		}
	case 2:
		c.SetReadDeadline(time.Now().Add(time.Duration(r.IntN(100)) * time.Millisecond))
		io.Copy(io.Discard, c)
	}
}
