package handoff

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"slices"
	"syscall"
	"time"
)

// ServeOptions are limits of one conversation. The zero value is right for a daemon.
type ServeOptions struct {
	UnreadLimit time.Duration // after which an unread grant is withdrawn; 0: 2 s
	WriteLimit  time.Duration // after which a peer that leaves no room for a reply is given up; 0: 2 s
	Report      func(error)   // gets the Broker's errors that the function must not see; nil: they are dropped
}

const (
	unreadLimit = 2 * time.Second
	writeLimit  = 2 * time.Second
	maxOwned    = 1024 // leases a connection is remembered to have acquired; older ones need their secret
)

// Serve holds one conversation: it reads requests from conn, asks the broker, and answers in order. It owns conn and
// closes it. It returns when the peer has closed or shut down its side and has its replies, after a malformed line (the
// *Refusal that was answered), when the peer cannot be written to, or when ctx is done (its error).
//
// A peer that closes while its acquire waits abandons it.
func Serve(ctx context.Context, conn *net.UnixConn, broker Broker, options ServeOptions) error {
	defer func() { _ = conn.Close() }()
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	if options.UnreadLimit == 0 {
		options.UnreadLimit = unreadLimit
	}
	if options.WriteLimit == 0 {
		options.WriteLimit = writeLimit
	}
	refuseDescriptors(raw)
	c := &conversation{conn: conn, raw: raw, broker: broker, options: options, lines: lines{limit: maxCallSize}}
	stop := context.AfterFunc(ctx, func() { _ = conn.SetReadDeadline(past) })
	defer stop()
	defer c.end()
	return c.run(ctx)
}

// past makes pending and future reads return at once.
var past = time.Unix(1, 0)

// conversation is one connection to a function. One goroutine runs it.
type conversation struct {
	conn    *net.UnixConn
	raw     syscall.RawConn
	broker  Broker
	options ServeOptions
	lines   lines
	owned   []string // leases acquired here, oldest first
	ended   []func() // what to call at the end
	grant   *Grant   // sent and perhaps not read yet
	until   time.Time
}

func (c *conversation) run(ctx context.Context) error {
	for {
		line, err := c.line(ctx)
		if errors.Is(err, io.EOF) {
			return c.finish(ctx)
		}
		var call Call
		if err == nil {
			call, err = ParseCall(line)
		}
		if fault := (*Refusal)(nil); errors.As(err, &fault) {
			return c.fault(ctx, call.ID, fault)
		}
		if err != nil {
			return err
		}
		if err := c.settle(ctx); err != nil {
			return err
		}
		if err := c.answer(ctx, call); errors.Is(err, ErrGone) {
			return nil
		} else if err != nil {
			return err
		}
	}
}

// line returns the next request. While a grant may be unread it wakes up in time to withdraw it.
func (c *conversation) line(ctx context.Context) ([]byte, error) {
	var buf [4 << 10]byte
	for {
		line, ok, tooLong := c.lines.next()
		if tooLong {
			return nil, malformed("the line is longer than %d KiB", maxCallSize>>10)
		}
		if ok {
			return line, nil
		}
		if err := c.readBy(ctx, c.until); err != nil {
			return nil, err
		}
		n, err := c.conn.Read(buf[:])
		c.lines.add(buf[:n])
		switch {
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case errors.Is(err, os.ErrDeadlineExceeded):
			c.checkUnread(true)
		case err != nil && !errors.Is(err, io.EOF):
			return nil, io.EOF // ECONNRESET: the peer closed without reading everything
		case err != nil && c.lines.pending() > 0:
			return nil, malformed("the last line does not end")
		case err != nil:
			return nil, io.EOF
		}
	}
}

// readBy sets the deadline for reading; the zero time is none. ctx being done prevails, whichever comes first.
func (c *conversation) readBy(ctx context.Context, t time.Time) error {
	if err := c.conn.SetReadDeadline(t); err != nil {
		return err
	}
	return ctx.Err() // checked after the deadline is set, so that the one set for ctx is never lost
}

// checkUnread forgets the grant if it has been read, and withdraws it if it is late.
func (c *conversation) checkUnread(late bool) {
	if c.grant == nil {
		return
	}
	if unread(c.raw) {
		if !late {
			return
		}
		c.grant.withdraw(ErrUnread)
	}
	c.grant, c.until = nil, time.Time{}
}

// settle waits until the last grant has been read or withdrawn. Nothing is sent behind an unread grant, since the
// kernel only tells whether something is unread, not what. There is no event for "read", so it looks again and again,
// at growing intervals.
func (c *conversation) settle(ctx context.Context) error {
	for pause := 50 * time.Microsecond; ; pause = min(2*pause, 10*time.Millisecond) {
		left := time.Until(c.until)
		if c.checkUnread(left <= 0); c.grant == nil {
			return nil
		}
		timer := time.NewTimer(min(pause, left))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		}
	}
}

// answer does what the request asks and sends the reply.
func (c *conversation) answer(ctx context.Context, call Call) error {
	claim := Claim{Lease: call.Lease, Secret: call.Secret, Owner: slices.Contains(c.owned, call.Lease)}
	var err error
	switch call.Op {
	case OpAcquire:
		return c.acquire(ctx, call)
	case OpCancel:
		err = c.broker.Cancel(ctx, claim)
	case OpRelease:
		if err = c.broker.Release(ctx, claim); err == nil {
			c.owned = slices.DeleteFunc(c.owned, func(l string) bool { return l == call.Lease })
		}
	}
	return c.reply(Reply{ID: call.ID, Refusal: c.told(err)})
}

// told returns what the function may know about an error, nil for nil, and reports the rest.
func (c *conversation) told(err error) *Refusal {
	if err == nil {
		return nil
	}
	told, internal := refusalOf(err)
	if internal != nil && c.options.Report != nil {
		c.options.Report(internal)
	}
	return told
}

func (c *conversation) reply(r Reply) error {
	line, err := AppendReply(nil, r)
	if err != nil {
		line, _ = AppendReply(nil, Reply{ID: r.ID, Refusal: &Refusal{SQLState: codeLimit, Message: err.Error()}})
	}
	return c.send(line, nil)
}

// send writes a line; file, if not nil, goes along. The error is ErrGone if the peer has closed.
func (c *conversation) send(line []byte, file syscall.Conn) error {
	if err := c.conn.SetWriteDeadline(time.Now().Add(c.options.WriteLimit)); err != nil {
		return err
	}
	err := sendLine(c.conn, line, file)
	if errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET) {
		return ErrGone
	}
	return err
}

// fault answers a malformed line and ends the conversation.
func (c *conversation) fault(ctx context.Context, id *string, fault *Refusal) error {
	if err := c.settle(ctx); err != nil {
		return err
	}
	if err := c.reply(Reply{ID: id, Refusal: fault}); err != nil && !errors.Is(err, ErrGone) {
		return err
	}
	_ = c.conn.CloseWrite()
	drain(c.raw)
	return fault
}

// finish ends the conversation with a peer that sends no more: leases that end with the connection keep it up until
// the peer has closed it altogether.
func (c *conversation) finish(ctx context.Context) error {
	if err := c.settle(ctx); err != nil || len(c.ended) == 0 {
		return err
	}
	if err := c.readBy(ctx, time.Time{}); err != nil {
		return err
	}
	_ = c.raw.Read(hungUp)
	return ctx.Err()
}

// end tells the Broker about the leases that end with the connection.
func (c *conversation) end() {
	for _, ended := range c.ended {
		ended()
	}
}
