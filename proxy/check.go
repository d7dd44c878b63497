package proxy

import (
	"context"
	"errors"
	"io"
	"maps"
	"slices"
	"time"

	"github.com/rs/zerolog"

	"pghandoff/proxy/audit"
	"pghandoff/proxy/config"
)

// Finding is what a check says about one route.
type Finding struct {
	Route string
	// Failure is what a function would be told; nil: the login succeeded, or
	// was not tried.
	Failure *Failure
	// Cause is the whole error, for the person who runs the check.
	Cause error
	// Address, Parameters and TLS of the login, if it was tried and succeeded.
	Address, ServerVersion, TLS, Method string
	Took                                time.Duration
}

// Check loads what the configuration names (identities, trust anchors, users,
// groups) without starting anything, and with connect logs in once on every
// route. The error reports what cannot be loaded.
func Check(ctx context.Context, cfg *config.Config, connect bool) ([]Finding, error) {
	trail, err := audit.Open("", io.Discard)
	if err != nil {
		return nil, err
	}
	defer trail.Close()
	d := &Daemon{log: zerolog.Nop(), trail: trail}
	t, err := d.build(cfg, nil)
	if err != nil {
		return nil, err
	}
	var problems []error
	for _, f := range cfg.Sockets {
		if _, err := newAccess(0, f.Allow); err != nil {
			problems = append(problems, err)
		}
	}
	var out []Finding
	for _, name := range slices.Sorted(maps.Keys(t.routes)) {
		f := Finding{Route: name}
		if connect {
			f.login(ctx, t.routes[name])
		}
		out = append(out, f)
	}
	return out, errors.Join(problems...)
}

// login tries the route as a worker of its pool would.
func (f *Finding) login(ctx context.Context, r *Route) {
	start := time.Now()
	u, err := r.dialler.dial(ctx)
	f.Took = time.Since(start)
	if err != nil {
		f.Failure, f.Cause = failureOf(err), err
		return
	}
	defer u.close()
	f.Address, f.Method = u.server.String(), u.method
	f.ServerVersion, _ = u.parameters.get("server_version")
	f.TLS = "none"
	if u.tls != nil {
		f.TLS = u.tls.VersionName() + " " + u.tls.SuiteName()
	}
}
