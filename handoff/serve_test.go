package handoff_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pghandoff/handoff"
)

func TestRepliesComeInTheOrderOfRequests(t *testing.T) {
	d := converse(t, newFakeBroker(t), handoff.ServeOptions{})
	d.send(`{"v":1,"id":"1","op":"ping"}` + "\n" + `{"v":1,"id":"2","op":"acquire","database":"orders","state":"ready"}` + "\n" +
		acquire("denied") + acquire("orders") + `{"v":1,"op":"release","lease":"lease-1"}` + "\n")
	d.wantReply(`"id":"1","ok":true}`)
	d.wantReply(`"id":"2","ok":true,"lease":"lease-1"`, `"tx":"I","pid":1,"secret":1001`)
	d.wantReply(`"ok":false,"sqlstate":"28000","message":"not you","hint":"be another","retry":false`)
	d.wantReply(`"lease":"lease-2"`)
	d.wantReply(`{"v":1,"ok":true}`)
	if len(d.fds) != 2 {
		t.Errorf("%d descriptors for 2 grants", len(d.fds))
	}
	d.closeDescriptors()
	_ = d.conn.CloseWrite()
	if err := d.wantEnd(); err != nil {
		t.Error(err)
	}
}

func TestDescriptorLeadsToTheDaemon(t *testing.T) {
	b := newFakeBroker(t)
	d := converse(t, b, handoff.ServeOptions{})
	d.send(acquire("orders"))
	d.wantReply("lease-1")
	defer d.closeDescriptors()
	if _, err := unix.Write(d.fds[0], []byte("hello")); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 10)
	if n, err := b.daemonEnd("lease-1").Read(buf); err != nil || string(buf[:n]) != "hello" {
		t.Errorf("got %q, %v", buf[:n], err)
	}
	if flags, err := unix.FcntlInt(uintptr(d.fds[0]), unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC == 0 {
		t.Error("the descriptor was received without close-on-exec, or not at all")
	}
}

func TestRequestsArriveOneByteAtATime(t *testing.T) {
	d := converse(t, newFakeBroker(t), handoff.ServeOptions{})
	for _, c := range acquire("orders") + `{"v":1,"op":"ping"}` + "\n" {
		d.send(string(c))
	}
	d.wantReply("lease-1")
	d.wantReply(`{"v":1,"ok":true}`)
	d.closeDescriptors()
}

func TestFaultIsAnsweredAndEndsTheConversation(t *testing.T) {
	for name, line := range map[string]string{
		"not JSON":      "hello\n",
		"not UTF-8":     "{\"v\":1,\"op\":\"ping\",\"x\":\"\xff\"}\n",
		"duplicate":     `{"v":1,"v":1,"op":"ping"}` + "\n",
		"too long":      strings.Repeat("x", 9<<10),
		"last one open": `{"v":1,"op":"ping"}`,
	} {
		t.Run(name, func(t *testing.T) {
			d := converse(t, newFakeBroker(t), handoff.ServeOptions{})
			d.send(`{"v":1,"op":"ping"}` + "\n" + line)
			_ = d.conn.CloseWrite()
			d.wantReply(`{"v":1,"ok":true}`)
			d.wantReply(`"ok":false,"sqlstate":"08P01","message":"malformed line: `)
			if err := d.wantEnd(); !handoff.IsCode(err, "08P01") {
				t.Errorf("Serve returned %v", err)
			}
		})
	}
	d := converse(t, newFakeBroker(t), handoff.ServeOptions{})
	d.send(`{"v":1,"id":"x7","op":"fly"}` + "\n" + `{"v":1,"op":"ping"}` + "\n")
	d.wantReply(`"id":"x7","ok":false,"sqlstate":"08P01"`)
	if err := d.wantEnd(); !handoff.IsCode(err, "08P01") {
		t.Errorf("Serve returned %v", err)
	}
}

func TestLineOfExactlyTheLimitIsTaken(t *testing.T) {
	d := converse(t, newFakeBroker(t), handoff.ServeOptions{})
	line := `{"v":1,"op":"ping","x":"` + strings.Repeat("x", 8<<10-26) + `"}`
	if len(line) != 8<<10 {
		t.Fatalf("the line has %d bytes", len(line))
	}
	d.send(line + "\n")
	d.wantReply(`{"v":1,"ok":true}`)
}

func TestClosingAbandonsAWaitingAcquire(t *testing.T) {
	b := newFakeBroker(t)
	d := converse(t, b, handoff.ServeOptions{})
	d.send(acquire("wait") + `{"v":1,"op":"ping"}` + "\n") // what stands behind it must not hide the end
	_ = d.conn.Close()
	<-b.abandoned
	if err := <-d.done; err != nil {
		t.Error(err)
	}
}

