package proxy

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"testing"
	"time"

	"pghandoff/proxy/loop"
)

// keyChanges change our key of a lease's upstream at random points, and ask some
// times for a change of the server's. The daemon itself does so only after
// millions of records.
type keyChanges struct {
	t          *testing.T
	b          *bridge
	random     *rand.Rand
	next       uint64 // bytes of the lease at which the next one is due
	own, asked int
}

// changing is one side of the lease.
type changing struct {
	loop.Handler
	*keyChanges
}

func (c changing) Ready(e loop.Events) {
	c.Handler.Ready(e)
	if b := c.b; b.over || b.in+b.out < c.next || len(b.up.unsent()) > 0 {
		return
	}
	c.next = c.b.in + c.b.out + c.random.Uint64N(200<<10)
	ask := c.random.IntN(2) == 0
	c.own++
	if ask {
		c.asked++
	}
	wire, err := c.b.up.tls.RequestKeyUpdate(c.b.up.loop.Out[:0], ask)
	if err = errors.Join(err, c.b.up.transmit(wire)); err != nil {
		c.t.Error(err)
	}
	c.b.want()
}

// 10 MB each way at once are the same at the other side, although our key, and at
// our wish the server's, changes at random points.
func TestTenMegabytesWhileOurKeyChanges(t *testing.T) {
	random := seeded(t)
	up, down := messages(random, 'Q', 10<<20), messages(random, 'N', 10<<20)
	e, server, _ := encrypted(t)
	l := idleLoop(t)
	r := newRig(t, l, e, -1)
	function := connection(t, r.function)
	r.function = -1 // it is the connection's now
	c := &keyChanges{t: t, b: r.b, random: random}
	l.Rebind(r.b.function.token, changing{functionSide{r.b}, c})
	l.Rebind(r.b.up.token, changing{serverSide{r.b}, c})
	ended := make(chan error, 1)
	go func() { ended <- l.Run() }() // ended by Stop; waited for below
	results := make(chan error, 4)
	for _, peer := range []struct {
		net.Conn
		says, hears []byte
	}{{function, up, down}, {server, down, up}} {
		peer.SetDeadline(time.Now().Add(time.Minute))
		go func() { // ends with what it says or the deadline; waited for below
			_, err := peer.Write(peer.says)
			results <- err
		}()
		go func() { results <- hear(peer, peer.hears) }() // as above
	}
	for range cap(results) {
		if err := <-results; err != nil {
			t.Error(err)
		}
	}
	l.Stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	t.Logf("our key changed %d times, the server's was to change %d times", c.own, c.asked)
	if c.own < 50 || c.asked < 15 {
		t.Error("that is too seldom")
	}
}

// seeded is random; PGHANDOFF_TEST_SEED repeats a run that has failed.
func seeded(t *testing.T) *rand.Rand {
	t.Helper()
	seed, err := strconv.ParseUint(os.Getenv("PGHANDOFF_TEST_SEED"), 10, 64)
	if err != nil {
		seed = rand.Uint64()
	}
	t.Logf("PGHANDOFF_TEST_SEED=%d", seed)
	return rand.New(rand.NewPCG(seed, 1))
}

// hear reads as many bytes as are wanted and compares their digest.
func hear(c net.Conn, want []byte) error {
	got := make([]byte, len(want))
	if n, err := io.ReadFull(c, got); err != nil {
		return errors.Join(err, errors.New("after "+strconv.Itoa(n)+" bytes"))
	}
	if sha256.Sum256(got) != sha256.Sum256(want) {
		return errors.New("other bytes have arrived")
	}
	return nil
}

// messages are whole messages of any length and content, so many bytes at least.
func messages(random *rand.Rand, typ byte, size int) []byte {
	var out bytes.Buffer
	content := make([]byte, 40<<10)
	for out.Len() < size {
		for i := range content {
			content[i] = byte(random.Uint32())
		}
		out.Write(framed(typ, string(content[:random.IntN(len(content))])))
	}
	return out.Bytes()
}
