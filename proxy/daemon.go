package proxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"pghandoff/certs"
	"pghandoff/handoff"
	"pghandoff/pgwire"
	"pghandoff/proxy/audit"
	"pghandoff/proxy/config"
	"pghandoff/proxy/loop"
)

// Options are what a daemon needs beside its configuration.
type Options struct {
	RunDir     string // overrides the configuration's
	ControlDir string // overrides the configuration's
	Version    string
	Log        zerolog.Logger
	// AuditFallback gets the audit lines if the configuration names no file.
	AuditFallback io.Writer
	// Load reads the configuration anew, for reloads; nil: there is nothing to
	// reload.
	Load func() (*config.Config, error)
}

// Daemon is the whole of pghandoff in one process.
type Daemon struct {
	options Options
	log     zerolog.Logger
	runDir  string
	control *controlDir
	trail   *audit.Log
	limits  *limits
	leases  *registry
	doors   []*door
	tcp     *listener // nil: there is none
	table   atomic.Pointer[table]
	started time.Time
	base    context.Context // of everything that outlives a drain

	reload   sync.Mutex // one at a time
	stop     context.CancelFunc
	draining atomic.Bool
	work     sync.WaitGroup // visitors, leases, workers, resets
	keepers  sync.WaitGroup // of identities
	loops    []*loop.Loop   // the first one is the front loop
	loads    loads          // of the loops

	// These belong to the front loop.
	visitors    map[visitor]struct{}
	refusals    int // connections over their limit that are listened to
	descriptors spare
	pairs       pairs
	blanks      blanks

	complain seldom // about failing accepts
	patiences
}

// table is what a configuration turns into; a reload swaps it whole.
type table struct {
	cfg     *config.Config
	keepers map[string]*keeper // of the identities
	routes  map[string]*Route
	gate    *gate // of the TCP listener; nil: there is none
}

// New takes the lock, loads identities and binds the sockets; functions are
// served from [Daemon.Run] on. ctx bounds the loading. On an error nothing is left behind.
func New(ctx context.Context, cfg *config.Config, o Options) (_ *Daemon, err error) {
	d := &Daemon{options: o, log: o.Log, limits: newLimits(cfg.Limits), leases: newRegistry(), started: time.Now(),
		visitors: map[visitor]struct{}{}, descriptors: spare{fd: -1}, patiences: usualPatiences}
	d.runDir = handoff.RunDir(firstOf(o.RunDir, cfg.RunDir))
	controlPath := ControlDir(firstOf(o.ControlDir, cfg.ControlDir), d.runDir)
	var tenants []string
	for _, f := range cfg.Sockets {
		tenants = append(tenants, f.Path)
	}
	if d.control, err = openControlDir(controlPath, d.runDir, tenants...); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			for _, o := range d.doors {
				o.remove()
			}
			d.closeAll()
		}
	}()
	if d.trail, err = audit.Open(cfg.Audit.File, o.AuditFallback); err != nil {
		return nil, err
	}
	t, err := d.build(ctx, cfg, nil)
	if err != nil {
		return nil, err
	}
	d.table.Store(t)
	own := uint32(os.Geteuid())
	folders := append([]config.Folder{{Path: d.runDir, Mode: cfg.Socket.Mode, Group: cfg.Socket.Group}}, cfg.Sockets...)
	for _, f := range folders {
		o, err := d.openDoor(f, own)
		if err != nil {
			return nil, err
		}
		d.doors = append(d.doors, o)
	}
	if d.tcp, err = d.openListener(context.WithoutCancel(ctx), cfg.Listen); err != nil {
		return nil, err
	}
	return d, nil
}

func firstOf(values ...string) string {
	i := slices.IndexFunc(values, func(s string) bool { return s != "" })
	if i < 0 {
		return ""
	}
	return values[i]
}

// RunDir returns the folder of the sockets.
func (d *Daemon) RunDir() string { return d.runDir }

