package proxy

import (
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pghandoff/proxy/loop"
)

// counted counts the turns of one lease in those of all.
type counted struct {
	loop.Handler
	name int
	b    *bridge
	log  *turnLog
}

type turnLog struct {
	mu    sync.Mutex
	turns []int // who had one
	bytes uint64
	most  uint64 // bytes of one
}

// await waits until so many bytes were taken.
func (g *turnLog) await(t *testing.T, all uint64) {
	t.Helper()
	deadline := time.After(20 * time.Second)
	for done := false; !done; {
		select {
		case <-time.After(5 * time.Millisecond):
		case <-deadline:
			t.Fatal("the loop does not take all that is there")
		}
		g.mu.Lock()
		done = g.bytes == all
		g.mu.Unlock()
	}
}

func (c counted) Ready(e loop.Events) {
	before := c.b.in + c.b.out
	c.Handler.Ready(e)
	c.log.mu.Lock()
	defer c.log.mu.Unlock()
	c.log.turns = append(c.log.turns, c.name)
	c.log.bytes += c.b.in + c.b.out - before
	c.log.most = max(c.log.most, c.b.in+c.b.out-before)
}

// While several sessions always have more to say, none has two turns before each
// of the others has had one.
func TestGreedySessionsTakeTurns(t *testing.T) {
	l, log := idleLoop(t), &turnLog{}
	const sessions = 5
	left := uint64(0)
	for i := range sessions {
		r := plainRig(t, l)
		l.Rebind(r.b.function.token, counted{functionSide{r.b}, i, r.b, log})
		left += uint64(fill(t, r.function, queries))
		go sink(r.server) // ends with the descriptor, which the clean-up shuts down
		t.Cleanup(func() { unix.Shutdown(r.server, unix.SHUT_RDWR) })
	}
	ended := make(chan error, 1)
	go func() { ended <- l.Run() }() // ended by Stop; waited for below
	log.await(t, left)
	l.Stop()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	if log.most > readSize {
		t.Errorf("one turn took %d bytes", log.most)
	}
	// The first three of each: then some have said everything.
	for i := 0; i+sessions <= 3*sessions; i += sessions {
		seen := map[int]bool{}
		for _, who := range log.turns[i : i+sessions] {
			seen[who] = true
		}
		if len(seen) != sessions {
			t.Fatalf("the turns go to %v", log.turns)
		}
	}
}

// sink reads until the end.
func sink(fd int) {
	p := make([]byte, readSize)
	for {
		n, err := unix.Read(fd, p)
		if n <= 0 && err != unix.EINTR {
			return
		}
	}
}
