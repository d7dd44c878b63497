package proxy

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pghandoff/pgwire"
	"pghandoff/proxy/loop"
)

// talk is a function that has come by the handoff socket, byte by byte if need be.
type talk struct {
	*function
	buf []byte
	fds []int // received
}

func (h *house) talk() *talk {
	h.t.Helper()
	d := &talk{function: h.connect(h.d.serveHandoff)}
	h.t.Cleanup(d.closeDescriptors)
	return d
}

func (d *talk) say(text string) { d.t.Helper(); d.send([]byte(text)) }

// reply reads up to the next line break and collects descriptors. At the end of
// the stream it returns "".
func (d *talk) reply() string {
	d.t.Helper()
	for {
		if line, rest, found := bytes.Cut(d.buf, []byte("\n")); found {
			d.buf = rest
			return string(line)
		}
		buf, oob := make([]byte, 1<<10), make([]byte, 256)
		d.SetReadDeadline(time.Now().Add(10 * time.Second))
		n, oobn, _, _, err := d.ReadMsgUnix(buf, oob)
		messages, _ := unix.ParseSocketControlMessage(oob[:oobn])
		for i := range messages {
			fds, _ := unix.ParseUnixRights(&messages[i])
			d.fds = append(d.fds, fds...)
		}
		d.buf = append(d.buf, buf[:n]...)
		switch {
		case errors.Is(err, io.EOF) || err == nil && n == 0:
			return ""
		case err != nil:
			d.t.Fatal(err)
		}
	}
}

// wantReply fails unless the next reply has the parts.
func (d *talk) wantReply(parts ...string) string {
	d.t.Helper()
	line := d.reply()
	for _, p := range parts {
		if !strings.Contains(line, p) {
			d.t.Errorf("reply %q lacks %s", line, p)
		}
	}
	return line
}

func (d *talk) wantEnd() {
	d.t.Helper()
	if line := d.reply(); line != "" {
		d.t.Errorf("unexpected reply %s", line)
	}
}

// adopt makes a function of a descriptor that was received.
func (d *talk) adopt(i int) *function {
	f := &function{connOf(d.fds[i]), d.t}
	d.fds[i] = -1
	d.t.Cleanup(func() { f.Close() })
	return f
}

func (d *talk) closeDescriptors() {
	for _, fd := range d.fds {
		if fd >= 0 {
			unix.Close(fd)
		}
	}
	d.fds = nil
}

// leaseOf returns the lease that a reply names.
func leaseOf(line string) string {
	var reply struct{ Lease string }
	json.Unmarshal([]byte(line), &reply)
	return reply.Lease
}

// report lets upstreams report one more parameter.
func (b *backend) report(name, value string) {
	b.parameters = b.parameters.with(pgwire.Parameter{Name: name, Value: value})
}

// newTestPair is a pair that is closed with the test, unless it is closed before.
func newTestPair(t *testing.T) pair {
	t.Helper()
	p, err := newPair()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(p.ours) })
	return p
}

// sendAll writes what must find room.
func sendAll(fd int, p []byte) (int, error) {
	n, err := loop.Send(fd, p)
	if err == nil && n < len(p) {
		err = io.ErrShortWrite
	}
	return n, err
}
