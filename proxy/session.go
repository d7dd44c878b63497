package proxy

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"time"

	"pghandoff/pgwire"
	"pghandoff/proxy/loop"
)

const (
	// startupRead is how much is read at a time before a lease is granted: a
	// start-up packet, and what a function may send behind it. 16 KiB.
	startupRead = 16 << 10
	// slowRefusals is how many connections over their limit may be listened to
	// at a time; further ones are told at once, and before they have asked.
	slowRefusals = 64
)

// session is one function's connection on which the start-up is emulated: the
// wire socket's, or the daemon's end of a pair given away with state startup.
// It belongs to the front loop, and ends by becoming a lease or by being closed.
type session struct {
	d        *Daemon
	peer     *Peer
	door     *door
	way      string // "wire" or "tcp"
	function end
	// lease is what was granted before the start-up (handoff); nil: it is
	// granted by it (wire).
	lease   *Lease
	counted bool     // against the uid's limit of connections
	refusal *Failure // whatever is asked for is refused, but a cancel
	ask     *ask     // under way; nil: none
	timer   loop.Timer

	asked    [2]bool // SSLRequest and GSSENCRequest have been answered
	packet   []byte  // of a start-up packet that is not whole
	surplus  []byte  // what came behind it
	greeting []byte  // what goes out before the parameters
	greeted  bool    // NegotiateProtocolVersion is out already
	long     bool    // the function speaks protocol 3.2: its cancel key is long
	over     bool
}

// serveWire serves a new connection of the wire socket, which it owns.
func (d *Daemon) serveWire(o *door, fd int, peer *Peer) {
	s := &session{d: d, peer: peer, door: o, way: "wire", function: end{fd: fd}}
	patience := d.startupPatience
	if err := d.limits.take(peer.holder(), limitConnections); err != nil {
		s.refusal, patience = failureOf(err), d.refusalPatience
		if d.refusals == slowRefusals {
			d.turnAway(fd, false, s.refusal)
			return
		}
		d.refusals++
	}
	s.counted = s.refusal == nil
	s.begin(patience)
}

// begin reads what has come already, and waits for the rest.
func (s *session) begin(patience time.Duration) {
	s.d.enter(s)
	if patience > 0 {
		s.d.front().Set(&s.timer, patience, s)
	}
	s.Ready(loop.Readable)
}

// watch waits for events of the function.
func (s *session) watch(events loop.Events) {
	var err error
	if s.function.token != 0 {
		err = s.d.front().Want(s.function.token, events)
	} else if events != 0 {
		s.function.token, err = s.d.front().Add(s.function.fd, s, events)
	}
	if err != nil {
		s.tell(failureOf(err))
	}
}

// Ready is called when the function has sent something or is gone.
func (s *session) Ready(e loop.Events) {
	switch {
	case s.over: // what is still reported is for the lease
		return
	case s.ask != nil: // only its end is waited for
		if e&loop.Closed != 0 {
			s.close("gone")
		}
		return
	}
	in := s.d.front().In[:startupRead]
	n, err := s.function.look(in)
	switch {
	case err != nil:
		s.close("no start-up")
	case n == 0:
		s.watch(loop.Readable)
	default:
		s.feed(in[:n])
		s.function.drop(in)
	}
}

// Expired is called when the function has taken too long.
func (s *session) Expired(*loop.Timer) {
	switch l := s.lease; {
	case s.refusal != nil:
		s.tell(s.refusal)
	case l != nil:
		f := errIdle(l.route)
		s.lease = nil
		s.d.finish(l, ending{endTimedOut, f})
		s.tell(f)
	default:
		s.close("no start-up")
	}
}

// leave tells a function that has not been served that the daemon stops. The
// lease that a session may have is revoked by itself.
func (s *session) leave() {
	switch {
	case s.over || s.lease != nil:
	case s.ask != nil:
		s.ask.stop(errShutdown())
	default:
		s.tell(errShutdown())
	}
}

