package proxy

import (
	"errors"
	"fmt"
	"reflect"

	"pghandoff/proxy/audit"
	"pghandoff/proxy/config"
)

// Reload reads the configuration anew and swaps it in whole. Routes that did
// not change keep their upstreams; a changed one gets a new pool, while its
// leases go on with what they hold. A bad configuration changes nothing.
// Settings of sockets, audit file and log need a restart, which is an error
// too, so that nobody believes them changed.
func (d *Daemon) Reload() error {
	d.reload.Lock()
	defer d.reload.Unlock()
	if d.draining.Load() || d.base == nil {
		return errors.New("the daemon is starting or stopping: nothing is reloaded")
	}
	if err := d.trail.Reopen(); err != nil {
		d.log.Error().Err(err).Msg("the audit file stays the old one")
	}
	if err := d.reloadTable(); err != nil {
		d.log.Error().Err(err).Msg("reload refused, the old configuration stays")
		return err
	}
	d.log.Info().Msg("configuration reloaded")
	d.trail.Record(audit.Event{Event: audit.DaemonReloaded})
	return nil
}

func (d *Daemon) reloadTable() error {
	if d.options.Load == nil {
		return errors.New("this daemon was started with a URL: there is no configuration file to reload")
	}
	cfg, err := d.options.Load()
	if err != nil {
		return err
	}
	before := d.table.Load()
	if err := restartNeeded(before.cfg, cfg); err != nil {
		return err
	}
	t, err := d.build(d.base, cfg, before)
	if err != nil {
		return err
	}
	d.limits.set(cfg.Limits)
	for name, r := range t.routes {
		if before.routes[name] == nil || before.routes[name].pool != r.pool {
			r.start(d.base)
		}
	}
	for name, k := range t.keepers {
		if before.keepers[name] != k {
			k.start(d.base)
		}
	}
	d.table.Store(t)
	for name, k := range before.keepers {
		if t.keepers[name] != k {
			k.stop()
		}
	}
	for name, r := range before.routes {
		if t.routes[name] == nil || t.routes[name].pool != r.pool {
			d.work.Go(r.close) // ends with its dials; Run waits for it
		}
	}
	return nil
}

// restartNeeded names the changed settings that a reload cannot apply.
func restartNeeded(before, after *config.Config) error {
	a, b := *before, *after
	a.Routes, a.Identities, a.Limits = nil, nil, config.Limits{}
	b.Routes, b.Identities, b.Limits = nil, nil, config.Limits{}
	va, vb := reflect.ValueOf(a), reflect.ValueOf(b)
	var problems []error
	for i := range va.NumField() {
		if !reflect.DeepEqual(va.Field(i).Interface(), vb.Field(i).Interface()) {
			problems = append(problems, fmt.Errorf("%s: a change needs a restart", va.Type().Field(i).Tag.Get("yaml")))
		}
	}
	return errors.Join(problems...)
}

// inherit returns the route to use after a reload: one with the new rules and
// the old pool, if nothing that matters to upstreams has changed.
func (r *Route) inherit(before *Route) *Route {
	if before == nil || !before.same(r.cfg) || before.dialler.identity != r.dialler.identity || before.dialler.trust.digest != r.dialler.trust.digest {
		return r
	}
	r.dialler, r.pool, r.cancels, r.stop = before.dialler, before.pool, before.cancels, before.stop
	r.own, r.known = before.own, before.known
	r.pool.forget()
	return r
}
