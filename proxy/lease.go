package proxy

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"net"
	"sync"
	"time"

	"github.com/google/uuid"

	"pghandoff/pgwire"
	"pghandoff/proxy/audit"
)

// ask is what a function wants, whichever way it came.
type ask struct {
	peer        *Peer
	door        *door
	way         string // "wire" or "handoff"
	database    string
	user        string
	application string
	parameters  []pgwire.Parameter
	wait        *time.Duration // nil: the route's
	notice      func()         // called once if the wait gets long; may be nil
	// watch returns a context that ends when the function is gone, and how to
	// stop watching. It is called only if the function has to wait; may be nil.
	watch func(context.Context) (context.Context, func())
}

// Lease is one function's hold on an upstream.
type Lease struct {
	id      string
	secret  uint32 // for cancel and release; unique in the daemon
	route   *Route
	ask     ask
	up      *Upstream
	waited  time.Duration
	granted time.Time
	// connection says that the lease is the function's connection to the wire
	// socket, and counts as that.
	connection bool
	announced  sync.Once // it is in the audit

	mu       sync.Mutex // guards the fields below
	conn     net.Conn   // the daemon's end before it relays; nil: nothing to interrupt
	bridge   *bridge    // between the function's end and up; nil until relaying
	revoked  *Failure   // told to end before it was relaying
	released bool       // no cancel is accepted any more
}

// grant takes a function from its wish to a lease: route, access, limits,
// upstream, parameters. The caller must end the lease by finish. Errors are
// *Failure or go through failureOf.
func (d *Daemon) grant(ctx context.Context, a ask) (*Lease, error) {
	if err := d.limits.take(a.peer.UID, limitLeases); err != nil {
		d.denied(&a, err)
		return nil, err
	}
	start := time.Now()
	l, err := d.admitAndAttach(ctx, &a, start)
	for errors.Is(err, errPoolClosed) && !d.draining.Load() {
		l, err = d.admitAndAttach(ctx, &a, start) // a reload has put another pool in its place
	}
	if err != nil {
		if errors.Is(err, context.Canceled) && !d.draining.Load() {
			err = errGone
		}
		d.limits.give(a.peer.UID, limitLeases)
		d.denied(&a, err)
		return nil, err
	}
	d.leases.add(l)
	return l, nil
}

func (d *Daemon) admitAndAttach(ctx context.Context, a *ask, start time.Time) (*Lease, error) {
	r, err := d.admit(a)
	if err != nil {
		return nil, err
	}
	return d.attach(ctx, r, *a, start)
}

