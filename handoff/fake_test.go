package handoff_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"pghandoff/handoff"
)

// fakeBroker grants socketpairs. The database named decides: "wait" blocks until ctx is done, "denied" is refused,
// "broken" fails inwardly, "huge" reports too much, "plain" ends with the connection; all others are granted.
type fakeBroker struct {
	mu        sync.Mutex
	n         int
	far       map[string]*os.File // the daemon's ends
	withdrawn chan error
	waiting   chan struct{}
	abandoned chan struct{}
	ended     chan struct{}
	claims    chan string
	calls     []handoff.Call
}

func newFakeBroker(t *testing.T) *fakeBroker {
	b := &fakeBroker{far: map[string]*os.File{}, withdrawn: make(chan error, 100), waiting: make(chan struct{}, 100), abandoned: make(chan struct{}, 100),
		ended: make(chan struct{}, 100), claims: make(chan string, 100)}
	t.Cleanup(func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		for _, f := range b.far {
			_ = f.Close()
		}
	})
	return b
}

func (b *fakeBroker) Acquire(ctx context.Context, c handoff.Call) (*handoff.Grant, error) {
	b.mu.Lock()
	b.calls = append(b.calls, c)
	b.mu.Unlock()
	switch c.Database {
	case "wait":
		b.waiting <- struct{}{}
		<-ctx.Done()
		b.abandoned <- struct{}{}
		return nil, ctx.Err()
	case "denied":
		return nil, &handoff.Refusal{SQLState: "28000", Message: "not you", Hint: "be another"}
	case "broken":
		return nil, errors.New("inward detail")
	case "":
		return nil, &handoff.Refusal{SQLState: "3D000", Message: "name one of 2 routes"}
	}
	return b.grant(c)
}

func (b *fakeBroker) grant(c handoff.Call) (*handoff.Grant, error) {
	near, far := pairFiles()
	b.mu.Lock()
	defer b.mu.Unlock()
	b.n++
	secret := handoff.Secret(1000 + b.n)
	lease := fmt.Sprintf("lease-%d", b.n)
	b.far[lease] = far
	g := &handoff.Grant{File: near, Granted: handoff.Granted{Lease: lease, Database: c.Database, Transport: handoff.Bridge,
		State: c.State, Tx: 'I', PID: uint32(b.n), Secret: &secret, Parameters: map[string]string{"server_version": "17.2"}}}
	g.Withdraw = func(reason error) {
		_ = unix.Shutdown(int(far.Fd()), unix.SHUT_RDWR)
		b.withdrawn <- reason
	}
	if c.Database == "plain" {
		g.Transport = handoff.Plain
		g.Ended = func() { b.ended <- struct{}{} }
	}
	if c.Database == "huge" {
		g.Parameters["big"] = strings.Repeat("x", 70<<10)
	}
	return g, nil
}

// asked returns the acquires so far.
func (b *fakeBroker) asked() []handoff.Call {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.calls)
}

// daemonEnd returns the other end of a lease's descriptor.
func (b *fakeBroker) daemonEnd(lease string) *os.File {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.far[lease]
}

func (b *fakeBroker) claim(op string, c handoff.Claim) error {
	secret := "none"
	if c.Secret != nil {
		secret = fmt.Sprint(uint32(*c.Secret))
	}
	b.claims <- fmt.Sprintf("%s %s owner=%v secret=%s", op, c.Lease, c.Owner, secret)
	return nil
}

func (b *fakeBroker) Cancel(_ context.Context, c handoff.Claim) error  { return b.claim("cancel", c) }
func (b *fakeBroker) Release(_ context.Context, c handoff.Claim) error { return b.claim("release", c) }

func pairFiles() (*os.File, *os.File) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		panic(err)
	}
	return os.NewFile(uintptr(fds[0]), "near"), os.NewFile(uintptr(fds[1]), "far")
}

func pairConns(t *testing.T) (client, server *net.UnixConn) {
	t.Helper()
	a, b := pairFiles()
	conns := make([]*net.UnixConn, 2)
	for i, f := range []*os.File{a, b} {
		c, err := net.FileConn(f)
		if err != nil {
			t.Fatal(err)
		}
		_ = f.Close()
		conns[i] = c.(*net.UnixConn)
	}
	t.Cleanup(func() { _ = conns[0].Close(); _ = conns[1].Close() })
	return conns[0], conns[1]
}

// listen serves the broker on a socket like the daemon's and returns its path.
func listen(t *testing.T, b handoff.Broker) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), handoff.SocketName)
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			conn, err := l.AcceptUnix()
			if err != nil {
				return
			}
			wg.Go(func() { _ = handoff.Serve(t.Context(), conn, b, handoff.ServeOptions{}) })
		}
	})
	t.Cleanup(func() { _ = l.Close(); wg.Wait() })
	return path
}

// talk is the client's side of a conversation, byte by byte if need be.
type talk struct {
	t    *testing.T
	conn *net.UnixConn
	done chan error // what Serve returned
	buf  []byte
	fds  []int
}

func converse(t *testing.T, b handoff.Broker, options handoff.ServeOptions) *talk {
	t.Helper()
	client, server := pairConns(t)
	d := &talk{t: t, conn: client, done: make(chan error, 1)}
	go func() { d.done <- handoff.Serve(t.Context(), server, b, options) }()
	return d
}

func (d *talk) send(text string) {
	d.t.Helper()
	if _, err := d.conn.Write([]byte(text)); err != nil {
		d.t.Fatal(err)
	}
}

// reply reads up to the next line break and collects descriptors. At the end of the stream it returns "".
func (d *talk) reply() string {
	d.t.Helper()
	for {
		if i := strings.IndexByte(string(d.buf), '\n'); i >= 0 {
			line := string(d.buf[:i])
			d.buf = d.buf[i+1:]
			return line
		}
		buf, oob := make([]byte, 1<<10), make([]byte, 256)
		n, oobn, _, _, err := d.conn.ReadMsgUnix(buf, oob)
		messages, _ := unix.ParseSocketControlMessage(oob[:oobn])
		for i := range messages {
			fds, _ := unix.ParseUnixRights(&messages[i])
			d.fds = append(d.fds, fds...)
		}
		d.buf = append(d.buf, buf[:n]...)
		if errors.Is(err, io.EOF) {
			return ""
		}
		if err != nil {
			d.t.Fatal(err)
		}
	}
}

func (d *talk) wantReply(parts ...string) {
	d.t.Helper()
	line := d.reply()
	for _, p := range parts {
		if !strings.Contains(line, p) {
			d.t.Errorf("reply %s lacks %s", line, p)
		}
	}
}

func (d *talk) closeDescriptors() {
	for _, fd := range d.fds {
		_ = unix.Close(fd)
	}
	d.fds = nil
}

func (d *talk) wantEnd() error {
	d.t.Helper()
	if line := d.reply(); line != "" {
		d.t.Errorf("unexpected reply %s", line)
	}
	return <-d.done
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

func acquire(database string) string {
	return `{"v":1,"op":"acquire","user":"app","state":"ready","database":"` + database + `"}` + "\n"
}

// lateBroker grants only once nobody waits any more.
type lateBroker struct{ *fakeBroker }

func (b lateBroker) Acquire(ctx context.Context, c handoff.Call) (*handoff.Grant, error) {
	<-ctx.Done()
	return b.grant(c)
}

func testContext(t *testing.T) (context.Context, context.CancelFunc) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	t.Cleanup(stop)
	return ctx, stop
}
