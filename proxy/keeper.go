package proxy

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"pghandoff/certs"
	"pghandoff/proxy/audit"
	"pghandoff/proxy/config"
)

const (
	// sourceLook is how often a source is looked at without a sign from it.
	sourceLook = 10 * time.Second
	// firstRetry and lastRetry bound the delay after a set that could not be tried.
	firstRetry, lastRetry = time.Second, time.Minute
	// canaryPatience is how long the trial login with a new set may take.
	canaryPatience = 20 * time.Second
)

// keeper keeps one identity current: it looks at the source, tries what is new,
// publishes it and lets the pools follow. Safe for concurrent use.
type keeper struct {
	d       *Daemon
	name    string
	cfg     config.Identity
	purpose certs.Purpose
	id      *certs.Identity
	wake    chan struct{} // capacity 1: look
	stop    context.CancelFunc

	trying sync.Mutex // one attempt at a time

	mu      sync.Mutex // guards the fields below
	trouble *trouble   // nil: the last attempt went well
	warned  int        // alarms about the snapshot's end so far
}

// trouble is why an identity could not be renewed.
type trouble struct {
	err   error
	since time.Time
	next  time.Time // when it is tried again
}

// newKeeper loads an identity for the first time. number is the highest generation
// that one of this name has had.
func newKeeper(ctx context.Context, d *Daemon, name string, cfg config.Identity, purpose certs.Purpose, number uint64) (*keeper, error) {
	k := &keeper{d: d, name: name, cfg: cfg, purpose: purpose, wake: make(chan struct{}, 1)}
	k.id = certs.NewIdentity(name, k.source())
	k.id.ContinueFrom(number)
	if _, err := k.id.Reload(ctx, time.Now()); err != nil {
		if k.id.Current() == nil {
			return nil, err
		}
		k.tell(err, time.Time{}) // what was kept is good still
	}
	return k, nil
}

// source makes the identity's source out of its settings.
func (k *keeper) source() certs.Source {
	switch c := &k.cfg; {
	case c.File != nil:
		return certs.FileSource{Cert: c.File.Cert, Key: c.File.Key, Roots: c.File.Roots, Purpose: k.purpose}
	case c.Exec != nil:
		return certs.IssuedSource{CommonName: c.Exec.CommonName, Names: c.Exec.Names, Dir: c.Exec.Storage, Roots: c.Exec.Roots, Patience: c.Exec.Timeout.Std(),
			Issuer: certs.ExecIssuer{Command: c.Exec.Command}}
	case c.Vault != nil:
		return vaultSource(c.Vault)
	}
	return certs.SelfSource{CommonName: k.cfg.Self.CommonName, Dir: k.cfg.Self.Directory}
}

func vaultSource(v *config.VaultIdentity) certs.Source {
	issuer := certs.VaultIssuer{Address: v.Address, Mount: v.Mount, Role: v.Role, CommonName: v.CommonName, TTL: v.TTL.Std(), Namespace: v.Namespace,
		TokenFile: v.TokenFile, KubernetesRole: v.KubernetesRole, KubernetesTokenFile: v.KubernetesTokenFile, KubernetesMount: v.KubernetesMount, RootsFile: v.VaultRoots}
	return certs.IssuedSource{CommonName: v.CommonName, Names: v.Names, Dir: v.Storage, Roots: v.Roots, Patience: v.Timeout.Std(), Issuer: issuer}
}

// start lets the keeper look until stop.
func (k *keeper) start(ctx context.Context) {
	ctx, k.stop = context.WithCancel(ctx)
	k.d.keepers.Go(func() { k.run(ctx) }) // ended by stop, or with ctx; Run waits for it
}

