package proxy

import (
	"cmp"
	"errors"
	"io"
	"sync/atomic"
	"time"

	"pghandoff/proxy/loop"
)

// ending says how a lease ended.
type ending struct {
	outcome string   // label in the audit
	said    *Failure // what the function was told; nil: nothing
}

// The labels of endings.
const (
	endFunctionClosed = "closed"         // the function closed its end
	endTerminated     = "terminated"     // it said goodbye before
	endServerClosed   = "server_closed"  // the server ended the connection
	endFunctionFault  = "function_fault" // what it sent is not the protocol
	endServerFault    = "server_fault"   // what the server sent is not
	endStopped        = "stopped"        // by the daemon
	endTimedOut       = "timed_out"      // a limit in time of its route is over
)

// reasonReleased is the reason of an ending that the function has asked for.
const reasonReleased = "released"

const (
	// drainPatience is how long the answers may take that a gone function does
	// not read any more.
	drainPatience = 2 * time.Second
	// lastWordsPatience is how long a function may take to read what a server
	// said that is gone.
	lastWordsPatience = 30 * time.Second
)

// bridge relays between a function and an upstream on the upstream's event
// loop, to which all of it but stop belongs.
type bridge struct {
	d        *Daemon
	lease    *Lease
	up       *Upstream
	function end                  // owned
	home     atomic.Pointer[load] // whose loop is that of up

	in, out uint64 // bytes from and to the function

	gone     *ending // the function sends no more, and why
	deaf     bool    // the function does not listen any more
	lost     *ending // the server sends no more, and why
	stopping *ending // the daemon wants it to end
	over     bool

	timer    loop.Timer // for the end, if it is expiring; else for a rest
	expiring *ending    // what it ends as when the timer fires
	resting  bool       // nothing has passed for a while
	passed   uint64     // bytes when the timer was set
	time     timeLimits
}

// open makes the bridge of a lease; it owns the function's end.
func (b *bridge) open(d *Daemon, l *Lease, function end) {
	b.d, b.lease, b.up, b.function = d, l, l.up, function
	b.home.Store(d.loads.all[0])
	if l.luggage != nil {
		b.up.tracker.MindResets()
	}
}

// stop ends the lease with a last word for the function: when the session is
// idle, or at once. Safe from any goroutine.
func (b *bridge) stop(f *Failure, now bool) {
	b.post(func() {
		if b.over {
			return
		}
		b.stopping = &ending{endStopped, f}
		if now || b.restful() {
			b.finish(*b.stopping)
		}
	})
}

// post runs f on the bridge's loop, wherever it has moved to by then.
func (b *bridge) post(f func()) {
	home := b.home.Load()
	home.loop.Post(func() {
		if b.home.Load() != home {
			b.post(f)
			return
		}
		f()
	})
}

// restful reports whether the session is idle and the function has all of it.
func (b *bridge) restful() bool { return b.up.tracker.Idle() && len(b.function.unsent()) == 0 }

// functionSide and serverSide are the two ends as the loop calls them.
type (
	functionSide struct{ *bridge }
	serverSide   struct{ *bridge }
)

// begin waits for the function; surplus is what it has sent already. The server
// says nothing before it is asked, so it is joined behind the first question, or
// when there is time.
func (b *bridge) begin(surplus []byte) {
	l := b.up.loop
	if b.function.token != 0 {
		l.Rebind(b.function.token, functionSide{b})
	} else {
		var err error
		if b.function.token, err = l.Add(b.function.fd, functionSide{b}, loop.Readable); err != nil {
			b.giveUp()
			return
		}
	}
	b.watchTime()
	if len(surplus) > 0 {
		if b.join(); !b.over {
			b.take(surplus)
			b.want()
		}
		return
	}
	b.want()
	l.Later(func() {
		if b.home.Load().loop == l { // else it has moved
			b.join()
		}
	})
}

// join waits for the server too. A lease that is on its way back to this loop
// begins first.
func (b *bridge) join() {
	if b.over || b.up.token != 0 || b.function.token == 0 {
		return
	}
	if b.up.watch(serverSide{b}, loop.Readable) != nil {
		b.giveUp()
		return
	}
	b.want()
	b.awaken()
}

// giveUp ends a lease for which there is no room.
func (b *bridge) giveUp() {
	b.up.tracker.Spoil()
	b.finish(ending{endStopped, &Failure{SQLState: codeTooMany, Message: "the daemon is out of resources", Retry: true, Reason: "descriptors"}})
}

// restAfter is how long nothing has to pass before a lease is at rest.
const restAfter = 2 * time.Second

// awaken notes that something passes.
func (b *bridge) awaken() {
	b.resting = false
	if !b.over && b.expiring == nil {
		b.passed = b.in + b.out
		b.up.loop.Set(&b.timer, restAfter, b)
	}
}

