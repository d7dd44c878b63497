package proxy

import (
	"errors"
	"time"

	"golang.org/x/sys/unix"

	"pghandoff/handoff"
	"pghandoff/proxy/loop"
)

const (
	// unreadLook is how often is looked whether a grant has been read while the
	// next request waits for that: there is no event for it.
	unreadLook = 5 * time.Millisecond
	// requestRead is how much is read at a time of requests. 8 KiB.
	requestRead = 8 << 10
)

// conversation is one connection of the handoff socket. It belongs to the front
// loop. One request is served at a time, and nothing is read meanwhile.
type conversation struct {
	d        *Daemon
	peer     *Peer
	door     *door
	talk     handoff.Conversation
	function end // its pending is the rest of a reply

	call     handoff.Call
	busy     bool // call is being served
	last     bool // the function sends no more
	gone     bool // and takes nothing any more
	faulty   bool // what it has sent is not the protocol, and it was told
	over     bool
	stepping bool
	ask      *ask // of call; nil: none
	wrong    int  // secrets so far

	grant *Lease     // in a reply that the function may not have read; nil: none
	pass  int        // owned; goes with the first byte of a reply that found no room; -1: none
	until time.Time  // when the grant must have been read
	timer loop.Timer // for room, for the grant to be read, or for the answer to a wrong secret
}

// serveHandoff serves a new connection of the handoff socket, which it owns.
func (d *Daemon) serveHandoff(o *door, fd int, peer *Peer) {
	if err := d.limits.take(peer.holder(), limitConnections); err != nil {
		d.turnAway(fd, true, failureOf(err))
		return
	}
	c := d.blanks.takeConversation()
	c.d, c.peer, c.door, c.function.fd, c.pass = d, peer, o, fd, -1
	d.enter(c)
	c.read()
}

// Ready is called when the function has sent something, takes more, or is gone.
func (c *conversation) Ready(e loop.Events) {
	switch {
	case len(c.function.pending) > 0:
		if e&loop.Closed != 0 {
			c.close()
			return
		}
		c.send()
		c.step()
	case c.busy || c.last:
		if e&loop.Closed != 0 {
			c.close()
		}
	default:
		c.gone = e&loop.Closed != 0
		c.read()
	}
}

// read takes requests and serves them.
func (c *conversation) read() {
	in := c.d.front().In[:requestRead]
	n, err := c.function.look(in)
	switch {
	case errors.Is(err, errEnded):
		c.last = true
		c.talk.Close()
	case err != nil: // it closed without reading everything
		c.close()
		return
	}
	c.talk.Feed(in[:n])
	c.step()
	c.function.drop(in)
}

// step serves what has been asked, one request after the other, and then waits
// for what is missing.
func (c *conversation) step() {
	if c.stepping {
		return
	}
	c.stepping = true
	for c.next() {
	}
	c.stepping = false
	if c.grant != nil && c.function.token == 0 {
		c.d.front().Later(c.watch) // most have got what they came for
		return
	}
	c.watch()
}

// next serves one request and reports whether another one may be served.
func (c *conversation) next() bool {
	waits := c.talk.Pending() > 0 || c.last
	if c.over || c.busy || len(c.function.pending) > 0 || c.grant != nil && !(waits && c.settled()) {
		return false
	}
	if c.faulty {
		c.hangUp()
		return false
	}
	call, ok, fault := c.talk.Next()
	c.call = call
	switch {
	case fault != nil:
		c.faulty = true
		c.reply(fault)
	case ok:
		c.busy = true
		c.answer()
	case c.last:
		c.close()
	default:
		return false
	}
	return true
}

// watch waits for what can come next.
func (c *conversation) watch() {
	if c.over {
		return
	}
	events := loop.Closed
	switch {
	case len(c.function.pending) > 0:
		events |= loop.Writable
	case !c.busy && !c.last && (c.grant == nil || c.talk.Pending() == 0):
		events |= loop.Readable
	}
	l := c.d.front()
	var err error
	if c.function.token == 0 {
		c.function.token, err = l.Add(c.function.fd, c, events)
	} else {
		err = l.Want(c.function.token, events)
	}
	if err != nil {
		c.d.log.Error().Err(err).Msg("handoff connection")
		c.close()
	}
}

// settled reports whether the last grant has been read; it withdraws one that
// has not been for too long. Nothing is sent behind an unread grant, since the
// kernel tells only whether something is unread, not what.
func (c *conversation) settled() bool {
	l := c.d.front()
	if !c.gone && handoff.Unread(c.function.fd) {
		if left := time.Until(c.until); left > 0 {
			l.Set(&c.timer, min(left, unreadLook), c)
			return false
		}
		c.withdraw("it was not read in time")
	}
	l.Cancel(&c.timer)
	c.grant = nil
	return true
}

// withdraw ends a lease that did not reach the function.
func (c *conversation) withdraw(why string) {
	c.grant.revoke(&Failure{SQLState: codeShutdown, Message: "this lease was withdrawn: " + why, Hint: "read the grant as soon as it comes", Retry: true, Reason: "withdrawn"}, true)
	c.grant = nil
}

// Expired is called when the time for what is waited for is over.
func (c *conversation) Expired(*loop.Timer) {
	switch {
	case len(c.function.pending) > 0: // it has left no room
		c.close()
		return
	case c.busy:
		c.reply(errClaim)
	case c.grant != nil:
		c.settled()
	}
	c.step()
}

// leave refuses what waits and ends the conversation, as the daemon stops.
func (c *conversation) leave() {
	c.faulty, c.last = true, true // no request is served any more
	switch {
	case c.ask != nil:
		c.ask.stop(errShutdown())
	case !c.busy:
		c.hangUp()
	}
}

// hangUp says that no reply will follow, takes what was sent, as closing a
// socket with unread bytes in it would give the function an error instead of the
// end of the stream, and closes.
func (c *conversation) hangUp() {
	unix.Shutdown(c.function.fd, unix.SHUT_WR)
	c.function.looked = 0
	handoff.Drain(c.function.fd)
	c.close()
}

// close ends the conversation. Leases outlive it.
func (c *conversation) close() {
	if c.over {
		return
	}
	c.over = true
	l := c.d.front()
	l.Cancel(&c.timer)
	if c.grant != nil && len(c.function.pending) > 0 {
		c.withdraw("it could not be sent")
	}
	if c.pass >= 0 {
		unix.Close(c.pass)
	}
	c.function.leave(l)
	c.peer.gone()
	if c.ask != nil {
		c.ask.abandon()
	}
	c.d.limits.give(c.peer.holder(), limitConnections)
	c.d.exit(c)
}
