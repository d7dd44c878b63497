package proxy

import (
	"bytes"
	"encoding/binary"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pghandoff/pgwire"
	"pghandoff/proxy/loop"
)

// rig is a lease on a loop that the test turns by hand, between two peers that
// have more to say than one turn takes.
type rig struct {
	t                *testing.T
	b                *bridge
	function, server int // the peers' descriptors; negative: not ours
}

// newRig makes one whose upstream is reached through up. Its daemon has loops and
// nothing else: a lease that ends here has found a bug, and panics.
func newRig(t *testing.T, l *loop.Loop, up end, server int) *rig {
	t.Helper()
	p, err := newPair()
	if err != nil {
		t.Fatal(err)
	}
	d := &Daemon{loads: loads{began: time.Now(), all: []*load{{loop: l}}}}
	lease := &Lease{route: new(Route), up: &Upstream{end: up, loop: l, tracker: pgwire.NewTracker('I')}}
	r := &rig{t: t, b: &lease.bridge, function: p.theirs, server: server}
	r.b.open(d, lease, end{fd: p.ours})
	r.b.begin(nil)
	t.Cleanup(func() {
		for _, fd := range []int{p.ours, r.function, up.fd} {
			unix.Close(fd)
		}
	})
	return r
}

// plainRig makes one with an upstream in plaintext.
func plainRig(t *testing.T, l *loop.Loop) *rig {
	t.Helper()
	p, err := newPair()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(p.theirs) })
	widen(p.ours)
	return newRig(t, l, end{fd: p.ours}, p.theirs)
}

func idleLoop(t *testing.T) *loop.Loop {
	t.Helper()
	l, err := loop.New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Free)
	return l
}

// queries and answers are whole messages that divide no buffer.
var (
	queries = bytes.Repeat(framed('Q', "select repeat('x', 1000)\x00"), 40_000)
	answers = bytes.Repeat(framed('N', string(make([]byte, 40))), 40_000)
)

func framed(typ byte, body string) []byte {
	return append(binary.BigEndian.AppendUint32([]byte{typ}, uint32(len(body)+4)), body...)
}

// widen lets the kernel take a few turns' worth at a descriptor.
func widen(fd int) { unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, 200<<10) } // it doubles this

// fill gives the kernel as much of p as it takes and returns how much that is.
func fill(t *testing.T, fd int, p []byte) int {
	t.Helper()
	widen(fd)
	sum := 0
	for {
		n, err := loop.Send(fd, p[sum:])
		if err == unix.EAGAIN && sum > 3*readSize {
			return sum
		}
		if err != nil || sum+n == len(p) {
			t.Fatalf("the kernel took %d bytes, %v; the test needs one that takes between %d and %d", sum+n, err, 3*readSize, len(p))
		}
		sum += n
	}
}

// waiting is how many bytes wait to be read at a descriptor.
func waiting(t *testing.T, fd int) int {
	t.Helper()
	n, err := unix.IoctlGetInt(fd, unix.TIOCINQ)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// drain takes all that waits.
func drain(fd int) {
	p := make([]byte, readSize)
	for {
		if n, err := loop.Receive(fd, p); n == 0 || err != nil {
			return
		}
	}
}

// What one turn takes from a peer is bounded by one read, however much more
// there is, and so is what it gives to the other side.
func TestOneTurnTakesOneReadOfASession(t *testing.T) {
	for name, c := range map[string]struct {
		from, to func(*rig) int // the peer that floods, and the other
		at       func(*rig) int // the daemon's end, where it arrives
		flood    []byte
		turn     func(*rig)
	}{
		"a function that floods": {func(r *rig) int { return r.function }, func(r *rig) int { return r.server }, func(r *rig) int { return r.b.function.fd },
			queries, func(r *rig) { functionSide{r.b}.Ready(loop.Readable) }},
		"a server that floods": {func(r *rig) int { return r.server }, func(r *rig) int { return r.function }, func(r *rig) int { return r.b.up.fd },
			answers, func(r *rig) { serverSide{r.b}.Ready(loop.Readable) }},
	} {
		t.Run(name, func(t *testing.T) {
			r := plainRig(t, idleLoop(t))
			left := fill(t, c.from(r), c.flood)
			turns := 0
			for ; left > 0; turns++ {
				c.turn(r)
				if r.b.over || r.b.gone != nil {
					t.Fatalf("the lease has ended: %+v", r.b.gone)
				}
				now, got := waiting(t, c.at(r)), waiting(t, c.to(r))
				if taken := left - now; taken < 1 || taken > readSize || got > readSize {
					t.Fatalf("turn %d took %d bytes and gave %d, at most %d are allowed", turns, taken, got, readSize)
				}
				left = now
				drain(c.to(r))
			}
			if turns < 4 {
				t.Errorf("only %d turns", turns)
			}
		})
	}
}

// A peer that takes nothing costs at most what one turn has read: from then on
// nothing more is taken from the other.
func TestTurnsTakeNothingWhileTheOtherSideIsFull(t *testing.T) {
	r := plainRig(t, idleLoop(t))
	rest := queries[fill(t, r.function, queries):]
	kept, left := 0, 0
	for range 20 {
		if n, err := loop.Send(r.function, rest); err == nil {
			rest = rest[n:]
		}
		functionSide{r.b}.Ready(loop.Readable)
		switch {
		case kept == 0:
			kept, left = len(r.b.up.unsent()), waiting(t, r.b.function.fd)
		case len(r.b.up.unsent()) != kept || waiting(t, r.b.function.fd) < left:
			t.Fatal("the function is read on while the server takes nothing")
		}
	}
	if kept == 0 || kept > readSize || r.b.gone != nil {
		t.Errorf("%d bytes are kept for the server, at most %d are allowed", kept, readSize)
	}
}
