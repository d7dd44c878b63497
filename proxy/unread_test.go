package proxy

import (
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pghandoff/proxy/loop"
)

func TestUnreadGrantIsWithdrawn(t *testing.T) {
	h := build(t, func(p *plan) { p.patient.unreadPatience = 30 * time.Millisecond })
	d := h.talk()
	for i, state := range []string{"ready", "startup"} {
		d.say(strings.Replace(acquire("orders"), "ready", state, 1))
		h.eventually("a lease", func() bool { return strings.Count(h.trail.String(), `"lease.granted"`) > i })
		h.unleased()
		d.wantReply(`"lease"`) // too late: its descriptor is dead
		f := d.adopt(len(d.fds) - 1)
		if told := f.says() + f.says(); told != "E(57P01)." {
			t.Errorf("a withdrawn descriptor says %s", told)
		}
		h.warm("orders", 1)
	}
	h.d.onFront(func() { h.d.unreadPatience = time.Minute })
	d.say(acquire("orders"))
	d.wantReply(`"lease"`)
	f := d.adopt(len(d.fds) - 1)
	f.send(query("echo x"))
	f.want("D(x)C(echo)ZI")
}

func TestGrantThatIsReadStays(t *testing.T) {
	const patience = 200 * time.Millisecond
	h := build(t, func(p *plan) { p.patient.unreadPatience = patience })
	d := h.talk()
	d.say(acquire("orders"))
	line := d.wantReply(`"lease"`)
	<-time.After(2 * patience)
	f := d.adopt(0)
	f.send(query("echo x"))
	f.want("D(x)C(echo)ZI")
	d.say(`{"v":1,"op":"release","lease":"` + leaseOf(line) + `"}` + "\n")
	d.wantReply(`"ok":true`)
	h.unleased()
}

func TestSecondGrantWaitsUntilTheFirstIsRead(t *testing.T) {
	const patience = 50 * time.Millisecond
	h := build(t, func(p *plan) { p.patient.unreadPatience = patience })
	d := h.talk()
	begin := time.Now()
	d.say(acquire("orders") + acquire("other"))
	h.eventually("both are withdrawn", func() bool { return strings.Count(h.trail.String(), `"withdrawn"`) == 2 })
	if took := time.Since(begin); took < 2*patience {
		t.Errorf("both were withdrawn after %v: they were under way together", took)
	}
	h.unleased()
	d.Close()
	h.empty()

	h.d.onFront(func() { h.d.unreadPatience = time.Minute })
	d = h.talk()
	d.say(acquire("orders") + acquire("other"))
	d.wantReply(`"database":"orders"`)
	d.wantReply(`"database":"other"`) // as soon as the first was read
	d.closeDescriptors()
}

func TestPeerThatLeavesNoRoomIsGivenUp(t *testing.T) {
	h := build(t, func(p *plan) { p.patient.writePatience = 30 * time.Millisecond })
	d := h.talk()
	pings := []byte(strings.Repeat(ping, 1000))
	for {
		d.SetWriteDeadline(time.Now().Add(10 * time.Second))
		if _, err := d.Write(pings); err != nil {
			if errors.Is(err, os.ErrDeadlineExceeded) {
				t.Error("it is not given up")
			}
			break
		}
	}
	h.empty()
}

// full lets a function come whose queue has no room left.
func (h *house) full() *talk {
	h.t.Helper()
	d := &talk{function: h.connect(func(o *door, fd int, peer *Peer) {
		for {
			if _, err := loop.Send(fd, []byte("\n")); err != nil {
				break
			}
		}
		h.d.serveHandoff(o, fd, peer)
	})}
	h.t.Cleanup(d.closeDescriptors)
	return d
}

func TestGrantThatFindsNoRoomWaitsForIt(t *testing.T) {
	b := newBackend()
	b.report("long", strings.Repeat("x", 60<<10))
	h := build(t, func(p *plan) { p.backend = b })
	d := h.full()
	d.say(acquire("orders") + ping)
	h.lease()
	line := "" // empty ones fill the queue
	for line == "" {
		line = d.reply()
	}
	if len(line) < 60<<10 || len(d.fds) != 1 {
		t.Fatalf("a reply of %d bytes and %d descriptors", len(line), len(d.fds))
	}
	d.say(ping)
	d.wantReply(`{"v":1,"ok":true}`)
	d.wantReply(`{"v":1,"ok":true}`)
	f := d.adopt(0)
	f.send(query("echo x"))
	f.want("D(x)C(echo)ZI")
}

func TestGrantThatFindsNoRoomIsWithdrawnInTheEnd(t *testing.T) {
	h := build(t, func(p *plan) { p.patient.writePatience = 30 * time.Millisecond })
	before := openDescriptors(t)
	for _, leaves := range []bool{false, true} {
		d := h.full()
		d.say(acquire("orders"))
		h.eventually("the grant", func() bool { return len(h.d.leases.all()) == 1 || h.visitors() == 0 })
		if leaves {
			d.Close()
		}
		h.empty()
		h.warm("orders", 1)
		d.Close()
	}
	h.sameDescriptors(before)
}

// openDescriptors counts this process's descriptors.
func openDescriptors(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

// sameDescriptors waits until no more descriptors are open than before.
func (h *house) sameDescriptors(before int) {
	h.t.Helper()
	for end := time.Now().Add(5 * time.Second); ; <-time.After(time.Millisecond) {
		after := openDescriptors(h.t)
		if after <= before {
			return
		}
		if time.Now().After(end) {
			h.t.Fatalf("%d descriptors before, %d after", before, after)
		}
	}
}

func TestDescriptorsSentToTheDaemonAreClosed(t *testing.T) {
	h := build(t, nil)
	d := h.talk()
	d.say(strings.Replace(acquire("orders"), "ready", "startup", 1))
	d.wantReply(`"lease"`)
	pair := d.adopt(0)
	wire := h.wire()
	for name, c := range map[string]struct {
		f *function
		p []byte
	}{"handoff": {d.function, []byte(ping)}, "wire": {wire, start("database", "other")}, "pair": {pair, start()}} {
		passed := newTestPair(t)
		_, _, err := c.f.WriteMsgUnix(c.p, unix.UnixRights(passed.theirs, passed.theirs), nil)
		unix.Close(passed.theirs)
		if errors.Is(err, unix.EPERM) { // Linux 6.16 and later: the kernel does not even take them
			c.f.send(c.p)
		} else if err != nil {
			t.Fatal(err)
		}
		if name == "handoff" {
			d.wantReply("true")
		} else {
			c.f.want(welcome)
		}
		if n, err := loop.Receive(passed.ours, make([]byte, 1)); n != 0 || err != nil {
			t.Errorf("%s: read %d, %v: somebody still holds the descriptor", name, n, err)
		}
	}
}