func TestHalfClosedPeerStillGetsItsReplies(t *testing.T) {
	b := newFakeBroker(t)
	d := converse(t, b, handoff.ServeOptions{})
	d.send(acquire("orders") + acquire("plain"))
	_ = d.conn.CloseWrite()
	d.wantReply("lease-1")
	d.wantReply("lease-2")
	d.closeDescriptors()
	select { // the plain lease keeps the conversation up
	case <-d.done:
		t.Error("the conversation ended with a lease that ends with it")
	case <-b.ended:
		t.Error("the lease ended before its connection")
	default:
	}
	_ = d.conn.Close()
	<-b.ended
	if err := <-d.done; err != nil {
		t.Error(err)
	}
}

func TestGrantForAPeerThatHasGoneIsWithdrawn(t *testing.T) {
	b := newFakeBroker(t)
	d := converse(t, lateBroker{b}, handoff.ServeOptions{})
	d.send(acquire("orders"))
	_ = d.conn.Close()
	if reason := <-b.withdrawn; !errors.Is(reason, handoff.ErrGone) {
		t.Errorf("withdrawn because %v", reason)
	}
}

func TestUnreadGrantIsWithdrawn(t *testing.T) {
	b := newFakeBroker(t)
	d := converse(t, b, handoff.ServeOptions{UnreadLimit: 30 * time.Millisecond})
	d.send(acquire("orders"))
	if reason := <-b.withdrawn; !errors.Is(reason, handoff.ErrUnread) {
		t.Errorf("withdrawn because %v", reason)
	}
	d.wantReply("lease-1") // too late: its descriptor is dead
	if n, err := unix.Read(d.fds[0], make([]byte, 1)); n != 0 || err != nil {
		t.Errorf("read %d, %v from a withdrawn descriptor", n, err)
	}
	d.send(acquire("orders"))
	d.wantReply("lease-2")
	d.closeDescriptors()
}

func TestGrantThatIsReadStays(t *testing.T) {
	b := newFakeBroker(t)
	const limit = 20 * time.Millisecond
	d := converse(t, b, handoff.ServeOptions{UnreadLimit: limit})
	d.send(acquire("orders"))
	d.wantReply("lease-1")
	select {
	case reason := <-b.withdrawn:
		t.Errorf("withdrawn because %v", reason)
	case <-time.After(3 * limit):
	}
	d.send(`{"v":1,"op":"cancel","lease":"lease-1"}` + "\n")
	d.wantReply(`"ok":true`)
	if got := <-b.claims; got != "cancel lease-1 owner=true secret=none" {
		t.Error(got)
	}
	d.closeDescriptors()
}

func TestSecondGrantWaitsUntilTheFirstIsRead(t *testing.T) {
	b := newFakeBroker(t)
	const limit = 50 * time.Millisecond
	d := converse(t, b, handoff.ServeOptions{UnreadLimit: limit})
	start := time.Now()
	d.send(acquire("orders") + acquire("orders"))
	if reason := <-b.withdrawn; !errors.Is(reason, handoff.ErrUnread) || time.Since(start) < limit {
		t.Errorf("withdrawn because %v after %v", reason, time.Since(start))
	}
	<-b.withdrawn // the second one, sent after that
	if took := time.Since(start); took < 2*limit {
		t.Errorf("both were withdrawn after %v: they were under way together", took)
	}
	_ = d.conn.Close()
}

func TestPeerThatLeavesNoRoomIsGivenUp(t *testing.T) {
	d := converse(t, newFakeBroker(t), handoff.ServeOptions{WriteLimit: 30 * time.Millisecond})
	ping := []byte(strings.Repeat(`{"v":1,"op":"ping"}`+"\n", 1000))
	for {
		if err := d.conn.SetWriteDeadline(time.Now().Add(time.Second)); err != nil {
			t.Fatal(err)
		}
		if _, err := d.conn.Write(ping); err != nil {
			break
		}
	}
	if err := <-d.done; err == nil {
		t.Error("Serve ended without an error")
	}
}

func TestStoppingDaemonSaysSo(t *testing.T) {
	b := newFakeBroker(t)
	d := converse(t, b, handoff.ServeOptions{})
	ctx, stop := testContext(t)
	client, server := pairConns(t)
	d.conn = client
	go func() { d.done <- handoff.Serve(ctx, server, b, handoff.ServeOptions{}) }()
	d.send(acquire("orders") + acquire("wait"))
	d.wantReply("lease-1")
	d.closeDescriptors()
	<-b.waiting
	stop()
	d.wantReply(`"sqlstate":"57P01"`, `"retry":true`)
	if err := d.wantEnd(); !errors.Is(err, ctx.Err()) {
		t.Errorf("Serve returned %v", err)
	}
}