// feed takes bytes of start-up packets.
func (s *session) feed(p []byte) {
	if len(s.packet) > 0 {
		s.packet = append(s.packet, p...)
		p, s.packet = s.packet, nil
	}
	n, err := packetLength(p)
	if err == nil && (n == 0 || len(p) < n) {
		s.packet = bytes.Clone(p)
		s.watch(loop.Readable)
		return
	}
	var st pgwire.Startup
	if err == nil {
		st, err = pgwire.ParseStartup(p[4:n])
	}
	if err != nil {
		s.tell(failureOf(err))
		return
	}
	s.serve(&st, p[n:])
}

// packetLength returns the length of the start-up packet that p begins with, or
// 0 while that cannot be told.
func packetLength(p []byte) (int, error) {
	if len(p) < 4 {
		return 0, nil
	}
	return pgwire.StartupLength([4]byte(p))
}

// serve does what a packet asks for; rest came behind it.
func (s *session) serve(st *pgwire.Startup, rest []byte) {
	switch st.Kind {
	case pgwire.SSLRequest, pgwire.GSSENCRequest:
		s.decline(st.Kind, rest)
	case pgwire.CancelRequest:
		s.cancel(st)
	default:
		if s.refusal != nil {
			s.tell(s.refusal)
			return
		}
		s.surplus = bytes.Clone(rest)
		s.start(st)
	}
}

// decline answers a request for encryption with N: there is none on a Unix
// socket.
func (s *session) decline(kind pgwire.StartupKind, rest []byte) {
	seen := &s.asked[0]
	if kind == pgwire.GSSENCRequest {
		seen = &s.asked[1]
	}
	switch {
	case *seen:
		s.tell(&Failure{SQLState: codeProtocolViolation, Message: fmt.Sprintf("%s was sent twice", kind), Reason: "protocol"})
	default:
		*seen = true
		if err := s.function.send(nil, []byte{'N'}); err != nil {
			s.close("no start-up")
			return
		}
		if len(rest) > 0 {
			s.tell(&Failure{SQLState: codeProtocolViolation, Message: fmt.Sprintf("received unencrypted data after %s", kind), Reason: "protocol"})
			return
		}
		s.watch(loop.Readable)
	}
}

// cancel serves a cancel request. The connection is kept until it is through,
// so that whoever waits for its end knows that the signal is out.
func (s *session) cancel(st *pgwire.Startup) {
	s.abandonLease("cancel request")
	s.watch(0)
	s.d.front().Cancel(&s.timer)
	s.peer.look()
	pid, secret, more := st.PID, binary.BigEndian.Uint32(st.Secret), st.Secret[4:]
	s.d.later(s.d.front(), func() { s.d.cancel(s.d.base, s.peer, cancelKey{pid, secret, s.peer.holder()}, more) }, func() { s.close("") })
}

// negotiation is what is told to a function that asks for a protocol, or options
// of it, which we do not speak.
func negotiation(st *pgwire.Startup) []byte {
	if st.Version > pgwire.VersionLatest || len(st.Options) > 0 {
		return pgwire.AppendNegotiateProtocolVersion(nil, st.Version, st.Options)
	}
	return nil
}

// start answers a start-up message: it asks for a lease, unless there is one.
func (s *session) start(st *pgwire.Startup) {
	s.d.front().Cancel(&s.timer)
	s.long = st.Version >= pgwire.VersionLatest
	if !s.greeted {
		s.greeting = negotiation(st)
	}
	s.greeting = pgwire.AppendAuthenticationOk(s.greeting)
	user, _ := st.Get("user")
	if user == "" {
		s.tell(&Failure{SQLState: codeNotAuthorized, Message: "no PostgreSQL user name specified in startup packet", Reason: "no_user"})
		return
	}
	database, named := st.Get("database")
	if database == "" {
		database, named = user, false
	}
	if database == replicationDatabase && s.lease == nil && replicationOf(st.Parameters) != nil {
		database = s.d.replicated(s.door, s.peer)
	}
	application, _ := st.Get("application_name")
	s.ask = &ask{d: s.d, by: s, peer: s.peer, door: s.door, way: s.way, database: database, user: user, application: application, parameters: st.Parameters}
	if s.lease != nil {
		s.ask.adopt(s.lease, named)
	} else {
		s.d.grant(s.ask)
	}
	if s.ask != nil && s.function.token != 0 {
		s.watch(loop.Closed) // what it sends meanwhile is for the lease
	}
}

