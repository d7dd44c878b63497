package proxy

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"pghandoff/pgwire"
	"pghandoff/proxy/audit"
	"pghandoff/tlsstate"
)

// guest is a connection of the TCP listener at its TLS handshake and login. Both
// block, so a worker does them; what has come of it goes to the front loop.
type guest struct {
	l       *listener
	gate    *gate
	peer    *Peer
	conn    net.Conn // owned by the worker: TCP, then TLS on it
	tls     *tlsstate.Stream
	asked   [2]bool        // GSSENCRequest and SSLRequest were answered
	startup pgwire.Startup // or a cancel request
	greeted bool           // NegotiateProtocolVersion is out
	silent  bool           // it has not said anything

	function end // after the login
	surplus  []byte
	err      error
}

// serve takes in a new connection, which it owns. Front loop only.
func (l *listener) serve(fd int) {
	d := l.d
	peer := newRemote(remoteAddress(fd))
	if err := d.limits.take(peer.holder(), limitConnections); err != nil {
		d.turnAway(fd, false, failureOf(err))
		return
	}
	if !l.admit(peer.holder()) {
		d.limits.give(peer.holder(), limitConnections)
		d.turnAway(fd, false, &Failure{SQLState: codeTooMany, Message: "too many connections are logging in", Hint: "try again in a moment", Retry: true, Reason: "over_limit"})
		return
	}
	g := &guest{l: l, gate: d.table.Load().gate, peer: peer}
	d.later(d.front(), func() { g.err = g.receive(fd) }, func() {
		l.dismiss(peer.holder())
		g.arrive()
	})
}

// admit counts one more guest, unless there are too many.
func (l *listener) admit(who holder) bool {
	all := 0
	for _, n := range l.guests {
		all += n
	}
	if all >= maxGuests || l.guests[who] >= maxGuestsFrom {
		return false
	}
	l.guests[who]++
	return true
}

func (l *listener) dismiss(who holder) {
	if l.guests[who]--; l.guests[who] == 0 {
		delete(l.guests, who)
	}
}

// remoteAddress returns who is at the other end of a TCP socket; the zero address:
// it is gone.
func remoteAddress(fd int) netip.AddrPort {
	sa, err := unix.Getpeername(fd)
	if err != nil {
		return netip.AddrPort{}
	}
	switch sa := sa.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(sa.Addr), uint16(sa.Port))
	case *unix.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(sa.Addr), uint16(sa.Port))
	}
	return netip.AddrPort{}
}

// receive does all that blocks. The connection is closed on an error, and the
// function told why if it can be.
func (g *guest) receive(fd int) (err error) {
	if g.conn, err = connectionOf(fd); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			g.conn.Close()
		}
	}()
	ctx, cancel := context.WithTimeout(g.l.base, g.l.d.startupPatience)
	defer cancel()
	if err := g.enter(ctx); err != nil {
		g.tell(err)
		return err
	}
	g.conn.SetDeadline(time.Time{})
	if g.function, err = newEnd(g.conn); err != nil {
		return err
	}
	if g.surplus, err = g.function.unread(); err != nil {
		g.function.close()
	}
	return err
}

// connectionOf makes the runtime's connection of a TCP socket, which it owns.
func connectionOf(fd int) (net.Conn, error) {
	f := os.NewFile(uintptr(fd), "tcp")
	defer f.Close()
	nc, err := net.FileConn(f)
	if err != nil {
		return nil, err
	}
	t, ok := nc.(*net.TCPConn)
	if !ok {
		return nc, nil
	}
	err = errors.Join(t.SetNoDelay(true), t.SetKeepAliveConfig(keepAlive), setUserTimeout(t, tcpUserTimeout))
	if err != nil {
		nc.Close()
		return nil, err
	}
	return nc, nil
}

