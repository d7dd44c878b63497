package proxy

import (
	"fmt"
	"slices"
	"time"

	"pghandoff/certs"
	"pghandoff/proxy/audit"
)

// revokeGrace is how long leases may go on that are not idle when the certificate
// of their connection is revoked.
const revokeGrace = 10 * time.Second

// RotateIdentity looks at the source of an identity now, and takes what is there
// even if it ends earlier than the set in use. The connections of the set before
// are replaced over its drain_window.
func (d *Daemon) RotateIdentity(name string) error {
	k, err := d.keeperNamed(name)
	if err != nil {
		return err
	}
	before := k.id.Current()
	if err := k.attempt(d.base, true); err != nil {
		return err
	}
	if k.id.Current() == before {
		return fmt.Errorf("identity %q: its source has nothing new", name)
	}
	return nil
}

// RevokeIdentity gives up the certificate that an identity has now, and all before
// it, as their key may be known to others. No connection is made with it any more;
// idle ones are closed at once, leased ones when their session is idle, or after a
// grace of 10 s. The next set that the source has is used as any other.
func (d *Daemon) RevokeIdentity(name string) error {
	k, err := d.keeperNamed(name)
	if err != nil {
		return err
	}
	s := k.id.Current()
	if s.Leaf == nil {
		return fmt.Errorf("identity %q has no certificate", name)
	}
	k.id.Revoke(s.Generation)
	d.log.Warn().Str(fieldIdentity, name).Uint64("generation", s.Generation).Str("serial", s.Serial()).Msg("identity revoked")
	d.trail.Record(audit.Event{Event: audit.IdentityRevoked, Identity: name, Generation: s.Generation})
	for _, r := range d.routesOf(k.id) {
		r.pool.rotate(rotation{generation: s.Generation + 1, at: time.Now()})
		r.pool.purge(s.Generation)
	}
	d.endRevoked(k.id, s.Generation, false)
	time.AfterFunc(revokeGrace, func() { d.endRevoked(k.id, s.Generation, true) }) // those that are left are few, and the daemon may have ended
	k.nudge()
	return nil
}

// endRevoked ends the leases whose connections were made with a revoked
// certificate: when they are idle, or now.
func (d *Daemon) endRevoked(id *certs.Identity, generation uint64, now bool) {
	for _, l := range d.leases.all() {
		if s := l.upstream().identity; s != nil && s.Name == id.Name() && s.Generation <= generation {
			l.revoke(&Failure{SQLState: codeShutdown, Message: "terminating connection: identity \"" + s.Name + "\" was revoked", Hint: "connect again", Retry: true, Reason: "identity_revoked"}, now)
		}
	}
}

func (d *Daemon) keeperNamed(name string) (*keeper, error) {
	t := d.table.Load()
	if k := t.keepers[name]; k != nil {
		return k, nil
	}
	return nil, fmt.Errorf("there is no identity %q", name)
}

// purge drops the idle upstreams that logged in with a set up to a generation.
func (p *pool) purge(generation uint64) {
	var gone []*Upstream
	p.mu.Lock()
	p.idle = slices.DeleteFunc(p.idle, func(u *Upstream) bool {
		if u.identity == nil || u.identity.Generation > generation {
			return false
		}
		gone = append(gone, u)
		return true
	})
	p.mu.Unlock()
	for _, u := range gone {
		p.drop(u, "identity revoked")
	}
}