// queued is called when the function has to wait: should it leave, so does its
// wish.
func (s *session) queued() { s.watch(loop.Closed) }

// waitsLong tells the function that it is in the queue. AuthenticationOk goes
// first: libpq takes no notice before it.
func (s *session) waitsLong() {
	b := pgwire.AppendNotice(s.greeting, pgwire.Notice{Severity: "NOTICE", Code: "00000", Message: fmt.Sprintf("all connections of route %q are in use: waiting for one", s.ask.database)})
	s.greeting = nil
	s.function.send(s.d.front().Out, b) // a function that is gone is noticed by the loop
}

// refused is called when the wish was not granted.
func (s *session) refused(err error) {
	if s.ask.setting && len(s.function.pending) == 0 { // PostgreSQL applies parameters after authentication
		s.function.say(s.d.front().Out, s.greeting)
	}
	s.ask = nil
	s.lease = nil // it is over
	s.tell(failureOf(err))
}

// granted answers the start-up message and lets the function's connection go on
// as the lease.
func (s *session) granted(l *Lease) {
	s.ask = nil
	l.connection = s.counted
	reply := append(s.d.front().Out[:0], s.greeting...)
	reply = append(reply, l.parameters().status...)
	if s.long {
		s.d.leases.lengthen(l)
	}
	reply = pgwire.AppendBackendKeyData(reply, l.up.pid, l.secret, l.more...)
	reply = pgwire.AppendReadyForQuery(reply, 'I')
	if err := s.function.add(s.d.front().In, reply); err != nil { // behind a notice that may have found no room
		l.connection = false
		s.lease = l
		s.close(endFunctionClosed)
		return
	}
	s.over = true
	s.function.drop(s.d.front().In[:startupRead])
	s.d.relay(l, s.function, s.surplus)
	s.d.exit(s)
	s.d.front().Later(func() { s.d.announce(l) })
}

// tell sends a FATAL error, the session's last word, and closes it.
func (s *session) tell(f *Failure) {
	s.function.say(s.d.front().Out, lastWords(f))
	s.close(f.Reason)
}

func lastWords(f *Failure) []byte { return pgwire.AppendError(nil, f.notice()) }

// stop ends a session that holds a lease and has not started. One that is just
// starting is stopped by what comes next: the lease remembers it.
func (s *session) stop(f *Failure, _ bool) {
	s.d.front().Post(func() {
		l := s.lease
		if s.over || s.ask != nil || l == nil {
			return
		}
		s.lease = nil
		s.d.finish(l, ending{endStopped, f})
		s.tell(f)
	})
}

// close ends the session. A lease that it holds is over for the reason why.
func (s *session) close(why string) {
	if s.over {
		return
	}
	s.over = true
	l := s.d.front()
	l.Cancel(&s.timer)
	if s.peer.socket == s.function.fd { // else it is a conversation's, which may go on
		s.peer.gone()
	}
	s.function.leave(l)
	if s.ask != nil {
		s.ask.abandon()
		s.lease = nil // the wish ends it
	}
	s.abandonLease(why)
	switch {
	case s.refusal != nil:
		s.d.refusals--
	case s.counted:
		s.d.limits.give(s.peer.holder(), limitConnections)
	}
	s.d.exit(s)
}

func (s *session) abandonLease(why string) {
	if l := s.lease; l != nil {
		s.lease = nil
		s.d.finish(l, ending{outcome: why})
	}
}
