package bench

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"pghandoff/handoff"
)

var errClosed = errors.New("the other side has closed the connection")

// client is the smallest client there can be: it costs the same for all that it
// measures, and next to nothing.
type client struct {
	buf [32 << 10]byte // 32 KiB
}

// acquired is how long one acquisition took, from the start.
type acquired struct{ ready, query time.Duration }

var (
	oneQuery  = message('Q', "select 1\x00")
	terminate = message('X', "")
)

// message is one of the protocol's, without a type byte if that is 0.
func message(typ byte, body string) []byte {
	var b []byte
	if typ != 0 {
		b = append(b, typ)
	}
	return append(binary.BigEndian.AppendUint32(b, uint32(len(body)+4)), body...)
}

func startup(user, database string) []byte {
	return message(0, "\x00\x03\x00\x00user\x00"+user+"\x00database\x00"+database+"\x00\x00")
}

// wire connects to a socket that takes a start-up message, asks one thing and
// leaves.
func (c *client) wire(path string, hello []byte) (a acquired, err error) {
	start := time.Now()
	fd, err := rawConnect(path)
	if err != nil {
		return a, err
	}
	defer unix.Close(fd)
	if err := rawLimit(fd); err != nil {
		return a, err
	}
	if err := rawSend(fd, hello); err != nil {
		return a, err
	}
	if err := c.untilReady(fd); err != nil {
		return a, err
	}
	a.ready = time.Since(start)
	err = c.ask(fd)
	a.query = time.Since(start)
	return a, err
}

// handoff asks for a descriptor at ReadyForQuery, closes the socket that brought
// it, as clients do, asks one thing and leaves.
func (c *client) handoff(path string, call []byte) (a acquired, err error) {
	start := time.Now()
	fd, err := rawConnect(path)
	if err != nil {
		return a, err
	}
	lease, err := c.receiveLease(fd, call)
	a.ready = time.Since(start)
	_ = unix.Close(fd)
	if err != nil {
		return a, err
	}
	defer unix.Close(lease)
	if err := rawLimit(lease); err != nil {
		return a, err
	}
	err = c.ask(lease)
	a.query = time.Since(start)
	return a, err
}

func (c *client) receiveLease(fd int, call []byte) (lease int, err error) {
	if err := rawLimit(fd); err != nil {
		return -1, err
	}
	if err := rawSend(fd, call); err != nil {
		return -1, err
	}
	n, lease, err := rawReceiveFile(fd, c.buf[:])
	for err == nil && c.buf[n-1] != '\n' {
		var more int
		more, err = rawReceive(fd, c.buf[n:])
		n += more
	}
	if err == nil && (lease < 0 || !bytes.Contains(c.buf[:n], []byte(`"ok":true`))) {
		err = fmt.Errorf("the handoff socket answered %s", bytes.TrimSpace(c.buf[:n]))
	}
	if err != nil && lease >= 0 {
		_ = unix.Close(lease)
	}
	return lease, err
}

// ask runs a query and says goodbye.
func (c *client) ask(fd int) error {
	if err := rawSend(fd, oneQuery); err != nil {
		return err
	}
	if err := c.untilReady(fd); err != nil {
		return err
	}
	return rawSend(fd, terminate)
}

// untilReady receives up to a ReadyForQuery message.
func (c *client) untilReady(fd int) error {
	for n, at := 0, 0; ; {
		got, err := rawReceive(fd, c.buf[n:])
		if err != nil {
			return err
		}
		n += got
		var ready bool
		if at, ready, err = scan(c.buf[:n], at); ready || err != nil {
			return err
		}
		if n == len(c.buf) {
			return errors.New("an answer is longer than the buffer")
		}
	}
}

// scan goes from one message to the next, from at on, and tells whether it came
// past a ReadyForQuery; an ErrorResponse is an error.
func scan(b []byte, at int) (next int, ready bool, err error) {
	for len(b)-at >= 5 {
		end := at + 1 + int(binary.BigEndian.Uint32(b[at+1:]))
		if end > len(b) {
			break
		}
		switch b[at] {
		case 'Z':
			return end, true, nil
		case 'E':
			return end, false, fmt.Errorf("refused: %s", bytes.ReplaceAll(b[at+5:end], []byte{0}, []byte{' '}))
		}
		at = end
	}
	return at, false, nil
}

// acquireCall is the request on the handoff socket.
func acquireCall(user, database string) ([]byte, error) {
	return handoff.AppendCall(nil, handoff.Call{Op: handoff.OpAcquire, Database: database, User: user, State: handoff.Ready})
}
