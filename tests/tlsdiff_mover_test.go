package tests

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"pghandoff/tlsstate"
)

// mover is one end of a connection, as an event loop would hold it, that is written down and taken up again at random. It
// uses what package tlsstate exports and nothing else.
type mover struct {
	fd       int // owned, non-blocking
	conn     *tlsstate.Conn
	rng      *rand.Rand
	sink     func([]byte) // takes what was received
	received int
	ended    bool // close_notify came
	asks     bool // for other keys of the peer's, too
	moves    int
	updates  int            // keys that we changed
	atRest   map[string]int // moves with such bytes in the state
}

// outBound is how many sealed bytes may wait before no more are sealed.
const outBound = 128 << 10 // 128 KiB

// newMover takes a Stream apart.
func newMover(t *testing.T, s *tlsstate.Stream, rng *rand.Rand) *mover {
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
	if failed := raw.Control(func(old uintptr) { fd, err = unix.FcntlInt(old, unix.F_DUPFD_CLOEXEC, 0) }); failed != nil || err != nil {
		t.Fatal(failed, err)
	}
	nc.Close()
	m := &mover{fd: fd, conn: conn, rng: rng, asks: true, atRest: map[string]int{}}
	t.Cleanup(func() { unix.Close(m.fd) })
	return m
}

// exchange sends data, receives until done says that this was all, and moves and changes keys in between.
func (m *mover) exchange(data []byte, done func() bool) error {
	for len(data) > 0 || len(m.conn.HeldOut()) > 0 || !done() {
		if m.ended && len(m.conn.HeldPlain()) == 0 && !done() {
			return io.ErrUnexpectedEOF
		}
		if err := m.wait(len(data) > 0 || len(m.conn.HeldOut()) > 0 || m.conn.Owes()); err != nil {
			return err
		}
		var chunk []byte
		if len(m.conn.HeldOut()) < outBound {
			chunk = data[:min(len(data), size(m.rng))]
			data = data[len(chunk):]
		}
		for _, step := range []func() error{m.move, func() error { return m.send(chunk) }, m.move, m.receive, m.move, m.newKeys} {
			if err := step(); err != nil {
				return fmt.Errorf("after %d bytes and %d moves: %w", m.received, m.moves, err)
			}
		}
	}
	return nil
}

// size is that of a write: from one byte to some records.
func size(rng *rand.Rand) int { return 1 + rng.IntN([]int{20, 2000, 17_000, 40_000}[rng.IntN(4)]) }

// move writes the connection down and takes it up again, one time in four.
func (m *mover) move() error {
	if m.rng.IntN(4) > 0 {
		return nil
	}
	for name, held := range map[string][]byte{"ciphertext": m.conn.HeldIn(), "plaintext": m.conn.HeldPlain(), "unsent": m.conn.HeldOut()} {
		if len(held) > 0 {
			m.atRest[name]++
		}
	}
	m.moves++
	if m.rng.IntN(2) == 0 {
		m.conn.Rest()
	}
	state, err := m.conn.Export()
	if err != nil {
		return err
	}
	if _, err := m.conn.Seal(nil, []byte("x")); !errors.Is(err, tlsstate.ErrExported) {
		return fmt.Errorf("an exported connection seals: %w", err)
	}
	written, err := state.AppendBinary(nil)
	state.Erase()
	if err != nil {
		return err
	}
	if state, err = tlsstate.ParseState(written); err != nil {
		return err
	}
	clear(written)
	m.conn, err = tlsstate.Adopt(state)
	return err
}

// send seals p behind what is unsent and writes a part of that.
func (m *mover) send(p []byte) error {
	out, err := m.conn.Seal(append([]byte(nil), m.conn.HeldOut()...), p)
	if err != nil {
		return err
	}
	n, err := unix.Write(m.fd, out[:min(len(out), size(m.rng))])
	if err == unix.EAGAIN {
		n, err = 0, nil
	}
	if err != nil {
		return err
	}
	return m.conn.HoldOut(out[n:])
}

// receive reads once and opens records, but stops at random, even amid the data of one.
func (m *mover) receive() error {
	m.take(m.conn.HeldPlain())
	m.conn.HoldPlain(nil)
	buf, err := m.read()
	for err == nil {
		plain, used, failed := m.conn.Open(buf)
		if m.ended = failed == io.EOF; m.ended {
			return m.conn.HoldIn(nil)
		}
		if failed != nil {
			return failed
		}
		buf = buf[used:]
		cut := len(plain)
		stop := used == 0 || m.rng.IntN(4) == 0
		if stop && cut > 0 {
			cut = m.rng.IntN(cut)
		}
		m.take(plain[:cut])
		if stop {
			return errors.Join(m.conn.HoldPlain(plain[cut:]), m.conn.HoldIn(buf))
		}
	}
	return err
}

// read puts what the kernel has behind the ciphertext at rest.
func (m *mover) read() ([]byte, error) {
	room := make([]byte, tlsstate.MaxHeldIn)
	have := copy(room, m.conn.HeldIn())
	limit := min(len(room), have+size(m.rng))
	if limit == have || m.ended {
		return room[:have], nil
	}
	n, err := unix.Read(m.fd, room[have:limit])
	switch {
	case err == unix.EAGAIN:
		return room[:have], nil
	case err != nil:
		return nil, err
	case n == 0 && have == 0:
		return nil, io.ErrUnexpectedEOF
	}
	return room[:have+n], nil
}

func (m *mover) take(p []byte) {
	m.received += len(p)
	if len(p) > 0 {
		m.sink(p)
	}
}

// newKeys changes our key, and asks for another of the peer's, one time in eight.
func (m *mover) newKeys() error {
	if m.rng.IntN(8) > 0 || len(m.conn.HeldOut()) > outBound {
		return nil
	}
	out, err := m.conn.RequestKeyUpdate(append([]byte(nil), m.conn.HeldOut()...), m.asks && m.rng.IntN(2) == 0)
	switch err {
	case nil:
		m.updates++
		return m.conn.HoldOut(out)
	case tlsstate.ErrNoKeyUpdate, tlsstate.ErrKeyUpdateRate:
		return nil
	}
	return err
}

// wait waits until the descriptor can be used, unless there is something to do anyway.
func (m *mover) wait(sending bool) error {
	if len(m.conn.HeldPlain()) > 0 || tlsstate.Need(m.conn.HeldIn()) == 0 {
		return nil
	}
	events := int16(unix.POLLIN)
	if sending {
		events |= unix.POLLOUT
	}
	for {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(m.fd), Events: events}}, 15_000)
		switch {
		case err == unix.EINTR:
		case err != nil:
			return err
		case n == 0:
			return fmt.Errorf("nothing happens for 15 seconds after %d bytes and %d moves", m.received, m.moves)
		default:
			return nil
		}
	}
}