func TestInwardErrorsAreReportedNotShown(t *testing.T) {
	reported := make(chan error, 1)
	d := converse(t, newFakeBroker(t), handoff.ServeOptions{Report: func(err error) { reported <- err }})
	d.send(acquire("broken"))
	if line := d.reply(); !strings.Contains(line, `"XX000"`) || strings.Contains(line, "inward") {
		t.Error(line)
	}
	if err := <-reported; err.Error() != "inward detail" {
		t.Error(err)
	}
}

func TestGrantThatFitsNoReplyIsWithdrawn(t *testing.T) {
	b := newFakeBroker(t)
	d := converse(t, b, handoff.ServeOptions{})
	d.send(acquire("huge"))
	d.wantReply(`"sqlstate":"54000"`)
	if reason := <-b.withdrawn; !errors.Is(reason, handoff.ErrUnsent) || len(d.fds) != 0 {
		t.Errorf("withdrawn because %v, %d descriptors came", reason, len(d.fds))
	}
}

func TestDescriptorsSentToTheDaemonAreClosed(t *testing.T) {
	d := converse(t, newFakeBroker(t), handoff.ServeOptions{})
	d.send(`{"v":1,"op":"ping"}` + "\n")
	d.wantReply("true")
	before := openDescriptors(t)
	near, far := pairFiles()
	_, _, err := d.conn.WriteMsgUnix([]byte(`{"v":1,"op":"ping"}`+"\n"), unix.UnixRights(int(near.Fd()), int(near.Fd())), nil)
	_ = near.Close()
	if errors.Is(err, unix.EPERM) { // Linux 6.16 and later: the kernel does not even take them
		d.send(`{"v":1,"op":"ping"}` + "\n")
	} else if err != nil {
		t.Fatal(err)
	}
	d.wantReply("true")
	if n, err := far.Read(make([]byte, 1)); n != 0 {
		t.Errorf("read %d, %v: somebody still holds the descriptor", n, err)
	}
	_ = far.Close()
	if after := openDescriptors(t); after != before {
		t.Errorf("%d descriptors before, %d after", before, after)
	}
}

func TestNoDescriptorIsLeaked(t *testing.T) {
	b := newFakeBroker(t)
	round := func() {
		d := converse(t, b, handoff.ServeOptions{UnreadLimit: 5 * time.Millisecond})
		d.send(acquire("orders") + acquire("denied") + acquire("huge") + acquire("plain"))
		for range 3 {
			d.reply()
		}
		_ = d.conn.Close() // with a grant unread
		<-d.done
		d.closeDescriptors()
		b.mu.Lock()
		for id, f := range b.far {
			_ = f.Close()
			delete(b.far, id)
		}
		b.mu.Unlock()
	}
	round()
	before := openDescriptors(t)
	for range 20 {
		round()
	}
	if after := openDescriptors(t); after > before {
		t.Errorf("%d descriptors before, %d after", before, after)
	}
}

func TestOnlyTheOwnerNeedsNoSecret(t *testing.T) {
	b := newFakeBroker(t)
	d := converse(t, b, handoff.ServeOptions{})
	d.send(acquire("orders"))
	d.wantReply("lease-1")
	d.closeDescriptors()
	d.send(`{"v":1,"op":"release","lease":"lease-1"}` + "\n" + `{"v":1,"op":"release","lease":"lease-1","secret":1001}` + "\n")
	d.wantReply("true")
	d.wantReply("true")
	for _, want := range []string{"release lease-1 owner=true secret=none", "release lease-1 owner=false secret=1001"} {
		if got := <-b.claims; got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	other := converse(t, b, handoff.ServeOptions{})
	other.send(fmt.Sprintln(`{"v":1,"op":"cancel","lease":"lease-1","secret":7}`))
	other.wantReply("true")
	if got := <-b.claims; got != "cancel lease-1 owner=false secret=7" {
		t.Error(got)
	}
}

// Proves what kernels before 6.16 are relied on for: descriptors that arrive where nobody makes room for them are
// closed by the kernel.
func TestReadingDropsDescriptors(t *testing.T) {
	client, server := pairConns(t)
	near, far := pairFiles()
	defer func() { _ = far.Close() }()
	if _, _, err := client.WriteMsgUnix([]byte("x"), unix.UnixRights(int(near.Fd())), nil); err != nil {
		t.Fatal(err)
	}
	_ = near.Close()
	if n, err := server.Read(make([]byte, 8)); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	if n, err := far.Read(make([]byte, 1)); n != 0 {
		t.Errorf("read %d, %v: somebody still holds the descriptor", n, err)
	}
}
