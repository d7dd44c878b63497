package throwaway

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/user"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// account is who the server's programs run as; nil means as this process does.
type account struct{ uid, gid int }

// unprivileged returns the account to use. initdb wants a name for its uid, so a free number will not do.
func unprivileged() (*account, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	for _, name := range []string{"postgres", "nobody", "daemon"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, uidErr := strconv.Atoi(u.Uid)
		gid, gidErr := strconv.Atoi(u.Gid)
		if uidErr == nil && gidErr == nil && uid != 0 {
			return &account{uid, gid}, nil
		}
	}
	return nil, errors.New("PostgreSQL does not run as root, and this machine has neither a user postgres nor nobody: add one " +
		"(useradd --system postgres) or run as another user")
}

// own gives a path to the account.
func (a *account) own(path string) error {
	if a == nil {
		return nil
	}
	return os.Lchown(path, a.uid, a.gid)
}

// command prepares a program of the server: as the account, in a process group of its own (an interrupt typed at the
// terminal is for this process, which then stops the server), with a bare environment.
func (a *account) command(dir, program string, args ...string) *exec.Cmd {
	cmd := exec.Command(program, args...) // no context: start and stop end it
	cmd.Dir = dir
	// TZ spares initdb the search for the local time zone's name.
	cmd.Env = []string{"PATH=/usr/local/bin:/usr/bin:/bin", "LC_ALL=C", "TZ=UTC", "HOME=" + dir}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if a != nil {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: uint32(a.uid), Gid: uint32(a.gid)}
	}
	return cmd
}

// process is a running server.
type process struct {
	cmd  *exec.Cmd
	log  *tail
	done chan struct{} // closed when it has ended
	err  error         // how it ended; to be read after done
}

// start runs the command until it ends by itself or by a signal.
func start(cmd *exec.Cmd, log io.Writer) (*process, error) {
	p := &process{cmd: cmd, log: &tail{next: log}, done: make(chan struct{})}
	cmd.Stdout, cmd.Stderr = p.log, p.log
	cmd.WaitDelay = 2 * time.Second // for a child of the server that still holds the log's pipe
	cmd.SysProcAttr.Pdeathsig = syscall.SIGQUIT
	started := make(chan error)
	// The kernel sends Pdeathsig when the thread that started the child ends, so this goroutine keeps its thread until
	// the child has ended. Whoever stops the process waits for done.
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			p.err = cmd.Wait()
			close(p.done)
		}
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", cmd.Path, err)
	}
	return p, nil
}

// stop sends the signal and waits; after the patience it sends SIGQUIT (PostgreSQL's immediate shutdown) and at last
// kills the whole group.
func (p *process) stop(signal syscall.Signal, patience time.Duration) {
	for _, s := range []syscall.Signal{signal, syscall.SIGQUIT} {
		_ = p.cmd.Process.Signal(s) // it may have ended already
		timer := time.NewTimer(patience)
		select {
		case <-p.done:
			timer.Stop()
			return
		case <-timer.C:
		}
	}
	_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL)
	<-p.done
}

func (p *process) ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// tail passes on what is written and keeps the last 8 KiB.
type tail struct {
	mu   sync.Mutex
	kept []byte
	next io.Writer // may be nil
}

const tailSize = 8 << 10 // 8 KiB

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.kept = append(t.kept, p...)
	if over := len(t.kept) - tailSize; over > 0 {
		t.kept = append(t.kept[:0], t.kept[over:]...)
	}
	if t.next != nil {
		_, _ = t.next.Write(p) // a log that cannot be written must not stop the server
	}
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.TrimSpace(string(t.kept))
}
