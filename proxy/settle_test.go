package proxy

import (
	"encoding/binary"
	"io"
	"net"
	"testing"
	"time"

	"pghandoff/pgwire"
	"pghandoff/proxy/config"
)

// withCancels lets the backend take cancel requests, each of which is under way
// until the test closes its connection.
func withCancels(t *testing.T) (*backend, <-chan net.Conn) {
	t.Helper()
	b := newBackend()
	b.secret, b.server = []byte("key!"), config.Server{Host: t.TempDir(), Port: 5432, Unix: true}
	l, err := net.Listen("unix", b.server.String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	underWay := make(chan net.Conn, 100)
	go func() { // ended by the close of l
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			t.Cleanup(func() { c.Close() })
			if _, err := io.ReadFull(c, make([]byte, 16)); err == nil {
				underWay <- c
			}
		}
	}()
	return b, underWay
}

// cancelRequest is a cancel request for a lease.
func cancelRequest(l *Lease) []byte {
	return pgwire.AppendCancelRequest(nil, l.up.pid, binary.BigEndian.AppendUint32(nil, l.secret))
}

// calm fails if the front loop is busy although there is nothing to do.
func (h *house) calm(when string) {
	h.t.Helper()
	var before, after time.Duration
	h.d.onFront(func() { before = threadCPU() })
	<-time.After(100 * time.Millisecond)
	h.d.onFront(func() { after = threadCPU() })
	if took := after - before; took > 30*time.Millisecond {
		h.t.Errorf("the loop took %s of 100 ms, %s", took, when)
	}
}

func TestLoopIsCalmWhileAnAbandonedQueryIsCancelled(t *testing.T) {
	b, underWay := withCancels(t)
	h := build(t, func(p *plan) { p.backend = b })
	f := h.wire()
	f.send(start(), query("hang"))
	f.want(welcome)
	<-h.hung
	f.Close()
	cancel := <-underWay
	h.gate <- struct{}{} // the server says something that nobody wants any more
	h.calm("while a cancel was under way")
	cancel.Close()
	h.empty()
	h.warm("orders", 1)
	if h.dials() != 3 {
		t.Errorf("%d dials: whose query was abandoned is not used again", h.dials())
	}
}

func TestUpstreamIsKeptBackWhileACancelIsUnderWay(t *testing.T) {
	b, underWay := withCancels(t)
	h := build(t, func(p *plan) { p.backend = b })
	f, by := h.wire(), h.wire()
	f.send(start())
	f.want(welcome)
	by.send(cancelRequest(h.lease()))
	cancel := <-underWay
	f.Close()
	h.unleased()
	h.mu.Lock()
	for _, c := range h.ends {
		c.Write(pgwire.AppendNotice(nil, pgwire.Notice{Severity: "NOTICE", Code: "00000", Message: "x"}))
	}
	h.mu.Unlock()
	h.calm("while a cancel was under way")
	next := h.wire()
	next.send(start())
	h.queued(1)
	cancel.Close()
	by.want(".")
	next.want(welcome)

	// That the first cancel was waited for is no matter of the second one.
	by = h.wire()
	by.send(cancelRequest(h.lease()))
	(<-underWay).Close()
	by.want(".")
	next.send(query("echo mine"))
	next.want("D(mine)C(echo)ZI")
	if n := len(h.d.leases.all()); n != 1 {
		t.Errorf("%d leases", n)
	}
	next.Close()
	h.empty()
	h.warm("orders", 1)
	if h.dials() != 2 {
		t.Errorf("%d dials", h.dials())
	}
}

func TestCancelConnectionStaysUntilTheCancelIsThrough(t *testing.T) {
	b, underWay := withCancels(t)
	h := build(t, func(p *plan) {
		p.backend, p.limits.Connections = b, 2
		p.patient.startupPatience, p.patient.refusalPatience = 10*time.Millisecond, 10*time.Millisecond
	})
	f := &function{connOf(h.come(start())), t}
	defer f.Close()
	f.want(welcome)
	request := cancelRequest(h.lease())
	within := &function{connOf(h.come(request)), t}
	over := &function{connOf(h.come(request)), t} // its limit; a cancel is served all the same
	defer within.Close()
	defer over.Close()
	cancels := []net.Conn{<-underWay, <-underWay}
	for _, f := range []*function{within, over} {
		f.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
		if n, err := f.Read(make([]byte, 1)); err == nil || err == io.EOF {
			t.Errorf("read %d, %v while the cancel is under way", n, err)
		}
	}
	for _, c := range cancels {
		c.Close()
	}
	within.want(".")
	over.want(".")
	f.Close()
	h.empty()
}

// come lets a function come by the wire socket that has sent p before it is
// looked at, and returns its end.
func (h *house) come(p []byte) int {
	h.t.Helper()
	made, err := newPair()
	if err != nil {
		h.t.Fatal(err)
	}
	peer, err := peerOf(made.ours)
	if err != nil {
		h.t.Fatal(err)
	}
	if _, err := sendAll(made.theirs, p); err != nil {
		h.t.Fatal(err)
	}
	h.d.onFront(func() { h.d.serveWire(h.door, made.ours, peer) })
	return made.theirs
}

func TestFunctionsTransactionIsRolledBackAndItsSessionReset(t *testing.T) {
	h := build(t, func(p *plan) { p.pool.Reset = "discard" })
	f := h.wire()
	f.send(start(), query("BEGIN"))
	f.want(welcome)
	f.want("C(BEGIN)ZT")
	f.Close()
	h.empty()
	h.warm("orders", 1)
	want := "BEGIN; ROLLBACK; DISCARD ALL; RESET ROLE; SELECT"
	if said := h.heard(); len(said) < len(want) || said[:len(want)] != want {
		t.Errorf("the server was told %s", said)
	}
	if h.dials() != 2 {
		t.Errorf("%d dials", h.dials())
	}
}