func (k *keeper) run(ctx context.Context) {
	var watching sync.WaitGroup
	defer watching.Wait()
	if f, ok := k.source().(certs.FileSource); ok {
		w := certs.Watcher{Paths: f.Watch(), Poll: sourceLook}
		watching.Go(func() { // ends with ctx
			w.Run(ctx, k.nudge, func(err error) { k.d.log.Warn().Err(err).Str(fieldIdentity, k.name).Msg("watching an identity") })
		})
	}
	look := time.NewTimer(k.lookEvery())
	defer look.Stop()
	retry := time.NewTimer(time.Hour)
	retry.Stop()
	delay := firstRetry
	for {
		select {
		case <-ctx.Done():
			return
		case <-k.wake:
		case <-retry.C:
		case <-look.C:
		}
		look.Reset(k.lookEvery())
		if err := k.attempt(ctx, false); err != nil {
			retry.Reset(delay)
			k.tell(err, time.Now().Add(delay))
			delay = min(2*delay, lastRetry)
		} else {
			delay = firstRetry
		}
		k.alarm()
	}
}

// lookEvery is how long until the next look: less for certificates that live
// shortly, which are renewed in the last third of their life.
func (k *keeper) lookEvery() time.Duration {
	s := k.id.Current()
	if s.Leaf == nil {
		return sourceLook
	}
	return max(time.Second, min(sourceLook, s.NotAfter.Sub(s.Leaf.NotBefore)/20))
}

func (k *keeper) nudge() {
	select {
	case k.wake <- struct{}{}:
	default:
	}
}

// attempt publishes what the source has now, if that is new and good. forced says
// that an operator asks: then a set may be one that ends earlier.
func (k *keeper) attempt(ctx context.Context, forced bool) error {
	k.trying.Lock()
	defer k.trying.Unlock()
	before := k.id.Current()
	candidate, stale := k.id.Candidate(ctx, time.Now())
	var err error
	switch {
	case candidate == nil:
		err = stale
	case candidate == before:
		if err = stale; err == nil {
			k.well()
			return nil
		}
	case !forced && candidate.NotAfter.Before(before.NotAfter) && candidate.Leaf != nil:
		err = fmt.Errorf("identity %q: the new certificate ends on %s, before the one in use (%s): send SIGHUP if it is meant", k.name,
			candidate.NotAfter.Format(time.DateTime), before.NotAfter.Format(time.DateTime))
	default:
		err = k.try(ctx, before, candidate)
	}
	if err != nil {
		k.tell(err, time.Time{})
		return err
	}
	k.id.Publish(candidate)
	k.well()
	k.d.log.Info().Str(fieldIdentity, k.name).Uint64("generation", candidate.Generation).Time("not_after", candidate.NotAfter).Msg("identity rotated")
	k.d.trail.Record(audit.Event{Event: audit.IdentityRotated, Identity: k.name, Generation: candidate.Generation})
	k.d.rotate(k, before, candidate)
	if stale != nil {
		k.tell(stale, time.Time{})
	}
	return stale
}

// try logs in with a candidate, since TLS 1.3 tells only after the handshake that a
// certificate is refused. When the one in use is about to end, a candidate that
// cannot be tried is better than none.
func (k *keeper) try(ctx context.Context, before, candidate *certs.Snapshot) error {
	ctx, cancel := context.WithTimeout(ctx, canaryPatience)
	defer cancel()
	err := k.canary(ctx, candidate)
	if err == nil {
		return nil
	}
	err = fmt.Errorf("identity %q: the new set does not log in: %w", k.name, err)
	if isTrust(err) || lasting(err) || before.Leaf == nil || left(before, time.Now()) > 0.1 {
		return err
	}
	k.d.log.Warn().Err(err).Str(fieldIdentity, k.name).Msg("the certificate in use is about to end: the new one is used untried")
	return nil
}

// canary logs in once, on the first route of the identity whose server answers.
func (k *keeper) canary(ctx context.Context, candidate *certs.Snapshot) error {
	var failures []error
	for _, r := range k.d.routesOf(k.id) {
		u, err := r.dialler.dialAs(ctx, candidate)
		if err == nil {
			u.close()
			return nil
		}
		failures = append(failures, err)
		if isTrust(err) || lasting(err) {
			break
		}
	}
	return errors.Join(failures...)
}

