package proxy

import (
	"context"
	"errors"
	"fmt"
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
// route. The error reports all that cannot be loaded; then nothing is tried.
func Check(ctx context.Context, cfg *config.Config, connect bool) ([]Finding, error) {
	trail, err := audit.Open("", io.Discard)
	if err != nil {
		return nil, err
	}
	defer trail.Close()
	problems := checkNames(cfg)
	d := &Daemon{log: zerolog.Nop(), trail: trail}
	t, err := d.build(ctx, withoutRules(cfg), nil)
	if err != nil {
		problems = append(problems, err)
	}
	if len(problems) > 0 {
		return nil, errors.Join(problems...)
	}
	var out []Finding
	for _, name := range slices.Sorted(maps.Keys(t.routes)) {
		f := Finding{Route: name}
		if connect {
			f.login(ctx, t.routes[name])
		}
		out = append(out, f)
	}
	return out, nil
}

// checkNames looks up every user and group on this host.
func checkNames(cfg *config.Config) (problems []error) {
	add := func(key string, found []error) {
		for _, err := range found {
			problems = append(problems, fmt.Errorf("%s.%w", key, err))
		}
	}
	_, _, found := lookupFolder(config.Folder{Group: cfg.Socket.Group}, 0)
	add("socket", found)
	for i, f := range cfg.Sockets {
		_, _, found := lookupFolder(f, 0)
		add(fmt.Sprintf("sockets[%d]", i), found)
	}
	for _, name := range slices.Sorted(maps.Keys(cfg.Routes)) {
		if _, err := newAccess(0, cfg.Routes[name].Allow); err != nil {
			add("routes."+name, []error{err})
		}
	}
	return problems
}

// withoutRules returns the configuration without what checkNames has looked at,
// so that build does not report it again, nor hide it behind its own problems.
func withoutRules(cfg *config.Config) *config.Config {
	c := *cfg
	c.Routes = maps.Clone(cfg.Routes)
	for name, r := range c.Routes {
		r.Allow = nil
		c.Routes[name] = r
	}
	return &c
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
	if u.info != nil {
		f.TLS = u.info.VersionName() + " " + u.info.SuiteName()
	}
}
