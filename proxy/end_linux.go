package proxy

import (
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"

	"pghandoff/proxy/loop"
	"pghandoff/tlsstate"
)

// end is one side of a relayed lease: a descriptor and, where that side speaks
// TLS, its record state. It is plain data; the loop does the waiting.
type end struct {
	fd    int            // owned; -1: none
	tls   *tlsstate.Conn // nil: plaintext
	token loop.Token
	// pending was accepted and does not fit into the kernel yet. With TLS it is
	// sealed, must not be sealed again, and is kept in tls instead.
	pending []byte
	// looked is how much has been read and is still there.
	looked int
}

// unsent returns the bytes that must go out before any other.
func (e *end) unsent() []byte {
	if e.tls != nil {
		return e.tls.HeldOut()
	}
	return e.pending
}

// keep remembers what could not be sent yet.
func (e *end) keep(rest []byte) error {
	if e.tls != nil {
		return e.tls.HoldOut(rest)
	}
	e.pending = append(e.pending[:0], rest...)
	if len(rest) == 0 {
		e.pending = nil
	}
	return nil
}

// send seals p, if this side speaks TLS, behind what the record layer owes, and
// sends as much as there is room for; the rest is kept. room is a buffer of the
// loop's. Nothing may be unsent when it is called.
func (e *end) send(room, p []byte) error {
	out := p
	if e.tls != nil {
		var err error
		if out, err = e.tls.Seal(room[:0], p); err != nil {
			return err
		}
	}
	return e.transmit(out)
}

// flush sends what is unsent.
func (e *end) flush() error {
	if out := e.unsent(); len(out) > 0 {
		return e.transmit(out)
	}
	return nil
}

// answer sends what the record layer owes, unless something else comes first.
func (e *end) answer(room []byte) error {
	if e.tls != nil && e.tls.Owes() && len(e.unsent()) == 0 {
		return e.send(room, nil)
	}
	return nil
}

// add sends p behind what is unsent.
func (e *end) add(room, p []byte) error {
	before := e.unsent()
	if len(before) == 0 {
		return e.send(room, p)
	}
	if e.tls != nil {
		var err error
		if p, err = e.tls.Seal(room[:0], p); err != nil {
			return err
		}
	}
	return e.keep(append(slices.Clone(before), p...))
}

// say sends a last word, unless there is no room for it. The other side may be
// gone.
func (e *end) say(room, p []byte) {
	if len(e.unsent()) == 0 {
		e.send(room, p)
	}
}

// forgo gives up what is unsent, as nobody takes it.
func (e *end) forgo() { e.keep(nil) }

func (e *end) transmit(out []byte) error {
	n := 0
	if len(out) > 0 {
		var err error
		n, err = loop.Send(e.fd, out)
		if err != nil && err != unix.EAGAIN {
			return err
		}
	}
	if n < len(out) || len(e.unsent()) > 0 {
		return e.keep(out[n:])
	}
	return nil
}

// receive reads once and returns the plaintext of what was there, which lies in
// room: at most 64 KiB, and less if room, which must have place for a TLS record
// that began before, is smaller. more is false when nothing was there. io errors
// and the end of the stream come as errors; what was opened in front of them is
// returned all the same.
func (e *end) receive(room []byte) (plain []byte, more bool, err error) {
	if e.tls == nil {
		n, err := loop.Receive(e.fd, room[:min(len(room), readSize)])
		return room[:n], n > 0, ended(n, err)
	}
	have := copy(room, e.tls.HeldIn())
	n, err := loop.Receive(e.fd, room[have:min(len(room), have+readSize)])
	if err = ended(n, err); n == 0 {
		return nil, false, err
	}
	total, at, kept := have+n, 0, 0
	for {
		p, used, err := e.tls.Open(room[at:total])
		if err != nil {
			return room[:kept], true, err
		}
		if used == 0 {
			return room[:kept], true, e.tls.HoldIn(room[at:total])
		}
		at += used
		kept += copy(room[kept:], p)
	}
}

// look reads once and leaves there what it read, until drop is called: what goes
// out in between is not held up by waking whoever waits at the other end of a
// Unix socket, as the kernel does when bytes are taken out of it.
func (e *end) look(room []byte) (int, error) {
	n, err := loop.Peek(e.fd, room)
	e.looked = n
	return n, ended(n, err)
}

