package proxy

import (
	"bytes"
	"testing"

	"golang.org/x/sys/unix"
)

func TestLeaseThatHasMovedEndsLikeAnyOther(t *testing.T) {
	h := build(t, twoLoops)
	for i, end := range []func(f *function){
		func(f *function) { f.Close() },
		func(f *function) { f.send([]byte("X\x00\x00\x00\x04")); f.want(".") },
		func(f *function) { f.send(query("BEGIN")); f.want("C(BEGIN)ZT"); f.Close() },
		func(f *function) { f.send(query("die")); f.want("E(57P01)"); f.want(".") },
		func(f *function) { f.send(query("hang")); <-h.hung; f.Close(); h.unleased(); h.gate <- struct{}{} },
		func(f *function) { f.send([]byte("!")); f.want("E(08P01)"); f.want(".") },
		func(f *function) { unix.Shutdown(f.fd(), unix.SHUT_WR); f.want(".") },
	} {
		f := h.wire()
		f.send(start())
		f.want(welcome)
		l := h.relayed()
		onLoop(l, func() { l.bridge.move(h.elsewhere(l)) })
		f.send(query("echo x"))
		f.want("D(x)C(echo)ZI")
		end(f)
		h.empty()
		h.warm("orders", 1)
		if t.Failed() {
			t.Fatalf("end %d", i)
		}
	}
	if n := h.dials(); n != 2+2 { // for those that were not clean
		t.Errorf("%d dials", n)
	}
}

func TestStopDrainsEveryLoop(t *testing.T) {
	before := openDescriptors(t)
	h := build(t, func(p *plan) { p.loops, p.pool.MinIdle, p.pool.Max = 2, 8, 8 })
	var all []*function
	for range 8 {
		f := h.wire()
		f.send(start())
		f.want(welcome)
		all = append(all, f)
	}
	for i, l := range h.d.leases.all() {
		h.eventually("it is relayed", func() bool { return l.bridge.home.Load() != nil })
		if i%2 == 0 {
			onLoop(l, func() { l.bridge.move(h.elsewhere(l)) })
		}
	}
	h.stopping()()
	for _, f := range all {
		f.want("E(57P01)")
		f.Close()
	}
	h.sameDescriptors(before)
	if n := bytes.Count([]byte(h.trail.String()), []byte(`"lease.revoked"`)); n != 8 {
		t.Errorf("%d leases revoked", n)
	}
}
