package proxy

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Names within CONTROL_DIR.
const (
	// ControlSocket is the control socket's name.
	ControlSocket = "control.sock"
	lockFile      = "lock"
)

// ControlDir returns the private folder of a daemon: override if it is not
// empty, else runDir with ".control" appended.
func ControlDir(override, runDir string) string {
	if override != "" {
		return override
	}
	return strings.TrimRight(runDir, "/") + ".control"
}

// controlDir is the daemon's private folder, locked while it is open.
type controlDir struct {
	path string
	lock *os.File
}

// openControlDir makes the folder, or checks it, and takes its lock. A second
// daemon is refused.
func openControlDir(path, runDir string) (*controlDir, error) {
	if below(path, runDir) {
		return nil, fmt.Errorf("the control directory %s lies below the run directory %s, which functions see: choose another --control-dir", path, runDir)
	}
	if err := os.Mkdir(path, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return nil, fmt.Errorf("make control directory: %w", err)
	}
	info, err := os.Lstat(path)
	if err != nil {
		return nil, fmt.Errorf("control directory: %w", err)
	}
	st := info.Sys().(*syscall.Stat_t)
	if !info.IsDir() || int(st.Uid) != os.Geteuid() || info.Mode().Perm()&0o077 != 0 {
		return nil, fmt.Errorf("control directory %s must be a directory of uid %d with mode 0700", path, os.Geteuid())
	}
	lock, err := os.OpenFile(filepath.Join(path, lockFile), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock control directory: %w", err)
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		lock.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("a daemon with control directory %s is running: stop it, or choose another --run-dir", path)
		}
		return nil, fmt.Errorf("lock control directory: %w", err)
	}
	return &controlDir{path: path, lock: lock}, nil
}

// below reports whether path is dir or lies in it.
func below(path, dir string) bool {
	rel, err := filepath.Rel(dir, path)
	return err == nil && rel != ".." && !strings.HasPrefix(rel, "../")
}

// listen binds the control socket.
func (c *controlDir) listen() (*net.UnixListener, error) {
	path := filepath.Join(c.path, ControlSocket)
	os.Remove(path) // ours: we hold the lock
	return bind(path, 0o600, -1)
}

// close gives the folder up; the lock goes with the descriptor.
func (c *controlDir) close() {
	os.Remove(filepath.Join(c.path, ControlSocket))
	c.lock.Close()
}