// Ready is called when the function has sent something, takes more, or is gone.
func (f functionSide) Ready(e loop.Events) {
	b := f.bridge
	if e&loop.Writable != 0 && len(b.function.unsent()) > 0 {
		b.flushFunction()
	}
	switch {
	case b.over || e&(loop.Readable|loop.Closed) == 0:
	case b.gone == nil && len(b.up.unsent()) == 0:
		b.fromFunction(e&loop.Closed == 0)
		if to := b.d.loads.turn(b.home.Load()); to != nil {
			b.move(to)
			return // it is that loop's now
		}
	case e&loop.Closed != 0: // what it said last waits until the server takes more
		if b.deafen(); b.gone == nil && b.expiring == nil {
			b.expire(ending{outcome: endFunctionClosed}, drainPatience)
		}
	}
	b.join()
}

// move gives the lease to another loop, between two turns.
func (b *bridge) move(to *load) {
	if b.over || b.expiring != nil {
		return // it does not keep the loop busy any more
	}
	from := b.up.loop
	from.Cancel(&b.timer)
	from.Cancel(&b.time.timer)
	from.Remove(b.function.token)
	b.function.token = 0
	b.up.leave()
	b.up.loop = to.loop
	b.d.announce(b.lease)
	b.home.Store(to)
	to.loop.Post(func() {
		if !b.over {
			b.begin(nil)
			b.join() // it may be answering
		}
	})
}

// Ready is called when the server has sent something, takes more, or is gone.
func (s serverSide) Ready(e loop.Events) {
	b := s.bridge
	if e&loop.Writable != 0 && len(b.up.unsent()) > 0 {
		b.flushServer()
	}
	switch {
	case b.over || e&(loop.Readable|loop.Closed) == 0:
	case len(b.function.unsent()) == 0:
		b.fromServer()
	case e&loop.Closed != 0: // what it said last is read when the function has room
		b.unheard(nil)
	}
}

// fromFunction takes what the function has sent, once, to the server. listens
// says that it has closed at most its own direction: then it may be waiting for
// answers.
func (b *bridge) fromFunction(listens bool) {
	plain, _, err := b.function.receive(b.up.loop.In)
	if len(plain) > 0 {
		b.take(plain)
	}
	switch {
	case b.over:
	case err != nil:
		if !listens {
			b.deaf = true
			b.function.forgo()
		}
		if b.gone == nil {
			b.functionGone(functionClosed(err))
		}
	default:
		if b.function.answer(b.up.loop.Out) != nil {
			b.deafen()
		}
		if len(plain) > 0 {
			b.want()
		}
	}
}

// functionClosed is how a lease ends when its function has closed, or when what
// it sent is not TLS.
func functionClosed(err error) ending {
	if isTrust(err) {
		return ending{outcome: endFunctionFault}
	}
	return ending{outcome: endFunctionClosed}
}

// take gives the server what the function said.
func (b *bridge) take(p []byte) {
	if b.resting {
		b.awaken()
	}
	b.in += uint64(len(p))
	g := b.lease.luggage
	quiet := g != nil && b.up.tracker.Quiet()
	k, terminate, fault := b.up.tracker.Frontend(p)
	if k > 0 {
		b.lease.used = true
		out := p[:k]
		if g != nil {
			out = g.load(out, quiet, b.up.tracker.Status())
		}
		if err := b.up.send(b.up.loop.Out, out); err != nil {
			b.unheard(err)
			return
		}
	}
	switch {
	case terminate:
		b.functionGone(ending{outcome: endTerminated})
	case fault != nil:
		b.functionGone(ending{endFunctionFault, failureOf(fault)})
	}
}

// fromServer takes what the server has sent, once, to the function.
func (b *bridge) fromServer() {
	plain, more, err := b.up.receive(b.up.loop.In)
	if more {
		b.deliver(plain)
	}
	if b.over {
		return
	}
	if err != nil {
		b.serverGone(err)
		return
	}
	if err := b.up.answer(b.up.loop.Out); err != nil {
		b.unheard(err)
		return
	}
	b.want()
}

// deliver gives the function what the server said.
func (b *bridge) deliver(p []byte) {
	out, fault := b.hear(p)
	if !b.deaf && len(out) > 0 {
		b.out += uint64(len(out))
		if b.function.send(b.up.loop.Out, out) != nil {
			b.deafen()
		} else if len(b.function.unsent()) > 0 {
			b.want()
		}
	}
	if fault != nil {
		b.up.tracker.Spoil()
		b.lose(ending{endServerFault, failureOf(fault)})
		return
	}
	b.review()
}

// hear follows what the server says and returns what of it is for the function.
func (b *bridge) hear(p []byte) ([]byte, error) {
	if b.lease.luggage != nil {
		return b.hearWithLuggage(p)
	}
	n, fault := b.up.tracker.Backend(p)
	return p[:n], cmp.Or(fault, b.up.report(b.up.tracker.TakeReported()))
}

// review ends the lease if it is time to.
func (b *bridge) review() {
	switch {
	case b.over:
	case b.stopping != nil && b.restful():
		b.finish(*b.stopping)
	case b.gone == nil:
	case b.up.tracker.Quiet() && (b.deaf || len(b.function.unsent()) == 0):
		b.finish(*b.gone)
	case !b.up.tracker.Settling(): // nobody knows any more what is still to come
		if b.deaf {
			b.finish(*b.gone)
		} else {
			b.expire(*b.gone, drainPatience)
		}
	}
}

