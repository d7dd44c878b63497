package pgxhandoff

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"pghandoff/handoff"
)

// Codes in place of a protocol version (PostgreSQL documentation, "Message Formats").
const cancelCode = 80877102

// dialled is a connection that is opened by its first message. pgx writes that message whole, and may start reading
// before the write has returned.
type dialled struct {
	open    func(first []byte) (opened, error)
	abandon context.CancelFunc // ends open
	address *net.UnixAddr
	once    sync.Once
	ready   chan struct{} // closed when conn, greeting and err are set

	first    []byte // what was written while the first message is incomplete
	conn     net.Conn
	closer   io.Closer // the lease, or the connection of a cancel request
	err      error
	readMu   sync.Mutex
	greeting []byte // to be read before what comes from conn

	mu           sync.Mutex // guards the deadlines
	read, writes time.Time
}

// opened is what a first message leads to.
type opened struct {
	conn     net.Conn
	closer   io.Closer
	greeting []byte // answers that were made up here
	rest     []byte // of what was written, to be sent on
}

// newDialled is a connection that the request leads to.
func newDialled(ctx context.Context, r handoff.Request) *dialled {
	wire := &net.UnixAddr{Net: "unix", Name: handoff.WirePath(handoff.SocketPath(r.Socket))}
	return dialledBy(ctx, wire, func(ctx context.Context, first []byte) (opened, error) { return open(ctx, r, wire, first) })
}

// dialledBy keeps ctx, which pgx passes to a dial, for the first write: that belongs to the same attempt.
func dialledBy(ctx context.Context, wire *net.UnixAddr, open func(ctx context.Context, first []byte) (opened, error)) *dialled {
	ctx, cancel := context.WithCancel(ctx)
	return &dialled{abandon: cancel, ready: make(chan struct{}), address: wire,
		open: func(first []byte) (opened, error) { return open(ctx, first) }}
}

// complete tells whether a first message is all there: its length is in its first four bytes.
func complete(first []byte) bool {
	return len(first) >= 8 && uint64(len(first)) >= uint64(binary.BigEndian.Uint32(first))
}

func (d *dialled) Write(p []byte) (int, error) {
	select {
	case <-d.ready:
		if d.err != nil {
			return 0, d.err
		}
		return d.conn.Write(p)
	default:
	}
	if d.first = append(d.first, p...); !complete(d.first) {
		return len(p), nil
	}
	o, err := d.open(d.first)
	d.first = nil
	d.abandon() // from here on it only frees what the context holds
	if !d.settle(o, err) && err == nil {
		_ = o.closer.Close()
	}
	if d.err != nil {
		return 0, d.err
	}
	if len(o.rest) > 0 {
		if _, err := d.conn.Write(o.rest); err != nil {
			return 0, err
		}
	}
	return len(p), nil
}

// settle publishes the outcome of open. It reports false, and changes nothing, if Close came first.
func (d *dialled) settle(o opened, err error) (published bool) {
	d.once.Do(func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		defer close(d.ready)
		published = true
		d.conn, d.closer, d.greeting, d.err = o.conn, o.closer, o.greeting, err
		switch {
		case err == nil:
			_ = d.conn.SetReadDeadline(d.read)
			_ = d.conn.SetWriteDeadline(d.writes)
		case errors.Is(err, context.Canceled) && expired(d.writes):
			d.err = os.ErrDeadlineExceeded
		}
	})
	return published
}

func (d *dialled) Read(p []byte) (int, error) {
	<-d.ready
	if d.err != nil {
		return 0, d.err
	}
	d.readMu.Lock()
	if len(d.greeting) > 0 {
		n := copy(p, d.greeting)
		d.greeting = d.greeting[n:]
		d.readMu.Unlock()
		return n, nil
	}
	d.readMu.Unlock()
	return d.conn.Read(p)
}

// Close ends the lease. A first message under way is abandoned.
func (d *dialled) Close() error {
	d.abandon()
	d.settle(opened{}, net.ErrClosed) // if nothing was ever written, or not all of a first message
	if d.closer == nil {
		return nil
	}
	return d.closer.Close()
}

func expired(t time.Time) bool { return !t.IsZero() && !t.After(time.Now()) }

// SetDeadline and its like pass on to the connection once there is one; pgx sets one in the past to interrupt a call,
// and that interrupts an acquire too.
func (d *dialled) SetDeadline(t time.Time) error { return d.setDeadlines(t, true, true) }

func (d *dialled) SetReadDeadline(t time.Time) error { return d.setDeadlines(t, true, false) }

func (d *dialled) SetWriteDeadline(t time.Time) error { return d.setDeadlines(t, false, true) }

func (d *dialled) setDeadlines(t time.Time, read, write bool) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if read {
		d.read = t
	}
	if write {
		d.writes = t
	}
	select {
	case <-d.ready:
	default:
		if write && expired(t) {
			d.abandon()
		}
		return nil
	}
	if d.conn == nil {
		return d.err
	}
	return errors.Join(d.conn.SetReadDeadline(d.read), d.conn.SetWriteDeadline(d.writes))
}

// LocalAddr is nameless.
func (d *dialled) LocalAddr() net.Addr { return &net.UnixAddr{Net: "unix"} }

// RemoteAddr is the wire socket, on any transport: pgx dials it again to cancel.
func (d *dialled) RemoteAddr() net.Addr { return d.address }
