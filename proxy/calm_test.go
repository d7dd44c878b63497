package proxy

import (
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// flood sends until nobody takes any more.
func (f *function) flood(p []byte) {
	for {
		f.SetWriteDeadline(time.Now().Add(50 * time.Millisecond))
		if _, err := f.Write(p); err != nil {
			return
		}
	}
}

// halfClose ends what the function sends.
func (f *function) halfClose() { unix.Shutdown(f.fd(), unix.SHUT_WR) }

// copied is whole messages of a COPY.
var copied = []byte(strings.Repeat("d\x00\x00\x00\x05x", 10000))

// hang is a function whose query does not end.
func hang(h *house) *function {
	f := h.wire()
	f.send(start(), query("hang"))
	f.want(welcome)
	<-h.hung
	return f
}

// standing is what a loop can wait for, and how it comes to that.
var standing = map[string]func(h *house){
	"function half closed, query running":    func(h *house) { hang(h).halfClose() },
	"function closed, query running":         func(h *house) { hang(h).Close() },
	"function closed, server takes nothing":  func(h *house) { f := hang(h); f.flood(copied); f.Close() },
	"function stuck, server takes nothing":   func(h *house) { hang(h).flood(copied) },
	"function half closed, the same":         func(h *house) { f := hang(h); f.flood(copied); f.halfClose() },
	"function does not read, server is gone": func(h *house) { h.wireThatReadsNothing(); h.hangUp() },
	"function does not read, and half closes": func(h *house) {
		h.wireThatReadsNothing().halfClose()
	},
	"functions wait, half closed": func(h *house) {
		hang(h)
		waits, d := h.wire(), h.talk()
		waits.send(start())
		d.say(acquire("orders") + ping)
		h.queued(2)
		waits.halfClose()
		d.halfClose()
	},
	"parameters are set, function half closed": func(h *house) {
		h.gated.Store(true)
		f := h.wire()
		f.send(sslRequest)
		f.byte()
		f.send(start("TimeZone", "CET"), query("echo x"))
		<-h.hung
		f.halfClose()
	},
	"a grant is not read, and what stands behind it": func(h *house) {
		d := h.talk()
		d.say(acquire("orders") + strings.Repeat(ping, 1000))
		d.halfClose()
		h.lease()
	},
	"no room for a grant": func(h *house) {
		d := h.full()
		d.say(acquire("orders") + strings.Repeat(ping, 1000))
		h.lease()
		d.halfClose()
	},
	"a lease has not started": func(h *house) {
		d := h.talk()
		d.say(strings.Replace(acquire("orders"), "ready", "startup", 1))
		d.wantReply(`"lease"`)
		f := d.adopt(0)
		f.send(start()[:9])
	},
}

// Whatever the loop is told and cannot act upon yet, it is not told again and
// again.
func TestLoopIsCalmWhateverItWaitsFor(t *testing.T) {
	for name, bring := range standing {
		t.Run(name, func(t *testing.T) {
			h := build(t, nil)
			bring(h)
			<-time.After(5 * time.Millisecond)
			h.calm(name)
			for range 10 {
				h.gate <- struct{}{}
			}
		})
	}
}

// wireThatReadsNothing is a function whose server has more to say than finds room.
func (h *house) wireThatReadsNothing() *function {
	f := h.wire()
	f.send(start())
	f.want(welcome)
	l := h.relayed()
	f.send(query("echo " + strings.Repeat("x", 1<<20)))
	h.eventually("the server has answered", func() (full bool) {
		onLoop(l, func() { full = len(l.bridge.function.pending) > 0 })
		return full
	})
	return f
}
