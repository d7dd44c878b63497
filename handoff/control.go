package handoff

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// control is a client's connection to the daemon. It owns the descriptor. One exchange runs at a time.
type control struct {
	mu     sync.Mutex
	fd     int
	file   *os.File // has the descriptor once the runtime's poller waits for it (see through); nil before
	block  bool     // wait in system calls only
	lines  lines
	users  int  // leases that hold it; the last one closes it
	broken bool // an exchange was cut off: what comes next is unknown
}

// dial connects to the daemon and, if a uid is given, makes sure that the daemon runs as it. Nothing is waited for, unless
// block is set.
func dial(socket string, uid *int, block bool) (*control, error) {
	kind := unix.SOCK_STREAM | unix.SOCK_CLOEXEC
	if !block {
		kind |= unix.SOCK_NONBLOCK
	}
	fd, err := unix.Socket(unix.AF_UNIX, kind, 0)
	if err != nil {
		return nil, fmt.Errorf("reach pghandoff: make a socket (ulimit -n): %w", err)
	}
	if err := again(fd, func(fd int) error { return unix.Connect(fd, &unix.SockaddrUnix{Name: socket}) }); err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("reach pghandoff at %s (is it running? is %s its socket?): %w", socket, EnvSocket, err)
	}
	if uid != nil {
		if err := checkServer(fd, socket, *uid); err != nil {
			_ = unix.Close(fd)
			return nil, err
		}
	}
	return &control{fd: fd, block: block, users: 1}, nil
}

func checkServer(fd int, socket string, uid int) error {
	cred, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil {
		return fmt.Errorf("ask who listens on %s: %w", socket, err)
	}
	if int64(cred.Uid) != int64(uid) {
		return fmt.Errorf("%s belongs to a process of uid %d, not %d: it is not the daemon that was expected", socket,
			cred.Uid, uid)
	}
	return nil
}

// exchange sends a request and returns its reply, with the descriptor that a grant carries, owned by the caller, or -1.
// When ctx ends first, the connection is of no use any more.
func (c *control) exchange(ctx context.Context, call Call) (r Reply, fd int, err error) {
	line, err := AppendCall(make([]byte, 0, 256), call) // long enough for most
	if err != nil {
		return Reply{}, -1, err
	}
	return c.exchangeLine(ctx, line)
}

// exchangeLine is exchange for a request that is written already.
func (c *control) exchangeLine(ctx context.Context, line []byte) (r Reply, fd int, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.broken {
		return Reply{}, -1, errors.New("the connection to pghandoff was cut off in an earlier request")
	}
	r, fd, err = c.exchangeLocked(ctx, line)
	if err != nil && r.Refusal == nil {
		c.broken = true
		if ctx.Err() != nil {
			err = ctx.Err()
		}
	}
	return r, fd, err
}

func (c *control) exchangeLocked(ctx context.Context, line []byte) (Reply, int, error) {
	unsent := c.send(ctx, line)
	if unsent != nil && !errors.Is(unsent, unix.EPIPE) { // else it may have said why it does not listen
		return Reply{}, -1, fmt.Errorf("ask pghandoff: %w", unsent)
	}
	answer, fds, err := c.readLine(ctx)
	var r Reply
	if err == nil {
		r, err = ParseReply(answer)
	}
	if err != nil {
		closeAll(fds)
		if unsent != nil {
			err = fmt.Errorf("ask pghandoff: %w", unsent)
		}
		return Reply{}, -1, err
	}
	fd, err := onlyDescriptor(r, fds)
	if err == nil && r.Refusal != nil {
		err = r.Refusal
	}
	return r, fd, err
}

// release lets go of the connection; the last user closes it.
func (c *control) release() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.users--; c.users != 0 {
		return nil
	}
	if c.file != nil {
		return c.file.Close()
	}
	return unix.Close(c.fd)
}
