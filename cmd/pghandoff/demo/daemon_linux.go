package demo

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"pghandoff/proxy"
	"pghandoff/proxy/admin"
)

// daemon is a running pghandoff serve.
type daemon struct {
	cmd    *exec.Cmd
	stderr bytes.Buffer  // to be read after done
	done   chan struct{} // closed when it has ended
}

// startDaemon starts the program in a process group of its own, so that an
// interrupt typed at the terminal reaches us first; should we be killed, the
// kernel ends it.
func startDaemon(exe string, args ...string) (*daemon, error) {
	d := &daemon{cmd: exec.Command(exe, args...), done: make(chan struct{})} // no context: stop ends it
	d.cmd.Stderr = &d.stderr
	d.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	started := make(chan error)
	go func() { // keeps its thread, whose end would be the daemon's; stop waits for done
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := d.cmd.Start()
		started <- err
		if err == nil {
			_ = d.cmd.Wait() // how it ended is told by its standard error
			close(d.done)
		}
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start the daemon: %w", err)
	}
	return d, nil
}

// stop lets the daemon drain, for ten seconds.
func (d *daemon) stop() error {
	_ = d.cmd.Process.Signal(syscall.SIGTERM) // it may have ended already
	select {
	case <-d.done:
		return nil
	case <-time.After(10 * time.Second):
		_ = d.cmd.Process.Kill()
		<-d.done
		return errors.New("the daemon did not stop within 10 s")
	}
}

// awaitWarm waits until the route has its idle upstreams.
func (s *stage) awaitWarm(ctx context.Context) error {
	client := admin.Dial(filepath.Join(proxy.ControlDir("", s.runDir), proxy.ControlSocket))
	look := time.NewTicker(20 * time.Millisecond)
	defer look.Stop()
	start := time.Now()
	for {
		status, err := client.Status(ctx)
		if err == nil && len(status.Routes) == 1 && status.Routes[0].Idle >= status.Routes[0].MinIdle {
			fmt.Fprintf(s.out, "  %d connections warm after %.1f s: TLS and SCRAM done, past ReadyForQuery\n", status.Routes[0].Idle, time.Since(start).Seconds())
			return nil
		}
		select {
		case <-look.C:
		case <-s.daemon.done:
			return fmt.Errorf("the daemon ended: %s", strings.TrimSpace(s.daemon.stderr.String()))
		case <-ctx.Done():
			return ctx.Err()
		}
		if time.Since(start) > 15*time.Second {
			return fmt.Errorf("no warm connections after 15 s: %s", lastError(status, err))
		}
	}
}

func lastError(status *admin.Status, err error) string {
	if err != nil {
		return err.Error()
	}
	if len(status.Routes) > 0 && status.Routes[0].LastError != "" {
		return status.Routes[0].LastError
	}
	return "no reason is known"
}

// cleanEnvironment is what functions get: no secret can be in it.
func cleanEnvironment() []string { return []string{"PATH=" + os.Getenv("PATH"), "HOME=/nonexistent"} }
