package proxy

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"pghandoff/proxy/config"
	"pghandoff/proxy/loop"
)

// What a function can still answer about itself stays so when the start-up of one
// of its leases is over: the peer of a pair is its conversation's.
func TestConversationCanBeAskedAfterALeaseOfItIsOver(t *testing.T) {
	h := build(t, nil)
	h.d.table.Load().routes["other"].access = access{own: uint32(os.Geteuid())} // root has to show that it is the host's
	d := h.talk()
	d.say(strings.Replace(acquire("orders"), "ready", "startup", 1))
	d.wantReply(`"lease"`)
	d.closeDescriptors()
	h.unleased()
	d.say(acquire("other"))
	d.wantReply(`"lease"`)
	h.d.onFront(func() {
		for v := range h.d.visitors {
			if c, ok := v.(*conversation); ok && c.peer.socket != c.function.fd {
				t.Error("its peer was given up")
			}
		}
	})
}

// A function that hangs up in the turn in which it is granted a lease is not
// listened to once more.
func TestStartupIsReadOnce(t *testing.T) {
	h := build(t, func(p *plan) { p.pool.MinIdle, p.pool.Max = 2, 2 })
	p, err := newPair()
	if err != nil {
		t.Fatal(err)
	}
	peer, _ := peerOf(p.ours)
	before := openDescriptors(t) - 2
	sendAll(p.theirs, start())
	h.d.onFront(func() {
		h.d.serveWire(h.door, p.ours, peer)
		sendAll(p.theirs, start())
		unix.Close(p.theirs)
		for v := range h.d.visitors {
			v.(*session).Ready(loop.Readable | loop.Closed)
		}
	})
	h.empty()
	h.warm("orders", 2)
	h.sameDescriptors(before)
	h.stop()
	if n := strings.Count(h.trail.String(), `"lease.granted"`); n != 1 {
		t.Errorf("%d leases granted", n)
	}
}

// The wait of a function may be over while an upstream is on its way to it; if
// that turns out to be dead, the function is not left without an end to its wait.
func TestWaitThatEndsWhileADeadUpstreamComes(t *testing.T) {
	h := build(t, nil)
	f, waits := h.wire(), h.wire()
	f.send(start())
	f.want(welcome)
	l := h.lease()
	waits.send(start())
	h.queued(1)
	pool := h.d.table.Load().routes["orders"].pool
	pool.mu.Lock()
	pool.make = func(ctx context.Context) (*Upstream, error) { // there will be no other one
		<-ctx.Done()
		return nil, ctx.Err()
	}
	pool.mu.Unlock()
	h.d.onFront(func() {
		l.bridge.finish(ending{outcome: endFunctionClosed}) // the upstream goes to who waits
		h.hangUp()
		for v := range h.d.visitors {
			if a := v.(*session).ask; a != nil {
				h.d.front().Cancel(&a.timeout)
				a.Expired(&a.timeout)
			}
		}
	})
	waits.want("E(53300)")
	h.unleased()
}

// A descriptor that a function sends could take the loop long to close.
func TestFunctionsCannotSendDescriptors(t *testing.T) {
	h := build(t, nil)
	o, err := h.d.openDoor(config.Folder{Path: filepath.Join(t.TempDir(), "run"), Mode: "0600"}, 0)
	if err != nil {
		t.Fatal(err)
	}
	h.d.onFront(func() {
		for _, e := range o.entries() {
			if err := e.open(); err != nil {
				t.Error(err)
			}
		}
	})
	defer h.d.onFront(o.close)
	p := newTestPair(t)
	defer unix.Close(p.theirs)
	if unix.SetsockoptInt(p.ours, unix.SOL_SOCKET, unix.SO_PASSRIGHTS, 0) != nil {
		t.Skip("the kernel is older than 6.16")
	}
	if err := unix.Sendmsg(p.theirs, []byte("x"), unix.UnixRights(0), nil, 0); !errors.Is(err, unix.EPERM) {
		t.Errorf("pair: %v", err)
	}
	for _, name := range []string{".s.PGSQL.5432", "handoff.sock"} {
		c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: filepath.Join(o.dir, name), Net: "unix"})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if _, _, err := c.WriteMsgUnix([]byte("x"), unix.UnixRights(0), nil); !errors.Is(err, unix.EPERM) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Accepting goes on even if the kernel does not let it at first.
func TestAcceptingIsTriedAgainUntilItCanBe(t *testing.T) {
	h := build(t, nil)
	path := filepath.Join(t.TempDir(), "s")
	l, err := bind(path, 0o600, -1)
	if err != nil {
		t.Fatal(err)
	}
	listening, err := takeDescriptor(l)
	if err != nil {
		t.Fatal(err)
	}
	file, err := unix.Open(filepath.Join(t.TempDir(), "f"), unix.O_RDWR|unix.O_CREAT|unix.O_CLOEXEC, 0o600) // which cannot be waited for
	if err != nil {
		t.Fatal(err)
	}
	e := &entry{d: h.d, door: h.door, fd: file, handoff: true}
	h.d.onFront(func() {
		e.token, err = h.d.front().Add(file, e, 0)
		e.Expired(&e.rest)
		if err != nil || !e.rest.IsSet() {
			t.Errorf("%v, it is tried again: %v", err, e.rest.IsSet())
		}
		unix.Dup3(listening, file, unix.O_CLOEXEC)
		unix.Close(listening)
	})
	defer h.d.onFront(e.close)
	c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	d := &talk{function: &function{c, t}}
	d.say(ping)
	d.wantReply(`{"v":1,"ok":true}`)
}

func TestWithoutDescriptorsAGrantIsRefused(t *testing.T) {
	h := build(t, nil)
	d := h.talk()
	var before unix.Rlimit
	unix.Getrlimit(unix.RLIMIT_NOFILE, &before)
	h.d.onFront(func() {
		h.d.pairs.close()
		unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 0, Max: before.Max})
	})
	d.say(acquire("orders") + ping)
	refusal, pong := d.reply(), d.reply()
	unix.Setrlimit(unix.RLIMIT_NOFILE, &before)
	if !strings.Contains(refusal, `"53300"`) || !strings.Contains(refusal, `"retry":true`) || pong != `{"v":1,"ok":true}` {
		t.Errorf("told %s, then %s", refusal, pong)
	}
	d.say(acquire("orders"))
	d.wantReply(`"lease"`)
	f := d.adopt(0)
	f.send(query("echo x"))
	f.want("D(x)C(echo)ZI")
}

func TestConversationGoneWhileParametersAreSet(t *testing.T) {
	h := build(t, nil)
	h.gated.Store(true)
	for _, state := range []string{"ready", "startup"} {
		d := h.talk()
		d.say(strings.Replace(strings.Replace(acquire("orders"), "ready", state, 1), "}", `,"parameters":{"TimeZone":"zone of `+state+`"}}`, 1) + ping)
		<-h.hung
		d.Close()
		h.eventually("the conversation is over", func() bool { return h.visitors() == 0 })
		h.gate <- struct{}{}
		h.empty()
		h.warm("orders", 1)
	}
	if h.dials() != 2 {
		t.Errorf("%d dials", h.dials())
	}
}
