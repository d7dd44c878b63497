package proxy

import (
	"errors"
	"time"

	"pghandoff/pgwire"
	"pghandoff/proxy/loop"
)

// asker is who wants a lease. It is told on its loop: granted or refused, once.
type asker interface {
	granted(*Lease)
	refused(error)
	queued()    // it has to wait
	waitsLong() // it has waited for wait_notice
}

// ask is one function's wish for a lease, whichever way it came, from the
// request to the grant: route, access, limits, upstream, parameters. It belongs
// to the front loop.
type ask struct {
	d           *Daemon
	by          asker
	peer        *Peer
	door        *door
	way         string // "wire" or "handoff"
	database    string
	user        string
	application string
	parameters  []pgwire.Parameter
	wait        *time.Duration // nil: the route's

	route     *Route
	settings  []pgwire.Parameter
	start     time.Time
	waiter    *waiter // in the queue; nil: not
	timeout   loop.Timer
	long      loop.Timer
	abandoned bool // nobody wants the answer any more
	setting   bool // it may have a lease; what is still refused are its parameters
}

// grant starts to serve a wish. The lease, if it is granted, must be ended by
// finish.
func (d *Daemon) grant(a *ask) {
	a.start = time.Now()
	if err := d.limits.take(a.peer.holder(), limitLeases); err != nil {
		a.tell(err)
		return
	}
	a.admit()
}

// admit says whether the function may have what it asks for, and begins to get
// it.
func (a *ask) admit() {
	var err error
	if a.route, err = a.d.admit(a); err == nil {
		a.settings, err = settingsOf(a.parameters, a.route.cfg.IgnoreStartupParameters)
		a.setting = err != nil
	}
	if err != nil {
		a.refuse(err)
		return
	}
	if u := a.route.pool.takeIdle(); u != nil {
		a.attach(u)
		return
	}
	a.queue()
}

// queue waits for an upstream.
func (a *ask) queue() {
	wait := a.route.cfg.Pool.WaitTimeout.Std()
	if a.wait != nil {
		wait = min(wait, *a.wait)
	}
	wait -= time.Since(a.start)
	if wait <= 0 {
		a.refuse(a.route.pool.full(a.start))
		return
	}
	if err := a.d.limits.take(a.peer.holder(), limitWaiting); err != nil {
		a.refuse(err)
		return
	}
	l := a.d.front()
	pool := a.route.pool
	a.waiter = &waiter{deliver: func(u *Upstream, err error) {
		if !l.Post(func() { a.delivered(u, err) }) && u != nil {
			pool.drop(u, "shutdown")
		}
	}}
	l.Set(&a.timeout, wait, a)
	if notice := a.route.cfg.Pool.WaitNotice.Std() - time.Since(a.start); a.route.cfg.Pool.WaitNotice > 0 && notice > 0 {
		l.Set(&a.long, notice, a)
	}
	if u, err := pool.take(a.waiter, false); u != nil || err != nil {
		a.delivered(u, err)
		return
	}
	a.by.queued()
}

// Expired is called when the wait is long, or over.
func (a *ask) Expired(t *loop.Timer) {
	if t == &a.long {
		a.by.waitsLong()
		return
	}
	if a.route.pool.leave(a.waiter) { // else it has been served meanwhile
		a.unqueue()
		a.refuse(a.route.pool.full(a.start))
	}
}

// unqueue forgets that it waits.
func (a *ask) unqueue() {
	a.waiter = nil
	a.d.front().Cancel(&a.timeout)
	a.d.front().Cancel(&a.long)
	a.d.limits.give(a.peer.holder(), limitWaiting)
}

// delivered is called when the queue has served a wish.
func (a *ask) delivered(u *Upstream, err error) {
	switch {
	case a.abandoned:
		if u != nil {
			a.route.pool.give(u)
		}
		a.unqueue()
		a.refuse(errGone)
	case errors.Is(err, errPoolClosed) && !a.d.draining.Load(): // a reload has put another pool in its place
		a.unqueue()
		a.admit()
	case err != nil:
		a.unqueue()
		a.refuse(err)
	case u.fit():
		a.route.pool.proved(u)
		a.unqueue()
		a.attach(u)
	default:
		a.route.pool.unfit(u)
		if !a.timeout.IsSet() { // it was over while u was on its way
			a.unqueue()
			a.refuse(a.route.pool.full(a.start))
			return
		}
		if u, err := a.route.pool.take(a.waiter, true); u != nil || err != nil { // it was our turn
			a.delivered(u, err)
		}
	}
}

// attach makes the lease and sets its parameters on the upstream.
func (a *ask) attach(u *Upstream) {
	u.loop = a.d.front()
	u.tracker = pgwire.NewTracker('I')
	now := time.Now()
	l := a.d.blanks.takeLease()
	l.route, l.peer, l.way, l.user, l.application = a.route, a.peer, a.way, a.user, a.application
	l.up, l.waited, l.granted = u, now.Sub(a.start), now
	a.setting = true
	a.fit(l, a.settings, func(err error) {
		switch {
		case err != nil:
			a.d.recycle(l)
			a.refuse(err)
		case a.abandoned:
			a.d.recycle(l)
			a.refuse(errGone)
		default:
			a.d.leases.add(l)
			a.by.granted(l)
			a.d.front().Later(func() {
				a.route.pool.refill()
				a.d.blanks.refill()
			})
		}
	})
}

// fit gives the lease's session the function's parameters, or the lease a session
// that can have them.
func (a *ask) fit(l *Lease, settings []pgwire.Parameter, done func(error)) {
	if r := replicationOf(a.parameters); r != nil {
		a.d.replace(l, append(r, settings...), done)
		return
	}
	a.d.set(l, settings, func(err error) {
		a.d.needsOwn(l, settings, err, func(own bool) {
			if own {
				a.d.replace(l, settings, done)
			} else {
				done(err)
			}
		})
	})
}

// adopt makes a lease that came with the descriptor fit the start-up message;
// named says that this names a database. If that is refused, the lease is over.
func (a *ask) adopt(l *Lease, named bool) {
	end := func(err error) {
		a.d.finish(l, ending{outcome: failureOf(err).Reason})
		a.by.refused(err)
	}
	a.setting = true
	if named && a.database != l.route.name {
		end(errOtherRoute(l.route.name, a.database))
		return
	}
	settings, err := settingsOf(a.parameters, l.route.cfg.IgnoreStartupParameters)
	if err != nil {
		end(err)
		return
	}
	a.fit(l, settings, func(err error) {
		switch {
		case a.abandoned:
			a.d.finish(l, ending{outcome: endFunctionClosed})
		case err != nil:
			end(err)
		default:
			a.by.granted(l)
		}
	})
}

// refuse ends a wish that has been counted.
func (a *ask) refuse(err error) {
	a.d.limits.give(a.peer.holder(), limitLeases)
	a.tell(err)
}

// tell ends a wish: the function first, then the books.
func (a *ask) tell(err error) {
	if !a.abandoned {
		a.by.refused(err)
	}
	a.d.denied(a, err)
}

// stop refuses a wish, if it is not just being granted.
func (a *ask) stop(err error) {
	if a.waiter != nil && a.route.pool.leave(a.waiter) {
		a.unqueue()
		a.refuse(err)
	}
}

// abandon gives a wish up whose function is gone.
func (a *ask) abandon() {
	a.abandoned = true
	a.stop(errGone)
}