// left is the part of a certificate's life that is left.
func left(s *certs.Snapshot, now time.Time) float64 {
	return float64(s.NotAfter.Sub(now)) / float64(s.NotAfter.Sub(s.Leaf.NotBefore))
}

// tell notes trouble, and says it once.
func (k *keeper) tell(err error, next time.Time) {
	k.mu.Lock()
	before := k.trouble
	k.trouble = &trouble{err: err, since: time.Now(), next: next}
	if before != nil {
		k.trouble.since = before.since
	}
	k.mu.Unlock()
	if before == nil || fault(before.err) != fault(err) {
		k.d.log.Error().Err(err).Str(fieldIdentity, k.name).Msg("identity not renewed, the one in use stays")
		k.d.trail.Record(audit.Event{Event: audit.IdentityRefused, Identity: k.name, Message: err.Error()})
	}
}

// fault is what is wrong, without what changes from look to look, such as how long
// ago something expired.
func fault(err error) string {
	var of *certs.Error
	if errors.As(err, &of) {
		return of.Reason.String() + " " + of.Path
	}
	return err.Error()
}

func (k *keeper) well() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.trouble = nil
}

// alarmAt are the parts of a certificate's life at which its end is announced, the
// last of them when it is over.
var alarmAt = []float64{1. / 3, 1. / 10, 0}

// alarm announces the end of a certificate that nobody has renewed.
func (k *keeper) alarm() {
	s := k.id.Current()
	if s.Leaf == nil {
		return
	}
	now := time.Now()
	due := 0
	for due < len(alarmAt) && left(s, now) <= alarmAt[due] {
		due++
	}
	k.mu.Lock()
	before := k.warned
	k.warned = due
	trouble := k.trouble
	k.mu.Unlock()
	if due <= before {
		return
	}
	e := k.d.log.Warn()
	kind := audit.IdentityFailing
	if due == len(alarmAt) {
		e, kind = k.d.log.Error(), audit.IdentityExpired
	}
	if trouble != nil {
		e = e.Err(trouble.err)
	}
	e.Str(fieldIdentity, k.name).Time("not_after", s.NotAfter).Dur("left", s.NotAfter.Sub(now)).Msg("the certificate has not been renewed")
	k.d.trail.Record(audit.Event{Event: kind, Identity: k.name, Generation: s.Generation, Message: "not after " + s.NotAfter.Format(time.RFC3339)})
}

// routesOf returns the routes that log in by an identity, by name.
func (d *Daemon) routesOf(id *certs.Identity) (routes []*Route) {
	t := d.table.Load()
	if t == nil {
		return nil
	}
	for _, name := range slices.Sorted(maps.Keys(t.routes)) {
		if r := t.routes[name]; r.dialler.identity == id {
			routes = append(routes, r)
		}
	}
	return routes
}

// rotate lets the pools follow a new snapshot. Upstreams that logged in with
// another certificate are replaced one after the other; those whose server
// certificate chains to an anchor that is gone, too. An anchor more drops nobody.
func (d *Daemon) rotate(k *keeper, before, after *certs.Snapshot) {
	window := k.cfg.DrainWindow.Std()
	renewed := !slices.EqualFunc(before.Chain, after.Chain, sameCertificate)
	removed := slices.ContainsFunc(before.Anchors, func(a *x509.Certificate) bool { return !after.Trusts(a) })
	for _, r := range d.routesOf(k.id) {
		change := rotation{at: time.Now(), window: window}
		if renewed {
			change.generation = after.Generation
		}
		if removed && r.dialler.trust.roots == nil && !r.dialler.trust.system {
			change.trusts = trustedBy(after)
		}
		r.pool.rotate(change)
	}
}

// endOf returns when a snapshot ends that was used; zero: never.
func endOf(s *certs.Snapshot) time.Time {
	if s == nil {
		return time.Time{}
	}
	return s.NotAfter
}

// margin is how long before its certificate's end an upstream is replaced.
func margin(s *certs.Snapshot) time.Duration {
	life := s.NotAfter.Sub(s.Leaf.NotBefore)
	return min(max(30*time.Second, life/20), life/4)
}
