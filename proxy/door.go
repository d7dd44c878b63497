package proxy

import (
	"errors"
	"fmt"
	"math"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"pghandoff/handoff"
	"pghandoff/proxy/config"
)

// door is a folder with a wire and a handoff socket, and what can be reached
// there.
type door struct {
	dir     string
	routes  []string // empty: all
	access  *access  // nil: the routes' own
	wire    *entry
	handoff *entry
}

// shows reports whether a route can be reached through this door.
func (o *door) shows(route string) bool {
	return len(o.routes) == 0 || slices.Contains(o.routes, route)
}

// openDoor makes the folder and binds both sockets in it.
func (d *Daemon) openDoor(f config.Folder, own uint32) (*door, error) {
	o := &door{dir: f.Path, routes: f.Routes}
	mode, err := strconv.ParseUint(f.Mode, 8, 32)
	if err != nil {
		return nil, err
	}
	var gid int
	var problems []error
	if o.access, gid, problems = lookupFolder(f, own); len(problems) > 0 {
		return nil, fmt.Errorf("sockets in %s: %w", f.Path, errors.Join(problems...))
	}
	if err := makeRunDir(f.Path); err != nil {
		return nil, err
	}
	if o.wire, err = d.openEntry(o, handoff.WireName, os.FileMode(mode), gid); err != nil {
		return nil, err
	}
	if o.handoff, err = d.openEntry(o, handoff.SocketName, os.FileMode(mode), gid); err != nil {
		o.close()
		return nil, err
	}
	return o, nil
}

// openEntry binds a socket, at which nobody is accepted yet.
func (d *Daemon) openEntry(o *door, name string, mode os.FileMode, gid int) (*entry, error) {
	l, err := bind(filepath.Join(o.dir, name), mode, gid)
	if err != nil {
		return nil, err
	}
	fd, err := takeDescriptor(l)
	if err != nil {
		return nil, unavailable("bind socket: %w", err)
	}
	return &entry{d: d, door: o, fd: fd, handoff: name == handoff.SocketName}, nil
}

// lookupFolder looks up the names of a folder's group and rules on this host.
// The access is nil where the routes' own rules hold, the gid -1 where the
// daemon's own does.
func lookupFolder(f config.Folder, own uint32) (_ *access, gid int, problems []error) {
	gid = -1
	if f.Group != "" {
		id, err := lookupGroup(f.Group)
		if err != nil {
			problems = append(problems, fmt.Errorf("group: %w", err))
		}
		gid = int(id)
	}
	if len(f.Allow) == 0 {
		return nil, gid, problems
	}
	a, err := newAccess(own, f.Allow)
	if err != nil {
		problems = append(problems, err)
	}
	return &a, gid, problems
}

// makeRunDir makes a folder that functions can enter and cannot write in, or
// checks that an existing one is. A symbolic link is refused: whoever planted it
// could point it elsewhere after the check.
func makeRunDir(dir string) error {
	dir = filepath.Clean(dir) // with a slash at the end Lstat would follow a link
	if err := os.Mkdir(dir, 0o755); err == nil {
		return os.Chmod(dir, 0o755) // whatever the umask is
	} else if !errors.Is(err, os.ErrExist) {
		return fmt.Errorf("make run directory: %w", err)
	}
	info, err := os.Lstat(dir)
	if err != nil {
		return fmt.Errorf("run directory: %w", err)
	}
	st := info.Sys().(*syscall.Stat_t)
	switch {
	case info.Mode()&os.ModeSymlink != 0:
		return fmt.Errorf("run directory %s is a symbolic link: name the directory that it points to", dir)
	case !info.IsDir():
		return fmt.Errorf("run directory %s is not a directory", dir)
	case int(st.Uid) != os.Geteuid() && st.Uid != 0:
		return fmt.Errorf("run directory %s belongs to uid %d: it must be ours or root's", dir, st.Uid)
	case info.Mode().Perm()&0o022 != 0:
		return fmt.Errorf("run directory %s can be written by others (mode %04o): chmod go-w it, or whoever can write there could stand in for us", dir, info.Mode().Perm())
	}
	return nil
}

// bind listens on path. The socket takes connections once it has its mode and
// group; one that a dead daemon left is replaced, a live one's is refused. It is
// bound under its own name rather than renamed to it: the kernel tells functions
// the name that it was bound to, and Ruby's pg sends its cancel requests there.
// Errors are [ErrUnavailable] unless the path is too long.
func bind(path string, mode os.FileMode, gid int) (*net.UnixListener, error) {
	if len(path) > 107 {
		return nil, fmt.Errorf("%s is too long for a socket (107 bytes): choose a shorter --run-dir", path)
	}
	if c, err := net.Dial("unix", path); err == nil {
		c.Close()
		return nil, unavailable("somebody serves %s already: stop that daemon, or choose another --run-dir", path)
	} else if errors.Is(err, unix.EACCES) {
		return nil, unavailable("%s belongs to somebody else: %w", path, err)
	}
	l, err := listenUnix(path, mode, gid)
	if err != nil {
		return nil, unavailable("bind socket: %w", err)
	}
	return l, nil
}

func listenUnix(path string, mode os.FileMode, gid int) (*net.UnixListener, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	file := os.NewFile(uintptr(fd), path)
	defer file.Close()
	os.Remove(path)                                // a dead daemon's
	if err := unix.Fchmod(fd, 0o600); err != nil { // what Linux makes the file with: nobody else until it has its mode
		return nil, err
	}
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: path}); err != nil {
		return nil, err
	}
	l, err := net.Listener(nil), errors.Join(os.Chown(path, -1, gid), os.Chmod(path, mode))
	if err == nil {
		err = unix.Listen(fd, math.MaxUint16) // or what net.core.somaxconn allows
	}
	if err == nil {
		l, err = net.FileListener(file)
	}
	if err != nil {
		os.Remove(path)
		return nil, err
	}
	return l.(*net.UnixListener), nil
}

// entries returns the sockets that there are.
func (o *door) entries() []*entry {
	return slices.DeleteFunc([]*entry{o.wire, o.handoff}, func(e *entry) bool { return e == nil })
}

// close stops listening. The sockets stay in the file system until remove.
func (o *door) close() {
	for _, e := range o.entries() {
		e.close()
	}
}

// remove takes the sockets out of the file system.
func (o *door) remove() {
	os.Remove(filepath.Join(o.dir, handoff.WireName))
	os.Remove(filepath.Join(o.dir, handoff.SocketName))
}
