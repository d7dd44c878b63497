package proxy

import (
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"pghandoff/handoff"
	"pghandoff/pgwire"
	"pghandoff/proxy/loop"
)

// answer does what the request asks for. The reply may come later.
func (c *conversation) answer() {
	switch c.call.Op {
	case handoff.OpAcquire:
		c.acquire()
	case handoff.OpPing:
		c.reply(nil)
	default:
		c.claim()
	}
}

// acquire asks for a lease.
func (c *conversation) acquire() {
	call := &c.call
	if call.Transport != handoff.Any && call.Transport != handoff.Bridge {
		c.reply(&handoff.Refusal{SQLState: codeNotSupported, Message: "transport \"" + string(call.Transport) + "\" cannot be had on this route", Hint: "ask for bridge or any"})
		return
	}
	if call.Database == "" {
		name, err := c.d.onlyRoute(c.door, c.peer)
		if err != nil {
			c.reply(refusalOf(err))
			return
		}
		call.Database = name
	}
	if call.User == "" {
		c.reply(&handoff.Refusal{SQLState: codeNotAuthorized, Message: "no user name was given", Hint: "name one in \"user\""})
		return
	}
	a := &ask{d: c.d, by: c, peer: c.peer, door: c.door, way: "handoff", database: call.Database,
		user: strings.Clone(call.User), application: strings.Clone(call.ApplicationName), wait: call.Wait} // a lease keeps them, but not the line that they lie in
	for _, p := range call.Parameters {
		a.parameters = append(a.parameters, pgwire.Parameter{Name: p.Name, Value: p.Value})
	}
	if call.ApplicationName != "" {
		a.parameters = append(a.parameters, pgwire.Parameter{Name: "application_name", Value: call.ApplicationName})
	}
	c.ask = a
	c.d.grant(a)
}

// queued and waitsLong are called while the function waits, which it is not told.
func (c *conversation) queued()    {}
func (c *conversation) waitsLong() {}

// refused is called when the wish was not granted.
func (c *conversation) refused(err error) {
	c.ask = nil
	c.reply(refusalOf(err))
	c.step()
}

// granted sends the grant with the function's end of a socketpair, and lets the
// lease begin.
func (c *conversation) granted(l *Lease) {
	c.ask, c.grant = nil, l
	p, err := c.d.pairs.take()
	if err != nil {
		c.grant = nil
		c.d.finish(l, ending{outcome: "no descriptor"})
		c.refused(err)
		return
	}
	secret := handoff.Secret(l.secret)
	g := &handoff.Granted{Lease: l.id, Database: l.route.name, Transport: handoff.Bridge, State: c.call.State, Tx: 'I', PID: l.up.pid, Secret: &secret, Written: l.parameters().granted}
	line, err := handoff.AppendReply(c.d.front().Out[:0], handoff.Reply{ID: c.call.ID, Granted: g})
	if err != nil && g.State == handoff.Startup { // it is told by the start-up
		g.Written = handoff.WrittenParameters{}
		line, err = handoff.AppendReply(c.d.front().Out[:0], handoff.Reply{ID: c.call.ID, Granted: g})
	}
	if err != nil {
		unix.Close(p.theirs)
		c.d.front().Close(p.token, p.ours)
		c.grant = nil
		c.d.finish(l, ending{outcome: "too long"})
		c.reply(errReplySize)
		c.step()
		return
	}
	c.talk.Acquired(l.id)
	c.pass = p.theirs
	state := c.call.State
	c.d.work.Add(1) // should the conversation be over now, the lease has yet to begin
	c.transmit(line)
	c.d.begin(l, state, c.peer, c.door, end{fd: p.ours, token: p.token})
	c.d.work.Done()
	c.d.front().Later(func() {
		c.d.announce(l)
		c.d.pairs.refill()
	})
	c.step()
}

// begin lets a lease relay, or its function start, when the function has been
// told. It owns the daemon's end of the pair.
func (d *Daemon) begin(l *Lease, state handoff.State, peer *Peer, o *door, ours end) {
	if state == handoff.Ready {
		d.relay(l, ours, nil)
		return
	}
	s := &session{d: d, peer: peer, door: o, way: "handoff", lease: l, function: ours}
	d.front().Rebind(ours.token, s)
	if revoked, now := l.hold(s); revoked != nil {
		s.stop(revoked, now)
	}
	s.begin(l.route.cfg.Timeouts.IdleLease.Std()) // who holds a lease may take time
}

