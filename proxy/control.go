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

// ErrUnavailable: the configuration is right, but another daemon has the
// sockets or the lock, or the system does not give them.
var ErrUnavailable = errors.New("the sockets or the lock cannot be had")

// unavailableError is an ErrUnavailable in words of its own.
type unavailableError struct{ error }

func (e *unavailableError) Unwrap() error        { return e.error }
func (e *unavailableError) Is(target error) bool { return target == ErrUnavailable }

func unavailable(format string, args ...any) error {
	return &unavailableError{fmt.Errorf(format, args...)}
}

// openControlDir makes the folder, or checks it, and takes its lock. A second
// daemon is refused, and so is a folder below one that functions see: runDir
// or a further one.
func openControlDir(path, runDir string, further ...string) (*controlDir, error) {
	path = filepath.Clean(path) // with a slash at the end Lstat would follow a link
	for _, dir := range append([]string{runDir}, further...) {
		inside, err := below(path, dir)
		if err != nil {
			return nil, fmt.Errorf("control directory: whether it lies below %s cannot be told: %w", dir, err)
		}
		if inside {
			return nil, fmt.Errorf("the control directory %s lies below %s, which functions see: choose another --control-dir", path, dir)
		}
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
	lock, err := takeLock(path)
	if err != nil {
		return nil, err
	}
	return &controlDir{path: path, lock: lock}, nil
}

// takeLock locks the folder for as long as the file stays open.
func takeLock(path string) (*os.File, error) {
	lock, err := os.OpenFile(filepath.Join(path, lockFile), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, unavailable("lock control directory: %w", err)
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		lock.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, unavailable("a daemon with control directory %s is running: stop it, or choose another --run-dir", path)
		}
		return nil, unavailable("lock control directory: %w", err)
	}
	return lock, nil
}

// below reports whether path is dir or lies in it, by whatever names.
func below(path, dir string) (bool, error) {
	realPath, err := resolve(path)
	if err != nil {
		return false, err
	}
	realDir, err := resolve(dir)
	if err != nil {
		return false, err
	}
	rel, err := filepath.Rel(realDir, realPath)
	return rel != ".." && !strings.HasPrefix(rel, "../"), err
}

// resolve returns the absolute path without symbolic links. What does not exist
// yet will be made where its parent really is.
func resolve(path string) (string, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	found, err := filepath.EvalSymlinks(path)
	if !errors.Is(err, os.ErrNotExist) || path == "/" {
		return found, err
	}
	parent, err := resolve(filepath.Dir(path))
	return filepath.Join(parent, filepath.Base(path)), err
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
