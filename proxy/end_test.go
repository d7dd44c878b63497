package proxy

import (
	"testing"

	"golang.org/x/sys/unix"

	"pghandoff/proxy/loop"
)

// unread reports whether the other side of fd has bytes to take.
func unread(t *testing.T, fd int) bool {
	t.Helper()
	n, err := unix.IoctlGetInt(fd, unix.TIOCOUTQ)
	if err != nil {
		t.Fatal(err)
	}
	return n > 0
}

func TestWhatWasLookedAtIsThereUntilItIsDropped(t *testing.T) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(pair[0])
	e := end{fd: pair[1]}
	defer e.close()
	room := make([]byte, 64)
	for _, s := range []string{"one", "after the other"} {
		if _, err := loop.Send(pair[0], []byte(s)); err != nil {
			t.Fatal(err)
		}
		n, err := e.look(room)
		if string(room[:n]) != s || err != nil {
			t.Errorf("look: %q, %v", room[:n], err)
		}
		if !unread(t, pair[0]) {
			t.Error("look took what it saw")
		}
		loop.Send(pair[0], []byte("later"))
		e.drop(room)
		n, err = loop.Receive(e.fd, room)
		if string(room[:n]) != "later" || err != nil {
			t.Errorf("behind what was dropped is %q, %v", room[:n], err)
		}
	}
	if n, err := e.look(room); n != 0 || err != nil || e.looked != 0 {
		t.Errorf("nothing is there: %d, %v", n, err)
	}
	unix.Shutdown(pair[0], unix.SHUT_WR)
	if n, err := e.look(room); n != 0 || err != errEnded {
		t.Errorf("at the end: %d, %v", n, err)
	}
}

// A function whose request is refused reads the end of the stream behind it, and
// no error: what it sent was taken, if only looked at.
func TestLeavingTakesWhatWasLookedAt(t *testing.T) {
	h := build(t, nil)
	f := h.wire()
	f.send(append(start(), query("echo x")...))
	f.want(welcome)
	f.want("D(x)C(echo)ZI")
	g := h.wire()
	g.send([]byte("\x00\x00\x00\x08\x00\x04\x00\x00"))
	if told := g.says(); told == "." {
		t.Errorf("told %q", told)
	}
	if told := g.says(); told != "." {
		t.Errorf("behind the refusal: %q", told)
	}
}
