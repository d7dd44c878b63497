package proxy

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"pghandoff/proxy/audit"
)

// Lease is one function's hold on an upstream.
type Lease struct {
	id          string // unique, as secret is; the registry gives both
	secret      uint32 // for cancel and release
	more        []byte // of a long cancel key, behind the secret; nil: it is not long
	route       *Route
	peer        *Peer
	way         string // "wire" or "handoff"
	user        string // as the function named it
	application string
	up          *Upstream // written under mu once the lease is registered
	luggage     *luggage  // nil: none
	waited      time.Duration
	granted     time.Time
	bridge      bridge // between the function's end and up; unused before it relays
	// connection says that the lease is the function's connection to the wire
	// socket, and counts as that.
	connection bool
	announced  atomic.Bool // it is in the audit
	used       bool        // something was said to the server, so that a reset is due

	mu       sync.Mutex // guards the fields below
	holder   stopper    // who serves it; nil: nobody yet
	revoked  *Failure   // told to end; the next holder has to know
	atOnce   bool       // and not only when its session is idle
	released bool       // no cancel is accepted any more
}

// upstream returns that of the lease. Safe from any goroutine.
func (l *Lease) upstream() *Upstream {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.up
}

// stopper ends a lease with a last word for the function: when its session is
// idle, or at once. Safe from any goroutine.
type stopper interface{ stop(f *Failure, now bool) }

// announce writes down a grant, once, when the function has its answer.
func (d *Daemon) announce(l *Lease) {
	if l.announced.Swap(true) {
		return
	}
	l.peer.look()
	d.trail.Record(l.event(audit.LeaseGranted))
	d.log.Debug().Str(fieldLease, l.id).Str(fieldRoute, l.route.name).Uint32(fieldUID, l.peer.UID).Int32(fieldPeerPID, l.peer.PID).
		Uint32(fieldBackendPID, l.up.pid).Dur(fieldWait, l.waited).Msg("lease granted")
}

// admit says whether the function may have what it asks for.
func (d *Daemon) admit(a *ask) (*Route, error) {
	r := d.table.Load().routes[a.database]
	if r == nil || !a.door.shows(a.database) {
		return nil, errNoRoute(a.database)
	}
	switch {
	case !r.admits(a.door, a.peer):
		return nil, errNotAllowed(a.peer, r.name)
	case !r.acceptsUser(a.user):
		return nil, &Failure{SQLState: codeNotAuthorized, Message: "user \"" + a.user + "\" may not be named on route \"" + r.name + "\"", Hint: "the route's users list says which", Reason: "wrong_user"}
	}
	return r, nil
}

// relay lets a loop carry the lease's bytes until it is over. It owns the
// function's end; surplus is what the function has sent already.
func (d *Daemon) relay(l *Lease, function end, surplus []byte) {
	d.work.Add(1)
	b := &l.bridge
	b.open(d, l, function)
	if revoked, now := l.hold(b); revoked != nil {
		b.stop(revoked, now)
	}
	b.begin(surplus)
}

// hold says who serves the lease from now on. If it was revoked before, the
// result says why and how.
func (l *Lease) hold(by stopper) (revoked *Failure, now bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.holder = by
	return l.revoked, l.atOnce
}

// revoke ends the lease with a last word: when its session is idle, or now.
func (l *Lease) revoke(f *Failure, now bool) {
	l.mu.Lock()
	l.revoked, l.atOnce = f, l.atOnce || now
	by := l.holder
	l.mu.Unlock()
	if by != nil {
		by.stop(f, now)
	}
}

// kind is the event that an ending is in the audit.
func (e ending) kind() audit.Kind {
	if e.outcome == endTimedOut {
		return audit.LeaseTimedOut
	}
	if e.outcome == endStopped && (e.said == nil || e.said.Reason != reasonReleased) {
		return audit.LeaseRevoked
	}
	return audit.LeaseReleased
}