// drop takes what look has read, into room, which is as large as that one's.
func (e *end) drop(room []byte) {
	for e.looked > 0 {
		n, err := loop.Receive(e.fd, room[:e.looked])
		if n == 0 || err != nil { // cannot be: it is there, and nobody else reads
			break
		}
		e.looked -= n
	}
	e.looked = 0
}

// rest gives up what the next bytes can make again.
func (e *end) rest() {
	if e.tls != nil {
		e.tls.Rest()
	}
}

// readSize is how much one read takes at most. 64 KiB.
const readSize = 64 << 10

var errEnded = errors.New("end of stream")

// ended turns the answers of a read into errors: none if there is simply
// nothing to read.
func ended(n int, err error) error {
	switch {
	case err == unix.EAGAIN:
		return nil
	case err == nil && n == 0:
		return errEnded
	}
	return err
}

// close gives the descriptor back to the kernel, and the keys up.
func (e *end) close() {
	if e.fd >= 0 {
		unix.Close(e.fd)
		e.fd = -1
	}
	if e.tls != nil {
		e.tls.Forget()
	}
}

// leave closes the descriptor of a function, which may have been added to l. What
// was looked at is dropped, or the function would get an error instead of the
// end.
func (e *end) leave(l *loop.Loop) {
	e.drop(l.In)
	if e.tls != nil {
		e.notify(l.Out)
		loop.Receive(e.fd, l.In) // as above
		e.tls.Forget()
	}
	l.Close(e.token, e.fd)
	e.token, e.fd = 0, -1
}

// takeDescriptor duplicates the descriptor of c and closes c, so that the
// runtime's poller is not woken for it any more. The caller owns the result,
// which is non-blocking.
func takeDescriptor(c io.Closer) (int, error) {
	defer c.Close()
	raw, err := c.(syscall.Conn).SyscallConn()
	if err != nil {
		return -1, err
	}
	fd := -1
	if cerr := raw.Control(func(old uintptr) { fd, err = unix.FcntlInt(old, unix.F_DUPFD_CLOEXEC, 0) }); cerr != nil {
		return -1, cerr
	}
	if err != nil {
		return -1, fmt.Errorf("duplicate descriptor: %w", err)
	}
	return fd, nil
}

// newEnd takes a connection that is logged in out of the blocking world: from
// then on it is bytes in and out. It owns nc, which is closed on an error.
func newEnd(nc net.Conn) (end, error) {
	e := end{fd: -1}
	if s, ok := nc.(*tlsstate.Stream); ok && !s.Detachable() {
		var err error
		e.fd, err = ferry(s)
		return e, err
	}
	if s, ok := nc.(*tlsstate.Stream); ok {
		inner, tls, err := s.Detach()
		if err != nil {
			s.Close()
			return e, err
		}
		nc, e.tls = inner, tls
	}
	var err error
	e.fd, err = takeDescriptor(nc)
	return e, err
}

// hangUp ends the connection as politely as can be done without waiting.
func (e *end) hangUp(last []byte) {
	if e.fd < 0 {
		return
	}
	e.say(nil, last)
	e.notify(nil)
	e.close()
}

// notify sends TLS's own end, behind which nothing can be sent. The other side may
// be gone.
func (e *end) notify(room []byte) {
	if e.tls == nil || len(e.unsent()) > 0 {
		return
	}
	if out, err := e.tls.AppendCloseNotify(room[:0]); err == nil {
		loop.Send(e.fd, out)
	}
}

// unread takes what was read from the connection before it came to a loop: opened
// bytes that nobody took, and whole records.
func (e *end) unread() ([]byte, error) {
	if e.tls == nil {
		return nil, nil
	}
	out := slices.Clone(e.tls.HeldPlain())
	held := slices.Clone(e.tls.HeldIn())
	if err := errors.Join(e.tls.HoldPlain(nil), e.tls.HoldIn(nil)); err != nil {
		return nil, err
	}
	for {
		p, used, err := e.tls.Open(held)
		if err != nil {
			return nil, err
		}
		if used == 0 {
			return out, e.tls.HoldIn(held)
		}
		out, held = append(out, p...), held[used:]
	}
}
