package handoff_test

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pghandoff/handoff"
)

func mustAcquire(t *testing.T, r handoff.Request) *handoff.Lease {
	t.Helper()
	lease, err := handoff.Acquire(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = lease.Close() })
	return lease
}

func TestAcquiredLeaseSpeaksToTheDaemon(t *testing.T) {
	b := newFakeBroker(t)
	socket := listen(t, b)
	uid := os.Geteuid()
	wait := 1500 * time.Microsecond
	lease := mustAcquire(t, handoff.Request{Socket: socket, ServerUID: &uid, Database: "orders", State: handoff.Ready,
		Wait: &wait, ApplicationName: "me", Parameters: map[string]string{"TimeZone": "UTC"}})
	if lease.ID != "lease-1" || lease.Transport != handoff.Bridge || lease.State != handoff.Ready || lease.TxStatus != 'I' ||
		lease.PID != 1 || lease.Secret != 1001 || lease.Parameters["server_version"] != "17.2" {
		t.Errorf("got %+v", lease)
	}
	if _, err := lease.Conn().Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 10)
	if n, err := b.daemonEnd("lease-1").Read(buf); err != nil || string(buf[:n]) != "hello" {
		t.Errorf("got %q, %v", buf[:n], err)
	}
	if c := b.asked()[0]; c.User == "" || *c.Wait != 2*time.Millisecond || c.ApplicationName != "me" || c.Parameters["TimeZone"] != "UTC" {
		t.Errorf("asked for %+v", c)
	}
}

func TestBridgeLeaseIsCancelledBySecret(t *testing.T) {
	b := newFakeBroker(t)
	lease := mustAcquire(t, handoff.Request{Socket: listen(t, b), Database: "orders"})
	for op, do := range map[string]func(context.Context) error{"cancel": lease.Cancel, "release": lease.Release} {
		if err := do(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got, want := <-b.claims, op+" lease-1 owner=false secret=1001"; got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}

func TestRawLeaseKeepsItsConnection(t *testing.T) {
	b := newFakeBroker(t)
	lease := mustAcquire(t, handoff.Request{Socket: listen(t, b), Database: "plain", State: handoff.Ready})
	if err := lease.Cancel(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := <-b.claims; got != "cancel lease-1 owner=true secret=1001" {
		t.Error(got)
	}
	select {
	case <-b.ended:
		t.Error("the lease ended early")
	default:
	}
	if err := errors.Join(lease.Close(), lease.Close()); err != nil {
		t.Error(err)
	}
	<-b.ended
}

func TestRefusalReachesTheCaller(t *testing.T) {
	_, err := handoff.Acquire(t.Context(), handoff.Request{Socket: listen(t, newFakeBroker(t)), Database: "denied"})
	var r *handoff.Refusal
	if !errors.As(err, &r) || *r != (handoff.Refusal{SQLState: "28000", Message: "not you", Hint: "be another"}) {
		t.Errorf("got %v", err)
	}
	if err.Error() != "not you: be another (SQLSTATE 28000)" {
		t.Error(err)
	}
}

func TestContextEndsAWait(t *testing.T) {
	b := newFakeBroker(t)
	ctx, stop := testContext(t)
	context.AfterFunc(t.Context(), stop)
	go func() { <-b.waiting; stop() }() // ends when the acquire waits
	_, err := handoff.Acquire(ctx, handoff.Request{Socket: listen(t, b), Database: "wait"})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	<-b.abandoned
}

func TestServerOfAnotherUserIsNotTrusted(t *testing.T) {
	uid := os.Geteuid() + 1
	b := newFakeBroker(t)
	_, err := handoff.Acquire(t.Context(), handoff.Request{Socket: listen(t, b), ServerUID: &uid, Database: "orders"})
	if err == nil || !strings.Contains(err.Error(), "not the daemon that was expected") || len(b.asked()) != 0 {
		t.Errorf("got %v after %d requests", err, len(b.asked()))
	}
}

// crookedServer answers the first request with these bytes and this many descriptors.
func crookedServer(t *testing.T, reply string, descriptors int) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		conn, err := l.AcceptUnix()
		if err != nil {
			return
		}
		defer func() { _ = conn.Close() }()
		_, _ = conn.Read(make([]byte, 8<<10))
		var fds []int
		for range descriptors {
			near, far := pairFiles()
			defer func() { _ = near.Close(); _ = far.Close() }()
			fds = append(fds, int(near.Fd()))
		}
		_, _, _ = conn.WriteMsgUnix([]byte(reply), unix.UnixRights(fds...), nil)
	}()
	t.Cleanup(func() { _ = l.Close(); <-done })
	return path
}

func TestCrookedRepliesAreRefusedAndLeakNothing(t *testing.T) {
	const granted = `{"v":1,"ok":true,"lease":"l","transport":"bridge","state":"ready"}` + "\n"
	for name, c := range map[string]struct {
		reply       string
		descriptors int
		says        string
	}{
		"no descriptor":               {granted, 0, "0 descriptors instead of 1"},
		"two descriptors":             {granted, 2, "2 descriptors instead of 1"},
		"more than there is room for": {granted, 60, "too many came"},
		"descriptor with a refusal":   {`{"v":1,"ok":false,"sqlstate":"28000","message":"no"}` + "\n", 1, "1 descriptors instead of 0"},
		"no lease":                    {`{"v":1,"ok":true}` + "\n", 0, "names no lease"},
		"not JSON":                    {"hello\n", 1, "malformed"},
		"cut off":                     {`{"v":1,"ok":tr`, 1, "closed the connection"},
		"too long":                    {strings.Repeat("x", 70<<10), 1, "64 KiB"},
	} {
		t.Run(name, func(t *testing.T) {
			socket := crookedServer(t, c.reply, c.descriptors)
			_, err := handoff.Acquire(t.Context(), handoff.Request{Socket: socket, Database: "orders"})
			if err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("got %v, want %q", err, c.says)
			}
			if refusal := (*handoff.Refusal)(nil); errors.As(err, &refusal) {
				t.Error("looks like a refusal of the daemon")
			}
		})
	}
}

