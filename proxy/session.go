package proxy

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"pghandoff/pgwire"
)

// startupPatience is how long a function may take to send its start-up packet.
const startupPatience = 10 * time.Second

// speakPatience is how long a message of ours may take to be accepted.
const speakPatience = time.Second

// session is one function's connection on which the start-up is emulated: the
// wire socket's, or the daemon's end of a pair given away with state startup.
type session struct {
	d    *Daemon
	conn *net.UnixConn
	peer *Peer
	door *door
	way  string
	// lease is what was granted before the start-up (handoff); nil: it is
	// granted by it (wire).
	lease *Lease
	// handed says that the connection has become a lease that is relayed.
	handed bool
}

// receiveStartup reads packets until one is a start-up message or a cancel
// request. Requests for encryption are answered with N: there is none on a
// Unix socket. Errors for the function are *Failure.
func (s *session) receiveStartup(ctx context.Context) (pgwire.Startup, error) {
	if s.lease == nil { // who holds a lease may take time; it is bounded by its own limits
		s.conn.SetReadDeadline(time.Now().Add(startupPatience))
	}
	stop := context.AfterFunc(ctx, func() { s.conn.SetReadDeadline(time.Unix(1, 0)) })
	defer func() {
		stop()
		s.conn.SetReadDeadline(time.Time{})
	}()
	seen := map[pgwire.StartupKind]bool{}
	for {
		p, err := s.receivePacket()
		if err != nil {
			return p, err
		}
		if p.Kind != pgwire.SSLRequest && p.Kind != pgwire.GSSENCRequest {
			return p, nil
		}
		if seen[p.Kind] {
			return p, &Failure{SQLState: codeProtocolViolation, Message: fmt.Sprintf("%s was sent twice", p.Kind), Reason: "protocol"}
		}
		seen[p.Kind] = true
		if waiting, err := unread(s.conn); err != nil || waiting > 0 {
			return p, &Failure{SQLState: codeProtocolViolation, Message: fmt.Sprintf("received unencrypted data after %s", p.Kind), Reason: "protocol"}
		}
		if _, err := s.conn.Write([]byte{'N'}); err != nil {
			return p, err
		}
	}
}

func (s *session) receivePacket() (pgwire.Startup, error) {
	var field [4]byte
	if _, err := io.ReadFull(s.conn, field[:]); err != nil {
		return pgwire.Startup{}, err
	}
	n, err := pgwire.StartupLength(field)
	if err != nil {
		return pgwire.Startup{}, failureOf(err)
	}
	body := make([]byte, n-4)
	if _, err := io.ReadFull(s.conn, body); err != nil {
		return pgwire.Startup{}, err
	}
	st, err := pgwire.ParseStartup(body)
	if err != nil {
		return st, failureOf(err)
	}
	return st, nil
}

// unread returns how many bytes wait in the socket's buffer.
func unread(c syscall.Conn) (n int, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0, err
	}
	if cerr := raw.Control(func(fd uintptr) { n, err = unix.IoctlGetInt(int(fd), unix.SIOCINQ) }); cerr != nil {
		return 0, cerr
	}
	return n, err
}

// serve runs the session until it is refused or relayed. It owns conn.
func (s *session) serve(ctx context.Context) {
	defer s.conn.Close()
	st, err := s.receiveStartup(ctx)
	switch {
	case err != nil:
		s.abandon(err)
	case st.Kind == pgwire.CancelRequest:
		s.abandonLease("cancel request")
		s.cancel(ctx, &st)
	default:
		s.start(ctx, &st)
	}
}

// abandon ends a session whose start-up went wrong.
func (s *session) abandon(err error) {
	var f *Failure
	if !errors.As(err, &f) && s.lease != nil {
		s.lease.mu.Lock()
		f = s.lease.revoked
		s.lease.mu.Unlock()
	}
	if f != nil {
		s.tell(f)
	}
	s.abandonLease("no start-up")
}

func (s *session) abandonLease(why string) {
	if s.lease != nil {
		s.d.finish(s.lease, ending{outcome: why})
	}
}

// tell sends a FATAL error, the session's last word.
func (s *session) tell(f *Failure) {
	s.conn.SetWriteDeadline(time.Now().Add(speakPatience))
	s.conn.Write(pgwire.AppendError(nil, f.notice())) // it may be gone
}

// refusalPatience is how long a connection over the limit may take to send its
// start-up packet.
const refusalPatience = time.Second

// refuse answers a start-up message with an error. A cancel request is served:
// it must get through just when there is too much of everything.
func (s *session) refuse(ctx context.Context, f *Failure) {
	ctx, cancel := context.WithTimeout(ctx, refusalPatience)
	defer cancel()
	st, err := s.receiveStartup(ctx)
	if err == nil && st.Kind == pgwire.CancelRequest {
		s.cancel(context.WithoutCancel(ctx), &st)
		return
	}
	s.tell(f)
}

// cancel serves a cancel request.
func (s *session) cancel(ctx context.Context, st *pgwire.Startup) {
	if len(st.Secret) == 4 {
		s.d.cancel(ctx, s.peer, st.PID, binary.BigEndian.Uint32(st.Secret))
	}
}

