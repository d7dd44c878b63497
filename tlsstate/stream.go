package tlsstate

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// closePatience is how long Close tries to tell the peer.
	closePatience = 500 * time.Millisecond
	// answerPatience is how long a Read waits to get a KeyUpdate's answer out. A peer that reads nothing before we read
	// would block both for ever otherwise; what is left goes out in front of the next Write.
	answerPatience = 250 * time.Millisecond
)

var (
	errDetached = errors.New("TLS stream was detached")
	errBusy     = errors.New("TLS stream cannot be detached while a Read or Write is under way")
)

// Stream is a blocking net.Conn on a Conn and the transport under it, for the login and for simple relays. It owns the
// transport until Detach. One Read and one Write may run at the same time; Close and the deadlines may be called by
// anybody at any time.
//
// A Read takes from the transport no byte past the record that it needs, see Buffered. A Write whose deadline passes
// keeps what is sealed and counts it as written: the next Write, of nothing even, sends it first. After any other write
// error nothing more can be written, as it is not known what went out, while the server's last words can still be read.
type Stream struct{ *stream }

// stream is behind a pointer for the reason of parts: there is plaintext in its buffers.
type stream struct {
	nc    net.Conn
	conn  *Conn
	whole *tls.Conn // in place of conn: the connection is inside crypto/tls, see whole.go
	gate  *gate     // under whole
	info  *Info

	read  sync.Mutex // guards buf, start, end, plain, wide; lock order: read, write
	buf   []byte
	start int // buf[start:end] is ciphertext read and not yet opened
	end   int
	plain []byte // opened and not yet taken; aliases buf in front of start
	wide  bool   // fill buf with as much as there is

	write   sync.Mutex // guards out, pending, broken
	out     []byte     // reused for sealing
	pending []byte     // sealed and not yet written; aliases out
	broken  error      // why nothing more is written

	deadline sync.Mutex // guards until
	until    time.Time  // the caller's write deadline

	ended atomic.Pointer[failure] // closed or detached
}

// NewStream puts a Stream on a connection again, the other way round from Detach: it owns both from then on, and begins
// with the bytes that conn holds.
func NewStream(nc net.Conn, conn *Conn) *Stream {
	s := &Stream{&stream{nc: nc, conn: conn, info: conn.info, plain: conn.in.plain, buf: conn.in.held, end: len(conn.in.held), pending: conn.out.held}}
	conn.in.plain, conn.in.held, conn.out.held = nil, nil, nil
	return s
}

// Info tells what the handshake settled.
func (s *Stream) Info() *Info { return s.info }

func (s *Stream) LocalAddr() net.Addr  { return s.nc.LocalAddr() }
func (s *Stream) RemoteAddr() net.Addr { return s.nc.RemoteAddr() }

// NetConn is the transport, which the Stream goes on owning: for its addresses and socket options, not for its bytes.
func (s *Stream) NetConn() net.Conn { return s.nc }

func (s *Stream) SetDeadline(t time.Time) error {
	return errors.Join(s.SetReadDeadline(t), s.SetWriteDeadline(t))
}

func (s *Stream) SetReadDeadline(t time.Time) error { return s.nc.SetReadDeadline(t) }

func (s *Stream) SetWriteDeadline(t time.Time) error {
	s.deadline.Lock()
	defer s.deadline.Unlock()
	s.until = t
	return s.nc.SetWriteDeadline(t)
}

// shorten sets a write deadline of ours, unless the caller's is earlier; restore sets the caller's again.
func (s *Stream) shorten(d time.Duration) {
	s.deadline.Lock()
	defer s.deadline.Unlock()
	if ours := time.Now().Add(d); s.until.IsZero() || ours.Before(s.until) {
		s.nc.SetWriteDeadline(ours)
	}
}

func (s *Stream) restore() {
	s.deadline.Lock()
	defer s.deadline.Unlock()
	s.nc.SetWriteDeadline(s.until)
}

// finish marks the stream as over because of err and reports whether this call did it.
func (s *Stream) finish(err error) bool { return s.ended.CompareAndSwap(nil, &failure{err}) }

func (s *Stream) over() error {
	if f := s.ended.Load(); f != nil {
		return f.err
	}
	return nil
}

// Close sends close_notify, if that takes no longer than half a second and no Write is under way, and closes the
// transport. It is idempotent; Reads and Writes under way end with an error. After Detach it does nothing.
func (s *Stream) Close() error {
	if !s.finish(net.ErrClosed) {
		return nil
	}
	if s.whole != nil {
		s.shorten(closePatience)
		s.whole.CloseWrite() // the transport is closed whatever this says
		return s.nc.Close()
	}
	if s.write.TryLock() {
		s.shorten(closePatience)
		s.notifyLocked() // the transport is closed whatever this says
		s.write.Unlock()
	}
	err := s.nc.Close()
	s.forget()
	return err
}

// forget overwrites plaintext and secrets, unless a Read or Write is still on its way out.
func (s *Stream) forget() {
	if !s.read.TryLock() {
		return
	}
	defer s.read.Unlock()
	if !s.write.TryLock() {
		return
	}
	defer s.write.Unlock()
	clear(s.buf)
	s.buf, s.plain, s.out, s.pending, s.start, s.end = nil, nil, nil, nil, 0, 0
	s.conn.Forget()
}

// CloseWrite sends close_notify: nothing is written after it, while reading goes on. It does not shut the transport down.
func (s *Stream) CloseWrite() error {
	if err := s.over(); err != nil {
		return err
	}
	if s.whole != nil {
		return s.whole.CloseWrite()
	}
	s.write.Lock()
	defer s.write.Unlock()
	return s.notifyLocked()
}

// notifyLocked sends what is pending and a close_notify behind it.
func (s *Stream) notifyLocked() error {
	if err := s.flushLocked(); err != nil {
		return err
	}
	out, err := s.conn.AppendCloseNotify(s.out[:0])
	if err != nil {
		return err
	}
	s.out, s.pending = out, out
	return s.flushLocked()
}

// Detach gives back the transport and the connection on it, to be used without the Stream, which is dead afterwards. The
// caller owns both. Bytes at rest go along: HeldPlain, then HeldIn, are to be read before the transport, and HeldOut to be
// written before anything else. Deadlines are cleared.
//
// Errors: while a Read or Write is under way, after Close and on a dead connection; ErrNotDetachable. The Stream then still
// owns the transport.
func (s *Stream) Detach() (net.Conn, *Conn, error) {
	if s.whole != nil {
		return nil, nil, ErrNotDetachable
	}
	if !s.read.TryLock() {
		return nil, nil, errBusy
	}
	defer s.read.Unlock()
	if !s.write.TryLock() {
		return nil, nil, errBusy
	}
	defer s.write.Unlock()
	if err := errors.Join(s.over(), s.broken, s.conn.dead()); err != nil {
		return nil, nil, fmt.Errorf("detach from TLS stream: %w", err)
	}
	err := errors.Join(s.conn.HoldPlain(s.plain), s.conn.HoldIn(s.buf[s.start:s.end]), s.conn.HoldOut(s.pending))
	if err != nil {
		return nil, nil, fmt.Errorf("detach from TLS stream: %w", err)
	}
	if !s.finish(errDetached) {
		return nil, nil, fmt.Errorf("detach from TLS stream: %w", s.over())
	}
	clear(s.buf)
	s.buf, s.plain, s.out, s.pending, s.start, s.end = nil, nil, nil, nil, 0, 0
	s.nc.SetDeadline(time.Time{})
	return s.nc, s.conn, nil
}
