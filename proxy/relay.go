package proxy

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"pghandoff/pgwire"
)

// relayer carries the bytes of a lease between the function and the upstream
// until one of them ends or the lease is stopped.
type relayer interface {
	// run blocks until the lease is over and says why. Nothing of the session
	// is in flight any more when it returns.
	run() ending
	// stop ends the lease with a last word for the function: when the session
	// is idle, or at once.
	stop(f *Failure, now bool)
}

// ending says how a lease ended.
type ending struct {
	outcome string   // label in the audit
	said    *Failure // what the function was told; nil: nothing
}

// The labels of endings.
const (
	endFunctionClosed = "closed"         // the function closed its end
	endTerminated     = "terminated"     // it said goodbye before
	endServerClosed   = "server_closed"  // the server ended the connection
	endFunctionFault  = "function_fault" // what it sent is not the protocol
	endServerFault    = "server_fault"   // what the server sent is not
	endStopped        = "stopped"        // by the daemon
)

const (
	relayBuffer = 32 << 10 // 32 KiB a direction
	// drainPatience is how long the answers that a gone function does not read
	// any more may take.
	drainPatience = 2 * time.Second
	// speakPatience is how long a last word may take to be accepted.
	speakPatience = time.Second
)

// bridge relays by two goroutines, one a direction.
type bridge struct {
	conn net.Conn // the function's end; owned by the caller of run
	up   *Upstream

	in, out, transactions atomic.Uint64 // bytes from and to the function

	mu        sync.Mutex // guards tracker and the fields below
	frontGone bool       // the function sends no more
	over      bool       // run is about to return: the tracker is not ours any more
	stopping  *Failure
}

// last is what one direction came to.
type last struct {
	front bool
	ending
}

func newBridge(conn net.Conn, up *Upstream) *bridge { return &bridge{conn: conn, up: up} }

func (b *bridge) run() ending {
	b.up.bulk(true)
	ends := make(chan last, 2)
	go func() { ends <- last{true, b.forward()} }()   // ended by its connection, or by unblock
	go func() { ends <- last{false, b.backward()} }() // the same
	e := <-ends
	if e.front {
		b.functionGone()
	} else {
		b.unblock()
	}
	other := <-ends
	result := e.ending
	if other.said != nil && result.said == nil {
		result = other.ending
	}
	b.mu.Lock()
	b.over = true
	if b.stopping != nil && (result.outcome == endStopped || other.outcome == endStopped) {
		result = ending{endStopped, b.stopping}
	}
	b.mu.Unlock()
	b.up.conn.SetDeadline(time.Time{})
	b.speak(result.said)
	return result
}

// unblock ends whatever waits on either connection.
func (b *bridge) unblock() {
	past := time.Unix(1, 0)
	b.conn.SetDeadline(past)
	b.up.conn.SetDeadline(past)
}

// functionGone lets the server finish what it owes, for a while, if it alone
// can make the session quiet; otherwise the relay ends now.
func (b *bridge) functionGone() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.frontGone = true
	until := time.Unix(1, 0)
	if t := &b.up.tracker; !t.Quiet() && t.Settling() {
		until = time.Now().Add(drainPatience)
	}
	b.conn.SetWriteDeadline(until)
	b.up.conn.SetReadDeadline(until)
}

// stop ends the lease: now, or as soon as the session is idle.
func (b *bridge) stop(f *Failure, now bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.over {
		return
	}
	b.stopping = f
	if now || b.up.tracker.Idle() {
		b.unblock()
	}
}

// forward carries the function's bytes to the server.
func (b *bridge) forward() ending {
	buf := make([]byte, relayBuffer)
	for {
		n, err := b.conn.Read(buf)
		if n > 0 {
			b.in.Add(uint64(n))
			if e := b.pass(buf[:n]); e != nil {
				return *e
			}
		}
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			return ending{outcome: endStopped}
		case err != nil:
			return ending{outcome: endFunctionClosed}
		}
	}
}

// pass sends p to the server as far as it may go.
func (b *bridge) pass(p []byte) *ending {
	b.mu.Lock()
	n, terminate, err := b.up.tracker.Frontend(p)
	b.mu.Unlock()
	if n > 0 {
		if _, err := b.up.conn.Write(p[:n]); err != nil {
			b.spoil()
			if errors.Is(err, os.ErrDeadlineExceeded) {
				return &ending{outcome: endStopped}
			}
			return &ending{outcome: endServerClosed}
		}
	}
	switch {
	case terminate:
		return &ending{outcome: endTerminated}
	case err != nil:
		return &ending{endFunctionFault, failureOf(err)}
	}
	return nil
}

// spoil marks a session whose stream to the server is not known any more.
func (b *bridge) spoil() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.up.tracker.Spoil()
}

// backward carries the server's bytes to the function.
func (b *bridge) backward() ending {
	buf := make([]byte, relayBuffer)
	deaf := false // the function does not listen any more
	for {
		n, err := b.up.conn.Read(buf)
		if n > 0 {
			good, done, fault := b.follow(buf[:n])
			if !deaf {
				if _, err := b.conn.Write(buf[:good]); err != nil {
					deaf = true
				} else {
					b.out.Add(uint64(good))
				}
			}
			if fault != nil {
				b.spoil()
				return ending{endServerFault, failureOf(fault)}
			}
			if done {
				return ending{outcome: endStopped}
			}
		}
		if err != nil {
			return b.serverSilent(err)
		}
	}
}

// follow tracks the server's bytes. done says that the relay is to end here.
func (b *bridge) follow(p []byte) (n int, done bool, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	owed := b.up.tracker.Owed()
	n, err = b.up.tracker.Backend(p)
	if answered := owed - b.up.tracker.Owed(); answered > 0 {
		b.transactions.Add(uint64(answered))
	}
	for _, r := range b.up.tracker.TakeReported() {
		b.up.parameters.set(r)
	}
	done = b.frontGone && b.up.tracker.Quiet() || b.stopping != nil && b.up.tracker.Idle()
	return n, done, err
}

// serverSilent says why nothing more came from the server.
func (b *bridge) serverSilent(err error) ending {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return ending{outcome: endStopped}
	}
	b.spoil()
	if errors.Is(err, io.EOF) {
		return ending{outcome: endServerClosed}
	}
	if isTrust(err) {
		return ending{endServerClosed, &Failure{SQLState: codeConnectionFailure, Message: err.Error(), Reason: "tls"}}
	}
	return ending{outcome: endServerClosed}
}

// speak gives the function a last word, if its stream stands between two
// messages.
func (b *bridge) speak(f *Failure) {
	if f == nil || !b.up.tracker.BackendAtBoundary() {
		return
	}
	b.conn.SetWriteDeadline(time.Now().Add(speakPatience))
	b.conn.Write(pgwire.AppendError(nil, f.notice())) // it may be gone
}
