package admin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

// TestMain is also the peer in a user namespace of its own.
func TestMain(m *testing.M) {
	if path := os.Getenv("PGHANDOFF_TEST_CONTROL"); path != "" {
		_, err := Dial(path).Status(context.Background())
		fmt.Print(err)
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

type fakeDaemon struct {
	reload  error
	drained chan struct{}
}

func (f *fakeDaemon) Status() *Status {
	return &Status{Version: "1", PID: 7, Routes: []Route{{Name: "orders", Idle: 2}}}
}
func (f *fakeDaemon) Reload() error { return f.reload }
func (f *fakeDaemon) RotateIdentity(name string) error {
	return fmt.Errorf("rotate %s", name)
}
func (f *fakeDaemon) RevokeIdentity(name string) error {
	return fmt.Errorf("revoke %s", name)
}
func (f *fakeDaemon) Drain() { f.drained <- struct{}{} }

// control serves d on a socket that everybody can reach.
func control(t *testing.T, d Daemon) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "pgh-admin-")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "control.sock")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	os.Chmod(dir, 0o755)
	os.Chmod(path, 0o777)
	ctx, stop := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- Serve(ctx, l, d) }() // ended by stop, waited for below
	t.Cleanup(func() {
		stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
		os.RemoveAll(dir)
	})
	return path
}

func TestStatusIsAnsweredAsTheDaemonSaysIt(t *testing.T) {
	s, err := Dial(control(t, &fakeDaemon{})).Status(t.Context())
	if err != nil || s.Version != "1" || s.PID != 7 || len(s.Routes) != 1 || s.Routes[0].Name != "orders" || s.Routes[0].Idle != 2 {
		t.Errorf("got %+v, %v", s, err)
	}
}

func TestReloadReturnsTheDaemonsOwnWords(t *testing.T) {
	d := &fakeDaemon{}
	c := Dial(control(t, d))
	if err := c.Reload(t.Context()); err != nil {
		t.Error(err)
	}
	d.reload = errors.New("routes.a.user: is missing\nroutes.b.user: is missing")
	if err := c.Reload(t.Context()); err == nil || err.Error() != d.reload.Error() {
		t.Errorf("got %v", err)
	}
}

func TestDrainReachesTheDaemon(t *testing.T) {
	d := &fakeDaemon{drained: make(chan struct{}, 1)}
	if err := Dial(control(t, d)).Drain(t.Context()); err != nil {
		t.Fatal(err)
	}
	select {
	case <-d.drained:
	default:
		t.Error("answered, and the daemon was not told")
	}
}

func TestWhereNoDaemonAnswersTheErrorSaysSo(t *testing.T) {
	path := filepath.Join(t.TempDir(), "control.sock")
	if _, err := Dial(path).Status(t.Context()); !errors.Is(err, ErrNoDaemon) || !strings.Contains(err.Error(), path) {
		t.Errorf("no socket: got %v", err)
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	l.Close()
	if err := Dial(path).Reload(t.Context()); !errors.Is(err, ErrNoDaemon) {
		t.Errorf("the socket of a dead daemon: got %v", err)
	}
}

func TestUnknownOperationIsRefused(t *testing.T) {
	c := Dial(control(t, &fakeDaemon{}))
	for _, request := range [][2]string{{"POST", "/status"}, {"GET", "/drain"}, {"GET", "/"}, {"POST", "/stop"}} {
		if _, err := c.do(t.Context(), request[0], request[1]); err == nil {
			t.Errorf("%v is accepted", request)
		}
	}
}

// asUID runs f on a thread of another uid, which ends with it.
func asUID(uid uintptr, f func()) {
	done := make(chan struct{})
	go func() { // ends with f
		defer close(done)
		runtime.LockOSThread() // never unlocked, so that the thread is not used again
		if _, _, e := unix.RawSyscall(unix.SYS_SETRESUID, uid, uid, uid); e == 0 {
			f()
		}
	}()
	<-done
}

func TestPeerOfAnotherUserIsRefused(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to become another user")
	}
	d := &fakeDaemon{drained: make(chan struct{}, 1)}
	path := control(t, d)
	var answer []byte
	asUID(12345, func() {
		c, err := net.Dial("unix", path)
		if err != nil {
			t.Error(err)
			return
		}
		defer c.Close()
		c.SetDeadline(time.Now().Add(10 * time.Second))
		io.WriteString(c, "POST /drain HTTP/1.0\r\n\r\n")
		answer, _ = io.ReadAll(c)
	})
	if !strings.Contains(string(answer), "403") || !strings.Contains(string(answer), "own user (uid 0)") || len(d.drained) != 0 {
		t.Errorf("got %q", answer)
	}
}

func TestPeerOfAnotherUserNamespaceIsRefused(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), "PGHANDOFF_TEST_CONTROL="+control(t, &fakeDaemon{}))
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER, UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}}}
	out, err := cmd.Output()
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EINVAL) {
		t.Skipf("needs user namespaces: %v", err)
	}
	if err != nil || !strings.Contains(string(out), "own user namespace") {
		t.Errorf("got %q, %v", out, err)
	}
}

func TestConnectedPeerIsPinnedByTheKernel(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	p, err := peerOf(c)
	if err != nil {
		t.Fatal(err)
	}
	defer p.close()
	if p.pidfd < 0 {
		t.Skip("needs Linux 6.5 (SO_PEERPIDFD)")
	}
	if int(p.pid) != os.Getpid() || int(p.uid) != os.Geteuid() || p.ended() {
		t.Errorf("got %+v, ended %v", p, p.ended())
	}
}

// The pid is ours, as if it had been given to us after the peer's end.
func TestPeerWhosePidIsAnothersByNowIsRefused(t *testing.T) {
	cmd := exec.Command("/bin/cat")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	pidfd, err := unix.PidfdOpen(cmd.Process.Pid, 0)
	if err != nil {
		in.Close()
		cmd.Wait()
		t.Skipf("needs pidfd_open: %v", err)
	}
	p := &peer{uid: uint32(os.Geteuid()), pid: int32(os.Getpid()), pidfd: pidfd}
	defer p.close()
	if err := p.check(os.Geteuid()); err != nil {
		t.Errorf("while it lives: %v", err)
	}
	in.Close()
	cmd.Wait()
	if err := p.check(os.Geteuid()); err == nil || !strings.Contains(err.Error(), "has ended") {
		t.Errorf("got %v", err)
	}
}

func TestKernelWithoutPidfdIsCheckedByPidAlone(t *testing.T) {
	own := os.Geteuid()
	if err := (&peer{uid: uint32(own), pid: int32(os.Getpid()), pidfd: -1}).check(own); err != nil {
		t.Error(err)
	}
	if err := (&peer{uid: uint32(own) + 1, pid: int32(os.Getpid()), pidfd: -1}).check(own); err == nil {
		t.Error("another uid is let in")
	}
	if err := (&peer{uid: uint32(own), pid: 1 << 30, pidfd: -1}).check(own); err == nil {
		t.Error("a pid that does not exist is let in")
	}
}

func TestIdentitiesAreRotatedAndRevokedByName(t *testing.T) {
	path := control(t, &fakeDaemon{})
	for want, do := range map[string]func(*Client, context.Context, string) error{"rotate a&b": (*Client).RotateIdentity, "revoke a&b": (*Client).RevokeIdentity} {
		if err := do(Dial(path), t.Context(), "a&b"); err == nil || err.Error() != want {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}
