package proxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"pghandoff/certs"
	"pghandoff/handoff"
	"pghandoff/proxy/admin"
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
	table   atomic.Pointer[table]
	started time.Time
	base    context.Context // of everything that outlives a drain

	reload   sync.Mutex // one at a time
	stop     context.CancelFunc
	draining atomic.Bool
	work     sync.WaitGroup // sessions, releases
	loops    []*loop.Loop   // relay the leases
	next     atomic.Uint32  // loop to use next
}

// table is what a configuration turns into; a reload swaps it whole.
type table struct {
	cfg        *config.Config
	identities map[string]*certs.Identity
	routes     map[string]*Route
}

// New takes the lock, loads identities and binds the sockets; functions are
// served from [Daemon.Run] on. On an error nothing is left behind.
func New(cfg *config.Config, o Options) (_ *Daemon, err error) {
	d := &Daemon{options: o, log: o.Log, limits: newLimits(cfg.Limits), leases: newRegistry(), started: time.Now()}
	d.runDir = handoff.RunDir(firstOf(o.RunDir, cfg.RunDir))
	controlPath := ControlDir(firstOf(o.ControlDir, cfg.ControlDir), d.runDir)
	if d.control, err = openControlDir(controlPath, d.runDir); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			d.closeAll()
		}
	}()
	if d.trail, err = audit.Open(cfg.Audit.File, o.AuditFallback); err != nil {
		return nil, err
	}
	t, err := d.build(cfg, nil)
	if err != nil {
		return nil, err
	}
	d.table.Store(t)
	own := uint32(os.Geteuid())
	folders := append([]config.Folder{{Path: d.runDir, Mode: cfg.Socket.Mode, Group: cfg.Socket.Group}}, cfg.Sockets...)
	for _, f := range folders {
		o, err := openDoor(f, own)
		if err != nil {
			return nil, err
		}
		d.doors = append(d.doors, o)
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
func (d *Daemon) build(cfg *config.Config, before *table) (*table, error) {
	t := &table{cfg: cfg, identities: map[string]*certs.Identity{}, routes: map[string]*Route{}}
	var problems []error
	for name, c := range cfg.Identities {
		id, err := loadIdentity(name, c, before)
		if err != nil {
			d.trail.Record(audit.Event{Event: audit.IdentityRefused, Identity: name, Message: err.Error()})
			problems = append(problems, err)
			continue
		}
		t.identities[name] = id
		d.trail.Record(audit.Event{Event: audit.IdentityLoaded, Identity: name})
	}
	if len(problems) > 0 {
		return nil, errors.Join(problems...)
	}
	for name, c := range cfg.Routes {
		r, err := newRoute(name, c, t.identities, uint32(os.Geteuid()), d.trail, d.log)
		if err != nil {
			problems = append(problems, err)
			continue
		}
		if before != nil {
			r = r.inherit(before.routes[name], before.identities[c.TLS.Identity], t.identities[c.TLS.Identity])
		}
		t.routes[name] = r
	}
	return t, errors.Join(problems...)
}

// loadIdentity loads an identity anew; if its bytes are those of before, that
// one goes on with its generation.
func loadIdentity(name string, c config.Identity, before *table) (*certs.Identity, error) {
	var source certs.Source
	switch {
	case c.File != nil:
		source = certs.FileSource{Cert: c.File.Cert, Key: c.File.Key, Roots: c.File.Roots}
	default:
		source = certs.SelfSource{CommonName: c.Self.CommonName, Dir: c.Self.Directory}
	}
	id := certs.NewIdentity(name, source)
	if before != nil && before.identities[name] != nil {
		id.ContinueFrom(before.identities[name].Current().Generation)
	}
	if _, err := id.Reload(time.Now()); err != nil {
		return nil, err
	}
	if before != nil && before.identities[name] != nil && before.identities[name].Current().Digest == id.Current().Digest {
		return before.identities[name], nil
	}
	return id, nil
}

// Run serves until ctx is done, then drains: idle leases end at once, running
// transactions within the longest timeouts.drain. It returns when everything
// has ended.
func (d *Daemon) Run(ctx context.Context) error {
	defer d.closeAll()
	if err := raiseDescriptorLimit(); err != nil {
		d.log.Warn().Err(err).Msg("the limit of file descriptors stays as it is")
	}
	ctx, d.stop = context.WithCancel(ctx)
	defer d.stop()
	ended, err := d.startLoops()
	if err != nil {
		return err
	}
	defer ended()
	base, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	d.base = base
	l, err := d.control.listen()
	if err != nil {
		return err
	}
	controlled := make(chan error, 1)
	go func() { controlled <- admin.Serve(base, l, d) }() // ended by end, waited for below
	for _, r := range d.table.Load().routes {
		r.start(base)
	}
	for _, o := range d.doors {
		d.work.Go(func() { d.accept(ctx, o, o.wire, d.serveWire) }) // ended by door.close; waited for below
		d.work.Go(func() { d.accept(ctx, o, o.handoff, d.serveHandoff) })
		d.log.Info().Str(fieldSocket, o.dir).Msg("serving functions")
	}
	d.trail.Record(audit.Event{Event: audit.DaemonStarted})
	select {
	case <-ctx.Done():
	case err = <-controlled:
	}
	d.drain()
	d.work.Wait()
	for _, r := range d.table.Load().routes {
		r.close()
	}
	end()
	d.trail.Record(audit.Event{Event: audit.DaemonStopped})
	return err
}

// startLoops starts the event loops; stop ends them and waits for it.
func (d *Daemon) startLoops() (stop func(), err error) {
	n := d.table.Load().cfg.Loops
	if n == 0 {
		n = runtime.NumCPU()
	}
	var running sync.WaitGroup
	stop = func() {
		for _, l := range d.loops {
			l.Stop()
		}
		running.Wait()
		for _, l := range d.loops {
			l.Close()
		}
	}
	for range n {
		l, err := loop.New()
		if err != nil {
			stop()
			return nil, fmt.Errorf("make an event loop: %w", err)
		}
		d.loops = append(d.loops, l)
		running.Go(func() { // ended by stop
			if err := l.Run(); err != nil {
				d.log.Error().Err(err).Msg("an event loop has ended: its leases hang until they are closed")
			}
		})
	}
	return stop, nil
}

// nextLoop gives leases to the loops in turn.
func (d *Daemon) nextLoop() *loop.Loop {
	return d.loops[int(d.next.Add(1))%len(d.loops)]
}

// Drain makes Run return, as the end of its context does.
func (d *Daemon) Drain() { d.stop() }

// drain stops accepting and ends the leases.
func (d *Daemon) drain() {
	d.draining.Store(true)
	d.log.Info().Msg("draining: idle leases end now, running transactions may finish")
	var patience time.Duration
	for _, o := range d.doors {
		o.remove()
		o.close()
	}
	for _, r := range d.table.Load().routes {
		patience = max(patience, r.cfg.Timeouts.Drain.Std())
	}
	until := time.NewTimer(patience)
	defer until.Stop()
	look := time.NewTicker(20 * time.Millisecond)
	defer look.Stop()
	for {
		all := d.leases.all()
		for _, l := range all {
			l.revoke(errShutdown(), false)
		}
		if len(all) == 0 {
			return
		}
		select {
		case <-look.C: // also for leases that were being granted
		case <-until.C:
			for _, l := range d.leases.all() {
				l.revoke(errShutdown(), true)
			}
			return
		}
	}
}

// closeAll gives up what New took.
func (d *Daemon) closeAll() {
	for _, o := range d.doors {
		o.close()
	}
	if d.trail != nil {
		d.trail.Close()
	}
	d.control.close()
}

// accept takes one connection and serves it, while another goroutine goes on
// accepting: so that a function is not kept waiting for the one that serves it
// to be scheduled. It returns without one when the listener is closed. Running
// out of descriptors is waited out, never an end.
func (d *Daemon) accept(ctx context.Context, o *door, l *net.UnixListener, serve func(context.Context, *door, *net.UnixConn, *Peer)) {
	conn, err := l.AcceptUnix()
	for err != nil {
		if ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
			return
		}
		d.log.Error().Err(err).Str(fieldSocket, o.dir).Msg("accept")
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return
		}
		conn, err = l.AcceptUnix()
	}
	d.work.Go(func() { d.accept(ctx, o, l, serve) }) // the next one; ends as this does
	defer conn.Close()
	peer, err := peerOf(conn)
	if err != nil {
		d.log.Error().Err(err).Msg("connection refused: who it is cannot be told")
		return
	}
	serve(ctx, o, conn, peer)
}

