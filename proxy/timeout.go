package proxy

import (
	"fmt"
	"strings"
	"time"

	"pghandoff/proxy/audit"
	"pghandoff/proxy/config"
	"pghandoff/proxy/loop"
)

const (
	// boundaryPatience is how long a lease whose time is over may take to come to
	// rest, so that its function can be told.
	boundaryPatience = 5 * time.Second
	// idleLooks is how often a lease is looked at within the time that it may be
	// idle: so much later, by a part, it may be ended.
	idleLooks = 8
)

// timeLimits are those of one lease in use. They belong to its loop.
type timeLimits struct {
	timer  loop.Timer // for the next look
	passed uint64     // bytes at the last look
	still  time.Time  // since when nothing has passed but what the server has to say
	ended  bool       // the certificate that the upstream logged in with has ended, and it was noted
}

// watchTime begins to look at how long the lease goes on and is idle, on the loop
// to which it has come.
func (b *bridge) watchTime() {
	now := time.Now()
	b.time.passed, b.time.still = b.in+b.out, now
	b.lookAgain(now)
}

// lookAgain sets the timer for the next look, if there is a limit.
func (b *bridge) lookAgain(now time.Time) {
	r := &b.lease.route.cfg
	next := time.Duration(0)
	earlier := func(d time.Duration) {
		if next == 0 || d < next {
			next = max(d, time.Millisecond)
		}
	}
	if age := r.Pool.LeaseTimeout.Std(); age > 0 {
		earlier(b.lease.granted.Add(age).Sub(now))
	}
	for _, idle := range []config.Duration{r.Timeouts.IdleLease, r.Timeouts.IdleInTransaction} {
		if limit := idle.Std(); limit > 0 {
			earlier(min(limit/idleLooks, b.time.still.Add(limit).Sub(now)))
		}
	}
	if end := endOf(b.up.identity); !end.IsZero() && !b.time.ended {
		earlier(min(end.Sub(now), time.Hour))
	}
	if next > 0 {
		b.up.loop.Set(&b.time.timer, next, b)
	}
}

// lookAtTime ends the lease if its time is over.
func (b *bridge) lookAtTime() {
	if b.over || b.expiring != nil || b.stopping != nil {
		return
	}
	now := time.Now()
	r := &b.lease.route.cfg
	t := &b.up.tracker
	if end := endOf(b.up.identity); !end.IsZero() && !b.time.ended && now.After(end) {
		b.time.ended = true
		if b.certificateEnded(); b.over || b.stopping != nil {
			return
		}
	}
	if passed := b.in + b.out; passed != b.time.passed || t.ServersTurn() && len(b.function.unsent()) == 0 {
		b.time.passed, b.time.still = passed, now
	}
	over := func(limit config.Duration, since time.Time) bool { return limit > 0 && now.Sub(since) >= limit.Std() }
	switch {
	case over(r.Pool.LeaseTimeout, b.lease.granted):
		b.timeOut(errTimedOut(codeIdle, "the lease is older", "pool.lease_timeout", r.Pool.LeaseTimeout))
	case t.Quiet() && t.Status() != 'I' && over(r.Timeouts.IdleInTransaction, b.time.still):
		b.timeOut(errTimedOut(codeIdleInTransaction, "the function was idle in a transaction for longer", "timeouts.idle_in_transaction", r.Timeouts.IdleInTransaction))
	case over(r.Timeouts.IdleLease, b.time.still):
		b.timeOut(errIdle(b.lease.route))
	default:
		b.lookAgain(now)
	}
}

// timeOut ends the lease: at once if its session is between two messages, else
// when it is idle or after a while.
func (b *bridge) timeOut(f *Failure) {
	why := ending{endTimedOut, f}
	if b.up.tracker.Quiet() && len(b.function.unsent()) == 0 {
		b.finish(why)
		return
	}
	b.stopping = &why
	b.expire(why, boundaryPatience)
}

// certificateEnded notes that a lease goes on past the end of the certificate that
// its upstream logged in with, or ends it when it is idle, as the route wants. A
// query is not cut for it.
func (b *bridge) certificateEnded() {
	if b.lease.route.cfg.TLS.Expired != "close" {
		e := b.lease.event(audit.IdentityExpired)
		e.Identity, e.Generation = b.up.identity.Name, b.up.identity.Generation
		b.d.trail.Record(e)
		return
	}
	b.stopping = &ending{endStopped, &Failure{SQLState: codeShutdown, Message: "terminating connection: the certificate of identity \"" + b.up.identity.Name + "\" has ended",
		Hint: "tls.expired: close; connect again", Retry: true, Reason: "certificate_expired"}}
	b.review()
}

func errIdle(r *Route) *Failure {
	return errTimedOut(codeIdle, "the lease was idle for longer", "timeouts.idle_lease", r.cfg.Timeouts.IdleLease)
}

func errTimedOut(code, what, setting string, limit config.Duration) *Failure {
	_, name, _ := strings.Cut(setting, ".")
	return &Failure{SQLState: code, Message: fmt.Sprintf("terminating connection: %s than %s (%s)", what, setting, limit), Retry: true, Reason: name}
}
