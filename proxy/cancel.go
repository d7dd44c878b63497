package proxy

import (
	"context"
	"errors"
	"time"

	"pghandoff/proxy/audit"
)

// cancelPatience is how long a forwarded cancel may take, the wait for its turn
// included.
const cancelPatience = 10 * time.Second

// wrongCancelDelay makes guessing secrets on the wire socket slow: with the
// limit of connections, trying them all takes a uid six days, and the lease whose
// secret it is must be its own and live as long.
const wrongCancelDelay = 250 * time.Millisecond

// pause waits, unless ctx ends first.
func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// cancel handles a cancel request: it goes to the server only if it names a
// lease by secret and pid, and by all of its key if that is long, and comes from
// the lease holder's uid. It returns
// when the server has been told and has closed the cancel connection, so that
// whoever waits for the end of theirs knows that the signal is out.
func (d *Daemon) cancel(ctx context.Context, peer *Peer, k cancelKey, more []byte) {
	l, ended := d.leases.withKey(k, more)
	switch {
	case ended:
		d.trail.Record(audit.Event{Event: audit.CancelDropped, Peer: peer.named, Outcome: "already released"})
		return
	case l == nil:
		d.trail.Record(audit.Event{Event: audit.CancelDropped, Peer: peer.named, Outcome: "no such lease"})
		pause(ctx, wrongCancelDelay)
		return
	}
	d.cancelLease(ctx, l, peer)
}

// cancelLease forwards a cancel for a lease that the peer may cancel. The
// upstream is not given to another function before this is over.
func (d *Daemon) cancelLease(ctx context.Context, l *Lease, peer *Peer) {
	l.mu.Lock()
	if l.released {
		l.mu.Unlock()
		d.trail.Record(audit.Event{Event: audit.CancelDropped, Lease: l.id, Route: l.route.name, Peer: peer.named, Outcome: "already released"})
		return
	}
	up := l.up
	up.cancels.begin()
	l.mu.Unlock()
	defer up.cancels.end()
	ctx, cancel := context.WithTimeout(ctx, cancelPatience)
	defer cancel()
	kind, outcome := audit.CancelForwarded, ""
	select {
	case l.route.cancels <- struct{}{}:
		err := l.route.dialler.cancel(ctx, up.server, up.info != nil, up.pid, up.secret)
		<-l.route.cancels
		if errors.Is(err, errCancelUnknown) {
			up.doubtful.Store(true)
		}
		if err != nil {
			kind, outcome = audit.CancelDropped, failureOf(&dialError{server: up.server.String(), err: err}).Message
		}
	case <-ctx.Done():
		kind, outcome = audit.CancelDropped, "too many cancels under way"
	}
	d.trail.Record(audit.Event{Event: kind, Lease: l.id, Route: l.route.name, Peer: peer.named, Upstream: up.audit(), Outcome: outcome})
}