// announce writes down a grant, once, off the function's way: the disk and the
// look at /proc are not what it waits for.
func (d *Daemon) announce(l *Lease) {
	l.announced.Do(func() {
		d.trail.Record(l.event(audit.LeaseGranted))
		d.log.Debug().Str(fieldLease, l.id).Str(fieldRoute, l.route.name).Uint32(fieldUID, l.ask.peer.UID).Int32(fieldPeerPID, l.ask.peer.PID).
			Uint32(fieldBackendPID, l.up.pid).Dur(fieldWait, l.waited).Msg("lease granted")
	})
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

// attach takes an upstream for the function and sets its parameters there.
func (d *Daemon) attach(ctx context.Context, r *Route, a ask, start time.Time) (*Lease, error) {
	settings, err := settingsOf(a.parameters, r.cfg.IgnoreStartupParameters)
	if err != nil {
		return nil, err
	}
	wait := r.cfg.Pool.WaitTimeout.Std()
	if a.wait != nil {
		wait = min(wait, *a.wait)
	}
	up := r.pool.takeIdle()
	if up == nil {
		if up, err = d.queue(ctx, r, &a, wait-time.Since(start)); err != nil {
			return nil, err
		}
	}
	l := &Lease{id: newLeaseID(), route: r, ask: a, up: up, waited: time.Since(start), granted: time.Now()}
	if err := l.set(settings); err != nil {
		d.work.Go(func() { d.recycle(l) }) // ends within resetPatience; Run waits for it
		return nil, err
	}
	up.tracker = pgwire.NewTracker('I')
	return l, nil
}

// queue waits for an upstream.
func (d *Daemon) queue(ctx context.Context, r *Route, a *ask, wait time.Duration) (*Upstream, error) {
	if err := d.limits.take(a.peer.UID, limitWaiting); err != nil {
		return nil, err
	}
	defer d.limits.give(a.peer.UID, limitWaiting)
	if a.watch != nil {
		watched, stop := a.watch(ctx)
		defer stop()
		ctx = watched
	}
	return r.pool.take(ctx, wait, a.notice)
}

// settingPatience is how long the server may take to set parameters.
const settingPatience = 5 * time.Second

// set gives the session the function's start-up parameters. What the server
// already reports costs nothing.
func (l *Lease) set(settings []pgwire.Parameter) error {
	l.up.tracker = pgwire.NewTracker('I')
	var news []pgwire.Parameter
	for _, s := range settings {
		if v, ok := l.up.parameters.get(s.Name); !ok || v != s.Value {
			news = append(news, s)
		}
	}
	if len(news) == 0 {
		return nil
	}
	out, err := l.up.exchange(pgwire.AppendSettings(nil, news), 1, settingPatience)
	if err != nil {
		l.up.tracker.Spoil()
		return &dialError{server: l.up.server.String(), err: err}
	}
	if out.Refused != nil {
		return out.Refused
	}
	if len(out.Done) != len(news) { // these are answers to something else
		l.up.tracker.Spoil()
		return &dialError{server: l.up.server.String(), err: pgwire.ErrProtocol}
	}
	return nil
}

// recycle makes the upstream of a lease fit for the next function, or closes
// it. It may block and belongs in the background.
func (d *Daemon) recycle(l *Lease) {
	if !l.up.tracker.Quiet() {
		l.route.pool.drop(l.up, "not clean")
		return
	}
	if unfit := l.up.clean(l.route.cfg.Pool.Reset); unfit != "" {
		l.route.pool.drop(l.up, unfit)
		return
	}
	l.route.pool.give(l.up)
}

// relay gives the lease to its loop, which carries the bytes until it is over
// and then has it finished. It owns the function's descriptor, which must be
// non-blocking.
func (d *Daemon) relay(l *Lease, function int) {
	d.work.Add(1)
	b := newBridge(function, l.up, func(why ending) {
		go func() { // ends with finish; Run waits for it
			defer d.work.Done()
			d.finish(l, why)
		}()
	})
	l.ask.parameters, l.ask.notice, l.ask.watch = nil, nil, nil // a lease may live long
	l.mu.Lock()
	l.bridge, l.conn = b, nil
	revoked := l.revoked
	l.mu.Unlock()
	if revoked != nil {
		b.stop(revoked, false)
	}
	b.start()
}

// revoke ends the lease with a last word: when its session is idle, or now.
func (l *Lease) revoke(f *Failure, now bool) {
	l.mu.Lock()
	l.revoked = f
	b, c := l.bridge, l.conn
	l.mu.Unlock()
	switch {
	case b != nil:
		b.stop(f, now)
	case c != nil:
		c.SetReadDeadline(time.Unix(1, 0)) // no start-up will be waited for
	}
}

// kind is the event that an ending is in the audit.
func (e ending) kind() audit.Kind {
	if e.outcome == endStopped && (e.said == nil || e.said.Reason != reasonReleased) {
		return audit.LeaseRevoked
	}
	return audit.LeaseReleased
}

// finish ends a lease: it is over for the function, and its upstream is
// cleaned or closed in the background.
func (d *Daemon) finish(l *Lease, end ending) {
	d.announce(l)
	l.mu.Lock()
	l.released = true
	l.mu.Unlock()
	d.leases.remove(l)
	d.limits.give(l.ask.peer.UID, limitLeases)
	if l.connection {
		d.limits.give(l.ask.peer.UID, limitConnections)
	}
	e := l.event(end.kind())
	e.Outcome, e.DurationMS = end.outcome, time.Since(l.granted).Milliseconds()
	if end.said != nil {
		e.Outcome, e.SQLState, e.Message = end.said.Reason, end.said.SQLState, end.said.Message
	}
	if l.bridge != nil {
		e.BytesIn, e.BytesOut, e.Transactions = l.bridge.in, l.bridge.out, l.up.tracker.Transactions()
	}
	d.trail.Record(e)
	d.log.Debug().Str(fieldLease, l.id).Str(fieldRoute, l.route.name).Str(fieldReason, e.Outcome).Msg("lease ended")
	serverGone := end.outcome == endServerClosed || end.outcome == endServerFault
	d.work.Go(func() { d.settle(l, serverGone) }) // ends within the limits of settle and clean; Run waits for it
}

// settle stops what the backend still does for a function that is gone, then
// recycles the upstream.
func (d *Daemon) settle(l *Lease, serverGone bool) {
	if !serverGone && !l.up.tracker.Quiet() && len(l.up.secret) > 0 {
		// A query may be running and nobody waits for it any more; closing the
		// connection alone would leave it running, and its locks held.
		ctx, cancel := context.WithTimeout(d.base, settingPatience)
		defer cancel()
		if err := l.route.dialler.cancel(ctx, l.up.server, l.up.end.tls != nil, l.up.pid, l.up.secret); err != nil {
			d.log.Debug().Err(err).Str(fieldLease, l.id).Msg("cancel of an abandoned query")
		}
	}
	d.recycle(l)
}

// denied writes down a refusal.
func (d *Daemon) denied(a *ask, err error) {
	f := failureOf(err)
	e := audit.Event{Event: audit.LeaseDenied, Route: a.database, User: a.user, Way: a.way, Application: a.application, Peer: a.peer.audit(),
		Outcome: f.Reason, SQLState: f.SQLState, Message: f.Message}
	d.trail.Record(e)
	event := d.log.Info()
	if f.SQLState == codeInternal {
		event = d.log.Error()
	}
	event.Err(err).Str(fieldRoute, a.database).Uint32(fieldUID, a.peer.UID).Int32(fieldPeerPID, a.peer.PID).Str(fieldReason, f.Reason).Msg("lease denied")
}

func (l *Lease) event(kind audit.Kind) audit.Event {
	return audit.Event{Event: kind, Lease: l.id, Route: l.route.name, User: l.ask.user, Application: l.ask.application, Way: l.ask.way,
		Peer: l.ask.peer.audit(), Upstream: l.up.audit(), Transport: "bridge", Pooling: "session", WaitMicros: l.waited.Microseconds()}
}

// newLeaseID returns a UUID of version 7. Reading randomness does not fail on
// the kernels that Go supports.
func newLeaseID() string { return uuid.Must(uuid.NewV7()).String() }

// registry finds leases. Safe for concurrent use.
type registry struct {
	mu       sync.Mutex
	byID     map[string]*Lease
	bySecret map[uint32]*Lease
}

func newRegistry() *registry {
	return &registry{byID: map[string]*Lease{}, bySecret: map[uint32]*Lease{}}
}

// add registers l under a fresh secret.
func (r *registry) add(l *Lease) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for {
		var b [4]byte
		rand.Read(b[:])
		l.secret = binary.BigEndian.Uint32(b[:])
		if _, taken := r.bySecret[l.secret]; !taken && l.secret != 0 {
			break
		}
	}
	r.byID[l.id], r.bySecret[l.secret] = l, l
}

func (r *registry) remove(l *Lease) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.byID, l.id)
	delete(r.bySecret, l.secret)
}

func (r *registry) withID(id string) *Lease {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.byID[id]
}

func (r *registry) withSecret(secret uint32) *Lease {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.bySecret[secret]
}

// all returns the leases there are.
func (r *registry) all() []*Lease {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := make([]*Lease, 0, len(r.byID))
	for _, l := range r.byID {
		out = append(out, l)
	}
	return out
}
