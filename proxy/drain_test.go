package proxy

import (
	"strings"
	"testing"
	"time"
)

func TestRunningQueriesMayFinishUntilTheDrainIsOver(t *testing.T) {
	h := build(t, nil)
	ends, stays := h.wire(), h.wire()
	ends.send(start(), query("hang"))
	stays.send(start("database", "other"), query("hang"))
	ends.want(welcome)
	stays.want(welcome)
	<-h.hung
	<-h.hung
	begin := time.Now()
	wait := h.stopping()
	h.eventually("it drains", h.d.draining.Load)
	h.gate <- struct{}{} // one of both
	wait()
	if took := time.Since(begin); took < time.Second {
		t.Errorf("the drain was over after %s", took)
	}
	told := []string{ends.says() + ends.says(), stays.says() + stays.says()}
	if told[0] > told[1] {
		told[0], told[1] = told[1], told[0]
	}
	if told[0] != "C(hang)ZIE(57P01)" || told[1] != "E(57P01)." {
		t.Errorf("told %q", told)
	}
}

// A hard end that comes while the parameters of a lease are being set is not
// forgotten: what the function has sent behind its start-up could run for ever.
func TestEndThatComesAmidTheStartupOfALeaseIsRemembered(t *testing.T) {
	h := build(t, nil)
	d := h.talk()
	d.say(strings.Replace(acquire("orders"), "ready", "startup", 1))
	line := d.wantReply(`"lease"`)
	f := d.adopt(0)
	h.gated.Store(true)
	f.send(start("TimeZone", "CET"), query("hang"))
	<-h.hung
	d.say(`{"v":1,"op":"release","lease":"` + leaseOf(line) + `"}` + "\n")
	d.wantReply(`"ok":true`)
	h.gate <- struct{}{}
	f.want("RS(server_version=15.1)S(TimeZone=CET)KZI")
	f.want("E(57P01)")
	h.unleased()
}

// What is under way for a function that has gone is waited for: the loops end
// with the drain.
func TestDrainWaitsForParametersOfAFunctionThatIsGone(t *testing.T) {
	h := build(t, nil)
	h.gated.Store(true)
	f := h.wire()
	f.send(sslRequest)
	f.byte()
	f.send(start("TimeZone", "CET"))
	<-h.hung
	f.Close()
	h.eventually("the session is over", func() bool { return h.visitors() == 0 })
	done := make(chan struct{})
	go func() { h.d.drain(); close(done) }()
	select {
	case <-done:
		t.Error("the drain is over while a server is asked")
	case <-time.After(50 * time.Millisecond):
	}
	h.gate <- struct{}{}
	h.within("drain", func() { <-done })
	if held := h.held(); held != (usage{}) {
		t.Errorf("still counted: %+v", held)
	}
}

func TestDrainWaitsForWhatAWorkerLeavesToTheLoop(t *testing.T) {
	h := build(t, nil)
	l, block, through := h.d.front(), make(chan struct{}), false
	l.Post(func() { <-block })
	worked, done := make(chan struct{}), make(chan struct{})
	h.d.later(l, func() { close(worked) }, func() { through = true })
	<-worked
	go func() { h.d.work.Wait(); close(done) }()
	select {
	case <-done:
		t.Error("the work is over before it is through")
	case <-time.After(50 * time.Millisecond):
	}
	close(block)
	<-done
	h.d.onFront(func() {})
	if !through {
		t.Error("it is not through")
	}
}
