package handoff

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// through makes a system call that does not block, and does so again, whenever the connection is ready for the events,
// until the call is through. The error is the call's or, when that ends first, ctx's.
func (c *control) through(ctx context.Context, events int16, call func(fd int) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	for {
		if err := again(c.fd, call); err != unix.EAGAIN {
			return err
		}
		if !c.block {
			return c.park(ctx, events, call)
		}
		ready := []unix.PollFd{{Fd: int32(c.fd), Events: events}}
		if _, err := unix.Poll(ready, -1); err != nil && err != unix.EINTR {
			return err
		}
	}
}

// park goes on with through by way of the runtime's poller, so that no thread is held up and ctx can end the wait. Only
// what does wait is told to the poller: that costs more than most of the other calls, and the daemon can work meanwhile.
func (c *control) park(ctx context.Context, events int16, call func(fd int) error) error {
	c.keep()
	raw, err := c.file.SyscallConn()
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = c.file.SetDeadline(time.Unix(1, 0)) })
	wait := raw.Read
	if events == unix.POLLOUT {
		wait = raw.Write
	}
	var callErr error
	err = wait(func(fd uintptr) bool {
		callErr = again(int(fd), call)
		return callErr != unix.EAGAIN
	})
	if !stop() {
		c.broken = true // by the deadline, even if the call was through before it
	}
	if err != nil {
		return err
	}
	return callErr
}

// keep makes the connection fit to last: the runtime's poller knows it, and closes it if it is forgotten. It must be one
// that does not block.
func (c *control) keep() {
	if c.file == nil {
		c.file = os.NewFile(uintptr(c.fd), "pghandoff")
	}
}

func (c *control) send(ctx context.Context, line []byte) error {
	for len(line) > 0 {
		sent := 0
		err := c.through(ctx, unix.POLLOUT, func(fd int) (err error) {
			sent, err = unix.SendmsgN(fd, line, nil, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
			return err
		})
		if err != nil {
			return err
		}
		line = line[sent:]
	}
	return nil
}

// roomForRights is more than any honest reply needs, so that surplus descriptors are seen, and closed.
var roomForRights = unix.CmsgSpace(16 * 4)

// readLine reads up to the next line break and keeps what follows. It returns the descriptors that came along, which the
// caller then owns, on error too.
func (c *control) readLine(ctx context.Context) (line []byte, fds []int, err error) {
	const most = 2 << 10 // 2 KiB; replies are shorter as a rule
	oob := make([]byte, roomForRights)
	for {
		line, ok, tooLong := c.lines.next(maxReplySize)
		if tooLong {
			return nil, fds, errReplyTooLong
		}
		if ok {
			return line, fds, nil
		}
		var n, oobn, flags int
		buf := c.lines.room(most)
		err := c.through(ctx, unix.POLLIN, func(fd int) (err error) {
			n, oobn, flags, _, err = unix.Recvmsg(fd, buf, oob, unix.MSG_DONTWAIT|unix.MSG_CMSG_CLOEXEC)
			return err
		})
		if err != nil && !errors.Is(err, unix.ECONNRESET) {
			return nil, fds, fmt.Errorf("read reply of pghandoff: %w", err)
		}
		if err != nil || n == 0 {
			return nil, fds, errHungUp
		}
		more, err := receivedRights(oob[:oobn], flags)
		fds = append(fds, more...)
		if err != nil {
			return nil, fds, err
		}
		c.lines.added(n)
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

// again repeats a system call that a signal has interrupted: the runtime preempts goroutines by signals.
func again(fd int, call func(fd int) error) error {
	for {
		if err := call(fd); err != unix.EINTR {
			return err
		}
	}
}