func (d *Daemon) serveWire(ctx context.Context, o *door, conn *net.UnixConn, peer *Peer) {
	s := &session{d: d, conn: conn, peer: peer, door: o, way: "wire"}
	if err := d.limits.take(peer.UID, limitConnections); err != nil {
		s.refuse(ctx, failureOf(err))
		return
	}
	defer d.limits.give(peer.UID, limitConnections)
	s.serve(ctx)
}

func (d *Daemon) serveHandoff(ctx context.Context, o *door, conn *net.UnixConn, peer *Peer) {
	if err := d.limits.take(peer.UID, limitConnections); err != nil {
		f := failureOf(err)
		line, _ := handoff.AppendReply(nil, handoff.Reply{Refusal: &handoff.Refusal{SQLState: f.SQLState, Message: f.Message, Hint: f.Hint, Retry: true}})
		conn.SetWriteDeadline(time.Now().Add(speakPatience))
		conn.Write(line)
		return
	}
	defer d.limits.give(peer.UID, limitConnections)
	b := &broker{d: d, peer: peer, door: o}
	err := handoff.Serve(ctx, conn, b, handoff.ServeOptions{Report: func(err error) {
		d.log.Error().Err(err).Uint32(fieldUID, peer.UID).Msg("handoff request")
	}})
	if err != nil && ctx.Err() == nil {
		d.log.Debug().Err(err).Uint32(fieldUID, peer.UID).Msg("handoff connection")
	}
}

// onlyRoute returns the route to take if none was named.
func (d *Daemon) onlyRoute(o *door) (string, error) {
	var names []string
	for name := range d.table.Load().routes {
		if o.shows(name) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	if len(names) != 1 {
		return "", &Failure{SQLState: codeNoSuchDatabase, Message: fmt.Sprintf("no route was named and there are %d", len(names)), Hint: "name one of: " + strings.Join(names, ", "), Reason: "no_route"}
	}
	return names[0], nil
}

// raiseDescriptorLimit raises the soft limit to the hard one.
func raiseDescriptorLimit() error {
	var r unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &r); err != nil {
		return err
	}
	r.Cur = r.Max
	return unix.Setrlimit(unix.RLIMIT_NOFILE, &r)
}
