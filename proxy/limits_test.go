package proxy

import (
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestConnectionOverItsLimitIsToldWhenItHasAsked(t *testing.T) {
	h := build(t, func(p *plan) { p.limits.Connections, p.patient.refusalPatience = 1, time.Minute })
	f := h.wire()
	f.send(start())
	f.want(welcome)
	asks, byHandoff := h.wire(), h.talk()
	asks.send(sslRequest)
	if asks.byte() != 'N' {
		t.Error("not declined")
	}
	asks.send(start())
	asks.want("E(53300)")
	h.d.onFront(func() { h.d.refusalPatience = 10 * time.Millisecond })
	h.wire().want("E(53300)") // after a while
	byHandoff.wantReply(`"ok":false,"sqlstate":"53300"`, `limits.connections`, `"retry":true`)
	byHandoff.wantEnd()
	f.send(query("echo x"))
	f.want("D(x)C(echo)ZI")
	f.Close()
	h.empty()
	again := h.talk() // the lease's connection is counted no more
	again.say(ping)
	again.wantReply(`"ok":true`)
}

func TestOnlySoManyConnectionsOverTheirLimitAreListenedTo(t *testing.T) {
	h := build(t, func(p *plan) { p.limits.Connections, p.patient.refusalPatience = 0, time.Minute })
	var listened []*function
	for range slowRefusals {
		listened = append(listened, h.wire())
	}
	for range 3 {
		h.wire().want("E(53300)")
	}
	if n := unreadBytes(listened[0]); n != 0 {
		t.Errorf("%d bytes for one that is listened to", n)
	}
	for i, f := range listened {
		if i%2 == 0 {
			f.send(start())
			f.want("E(53300)")
		}
		f.Close()
	}
	h.empty()
}

// unreadBytes is how much lies in a function's queue.
func unreadBytes(f *function) int {
	n, _ := unix.IoctlGetInt(f.fd(), unix.TIOCINQ)
	return n
}

func TestLeasesAndWaitsOverTheirLimitAreRefused(t *testing.T) {
	h := build(t, func(p *plan) { p.limits.Leases, p.limits.Waiting = 2, 0 })
	f, waits := h.wire(), h.talk()
	f.send(start())
	f.want(welcome)
	waits.say(acquire("orders"))
	waits.wantReply(`"53300"`, "limits.waiting")
	second, third := h.talk(), h.wire()
	second.say(acquire("other"))
	second.wantReply(`"lease"`)
	third.send(start("database", "other"))
	third.want("E(53300)")
	if held := h.held(); held.leases != 2 || held.waiting != 0 {
		t.Errorf("counted: %+v", held)
	}
	second.closeDescriptors()
	second.Close()
	waits.Close()
	f.Close()
	h.empty()
	f = h.wire()
	f.send(start())
	f.want(welcome)
}

// Whatever becomes of a function, nothing of it stays counted.
func TestNothingStaysCounted(t *testing.T) {
	h := build(t, func(p *plan) { p.limits.Leases, p.pool.WaitTimeout = 3, 20e6 })
	for range 3 {
		for _, packet := range [][]byte{start(), start("refused", "x"), start("database", "nowhere"), start("role", "x"), []byte("hello, world"), start()[:30]} {
			f := h.wire()
			f.send(packet)
			if len(packet) != 30 {
				f.says()
			}
			f.Close()
		}
		for _, line := range []string{acquire("orders"), acquire("nowhere"), strings.Replace(acquire("orders"), "ready", "startup", 1), `{"v":1,"op":"acquire"}` + "\n", "x\n"} {
			d := h.talk()
			d.say(line)
			d.reply()
			d.closeDescriptors()
			d.Close()
		}
		h.empty()
	}
	h.warm("orders", 1)
}
