package proxy

import (
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pghandoff/tlsstate"
)

// A function that is slow to read, and has asked for more, gets all that a server
// has said that is gone.
func TestSlowFunctionThatGoesOnAskingGetsADeadServersLastWords(t *testing.T) {
	h := build(t, nil)
	f := h.wire()
	f.send(start())
	f.want(welcome)
	l := h.relayed()
	question := query("echo " + strings.Repeat("x", 1<<20))
	for asked := false; !asked; { // until neither side takes anything
		f.SetWriteDeadline(time.Now().Add(100 * time.Millisecond))
		_, err := f.Write(question)
		asked = err != nil
	}
	said := 0
	h.eventually("both sides are stuck", func() (stuck bool) {
		onLoop(l, func() { stuck = len(l.bridge.function.pending) > 0 && len(l.up.unsent()) > 0 })
		return stuck
	})
	h.hangUp()
	onLoop(l, func() {
		waits, _ := unix.IoctlGetInt(l.up.fd, unix.TIOCINQ)
		said = int(l.bridge.out) + waits
	})
	<-time.After(drainPatience + 200*time.Millisecond)
	f.SetReadDeadline(time.Now().Add(10 * time.Second))
	n, err := io.Copy(io.Discard, f)
	if int(n) != said {
		t.Errorf("the function has read %d bytes of %d: %v", n, said, err)
	}
	f.Close()
	h.empty()
}

// A function whose connection to the server has used up its keys, which only TLS
// 1.2 can, is told so: nobody else would.
func TestFunctionIsToldThatTheKeysAreUsedUp(t *testing.T) {
	h := build(t, nil)
	f := h.wire()
	f.send(start())
	f.want(welcome)
	l := h.relayed()
	onLoop(l, func() { l.bridge.unheard(fmt.Errorf("seal: %w", tlsstate.ErrExhausted)) })
	f.want("E(08006)")
	h.empty()
}
