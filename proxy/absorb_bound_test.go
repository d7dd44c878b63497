package proxy

import (
	"testing"

	"golang.org/x/sys/unix"

	"pghandoff/proxy/loop"
	"pghandoff/tlsstate"
)

// A server that does not stop to talk to an idle session is not listened to for
// long: others wait for the loop.
func TestAServerThatDoesNotStopTalkingIsNotFit(t *testing.T) {
	p, err := newPair()
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(p.theirs)
	u := &Upstream{end: end{fd: p.ours}}
	defer u.end.close()
	unix.SetsockoptInt(p.theirs, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, 8<<20)
	for notice := framed('N', string(make([]byte, 1019))); ; {
		if _, err := loop.Send(p.theirs, notice); err != nil {
			break
		}
	}
	before := waiting(t, u.fd)
	const most = absorbReads * (tlsstate.MaxRecord + absorbSize)
	if before <= most {
		t.Skipf("only %d bytes fit into the socket: needs CAP_NET_ADMIN for more", before)
	}
	if u.fit() {
		t.Error("it is handed out")
	}
	if taken := before - waiting(t, u.fd); taken > most {
		t.Errorf("%d bytes were taken, at most %d may be", taken, most)
	}
}
