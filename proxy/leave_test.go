package proxy

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// stopping starts to stop the daemon; the result waits for the end of that.
func (h *house) stopping() (wait func()) {
	done := make(chan struct{})
	go func() { h.stop(); close(done) }()
	return func() { h.t.Helper(); h.within("stop", func() { <-done }) }
}

func TestStoppingDaemonTellsWhoWaits(t *testing.T) {
	h := build(t, func(p *plan) { p.pool.WaitNotice = 1e6 })
	f := h.wire()
	f.send(start())
	f.want(welcome)
	waits, byHandoff := h.wire(), h.talk()
	waits.send(start())
	byHandoff.say(acquire("orders") + ping)
	h.queued(2)
	h.eventually("a notice", func() bool { n, _ := unix.IoctlGetInt(waits.fd(), unix.TIOCINQ); return n > 0 })
	wait := h.stopping()
	waits.want("RN(00000)E(57P01)")
	byHandoff.wantReply(`"sqlstate":"57P01"`, `"retry":true`)
	byHandoff.wantEnd() // what stands behind is not served
	f.want("E(57P01)")
	wait()
}

func TestStoppingDaemonEndsIdleConversations(t *testing.T) {
	h := build(t, nil)
	idle, half, unread, read := h.talk(), h.talk(), h.talk(), h.talk()
	half.say(ping[:7])
	read.say(acquire("other"))
	read.wantReply(`"lease"`)
	unread.say(acquire("orders"))
	h.eventually("two leases", func() bool { return len(h.d.leases.all()) == 2 })
	unread.say(strings.Repeat(ping, 1000)) // are not read before the grant is
	f := read.adopt(0)
	h.stopping()()
	idle.wantEnd()
	half.wantEnd()
	read.wantEnd()
	f.want("E(57P01)")
	unread.wantReply(`"lease"`)
	unread.wantEnd()
	unread.adopt(0).want("E(57P01)")
}

func TestStoppingDaemonTellsWhoIsAmidItsStartup(t *testing.T) {
	h := build(t, nil)
	quiet, half, asked, byHandoff, begun := h.wire(), h.wire(), h.wire(), h.talk(), h.talk()
	half.send(start()[:5])
	asked.send(sslRequest)
	asked.byte()
	startup := strings.Replace(acquire("orders"), "ready", "startup", 1)
	byHandoff.say(startup)
	byHandoff.wantReply(`"lease"`)
	leased := byHandoff.adopt(0)
	begun.say(strings.Replace(startup, "orders", "other", 1))
	begun.wantReply(`"lease"`)
	amid := begun.adopt(0)
	amid.send(start()[:20])
	h.stopping()()
	for _, f := range []*function{quiet, half, asked, leased, amid} {
		if told := f.says() + f.says(); told != "E(57P01)." {
			t.Errorf("told %s", told)
		}
	}
	if trail := h.trail.String(); strings.Count(trail, `"lease.revoked"`) != 2 || strings.Contains(trail, `"lease.released"`) {
		t.Errorf("the audit says\n%s", trail)
	}
}

func TestStoppingDaemonTellsWhoseParametersAreBeingSet(t *testing.T) {
	h := build(t, nil)
	h.gated.Store(true)
	f, d := h.wire(), h.talk()
	f.send(start("TimeZone", "CET"))
	<-h.hung
	d.say(strings.Replace(acquire("other"), `}`, `,"parameters":{"TimeZone":"EET"}}`, 1))
	<-h.hung
	wait := h.stopping()
	h.eventually("it drains", h.d.draining.Load)
	h.gate <- struct{}{}
	h.gate <- struct{}{}
	f.want("RS(server_version=15.1)S(TimeZone=CET)KZI")
	f.want("E(57P01)")
	d.wantReply(`"lease"`)
	d.adopt(0).want("E(57P01)")
	d.wantEnd()
	wait()
}

func TestStoppingDaemonWaitsForNobodyWhoDoesNotRead(t *testing.T) {
	h := build(t, func(p *plan) { p.patient.writePatience = time.Minute })
	d := h.full()
	d.say(acquire("orders"))
	h.lease()
	guess := h.talk()
	guess.say(fmt.Sprintf(`{"v":1,"op":"release","lease":"%s","secret":1}`+"\n", h.lease().id))
	begin := time.Now()
	h.stopping()()
	if took := time.Since(begin); took > 10*time.Second {
		t.Errorf("that took %s", took)
	}
	guess.wantReply(`"28000"`)
	guess.wantEnd()
}

func TestNoDescriptorIsLeakedByAStop(t *testing.T) {
	before := openDescriptors(t)
	h := build(t, nil)
	h.gated.Store(true)
	d := h.talk()
	d.say(strings.Replace(acquire("orders"), `}`, `,"parameters":{"TimeZone":"EET"}}`, 1))
	<-h.hung
	wait := h.stopping()
	h.eventually("it drains", h.d.draining.Load)
	h.d.onFront(func() {}) // the doors are closed by then
	h.gate <- struct{}{}
	d.wantReply(`"lease"`)
	d.wantEnd()
	wait()
	d.closeDescriptors()
	d.Close()
	h.sameDescriptors(before)
}

// A session that has its answer is not told anything by the way: from the end of
// this turn on it is a lease.
func TestSessionThatIsBecomingALeaseLeavesNothing(t *testing.T) {
	h := build(t, nil)
	f := h.connect(func(o *door, fd int, peer *Peer) {
		h.d.serveWire(o, fd, peer)
		for v := range h.d.visitors {
			v.leave() // before it has asked: nothing to see here
		}
	})
	f.want("E(57P01)")
	p, err := newPair()
	if err != nil {
		t.Fatal(err)
	}
	g := &function{connOf(p.theirs), t}
	g.send(start())
	peer, _ := peerOf(p.ours)
	h.d.onFront(func() {
		h.d.serveWire(h.door, p.ours, peer)
		for v := range h.d.visitors {
			v.leave()
		}
	})
	g.want(welcome)
	g.send(query("echo x"))
	g.want("D(x)C(echo)ZI")
	g.Close()
	h.empty()
}
