package proxy

import (
	"encoding/binary"
	"fmt"
	"strings"
	"testing"
	"time"

	"pghandoff/pgwire"
)

func TestOnlyTheOwnerNeedsNoSecret(t *testing.T) {
	h := build(t, nil)
	d, other := h.talk(), h.talk()
	for _, c := range []struct {
		by     *talk
		secret bool
		ok     bool
	}{{d, false, true}, {other, false, false}, {other, true, true}} {
		d.say(acquire("orders"))
		line := d.wantReply(`"lease"`)
		claim := fmt.Sprintf(`{"v":1,"op":"release","lease":"%s"`, leaseOf(line))
		if c.secret {
			claim += fmt.Sprintf(`,"secret":%d`, h.lease().secret)
		}
		c.by.say(claim + "}\n")
		c.by.wantReply(fmt.Sprintf(`"ok":%v`, c.ok))
		if c.ok {
			if got := d.adopt(len(d.fds) - 1).says(); got != "E(57P01)" {
				t.Errorf("a released lease is told %s", got)
			}
		}
		d.closeDescriptors()
		h.warm("orders", 1)
	}
}

func TestWrongSecretsAreAnsweredSlowly(t *testing.T) {
	h := build(t, nil)
	d, other := h.talk(), h.talk()
	d.say(acquire("orders"))
	d.wantReply(`"lease"`)
	l := h.lease()
	begin := time.Now()
	for range 2 {
		other.say(fmt.Sprintf(`{"v":1,"op":"cancel","lease":"%s","secret":%d}`+"\n", l.id, l.secret+1))
	}
	other.wantReply(`"sqlstate":"28000"`)
	other.wantReply(`"sqlstate":"28000"`)
	if took := time.Since(begin); took < 3*wrongSecretDelay {
		t.Errorf("two guesses within %s", took)
	}
	other.say(fmt.Sprintf(`{"v":1,"op":"cancel","lease":"%s","secret":%d}`+"\n", l.id, l.secret+1))
	other.Close() // does not keep the conversation for the answer
	d.Close()
	d.closeDescriptors()
	h.empty()
}

// A driver that cancels what it closes is not kept waiting when it is late; who
// guesses secrets is.
func TestLateCancelIsNotTakenForAGuess(t *testing.T) {
	h := build(t, nil)
	f := h.wire()
	f.send(start())
	f.want(welcome)
	l := h.lease()
	f.Close()
	h.unleased()
	took := func(pid, secret uint32) time.Duration {
		begin, c := time.Now(), h.wire()
		c.send(pgwire.AppendCancelRequest(nil, pid, binary.BigEndian.AppendUint32(nil, secret)))
		if got := c.says(); got != "." {
			t.Errorf("told %s", got)
		}
		return time.Since(begin)
	}
	if d := took(l.up.pid, l.secret); d >= wrongCancelDelay {
		t.Errorf("a late cancel took %v", d)
	}
	for _, guess := range [][2]uint32{{l.up.pid, l.secret + 1}, {l.up.pid + 1, l.secret}, {0, 0}} {
		if d := took(guess[0], guess[1]); d < wrongCancelDelay {
			t.Errorf("the guess %v took %v", guess, d)
		}
	}
	h.empty()
	h.stop()
	if n := strings.Count(h.trail.String(), `"outcome":"already released"`); n != 1 {
		t.Errorf("%d late cancels in the audit", n)
	}
}

// A function that speaks protocol 3.2 gets a cancel key of 32 bytes, and only all
// of it is heard; one that does not gets four.
func TestCancelKeysAreLongForWhoeverTakesThem(t *testing.T) {
	h := build(t, nil)
	for version, length := range map[uint32]int{pgwire.Version30: 4, pgwire.VersionLatest: 32, pgwire.Version30 | 9999: 32} {
		f := h.wire()
		packet := start()
		binary.BigEndian.PutUint32(packet[4:], version)
		f.send(packet)
		var key []byte
		for {
			typ, body, err := readFrame(f)
			if err != nil {
				t.Fatal(err)
			}
			if typ == 'K' {
				key = body[4:]
			}
			if typ == 'Z' {
				break
			}
		}
		l := h.lease()
		if len(key) != length {
			t.Errorf("protocol %x: a key of %d bytes", version, len(key))
		}
		k := cancelKey{l.up.pid, l.secret, l.peer.holder()}
		changed := append([]byte(nil), key[4:]...)
		for name, c := range map[string]struct {
			more []byte
			want bool
		}{"all of it": {key[4:], true}, "none behind four bytes": {nil, length == 4}, "one byte more": {append(changed, 0), false}} {
			if got, _ := h.d.leases.withKey(k, c.more); (got != nil) != c.want {
				t.Errorf("protocol %x, %s: found %v", version, name, got != nil)
			}
		}
		f.Close()
		h.unleased()
	}
	h.empty()
}
