package proxy

import (
	"errors"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"pghandoff/pgwire"
)

// Many functions come and go in every way that there is, and neither a descriptor
// nor a goroutine of theirs stays.
func TestNothingIsLeaked(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	h := build(t, func(p *plan) {
		p.loops, p.pool.Reset, p.limits.Connections = 2, "discard", 50
		p.patient.unreadPatience, p.patient.writePatience = 5*time.Millisecond, 5*time.Millisecond
	})
	h.round()
	h.stock()
	before := openDescriptors(t)
	for range 20 {
		h.round()
	}
	h.sameDescriptors(before)
	h.stop()
}

// stock brings pools and pairs to where every round leaves them.
func (h *house) stock() {
	h.t.Helper()
	h.empty()
	h.warm("orders", 1)
	h.warm("other", 1)
	h.d.onFront(h.d.pairs.refill)
}

// round lets one function of each kind come and go.
func (h *house) round() {
	h.t.Helper()
	h.roundOfWire()
	h.roundOfHandoff()
	h.stock()
}

func (h *house) roundOfWire() {
	for _, packet := range [][]byte{start(), start("refused", "x"), start("TimeZone", "CET"), start("database", "nowhere"), sslRequest, []byte("hello, world"), start()[:30], nil} {
		for _, half := range []bool{false, true} {
			f := h.wire()
			f.send(packet)
			if half {
				unix.Shutdown(f.fd(), unix.SHUT_WR)
			}
			f.Close()
		}
	}
	served, busy := h.wire(), h.wire()
	served.send(start(), query("BEGIN"))
	busy.send(start("database", "other"), query("die"))
	served.says()
	served.want("C(BEGIN)ZT")
	waits, gone := h.wire(), h.wire()
	waits.send(start())
	gone.send(start())
	gone.Close()
	served.Close()
	busy.says()
	busy.want("E(57P01)")
	busy.Close()
	waits.says()
	waits.Close()
}

func (h *house) roundOfHandoff() {
	startup := strings.Replace(acquire("orders"), "ready", "startup", 1)
	for _, lines := range []string{acquire("orders"), startup, acquire("nowhere"), ping, "x\n", acquire("orders") + ping + acquire("other") + startup} {
		for _, c := range []struct{ replies, reads int }{{0, 0}, {1, 0}, {1, 1}} {
			d := h.talk()
			d.say(lines)
			for range c.replies {
				d.reply()
			}
			if c.reads > 0 && len(d.fds) > 0 {
				f := d.adopt(0)
				f.Write(append(start(), pgwire.AppendTerminate(nil)...)) // nonsense if the lease is ready, too late if it was withdrawn
				f.SetReadDeadline(time.Now().Add(10 * time.Second))
				if _, err := io.Copy(io.Discard, f); errors.Is(err, os.ErrDeadlineExceeded) {
					h.t.Error("a lease has no end")
				}
				f.Close()
			}
			d.Close()
			d.closeDescriptors()
		}
	}
	full := h.full()
	full.say(acquire("orders"))
	h.empty()
	full.Close()
}
