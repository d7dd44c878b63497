package proxy

import (
	"context"
	"fmt"
	"os"
	"reflect"
	"slices"
	"time"

	"github.com/rs/zerolog"

	"pghandoff/certs"
	"pghandoff/pgwire"
	"pghandoff/proxy/audit"
	"pghandoff/proxy/config"
)

// Route is a named way to a database: its dialler, its pool and who may use it.
type Route struct {
	name    string
	cfg     config.Route
	access  access
	dialler *dialler
	pool    *pool
	// own dials an upstream whose session starts with further parameters.
	own     func(context.Context, []pgwire.Parameter) (*Upstream, error)
	known   remembered
	cancels chan struct{} // budget of cancel requests under way
	stop    context.CancelFunc
}

// cancelBudget is how many cancel requests a route forwards at a time. They
// are not counted as upstreams.
const cancelBudget = 16

func newRoute(ctx context.Context, name string, cfg config.Route, identities map[string]*certs.Identity, trail *audit.Log, log zerolog.Logger) (*Route, error) {
	r := &Route{name: name, cfg: cfg, known: remembered{}, cancels: make(chan struct{}, cancelBudget)}
	var err error
	if r.access, err = newAccess(uint32(os.Geteuid()), cfg.Allow); err != nil {
		return nil, fmt.Errorf("routes.%s.%w", name, err)
	}
	if r.dialler, err = newDialler(ctx, name, cfg, identities); err != nil {
		return nil, fmt.Errorf("routes.%s: %w", name, err)
	}
	r.own = r.dialler.dialWith
	log = log.With().Str(fieldRoute, name).Logger()
	r.pool = newPool(name, cfg.Pool, r.dialler.dial, poolEvents{
		opened: func(u *Upstream) {
			log.Debug().Uint32(fieldBackendPID, u.pid).Str(fieldServer, u.server.String()).Msg("upstream opened")
			trail.Record(audit.Event{Event: audit.UpstreamOpened, Route: name, Upstream: u.audit()})
		},
		closed: func(u *Upstream, reason string) {
			log.Debug().Uint32(fieldBackendPID, u.pid).Str(fieldReason, reason).Msg("upstream closed")
			trail.Record(audit.Event{Event: audit.UpstreamClosed, Route: name, Upstream: u.audit(), Outcome: reason, DurationMS: time.Since(u.opened).Milliseconds()})
		},
		failed: func(err error, retryIn time.Duration) {
			f := failureOf(err)
			log.Warn().Err(err).Dur(fieldRetryIn, retryIn).Msg("no upstream could be opened")
			trail.Record(audit.Event{Event: audit.UpstreamFailed, Route: name, Outcome: f.Reason, SQLState: f.SQLState, Message: f.Message})
		},
	})
	r.pool.standing = r.dialler.standing
	return r, nil
}

// start lets the pool fill until the route is closed.
func (r *Route) start(ctx context.Context) {
	ctx, r.stop = context.WithCancel(ctx)
	r.pool.work.Go(func() { r.pool.run(ctx) }) // ends by stop; pool.close waits for it
}

// close ends the route; leases that it granted go on.
func (r *Route) close() {
	if r.stop != nil {
		r.stop()
	}
	r.pool.close()
}

// same reports whether a configuration needs no new pool.
func (r *Route) same(cfg config.Route) bool {
	a, b := r.cfg, cfg
	a.Allow, b.Allow, a.Users, b.Users = nil, nil, nil, nil
	return reflect.DeepEqual(a, b)
}

// admits reports whether the rules let a peer use the route through this door.
func (r *Route) admits(o *door, p *Peer) bool {
	if o.access != nil {
		return o.access.allows(p)
	}
	return r.access.allows(p)
}

// acceptsUser reports whether a function may name this user.
func (r *Route) acceptsUser(user string) bool {
	return len(r.cfg.Users) == 0 || slices.Contains(r.cfg.Users, user)
}
