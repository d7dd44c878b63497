package child

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Process is a running program.
type Process struct {
	cmd    *exec.Cmd
	output tail
	done   chan struct{} // closed when it has ended
}

// stopPatience is how long a program may take to end by itself.
const stopPatience = 10 * time.Second

// Start runs the command, which must have no context and no output of its own.
func Start(cmd *exec.Cmd) (*Process, error) {
	p := &Process{cmd: cmd, done: make(chan struct{})}
	cmd.Stdout, cmd.Stderr = &p.output, &p.output
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Setsid, cmd.SysProcAttr.Pdeathsig = true, syscall.SIGTERM
	started := make(chan error)
	go func() { // keeps its thread, whose end would be the child's; Stop waits for done
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait() // how it ended is told by its output
			close(p.done)
		}
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", cmd.Path, err)
	}
	return p, nil
}

// Pid returns its process id.
func (p *Process) Pid() int { return p.cmd.Process.Pid }

// Done is closed when it has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Output returns the end of what it has printed.
func (p *Process) Output() string { return p.output.String() }

// Stop asks it to end, and kills it after ten seconds, which is an error. It
// may be called more than once.
func (p *Process) Stop() error {
	_ = p.cmd.Process.Signal(syscall.SIGTERM) // it may have ended already
	timer := time.NewTimer(stopPatience)
	defer timer.Stop()
	select {
	case <-p.done:
		return nil
	case <-timer.C:
		p.Kill()
		return fmt.Errorf("%s did not stop within %s", filepath.Base(p.cmd.Path), stopPatience)
	}
}

// Kill ends it at once.
func (p *Process) Kill() {
	_ = p.cmd.Process.Kill() // it may have ended already
	<-p.done
}

// tail keeps the last 8 KiB of what is written to it.
type tail struct {
	mu   sync.Mutex
	kept []byte
}

const tailSize = 8 << 10 // 8 KiB

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.kept = append(t.kept, p...)
	if over := len(t.kept) - tailSize; over > 0 {
		t.kept = append(t.kept[:0], t.kept[over:]...)
	}
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.TrimSpace(string(t.kept))
}
