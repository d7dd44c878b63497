package handoff

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// control is a client's connection to the daemon. It owns the connection. One exchange runs at a time.
type control struct {
	mu     sync.Mutex
	conn   *net.UnixConn
	lines  lines
	users  int  // leases that hold it; the last one closes it
	broken bool // an exchange was cut off: what comes next is unknown
}

func newControl(conn *net.UnixConn) *control {
	return &control{conn: conn, lines: lines{limit: maxReplySize}, users: 1}
}

// dial connects to the daemon and, if a uid is given, makes sure that the daemon runs as it.
func dial(ctx context.Context, socket string, uid *int) (*control, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "unix", socket)
	if err != nil {
		return nil, fmt.Errorf("reach pghandoff (is it running? is %s its socket?): %w", EnvSocket, err)
	}
	unixConn := conn.(*net.UnixConn)
	if uid != nil {
		if err := checkServer(unixConn, socket, *uid); err != nil {
			_ = conn.Close()
			return nil, err
		}
	}
	return newControl(unixConn), nil
}

func checkServer(conn *net.UnixConn, socket string, uid int) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	var cred *unix.Ucred
	var credErr error
	if err := raw.Control(func(fd uintptr) { cred, credErr = peerCred(int(fd)) }); err != nil {
		return err
	}
	return wantServer(cred, credErr, socket, uid)
}

func peerCred(fd int) (*unix.Ucred, error) {
	return unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
}

func wantServer(cred *unix.Ucred, err error, socket string, uid int) error {
	if err != nil {
		return fmt.Errorf("ask who listens on %s: %w", socket, err)
	}
	if int64(cred.Uid) != int64(uid) {
		return fmt.Errorf("%s belongs to a process of uid %d, not %d: it is not the daemon that was expected", socket,
			cred.Uid, uid)
	}
	return nil
}

// exchange sends a request and returns its reply, with the descriptor that a grant carries, owned by the caller. When
// ctx ends first, the connection is of no use any more.
func (c *control) exchange(ctx context.Context, call Call) (r Reply, file *os.File, err error) {
	line, err := AppendCall(nil, call)
	if err != nil {
		return Reply{}, nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.broken {
		return Reply{}, nil, errors.New("the connection to pghandoff was cut off in an earlier request")
	}
	stop := context.AfterFunc(ctx, func() { _ = c.conn.SetDeadline(past) })
	defer func() {
		if !stop() || err != nil && r.Refusal == nil {
			c.broken = true
		}
	}()
	r, file, err = c.exchangeLocked(line)
	if err != nil && ctx.Err() != nil {
		err = ctx.Err()
	}
	return r, file, err
}

func (c *control) exchangeLocked(line []byte) (Reply, *os.File, error) {
	if _, err := c.conn.Write(line); err != nil {
		return Reply{}, nil, fmt.Errorf("ask pghandoff: %w", err)
	}
	answer, fds, err := c.readLine()
	if err != nil {
		closeAll(fds)
		return Reply{}, nil, err
	}
	r, err := ParseReply(answer)
	if err != nil {
		closeAll(fds)
		return Reply{}, nil, err
	}
	fd, err := onlyDescriptor(r, fds)
	if err != nil {
		return Reply{}, nil, err
	}
	switch {
	case r.Refusal != nil:
		return r, nil, r.Refusal
	case fd < 0:
		return r, nil, nil
	}
	return r, os.NewFile(uintptr(fd), "pghandoff lease"), nil
}

// onlyDescriptor returns the descriptor that the reply announces, or -1 if it announces none. If the number is not as
// announced it closes all of them.
func onlyDescriptor(r Reply, fds []int) (int, error) {
	want := 0
	if r.Granted != nil {
		want = 1
	}
	if len(fds) != want {
		closeAll(fds)
		return -1, fmt.Errorf("reply of pghandoff came with %d descriptors instead of %d: all are closed; this process may "+
			"have none left (ulimit -n)", len(fds), want)
	}
	if want == 0 {
		return -1, nil
	}
	return fds[0], nil
}

func closeAll(fds []int) {
	for _, fd := range fds {
		_ = unix.Close(fd)
	}
}

// roomForRights is more than any honest reply needs, so that surplus descriptors are seen, and closed.
var roomForRights = unix.CmsgSpace(16 * 4)

// readLine reads up to the next line break and keeps what follows. It returns the descriptors that came along, which the
// caller then owns, on error too.
func (c *control) readLine() (line []byte, fds []int, err error) {
	buf, oob := make([]byte, 8<<10), make([]byte, roomForRights)
	for {
		line, ok, tooLong := c.lines.next()
		if tooLong {
			return nil, fds, errReplyTooLong
		}
		if ok {
			return line, fds, nil
		}
		n, oobn, flags, _, err := c.conn.ReadMsgUnix(buf, oob)
		more, rightsErr := receivedRights(oob[:max(0, oobn)], flags) // both are -1 after an error
		fds = append(fds, more...)
		c.lines.add(buf[:max(0, n)])
		switch {
		case errors.Is(err, io.EOF) || errors.Is(err, unix.ECONNRESET):
			return nil, fds, errHungUp
		case err != nil:
			return nil, fds, fmt.Errorf("read reply of pghandoff: %w", err)
		case rightsErr != nil:
			return nil, fds, rightsErr
		}
	}
}

var errHungUp = errors.New("pghandoff closed the connection without an answer: it has stopped, or dropped this request " +
	"(its log says why); try again")

// receivedRights returns the descriptors in ancillary data, all of them close-on-exec, on error too.
func receivedRights(oob []byte, flags int) (fds []int, err error) {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, fmt.Errorf("read descriptor from pghandoff: %w", err)
	}
	for i := range messages {
		if messages[i].Header.Level != unix.SOL_SOCKET || messages[i].Header.Type != unix.SCM_RIGHTS {
			continue
		}
		more, err := unix.ParseUnixRights(&messages[i])
		if err != nil {
			return fds, fmt.Errorf("read descriptor from pghandoff: %w", err)
		}
		fds = append(fds, more...)
	}
	if flags&unix.MSG_CTRUNC != 0 {
		return fds, errors.New("a descriptor from pghandoff could not be received: this process has none left (ulimit -n), " +
			"or too many came")
	}
	return fds, nil
}

// release lets go of the connection; the last user closes it.
func (c *control) release() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.users--; c.users != 0 {
		return nil
	}
	return c.conn.Close()
}