// errReplySize is told instead of a grant whose parameters are too many.
var errReplySize = &handoff.Refusal{SQLState: "54000", Message: "what the server reports does not fit a reply of 64 KiB", Hint: "ask for state startup instead"}

// errClaim is all that is told about a lease to somebody whose it is not.
var errClaim = &handoff.Refusal{SQLState: codeNotAuthorized, Message: "there is no such lease, or the secret is not its own"}

// wrongSecretDelay grows with each wrong secret of a connection, up to the
// bound: guessing 32 bits must not be worth trying.
const (
	wrongSecretDelay    = 50 * time.Millisecond
	maxWrongSecretDelay = 2 * time.Second
)

// claim cancels or releases a lease whose bearer may do that.
func (c *conversation) claim() {
	claim := c.talk.Claim(c.call)
	l := c.d.leases.withID(claim.Lease)
	if l == nil || l.peer.holder() != c.peer.holder() || !claim.Owner && (claim.Secret == nil || uint32(*claim.Secret) != l.secret) {
		c.wrong++
		c.d.front().Set(&c.timer, min(wrongSecretDelay*time.Duration(c.wrong), maxWrongSecretDelay), c)
		return
	}
	if c.call.Op == handoff.OpCancel {
		c.peer.look()
		c.d.later(c.d.front(), func() { c.d.cancelLease(c.d.base, l, c.peer) }, func() {
			c.reply(nil)
			c.step()
		})
		return
	}
	l.revoke(&Failure{SQLState: codeShutdown, Message: "this lease was released", Reason: reasonReleased}, true)
	c.talk.Released(claim.Lease)
	c.reply(nil)
}

// refusalOf is a Failure as the handoff socket says it.
func refusalOf(err error) *handoff.Refusal {
	f := failureOf(err)
	return &handoff.Refusal{SQLState: f.SQLState, Message: f.Message, Hint: f.Hint, Retry: f.Retry}
}

// refusalLine is a refusal as a line.
func refusalLine(id *string, refusal *handoff.Refusal) []byte {
	line, err := handoff.AppendReply(nil, handoff.Reply{ID: id, Refusal: refusal})
	if err != nil { // a server's words may be long
		line, _ = handoff.AppendReply(nil, handoff.Reply{ID: id, Refusal: &handoff.Refusal{SQLState: refusal.SQLState, Message: "refused", Hint: "the daemon's log says why", Retry: refusal.Retry}})
	}
	return line
}

// reply ends the service of a request that brings no descriptor: with no, or
// with yes if refusal is nil.
func (c *conversation) reply(refusal *handoff.Refusal) {
	if c.over {
		return
	}
	if refusal != nil {
		c.transmit(refusalLine(c.call.ID, refusal))
		return
	}
	line, _ := handoff.AppendReply(nil, handoff.Reply{ID: c.call.ID}) // it is short
	c.transmit(line)
}

// transmit sends a reply, and keeps what finds no room.
func (c *conversation) transmit(line []byte) {
	c.busy, c.call = false, handoff.Call{}
	c.function.pending = line
	c.send()
	if !c.over && len(c.function.pending) > 0 {
		c.function.pending = append([]byte(nil), c.function.pending...) // line may be in a buffer of the loop's
		c.d.front().Set(&c.timer, c.d.writePatience, c)
	}
}

// send sends as much of the reply as there is room for.
func (c *conversation) send() {
	n, err := 0, error(nil)
	if c.pass >= 0 {
		n, err = loop.SendRights(c.function.fd, c.function.pending, c.pass)
		if n > 0 { // the function's copy is in its queue
			pass := c.pass
			c.d.front().Later(func() { unix.Close(pass) })
			c.pass = -1
		}
	} else {
		n, err = loop.Send(c.function.fd, c.function.pending)
	}
	if err != nil && err != unix.EAGAIN {
		c.close()
		return
	}
	if c.function.pending = c.function.pending[n:]; len(c.function.pending) > 0 {
		return
	}
	c.function.pending = nil
	l := c.d.front()
	l.Cancel(&c.timer)
	if c.grant != nil {
		c.until = time.Now().Add(c.d.unreadPatience)
		l.Set(&c.timer, c.d.unreadPatience, c)
	}
}
