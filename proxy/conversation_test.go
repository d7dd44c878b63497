package proxy

import (
	"errors"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"pghandoff/proxy/loop"
)

const ping = `{"v":1,"op":"ping"}` + "\n"

func acquire(database string) string {
	return `{"v":1,"op":"acquire","user":"app","state":"ready","database":"` + database + `"}` + "\n"
}

func TestRepliesComeInTheOrderOfRequests(t *testing.T) {
	h := build(t, nil)
	d := h.talk()
	d.say(`{"v":1,"id":"1","op":"ping"}` + "\n" + `{"v":1,"id":"2","op":"acquire","user":"app","database":"orders","state":"ready"}` + "\n" +
		acquire("nowhere") + acquire("other") + `{"v":1,"op":"release","lease":"nobody's"}` + "\n" + ping)
	d.wantReply(`"id":"1","ok":true}`)
	first := d.wantReply(`"id":"2","ok":true,"lease":"`, `"database":"orders","transport":"bridge","state":"ready","tx":"I","pid":`, `"secret":`, `"parameters":{"server_version":"15.1","TimeZone":"UTC"}`)
	d.wantReply(`"ok":false,"sqlstate":"3D000","message":"there is no route`, `"hint":"`, `"retry":false`)
	if second := d.wantReply(`"database":"other"`); leaseOf(second) == leaseOf(first) {
		t.Error("two grants of one lease")
	}
	d.wantReply(`"ok":false,"sqlstate":"28000"`)
	d.wantReply(`{"v":1,"ok":true}`)
	if len(d.fds) != 2 {
		t.Errorf("%d descriptors for 2 grants", len(d.fds))
	}
	d.CloseWrite()
	d.wantEnd()
	d.closeDescriptors()
	h.empty()
}

func TestDescriptorLeadsToTheServer(t *testing.T) {
	h := build(t, nil)
	d := h.talk()
	d.say(acquire("orders"))
	d.wantReply(`"ok":true`)
	if flags, err := unix.FcntlInt(uintptr(d.fds[0]), unix.F_GETFL, 0); err != nil || flags&unix.O_NONBLOCK != 0 {
		t.Error("the descriptor does not block, as most runtimes expect, or is none")
	}
	f := d.adopt(0)
	f.send(query("echo hello"))
	f.want("D(hello)C(echo)ZI")
	d.Close() // a bridge lease outlives the conversation
	f.send(query("echo again"))
	f.want("D(again)C(echo)ZI")
	f.Close()
	h.empty()
	h.warm("orders", 1)
}

func TestLeaseInStateStartupStartsOnItsDescriptor(t *testing.T) {
	h := build(t, nil)
	d := h.talk()
	d.say(strings.Replace(acquire("orders"), "ready", "startup", 1))
	d.wantReply(`"state":"startup"`)
	f := d.adopt(0)
	f.send(sslRequest)
	if f.byte() != 'N' {
		t.Fatal("not declined")
	}
	for _, b := range start("TimeZone", "CET") {
		f.send([]byte{b})
	}
	f.want("RS(server_version=15.1)S(TimeZone=CET)KZI")
	f.Close()
	h.unleased()

	d.say(strings.Replace(acquire("orders"), "ready", "startup", 1))
	d.wantReply(`"state":"startup"`)
	f = d.adopt(1)
	f.send(start("database", "other"))
	f.want("RE(3D000)")
	h.unleased()
	h.warm("orders", 1)
}

func TestRequestsArriveOneByteAtATime(t *testing.T) {
	h := build(t, nil)
	d := h.talk()
	for _, c := range acquire("orders") + ping {
		d.say(string(c))
	}
	d.wantReply(`"lease"`)
	d.wantReply(`{"v":1,"ok":true}`)
}

func TestFaultIsAnsweredAndEndsTheConversation(t *testing.T) {
	h := build(t, nil)
	for name, line := range map[string]string{
		"not JSON":      "hello\n",
		"not UTF-8":     "{\"v\":1,\"op\":\"ping\",\"x\":\"\xff\"}\n",
		"duplicate":     `{"v":1,"v":1,"op":"ping"}` + "\n",
		"too long":      strings.Repeat("x", 9<<10),
		"last one open": `{"v":1,"op":"ping"}`,
	} {
		t.Run(name, func(t *testing.T) {
			d := h.talk()
			d.t = t
			d.say(ping + line)
			d.CloseWrite()
			d.wantReply(`{"v":1,"ok":true}`)
			d.wantReply(`"ok":false,"sqlstate":"08P01","message":"malformed line: `)
			d.wantEnd()
		})
	}
	d := h.talk()
	d.say(`{"v":1,"id":"x7","op":"fly"}` + "\n" + ping)
	d.wantReply(`"id":"x7","ok":false,"sqlstate":"08P01"`)
	d.wantEnd()
	h.empty()
}