// finish ends a lease: it is over for the function, and its upstream is
// cleaned or closed. It runs on the upstream's loop.
func (d *Daemon) finish(l *Lease, end ending) {
	d.announce(l)
	l.mu.Lock()
	l.released = true
	l.mu.Unlock()
	d.leases.remove(l)
	d.limits.give(l.peer.holder(), limitLeases)
	if l.connection {
		d.limits.give(l.peer.holder(), limitConnections)
	}
	e := l.event(end.kind())
	e.Outcome, e.DurationMS = end.outcome, time.Since(l.granted).Milliseconds()
	if end.said != nil {
		e.Outcome, e.SQLState, e.Message = end.said.Reason, end.said.SQLState, end.said.Message
	}
	e.BytesIn, e.BytesOut, e.Transactions = l.bridge.in, l.bridge.out, l.up.tracker.Transactions()
	d.trail.Record(e)
	d.log.Debug().Str(fieldLease, l.id).Str(fieldRoute, l.route.name).Str(fieldReason, e.Outcome).Msg("lease ended")
	d.settle(l, end.outcome == endServerClosed || end.outcome == endServerFault)
}

// settle stops what the backend still does for a function that is gone, then
// recycles the upstream.
func (d *Daemon) settle(l *Lease, serverGone bool) {
	if serverGone || l.up.tracker.Quiet() || len(l.up.secret) == 0 {
		d.recycle(l)
		return
	}
	// A query may be running and nobody waits for it any more; closing the
	// connection alone would leave it running, and its locks held. What it says
	// meanwhile is for nobody, and must not wake the loop again and again.
	l.up.leave()
	d.later(l.up.loop, func() {
		ctx, cancel := context.WithTimeout(d.base, settingPatience)
		defer cancel()
		if err := l.route.dialler.cancel(ctx, l.up.server, l.up.info != nil, l.up.pid, l.up.secret); err != nil {
			d.log.Debug().Err(err).Str(fieldLease, l.id).Msg("cancel of an abandoned query")
		}
	}, func() { d.recycle(l) })
}

// recycle makes the upstream of a lease fit for the next function, or closes
// it. Run waits until that is done.
func (d *Daemon) recycle(l *Lease) {
	pool, u := l.route.pool, l.up
	if !u.tracker.Quiet() || u.own {
		reason := "not clean"
		if u.own {
			reason = "parameters of its own"
		}
		u.leave()
		pool.drop(u, reason)
		return
	}
	reset := l.route.cfg.Pool.Reset
	if !l.used && reset == "discard" {
		reset = "none" // it is as it was
	}
	d.work.Add(1)
	u.clean(reset, func(unfit string) {
		u.leave()
		if unfit != "" {
			pool.drop(u, unfit)
		} else {
			pool.give(u)
		}
		d.work.Done()
	})
}

// denied writes down a refusal.
func (d *Daemon) denied(a *ask, err error) {
	f := failureOf(err)
	a.peer.look()
	e := audit.Event{Event: audit.LeaseDenied, Route: a.database, User: a.user, Way: a.way, Application: a.application, Peer: a.peer.named,
		Outcome: f.Reason, SQLState: f.SQLState, Message: f.Message}
	d.trail.Record(e)
	event := d.log.Info()
	if f.SQLState == codeInternal {
		event = d.log.Error()
	}
	event.Err(err).Str(fieldRoute, a.database).Uint32(fieldUID, a.peer.UID).Int32(fieldPeerPID, a.peer.PID).Str(fieldReason, f.Reason).Msg("lease denied")
}

func (l *Lease) event(kind audit.Kind) audit.Event {
	return audit.Event{Event: kind, Lease: l.id, Route: l.route.name, User: l.user, Application: l.application, Way: l.way,
		Peer: l.peer.named, Upstream: l.up.audit(), Transport: "bridge", Pooling: "session", WaitMicros: l.waited.Microseconds()}
}