// build makes the table of a configuration, taking over from before the routes
// that need no new pool. Its problems are reported all at once.
func (d *Daemon) build(ctx context.Context, cfg *config.Config, before *table) (*table, error) {
	t := &table{cfg: cfg, keepers: map[string]*keeper{}, routes: map[string]*Route{}}
	var problems []error
	for name, c := range cfg.Identities {
		k, err := d.keeperOf(ctx, name, c, purposeOf(name, cfg), before)
		if err != nil {
			d.trail.Record(audit.Event{Event: audit.IdentityRefused, Identity: name, Message: err.Error()})
			problems = append(problems, err)
			continue
		}
		t.keepers[name] = k
		d.trail.Record(audit.Event{Event: audit.IdentityLoaded, Identity: name})
	}
	for name, c := range cfg.Routes {
		r, err := newRoute(ctx, name, c, t.identities(), d.trail, d.log)
		if err != nil {
			problems = append(problems, err)
			continue
		}
		r.pool.ask = d.askServer
		if before != nil {
			r = r.inherit(before.routes[name])
		}
		t.routes[name] = r
	}
	var err error
	if t.gate, err = newGate(ctx, cfg.Listen, t.identities()); err != nil {
		problems = append(problems, err)
	}
	if len(problems) > 0 {
		return nil, errors.Join(problems...)
	}
	return t, nil
}

// askServer lets a server tell an idle upstream what has changed, by a statement
// without content, and calls then with whether the upstream is as it was.
func (d *Daemon) askServer(u *Upstream, then func(fit bool)) {
	asked := d.front().Post(func() {
		u.loop = d.front()
		u.exchange(pgwire.AppendQuery(nil, ""), 1, resetPatience, func(out *pgwire.Outcome, err error) {
			u.leave()
			then(err == nil && out.Refused == nil && out.Status == 'I')
		})
	})
	if !asked {
		then(false)
	}
}

// purposeOf says what the certificate of an identity is used for.
func purposeOf(name string, cfg *config.Config) certs.Purpose {
	client := false
	for _, r := range cfg.Routes {
		client = client || r.TLS.Identity == name
	}
	switch {
	case cfg.Listen.Address == "" || cfg.Listen.Identity != name:
		return certs.ForClient
	case client:
		return certs.ForBoth
	}
	return certs.ForServer
}

// keeperOf returns the keeper of an identity: the one from before if its settings
// are the same, after a look at its source, else a new one.
func (d *Daemon) keeperOf(ctx context.Context, name string, c config.Identity, purpose certs.Purpose, before *table) (*keeper, error) {
	var number uint64
	if before != nil && before.keepers[name] != nil {
		k := before.keepers[name]
		if reflect.DeepEqual(k.cfg, c) && k.purpose == purpose {
			return k, k.attempt(ctx, true)
		}
		number = k.id.Current().Generation
	}
	return newKeeper(ctx, d, name, c, purpose, number)
}

// identities are those of the keepers.
func (t *table) identities() map[string]*certs.Identity {
	all := map[string]*certs.Identity{}
	for name, k := range t.keepers {
		all[name] = k.id
	}
	return all
}

// closeAll gives up what New took.
func (d *Daemon) closeAll() {
	for _, o := range d.doors {
		o.close()
	}
	d.tcp.close()
	if d.trail != nil {
		d.trail.Close()
	}
	d.control.close()
}

// onlyRoute returns the route to take if none was named: the only one that the
// peer may use. Names of others are not told.
func (d *Daemon) onlyRoute(o *door, p *Peer) (string, error) {
	var names []string
	for name, r := range d.table.Load().routes {
		if o.shows(name) && r.admits(o, p) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	if len(names) != 1 {
		return "", &Failure{SQLState: codeNoSuchDatabase, Message: fmt.Sprintf("no route was named, and %s may use %d", p, len(names)), Hint: "name one of them: " + strings.Join(names, ", "), Reason: "no_route"}
	}
	return names[0], nil
}

// replicationDatabase is what libpq's programs for physical replication, which is
// of no database, give as the name of theirs, whatever they are told.
const replicationDatabase = "replication"

// replicated returns the route for such a program: the one of that name, or the
// only one that there is for the peer.
func (d *Daemon) replicated(o *door, p *Peer) string {
	if d.table.Load().routes[replicationDatabase] == nil {
		if name, err := d.onlyRoute(o, p); err == nil {
			return name
		}
	}
	return replicationDatabase
}
