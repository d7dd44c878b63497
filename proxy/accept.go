package proxy

import (
	"context"
	"errors"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"pghandoff/handoff"
)

// accept takes one connection and serves it, while another goroutine goes on
// accepting: so that a function is not kept waiting for the one that serves it
// to be scheduled. It returns without one when the listener is closed. Running
// out of descriptors is waited out, never an end.
func (d *Daemon) accept(ctx context.Context, o *door, l *net.UnixListener, serve func(context.Context, *door, *net.UnixConn, *Peer)) {
	conn, err := l.AcceptUnix()
	for err != nil {
		if ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
			return
		}
		d.complain.Do(func() { d.log.Error().Err(err).Str(fieldSocket, o.dir).Msg("accept") })
		if errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) {
			d.descriptors.use(func() { d.turnAway(l) })
		}
		pause(ctx, acceptPause)
		conn, err = l.AcceptUnix()
	}
	d.work.Go(func() { d.accept(ctx, o, l, serve) }) // the next one; ends as this does
	defer conn.Close()
	peer, err := peerOf(conn)
	if err != nil {
		d.log.Error().Err(err).Msg("connection refused: who it is cannot be told")
		return
	}
	serve(ctx, o, conn, peer)
}

// acceptPause is how long a failing accept is left alone.
const acceptPause = 20 * time.Millisecond

// turnAway takes one connection, for which there is no descriptor but the spare
// one, and tells it so.
func (d *Daemon) turnAway(l *net.UnixListener) {
	l.SetDeadline(time.Now().Add(acceptPause))
	conn, err := l.AcceptUnix()
	l.SetDeadline(time.Time{})
	if err != nil {
		return
	}
	defer conn.Close()
	s := &session{d: d, conn: conn}
	if l == d.doorOf(l).handoff {
		refuseHandoff(conn, errDescriptors())
		return
	}
	s.tell(errDescriptors())
}

// doorOf returns the door that a listener belongs to.
func (d *Daemon) doorOf(l *net.UnixListener) *door {
	for _, o := range d.doors {
		if o.wire == l || o.handoff == l {
			return o
		}
	}
	return &door{}
}

// spare is a descriptor that is kept so that somebody can be told when there is
// no other. Safe for concurrent use.
type spare struct {
	mu   sync.Mutex
	file *os.File
}

// hold takes the spare descriptor, if it is free to be had.
func (s *spare) hold() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.file == nil {
		s.file, _ = os.Open(os.DevNull) // without it nobody is told, that is all
	}
}

// use gives the descriptor up while f runs.
func (s *spare) use(f func()) {
	s.mu.Lock()
	file := s.file
	s.file = nil
	s.mu.Unlock()
	if file == nil {
		return
	}
	file.Close()
	f()
	s.hold()
}

// seldom lets something be said once a second. Safe for concurrent use.
type seldom struct {
	mu   sync.Mutex
	last time.Time
}

// Do calls f unless it called one less than a second ago.
func (s *seldom) Do(f func()) {
	s.mu.Lock()
	due := time.Since(s.last) >= time.Second
	if due {
		s.last = time.Now()
	}
	s.mu.Unlock()
	if due {
		f()
	}
}

// slowRefusals is how many connections over their limit may be listened to for
// a moment at a time; further ones are told at once, and before they have asked.
const slowRefusals = 64

func (d *Daemon) serveWire(ctx context.Context, o *door, conn *net.UnixConn, peer *Peer) {
	s := &session{d: d, conn: conn, peer: peer, door: o, way: "wire"}
	if err := d.limits.take(peer.UID, limitConnections); err != nil {
		select {
		case d.refusals <- struct{}{}:
			s.refuse(ctx, failureOf(err))
			<-d.refusals
		default:
			s.tell(failureOf(err))
		}
		return
	}
	s.serve(ctx)
	if !s.handed { // else the lease goes on being it
		d.limits.give(peer.UID, limitConnections)
	}
}

func (d *Daemon) serveHandoff(ctx context.Context, o *door, conn *net.UnixConn, peer *Peer) {
	if err := d.limits.take(peer.UID, limitConnections); err != nil {
		refuseHandoff(conn, failureOf(err))
		return
	}
	defer d.limits.give(peer.UID, limitConnections)
	b := &broker{d: d, peer: peer, door: o}
	err := handoff.Serve(ctx, conn, b, handoff.ServeOptions{Report: func(err error) {
		d.log.Error().Err(err).Uint32(fieldUID, peer.UID).Msg("handoff request")
	}})
	if err != nil && ctx.Err() == nil {
		d.log.Debug().Err(err).Uint32(fieldUID, peer.UID).Msg("handoff connection")
	}
}

// refuseHandoff answers whatever will be asked on a handoff connection.
func refuseHandoff(conn *net.UnixConn, f *Failure) {
	line, err := handoff.AppendReply(nil, handoff.Reply{Refusal: &handoff.Refusal{SQLState: f.SQLState, Message: f.Message, Hint: f.Hint, Retry: f.Retry}})
	if err != nil {
		return // it is short enough
	}
	conn.SetWriteDeadline(time.Now().Add(speakPatience))
	conn.Write(line) // it may be gone
}
