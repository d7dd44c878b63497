package proxy

import (
	"fmt"
	"testing"
	"time"
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
