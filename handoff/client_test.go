package handoff_test

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pghandoff/handoff"
	"pghandoff/handoff/handofftest"
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
	b := handofftest.NewFake(t)
	socket := handofftest.Listen(t, b)
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
	if n, err := b.DaemonEnd("lease-1").Read(buf); err != nil || string(buf[:n]) != "hello" {
		t.Errorf("got %q, %v", buf[:n], err)
	}
	if c := b.Asked()[0]; c.User == "" || *c.Wait != 2*time.Millisecond || c.ApplicationName != "me" ||
		!slices.Contains(c.Parameters, handoff.Parameter{Name: "TimeZone", Value: "UTC"}) {
		t.Errorf("asked for %+v", c)
	}
}

func TestBridgeLeaseIsCancelledBySecret(t *testing.T) {
	b := handofftest.NewFake(t)
	lease := mustAcquire(t, handoff.Request{Socket: handofftest.Listen(t, b), Database: "orders"})
	for op, do := range map[string]func(context.Context) error{"cancel": lease.Cancel, "release": lease.Release} {
		if err := do(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got, want := <-b.Claims, op+" lease-1 owner=false secret=1001"; got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}

func TestRawLeaseKeepsItsConnection(t *testing.T) {
	b := handofftest.NewFake(t)
	lease := mustAcquire(t, handoff.Request{Socket: handofftest.Listen(t, b), Database: "plain", State: handoff.Ready})
	if err := lease.Cancel(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := <-b.Claims; got != "cancel lease-1 owner=true secret=1001" {
		t.Error(got)
	}
	select {
	case <-b.Ended:
		t.Error("the lease ended early")
	default:
	}
	if err := errors.Join(lease.Close(), lease.Close()); err != nil {
		t.Error(err)
	}
	<-b.Ended
}

func TestRefusalReachesTheCaller(t *testing.T) {
	_, err := handoff.Acquire(t.Context(), handoff.Request{Socket: handofftest.Listen(t, handofftest.NewFake(t)), Database: "denied"})
	var r *handoff.Refusal
	if !errors.As(err, &r) || *r != (handoff.Refusal{SQLState: "28000", Message: "not you", Hint: "be another"}) {
		t.Errorf("got %v", err)
	}
	if err.Error() != "not you: be another (SQLSTATE 28000)" {
		t.Error(err)
	}
}

func TestContextEndsAWait(t *testing.T) {
	b := handofftest.NewFake(t)
	ctx, stop := testContext(t)
	context.AfterFunc(t.Context(), stop)
	go func() { <-b.Waiting; stop() }() // ends when the acquire waits
	_, err := handoff.Acquire(ctx, handoff.Request{Socket: handofftest.Listen(t, b), Database: "wait"})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	<-b.Abandoned
}

func TestServerOfAnotherUserIsNotTrusted(t *testing.T) {
	uid := os.Geteuid() + 1
	b := handofftest.NewFake(t)
	_, err := handoff.Acquire(t.Context(), handoff.Request{Socket: handofftest.Listen(t, b), ServerUID: &uid, Database: "orders"})
	if err == nil || !strings.Contains(err.Error(), "not the daemon that was expected") || len(b.Asked()) != 0 {
		t.Errorf("got %v after %d requests", err, len(b.Asked()))
	}
}

func mustPair(t *testing.T) (near, far *os.File) {
	t.Helper()
	near, far, err := handofftest.Pair()
	if err != nil {
		t.Fatal(err)
	}
	return near, far
}

func testContext(t *testing.T) (context.Context, context.CancelFunc) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	t.Cleanup(stop)
	return ctx, stop
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

// crookedServer answers the first request with these bytes and this many descriptors.
func crookedServer(t *testing.T, reply string, descriptors int) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	var fds []int
	for range descriptors {
		near, far := mustPair(t)
		t.Cleanup(func() { _ = near.Close(); _ = far.Close() })
		fds = append(fds, int(near.Fd()))
	}
	done := make(chan struct{})
	go func() { // ends with its only connection, or the listener; the test waits for it
		defer close(done)
		conn, err := l.AcceptUnix()
		if err != nil {
			return
		}
		defer func() { _ = conn.Close() }()
		_, _ = conn.Read(make([]byte, 8<<10))
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

func TestLongRefusalIsReadWhole(t *testing.T) {
	hint := strings.Repeat("x", 60<<10)
	socket := crookedServer(t, `{"v":1,"ok":false,"sqlstate":"28000","message":"no","hint":"`+hint+`"}`+"\n", 0)
	_, err := handoff.Acquire(t.Context(), handoff.Request{Socket: socket, Database: "orders"})
	if refusal := (*handoff.Refusal)(nil); !errors.As(err, &refusal) || refusal.Hint != hint {
		t.Errorf("got %.100v", err)
	}
}

func TestClientLeaksNoDescriptors(t *testing.T) {
	b := handofftest.NewFake(t)
	socket := handofftest.Listen(t, b)
	round := func() {
		for _, database := range []string{"orders", "denied", "plain"} {
			lease, err := handoff.Acquire(t.Context(), handoff.Request{Socket: socket, Database: database})
			if err == nil {
				_ = lease.Close()
			}
		}
		<-b.Ended // the daemon's side of the last connection is gone
		b.CloseEnds()
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

// A daemon that has no descriptor left, or whose limit is reached, says so before
// it has read anything, and hangs up: the request may not even find it there.
func TestRefusalThatComesBeforeTheRequestIsTold(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "handoff.sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() { // ends with the listener
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			c.Write([]byte(`{"v":1,"ok":false,"sqlstate":"53300","message":"full","retry":true}` + "\n"))
			c.Close()
		}
	}()
	for range 200 {
		_, err := handoff.Acquire(t.Context(), handoff.Request{Socket: socket, Database: "orders"})
		if refusal, ok := err.(*handoff.Refusal); !ok || refusal.SQLState != "53300" {
			t.Fatalf("got %v", err)
		}
	}
}