func TestClientLeaksNoDescriptors(t *testing.T) {
	b := newFakeBroker(t)
	socket := listen(t, b)
	round := func() {
		for _, database := range []string{"orders", "denied", "plain"} {
			lease, err := handoff.Acquire(t.Context(), handoff.Request{Socket: socket, Database: database})
			if err == nil {
				_ = lease.Close()
			}
		}
		<-b.ended // the daemon's side of the last connection is gone
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
	if after := openDescriptors(t); after > before+3 { // conversations that are just ending
		t.Errorf("%d descriptors before, %d after", before, after)
	}
}

func TestSocketIsFoundByTheRules(t *testing.T) {
	for _, name := range []string{handoff.EnvSocket, "RUNTIME_DIRECTORY", "XDG_RUNTIME_DIR"} {
		t.Setenv(name, "")
	}
	want := func(path string) {
		t.Helper()
		if got := handoff.SocketPath(""); got != path {
			t.Errorf("got %s, want %s", got, path)
		}
	}
	want("/run/pghandoff/handoff.sock")
	t.Setenv("XDG_RUNTIME_DIR", "/run/user/7")
	if os.Geteuid() == 0 {
		want("/run/pghandoff/handoff.sock")
	} else {
		want("/run/user/7/pghandoff/handoff.sock")
	}
	t.Setenv("RUNTIME_DIRECTORY", "/run/unit:/run/other")
	want("/run/unit/handoff.sock")
	t.Setenv(handoff.EnvSocket, "/s")
	want("/s")
	if got := handoff.WirePath("/a/handoff.sock"); got != "/a/.s.PGSQL.5432" {
		t.Error(got)
	}
}