// enter reads what comes in front of a start-up message, and that one, and lets
// the function prove who it is.
func (g *guest) enter(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() { g.conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	direct, err := beginsWithTLS(g.conn)
	if err != nil {
		g.silent = true
		return err
	}
	if direct {
		if err := g.encrypt(ctx, tlsstate.Direct); err != nil {
			return err
		}
	}
	for {
		st, err := readStartup(g.conn)
		switch {
		case err != nil:
			return err
		case st.Kind == pgwire.GSSENCRequest || st.Kind == pgwire.SSLRequest:
			err = g.answer(ctx, st.Kind)
		case st.Kind == pgwire.CancelRequest: // libpq before 17 sends it in plaintext, whatever its connection is
			g.startup = st
			return nil
		case g.tls == nil:
			return &Failure{SQLState: codeNotAuthorized, Message: "this address takes connections with TLS only", Hint: "connect with sslmode=verify-full", Reason: "no_tls"}
		default:
			g.startup = st
			return g.login()
		}
		if err != nil {
			return err
		}
	}
}

// beginsWithTLS waits for the first byte, and says whether it is that of a TLS
// handshake. It takes nothing.
func beginsWithTLS(nc net.Conn) (bool, error) {
	t, ok := nc.(*net.TCPConn)
	if !ok {
		return false, nil
	}
	raw, err := t.SyscallConn()
	if err != nil {
		return false, err
	}
	var b [1]byte
	n, peekErr := 0, error(nil)
	err = raw.Read(func(fd uintptr) bool {
		n, _, peekErr = unix.Recvfrom(int(fd), b[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
		return peekErr != unix.EAGAIN
	})
	if err = errors.Join(err, peekErr); err == nil && n == 0 {
		err = io.EOF
	}
	return b[0] == 0x16, err
}

// readStartup reads one start-up packet, and not a byte beyond.
func readStartup(r io.Reader) (st pgwire.Startup, err error) {
	var length [4]byte
	if _, err := io.ReadFull(r, length[:]); err != nil {
		return st, err
	}
	n, err := pgwire.StartupLength(length)
	if err != nil {
		return st, err
	}
	body := make([]byte, n-len(length))
	if _, err := io.ReadFull(r, body); err != nil {
		return st, err
	}
	return pgwire.ParseStartup(body)
}

// answer answers a request for encryption, each once. What comes behind an
// SSLRequest too early is read as TLS, and fails as that.
func (g *guest) answer(ctx context.Context, kind pgwire.StartupKind) error {
	seen := &g.asked[0]
	if kind == pgwire.SSLRequest {
		seen = &g.asked[1]
	}
	if *seen || g.tls != nil {
		return &Failure{SQLState: codeProtocolViolation, Message: kind.String() + " was sent where it has no place", Reason: "protocol"}
	}
	*seen = true
	if kind == pgwire.GSSENCRequest {
		_, err := g.conn.Write([]byte{'N'})
		return err
	}
	if _, err := g.conn.Write([]byte{'S'}); err != nil {
		return err
	}
	return g.encrypt(ctx, tlsstate.Postgres)
}

// encrypt does the TLS handshake.
func (g *guest) encrypt(ctx context.Context, n tlsstate.Negotiation) error {
	snapshot := g.gate.identity.Current()
	cfg := tlsstate.ServerConfig{Certificate: snapshot.Certificate, Negotiation: n, MinVersion: g.gate.oldest}
	if g.gate.roots != nil {
		cfg.ClientAuth, cfg.ClientRoots = tlsstate.RequireClientCert, g.gate.roots
	}
	s, err := tlsstate.Server(ctx, g.conn, cfg)
	if err != nil {
		return err
	}
	g.conn, g.tls = s, s
	if chain := s.Info().PeerCertificates; len(chain) > 0 {
		g.peer.proved(chain[0], "")
	}
	return nil
}

// wrongPasswordDelay makes guessing passwords slow.
const wrongPasswordDelay = 500 * time.Millisecond

// login lets the function prove that it knows its user's password, if it has to.
func (g *guest) login() error {
	if g.gate.users == nil {
		return nil
	}
	user, _ := g.startup.Get("user")
	g.greeted = true
	if hello := negotiation(&g.startup); len(hello) > 0 {
		if _, err := g.conn.Write(hello); err != nil {
			return err
		}
	}
	v, known := g.gate.users[user]
	if !known {
		v = pgwire.MockVerifier(g.l.secret, user)
	}
	err := pgwire.Authenticate(g.conn, v, g.tls.Info().EndpointBinding)
	if errors.Is(err, pgwire.ErrWrongPassword) || err == nil && !known {
		pause(g.l.base, wrongPasswordDelay)
		return &Failure{SQLState: codeWrongPassword, Message: "password authentication failed for user \"" + user + "\"", Reason: "wrong_password"}
	}
	if err == nil {
		g.peer.proved(g.peer.remote.cert, user)
	}
	return err
}

// tell says why it is not let in, once it can read that.
func (g *guest) tell(err error) {
	if g.silent || (g.asked[1] && g.tls == nil) || isTrust(err) || isGone(err) {
		return // TLS has said it, or there is nobody
	}
	g.conn.SetDeadline(time.Now().Add(time.Second))
	g.conn.Write(lastWords(failureOf(err)))
}

// isGone reports whether an error is that of a connection which has ended or has
// taken too long.
func isGone(err error) bool {
	var network net.Error
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.As(err, &network)
}

// arrive goes on with a connection that has logged in. Front loop only.
func (g *guest) arrive() {
	d := g.l.d
	if g.err != nil {
		d.limits.give(g.peer.holder(), limitConnections)
		g.denied()
		return
	}
	s := &session{d: d, peer: g.peer, door: g.l.door, way: "tcp", function: g.function, counted: true, greeted: g.greeted, surplus: g.surplus}
	d.enter(s)
	switch {
	case d.draining.Load():
		s.tell(errShutdown())
	case g.startup.Kind == pgwire.CancelRequest:
		s.cancel(&g.startup)
	default:
		s.start(&g.startup)
	}
}

// denied writes down that a connection was not let in, unless it was just opened
// and closed, as by whoever looks whether somebody listens.
func (g *guest) denied() {
	if g.silent {
		return
	}
	f := failureOf(g.err)
	if isGone(g.err) {
		f = &Failure{Message: "it went away or took too long", Reason: "no start-up"}
	}
	user, _ := g.startup.Get("user")
	database, _ := g.startup.Get("database")
	g.l.d.trail.Record(audit.Event{Event: audit.LeaseDenied, Route: database, User: user, Way: "tcp", Peer: g.peer.named, Outcome: f.Reason, SQLState: f.SQLState, Message: f.Message})
	g.l.d.log.Info().Err(g.err).Str(fieldAddress, g.peer.remote.address.String()).Str(fieldReason, f.Reason).Msg("connection refused")
}
