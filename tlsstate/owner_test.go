package tlsstate_test

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"math/rand/v2"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"pghandoff/tlsstate"
)

// owner has a Conn and its descriptor, as an event loop would, and gives the Conn up at random.
type owner struct {
	fd    int // owned, non-blocking
	conn  *tlsstate.Conn
	rng   *rand.Rand
	odds  int  // one step in so many exports; 0: none
	split bool // its KeyUpdates are in two records
	moves int
	seen  map[string]int // what was at rest when it was exported
	sum   hash.Hash
	got   int  // bytes received
	ended bool // close_notify came
	sink  func([]byte)
}

// newOwner takes a Stream apart.
func newOwner(t testing.TB, s *tlsstate.Stream, odds int) *owner {
	t.Helper()
	nc, conn, err := s.Detach()
	if err != nil {
		t.Fatal(err)
	}
	raw, err := nc.(syscall.Conn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	fd := -1
	raw.Control(func(old uintptr) { fd, err = unix.FcntlInt(old, unix.F_DUPFD_CLOEXEC, 0) })
	if err != nil {
		t.Fatal(err)
	}
	nc.Close()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	o := &owner{fd: fd, conn: conn, rng: rand.New(rand.NewPCG(seed, 0)), odds: odds, seen: map[string]int{}, sum: sha256.New()}
	t.Cleanup(func() { unix.Close(fd) })
	return o
}

// move writes the connection down and reads it back, now and then, and always amid a handshake message, which is seldom.
func (o *owner) move() error {
	if o.odds == 0 || o.conn.Frag() == 0 && o.rng.IntN(o.odds) > 0 {
		return nil
	}
	for name, n := range map[string]int{"ciphertext": len(o.conn.HeldIn()), "plaintext": len(o.conn.HeldPlain()), "unsent": len(o.conn.HeldOut()), "message": o.conn.Frag()} {
		if n > 0 {
			o.seen[name]++
		}
	}
	if o.rng.IntN(2) == 0 {
		o.conn.Rest()
	}
	b, err := o.write()
	if err == nil {
		err = o.read(b)
	}
	o.moves++
	return err
}

// write exports; the old Conn must be dead.
func (o *owner) write() ([]byte, error) {
	s, err := o.conn.Export()
	if err != nil {
		return nil, err
	}
	if _, err := o.conn.Seal(nil, []byte("x")); !errors.Is(err, tlsstate.ErrExported) {
		return nil, fmt.Errorf("an exported connection seals: %w", err)
	}
	b, err := s.AppendBinary(nil)
	s.Erase()
	return b, err
}

func (o *owner) read(b []byte) error {
	s, err := tlsstate.ParseState(b)
	if err != nil {
		return err
	}
	clear(b)
	o.conn, err = tlsstate.Adopt(s)
	return err
}

// send seals p behind what is unsent and writes what goes; p is empty to write only.
func (o *owner) send(p []byte) error {
	out, err := o.conn.Seal(append([]byte(nil), o.conn.HeldOut()...), p)
	if err != nil {
		return err
	}
	n, err := unix.Write(o.fd, out[:min(len(out), 1+o.rng.IntN(64<<10))])
	if err == unix.EAGAIN {
		n, err = 0, nil
	}
	if err != nil {
		return err
	}
	return o.conn.HoldOut(out[n:])
}

// receive reads once, opens what is whole, and leaves some of it at rest.
func (o *owner) receive() error {
	o.take(o.conn.HeldPlain())
	o.conn.HoldPlain(nil)
	room := make([]byte, tlsstate.MaxHeldIn)
	have := copy(room, o.conn.HeldIn())
	n, err := 0, error(nil)
	if limit := min(len(room), have+1+o.rng.IntN(64<<10)); limit > have {
		if n, err = unix.Read(o.fd, room[have:limit]); err != nil && err != unix.EAGAIN {
			return err
		}
		if n == 0 && err == nil && have == 0 {
			return io.ErrUnexpectedEOF
		}
	}
	buf := room[:have+max(n, 0)]
	for {
		plain, used, err := o.conn.Open(buf)
		if err == io.EOF {
			o.ended = true
			return o.conn.HoldIn(nil)
		}
		if err != nil {
			return err
		}
		buf = buf[used:]
		if len(plain) > 0 && o.rng.IntN(4) == 0 { // the rest waits
			cut := o.rng.IntN(len(plain))
			o.take(plain[:cut])
			if err := o.conn.HoldPlain(plain[cut:]); err != nil {
				return err
			}
			return o.conn.HoldIn(buf)
		}
		o.take(plain)
		if used == 0 || len(plain) == 0 && o.rng.IntN(2) == 0 { // perhaps amid a handshake message
			return o.conn.HoldIn(buf)
		}
	}
}

func (o *owner) take(p []byte) {
	o.sum.Write(p)
	o.got += len(p)
	if o.sink != nil {
		o.sink(p)
	}
}

// wait waits until the descriptor can be used, unless there is something to do anyway.
func (o *owner) wait(sending bool) error {
	if len(o.conn.HeldPlain()) > 0 || tlsstate.Need(o.conn.HeldIn()) == 0 {
		return nil
	}
	events := int16(unix.POLLIN)
	if sending {
		events |= unix.POLLOUT
	}
	for {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(o.fd), Events: events}}, 10_000)
		switch {
		case err == unix.EINTR:
		case err != nil:
			return err
		case n == 0:
			return fmt.Errorf("nothing happens for ten seconds after %d bytes and %d moves", o.got, o.moves)
		default:
			return nil
		}
	}
}

// transfer sends data and receives until all is sealed and want bytes have come, and moves and changes keys in between.
func (o *owner) transfer(data []byte, want int) error {
	for o.got < want || len(data) > 0 {
		if err := o.move(); err != nil {
			return fmt.Errorf("move %d: %w", o.moves, err)
		}
		chunk := data[:min(len(data), o.rng.IntN(40_000))]
		if len(o.conn.HeldOut()) > 128<<10 {
			chunk = nil
		}
		data = data[len(chunk):]
		if err := o.send(chunk); err != nil {
			return err
		}
		if err := o.move(); err != nil {
			return fmt.Errorf("move %d: %w", o.moves, err)
		}
		if err := o.receive(); err != nil {
			return err
		}
		if o.ended && o.got < want && len(o.conn.HeldPlain()) == 0 {
			return io.ErrUnexpectedEOF
		}
		if o.rng.IntN(o.rarely()) == 0 && len(o.conn.HeldOut()) < 128<<10 {
			if err := o.newKeys(); err != nil {
				return err
			}
		}
		if o.got >= want && len(data) == 0 {
			break
		}
		if err := o.wait(len(data) > 0 && len(o.conn.HeldOut()) < 128<<10 || len(o.conn.HeldOut()) > 0); err != nil {
			return err
		}
	}
	return nil
}

// rarely is in how many steps a key is changed once. Those in two records can be more frequent, but not so that the peer
// has had enough of records without data.
func (o *owner) rarely() int {
	if o.split {
		return 5
	}
	return 20
}

func (o *owner) newKeys() error {
	out, peerToo := append([]byte(nil), o.conn.HeldOut()...), o.rng.IntN(2) == 0
	if o.split {
		return o.conn.HoldOut(o.conn.SplitKeyUpdate(out, peerToo, 1+o.rng.IntN(4)))
	}
	out, err := o.conn.RequestKeyUpdate(out, peerToo)
	switch err {
	case nil:
		return o.conn.HoldOut(out)
	case tlsstate.ErrNoKeyUpdate, tlsstate.ErrKeyUpdateRate:
		return nil
	}
	return err
}
