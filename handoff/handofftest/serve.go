// Package handofftest is a daemon's end of the handoff socket for tests of clients: it grants what a test gives it.
//
// It is not the daemon: it blocks, with a goroutine for each connection, and knows no limits. A peer that does not read its
// grant keeps it, and one that shuts down its sending side is taken for gone once it has its replies.
//
// The shortest use:
//
//	fake := handofftest.NewFake(t)
//	lease, err := handoff.Acquire(ctx, handoff.Request{Socket: handofftest.Listen(t, fake), Database: "orders"})
package handofftest

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pghandoff/handoff"
)

// Broker decides about requests. It is asked from one goroutine for each connection. A *handoff.Refusal is told to the
// client as it is, any other error as SQLSTATE XX000.
type Broker interface {
	// Acquire blocks until the lease is granted or refused, or ctx is done, which says that the client has gone or the test
	// is over.
	Acquire(ctx context.Context, c handoff.Call) (*Grant, error)
	Cancel(ctx context.Context, c handoff.Claim) error
	Release(ctx context.Context, c handoff.Claim) error
}

// Grant is a lease to be handed over.
type Grant struct {
	handoff.Granted
	File  *os.File // the client's end; Serve owns it
	Ended func()   // called once when the connection that acquired the lease has ended; nil: nothing is
}

// Listen serves the broker on a socket of its own until the test is over, and returns its path.
func Listen(t testing.TB, b Broker) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), handoff.SocketName)
	Accept(t, path, func(conn *net.UnixConn) { Serve(t.Context(), conn, b) })
	return path
}

// Accept has each connection to a new socket served, which owns it, until the test is over; then it waits for them.
func Accept(t testing.TB, path string, serve func(*net.UnixConn)) {
	t.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() { // ends with the listener; the test waits for it and for those that it starts
		for {
			conn, err := l.AcceptUnix()
			if err != nil {
				return
			}
			wg.Go(func() { serve(conn) })
		}
	})
	t.Cleanup(func() { _ = l.Close(); wg.Wait() })
}

// Serve holds one conversation. It owns conn and closes it. It returns when the client has closed, after a malformed
// line, or when ctx is done.
func Serve(ctx context.Context, conn *net.UnixConn, b Broker) {
	defer func() { _ = conn.Close() }()
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	raw, err := conn.SyscallConn()
	if err != nil {
		return // it is closed already
	}
	s := &server{conn: conn, raw: raw, broker: b}
	defer s.end()
	buf := make([]byte, handoff.MaxPending)
	for {
		n, err := conn.Read(buf)
		s.talk.Feed(buf[:n])
		if err != nil {
			s.talk.Close()
		}
		if !s.answerAll(ctx) || err != nil {
			return
		}
	}
}

// server is one connection. One goroutine runs it.
type server struct {
	talk   handoff.Conversation
	conn   *net.UnixConn
	raw    syscall.RawConn
	broker Broker
	ended  []func()
}

// answerAll answers the requests that are there. It reports false if the conversation is over.
func (s *server) answerAll(ctx context.Context) bool {
	for {
		call, ok, fault := s.talk.Next()
		switch {
		case fault != nil:
			_ = s.reply(handoff.Reply{ID: call.ID, Refusal: fault}, nil)
			_ = s.raw.Control(func(fd uintptr) { handoff.Drain(int(fd)) })
			return false
		case !ok:
			return true
		}
		if err := s.answer(ctx, call); err != nil {
			return false
		}
	}
}

// answer does what the request asks and sends the reply.
func (s *server) answer(ctx context.Context, call handoff.Call) error {
	var err error
	switch call.Op {
	case handoff.OpAcquire:
		var grant *Grant
		if grant, err = s.await(ctx, call); err == nil {
			return s.handOver(call.ID, grant)
		}
	case handoff.OpCancel:
		err = s.broker.Cancel(ctx, s.talk.Claim(call))
	case handoff.OpRelease:
		if err = s.broker.Release(ctx, s.talk.Claim(call)); err == nil {
			s.talk.Released(call.Lease)
		}
	}
	return s.reply(handoff.Reply{ID: call.ID, Refusal: told(err)}, nil)
}

// told is what the client learns of an error, nil for nil.
func told(err error) *handoff.Refusal {
	var r *handoff.Refusal
	if err == nil || errors.As(err, &r) {
		return r
	}
	return &handoff.Refusal{SQLState: "XX000", Message: "pghandoff could not do that", Hint: "its log says why"}
}

// await runs the broker's Acquire under a context that ends when the client closes.
func (s *server) await(ctx context.Context, call handoff.Call) (*Grant, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var watch sync.WaitGroup
	watch.Go(func() { // watches for the end without reading; ends by that or by the deadline below
		_ = s.raw.Read(func(fd uintptr) bool {
			hung := handoff.HungUp(int(fd))
			if hung {
				cancel()
			}
			return hung
		})
	})
	grant, err := s.broker.Acquire(ctx, call)
	_ = s.conn.SetReadDeadline(time.Unix(1, 0))
	watch.Wait()
	_ = s.conn.SetReadDeadline(time.Time{})
	return grant, err
}

// handOver sends the reply with the descriptor.
func (s *server) handOver(id *string, g *Grant) error {
	if g.Ended != nil {
		s.ended = append(s.ended, g.Ended)
	}
	s.talk.Acquired(g.Lease)
	defer func() { _ = g.File.Close() }()
	return s.reply(handoff.Reply{ID: id, Granted: &g.Granted}, unix.UnixRights(int(g.File.Fd())))
}

func (s *server) reply(r handoff.Reply, rights []byte) error {
	line, err := handoff.AppendReply(nil, r)
	if err != nil {
		return err // a test's parameters fit no reply
	}
	_, _, err = s.conn.WriteMsgUnix(line, rights, nil)
	return err
}

func (s *server) end() {
	for _, ended := range s.ended {
		ended()
	}
}