func TestLineOfExactlyTheLimitIsTaken(t *testing.T) {
	d := build(t, nil).talk()
	line := `{"v":1,"op":"ping","x":"` + strings.Repeat("x", 8<<10-26) + `"}`
	if len(line) != 8<<10 {
		t.Fatalf("the line has %d bytes", len(line))
	}
	d.say(line + "\n")
	d.wantReply(`{"v":1,"ok":true}`)
}

func TestClosingAbandonsAWaitingAcquire(t *testing.T) {
	h := build(t, nil)
	d := h.talk()
	d.say(acquire("orders") + acquire("orders") + ping) // what stands behind it must not hide the end
	d.wantReply(`"lease"`)
	h.queued(1)
	d.Close()
	h.queued(0)
	d.closeDescriptors()
	h.empty()
	if h.dials() != 2 {
		t.Errorf("%d dials", h.dials())
	}
}

func TestHalfClosedPeerStillGetsItsReplies(t *testing.T) {
	h := build(t, nil)
	d := h.talk()
	d.say(acquire("orders") + acquire("other") + ping)
	d.CloseWrite()
	d.wantReply(`"database":"orders"`)
	d.wantReply(`"database":"other"`)
	d.wantReply(`{"v":1,"ok":true}`)
	d.wantEnd()
	f := d.adopt(0)
	f.send(query("echo x"))
	f.want("D(x)C(echo)ZI")
}

// An upstream that became free for a function just when it left goes to the next
// one.
func TestUpstreamForAPeerThatHasGoneGoesToTheNext(t *testing.T) {
	h := build(t, nil)
	d := h.talk()
	d.say(acquire("orders"))
	d.wantReply(`"lease"`)
	gone, next := h.talk(), h.talk()
	gone.say(acquire("orders"))
	h.queued(1)
	next.say(acquire("orders"))
	h.queued(2)
	h.d.onFront(func() { // it closes while the upstream is on its way
		d.closeDescriptors()
		gone.Close()
		l := h.d.leases.all()[0]
		l.bridge.finish(ending{outcome: endFunctionClosed})
	})
	next.wantReply(`"lease"`)
	next.closeDescriptors()
	h.unleased()
	h.warm("orders", 1)
}

func TestInwardErrorsAreLoggedNotShown(t *testing.T) {
	b := newBackend()
	b.refuse(errors.New("inward detail"))
	h := build(t, func(p *plan) { p.backend, p.pool.MinIdle = b, 0 })
	d := h.talk()
	d.say(acquire("orders"))
	if line := d.reply(); !strings.Contains(line, `"XX000"`) || strings.Contains(line, "inward") {
		t.Error(line)
	}
	if !strings.Contains(h.log.String(), "inward detail") {
		t.Error("nor is it logged")
	}
}

func TestGrantThatFitsNoReplyIsTakenBack(t *testing.T) {
	b := newBackend()
	b.report("big", strings.Repeat("x", 70<<10))
	h := build(t, func(p *plan) { p.backend = b })
	d := h.talk()
	d.say(acquire("orders") + ping)
	d.wantReply(`"sqlstate":"54000"`)
	d.wantReply(`{"v":1,"ok":true}`)
	if len(d.fds) != 0 {
		t.Errorf("%d descriptors came", len(d.fds))
	}
	h.warm("orders", 1)
	d.Close()
	h.empty()
}

// Proves what kernels before 6.16 are relied on for: descriptors that arrive
// where nobody makes room for them are closed by the kernel.
func TestReceivingDropsDescriptors(t *testing.T) {
	p, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(p[0])
	defer unix.Close(p[1])
	passed := newTestPair(t)
	if err := unix.Sendmsg(p[0], []byte("x"), unix.UnixRights(passed.theirs), nil, 0); err != nil {
		t.Fatal(err)
	}
	unix.Close(passed.theirs)
	if n, err := loop.Receive(p[1], make([]byte, 8)); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	if n, err := loop.Receive(passed.ours, make([]byte, 1)); n != 0 || err != nil {
		t.Errorf("read %d, %v: somebody still holds the descriptor", n, err)
	}
}