// start answers a start-up message and relays.
func (s *session) start(ctx context.Context, st *pgwire.Startup) {
	greeting := s.greet(st)
	l, err := s.acquire(ctx, st, greeting)
	if err != nil {
		s.tell(failureOf(err))
		return
	}
	reply := *greeting
	for _, p := range l.up.parameters {
		reply = pgwire.AppendParameterStatus(reply, p)
	}
	reply = pgwire.AppendBackendKeyData(reply, l.up.pid, l.secret)
	reply = pgwire.AppendReadyForQuery(reply, 'I')
	s.conn.SetWriteDeadline(time.Now().Add(speakPatience))
	_, err = s.conn.Write(reply)
	s.conn.SetWriteDeadline(time.Time{})
	s.d.announce(l)
	if err != nil {
		s.d.finish(l, ending{outcome: endFunctionClosed})
		return
	}
	fd, err := takeDescriptor(s.conn)
	if err != nil {
		s.d.finish(l, ending{outcome: "no descriptor"})
		return
	}
	s.handed, l.connection = true, s.lease == nil
	s.d.relay(l, fd)
}

// greet returns what comes before the parameters. A notice about a long wait
// sends it ahead.
func (s *session) greet(st *pgwire.Startup) *[]byte {
	var b []byte
	if st.Version > pgwire.VersionLatest || len(st.Options) > 0 {
		b = pgwire.AppendNegotiateProtocolVersion(b, st.Options)
	}
	b = pgwire.AppendAuthenticationOk(b)
	return &b
}

// acquire returns the session's lease: the one it was made for, or a new one.
func (s *session) acquire(ctx context.Context, st *pgwire.Startup, greeting *[]byte) (*Lease, error) {
	user, _ := st.Get("user")
	if user == "" {
		s.abandonLease("no user")
		return nil, &Failure{SQLState: codeNotAuthorized, Message: "no PostgreSQL user name specified in startup packet", Reason: "no_user"}
	}
	database, ok := st.Get("database")
	if !ok || database == "" {
		database = user
	}
	if s.lease != nil {
		return s.adopt(st, database, ok)
	}
	application, _ := st.Get("application_name")
	return s.d.grant(ctx, ask{peer: s.peer, door: s.door, way: s.way, database: database, user: user, application: application, parameters: st.Parameters,
		notice: func() { s.noticeWait(greeting, database) },
		watch:  func(ctx context.Context) (context.Context, func()) { return watchHangup(ctx, s.conn) }})
}

// noticeWait tells a function that it is in the queue. AuthenticationOk goes
// first: libpq takes no notice before it.
func (s *session) noticeWait(greeting *[]byte, route string) {
	b := pgwire.AppendNotice(*greeting, pgwire.Notice{Severity: "NOTICE", Code: "00000", Message: fmt.Sprintf("all connections of route %q are in use: waiting for one", route)})
	*greeting = nil
	s.conn.SetWriteDeadline(time.Now().Add(speakPatience))
	s.conn.Write(b) // a function that is gone is noticed by watchHangup
	s.conn.SetWriteDeadline(time.Time{})
}

// adopt makes the lease that came with the descriptor fit the start-up message.
func (s *session) adopt(st *pgwire.Startup, database string, named bool) (*Lease, error) {
	l := s.lease
	if named && database != l.route.name {
		s.d.finish(l, ending{outcome: "wrong database"})
		return nil, &Failure{SQLState: codeNoSuchDatabase, Message: fmt.Sprintf("this descriptor is a lease of route %q, not of %q", l.route.name, database), Reason: "no_route"}
	}
	settings, err := settingsOf(st.Parameters, l.route.cfg.IgnoreStartupParameters)
	if err == nil {
		err = l.set(settings)
		if err == nil {
			l.up.tracker = pgwire.NewTracker('I')
			return l, nil
		}
	}
	s.d.finish(l, ending{outcome: failureOf(err).Reason})
	return nil, err
}

// watchHangup returns a context that ends, with errGone, when the peer of c has
// closed it in both directions. stop must be called; then nobody watches c any
// more and its read deadline is unset. Nothing is taken from c.
func watchHangup(ctx context.Context, c *net.UnixConn) (_ context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	raw, err := c.SyscallConn()
	if err != nil {
		cancel(err)
		return ctx, func() {}
	}
	done := make(chan struct{})
	go func() { // ended by stop's deadline
		defer close(done)
		raw.Read(func(fd uintptr) bool {
			if !hungUp(int(fd)) {
				return false // until something happens on c
			}
			cancel(errGone)
			return true
		})
	}()
	return ctx, func() {
		c.SetReadDeadline(time.Unix(1, 0))
		<-done
		c.SetReadDeadline(time.Time{})
		cancel(nil)
	}
}

// hungUp reports whether the other side of a Unix socket is gone. One that has
// only shut down its sending direction is not: it may wait for an answer.
func hungUp(fd int) bool {
	fds := []unix.PollFd{{Fd: int32(fd)}}
	n, err := unix.Poll(fds, 0)
	return err == nil && n > 0 && fds[0].Revents&(unix.POLLHUP|unix.POLLERR) != 0
}