// functionGone notes that the function sends no more. The server may finish
// what it owes, if it alone can make the session quiet, and for as long as the
// function listens; otherwise the lease ends now.
func (b *bridge) functionGone(why ending) {
	b.gone = &why
	switch {
	case b.up.tracker.Quiet():
		b.review()
	case b.up.tracker.Settling():
		if b.deaf {
			b.expire(why, drainPatience)
		}
	default:
		b.finish(why)
	}
	b.want()
}

// deafen notes that the function takes nothing more. What the server goes on
// saying is tracked and dropped.
func (b *bridge) deafen() {
	b.deaf = true
	b.function.forgo()
	if b.lost != nil {
		b.finish(*b.lost)
		return
	}
	if b.gone != nil {
		b.expire(*b.gone, drainPatience)
	}
	b.want()
	b.review()
}

// unheard notes that the server takes nothing more, and why if it is known. What
// it said last is still read; the end of its stream ends the lease.
func (b *bridge) unheard(err error) {
	b.up.tracker.Spoil()
	why := serverClosed(err)
	if b.gone == nil {
		b.gone = &why
	}
	b.up.keep(nil)
	patience := drainPatience
	if len(b.function.unsent()) > 0 { // it reads what it has first
		patience = lastWordsPatience
	}
	if b.lost == nil {
		b.expire(why, patience)
	}
	b.want()
}

// serverClosed is how a lease ends when its server is gone. The function is told
// only what it would not find out otherwise.
func serverClosed(err error) ending {
	why := ending{outcome: endServerClosed}
	if err != nil && !errors.Is(err, errEnded) && !errors.Is(err, io.EOF) && isTrust(err) {
		why.said = &Failure{SQLState: codeConnectionFailure, Message: inner(err), Reason: "tls"}
	}
	return why
}

// serverGone notes the end of the server's stream.
func (b *bridge) serverGone(err error) {
	b.up.tracker.Spoil()
	b.lose(serverClosed(err))
}

// lose ends the lease because of the server, once the function has all that it
// said.
func (b *bridge) lose(why ending) {
	b.lost = &why
	if b.deaf || len(b.function.unsent()) == 0 {
		b.finish(why)
		return
	}
	b.expire(why, lastWordsPatience)
	b.want()
}

func (b *bridge) flushFunction() {
	if b.function.flush() != nil {
		b.deafen()
		return
	}
	if len(b.function.unsent()) > 0 {
		return
	}
	if b.lost != nil {
		b.finish(*b.lost)
		return
	}
	b.want()
	b.review()
}

func (b *bridge) flushServer() {
	if err := b.up.flush(); err != nil {
		b.unheard(err)
		return
	}
	b.want()
}

// want tells the loop what each side waits for. Who does not take what it is
// sent keeps the other side from being read: that is the back-pressure.
func (b *bridge) want() {
	if b.over {
		return
	}
	var function, server loop.Events
	if b.gone == nil && len(b.up.unsent()) == 0 {
		function |= loop.Readable
	}
	if len(b.function.unsent()) > 0 {
		function |= loop.Writable
	}
	if !b.deaf {
		function |= loop.Closed
	}
	if b.lost == nil && len(b.function.unsent()) == 0 {
		server |= loop.Readable
	}
	if len(b.up.unsent()) > 0 {
		server |= loop.Writable
	}
	l := b.up.loop
	if l.Want(b.function.token, function) != nil || b.up.token != 0 && l.Want(b.up.token, server) != nil {
		b.up.tracker.Spoil()
		b.finish(ending{outcome: endStopped})
	}
}

// expire ends the lease after a while, whatever is missing then.
func (b *bridge) expire(why ending, patience time.Duration) {
	if b.over {
		return
	}
	b.expiring = &why
	b.up.loop.Set(&b.timer, patience, b)
}

// Expired is called when the patience is over, or when it is time to see whether
// anything has passed.
func (b *bridge) Expired(t *loop.Timer) {
	switch {
	case t == &b.time.timer:
		b.lookAtTime()
	case b.expiring != nil:
		b.finish(*b.expiring)
	case b.passed != b.in+b.out:
		b.awaken()
	default:
		b.resting = true
		b.up.rest()
	}
}

// finish takes the function out of the loop, gives it its last word and closes
// its descriptor; the upstream goes its way.
func (b *bridge) finish(why ending) {
	if b.over {
		return
	}
	b.over = true
	l := b.up.loop
	l.Cancel(&b.timer)
	l.Cancel(&b.time.timer)
	if why.said != nil && !b.deaf && b.up.tracker.BackendAtBoundary() {
		b.function.say(l.Out, lastWords(why.said))
	}
	b.function.leave(l)
	if len(b.up.unsent()) > 0 {
		b.up.tracker.Spoil()
	}
	b.d.finish(b.lease, why)
	b.d.work.Done()
}
