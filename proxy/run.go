package proxy

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"pghandoff/proxy/admin"
	"pghandoff/proxy/audit"
	"pghandoff/proxy/loop"
)

// Run serves until ctx is done, then drains: idle leases end at once, running
// transactions within the longest timeouts.drain. It returns when everything
// has ended.
func (d *Daemon) Run(ctx context.Context) error {
	defer d.closeAll()
	if err := raiseDescriptorLimit(); err != nil {
		d.log.Warn().Err(err).Msg("the limit of file descriptors stays as it is")
	}
	d.descriptors.hold()
	ctx, d.stop = context.WithCancel(ctx)
	defer d.stop()
	ended, err := d.startLoops()
	if err != nil {
		return err
	}
	defer ended()
	base, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	l, err := d.control.listen()
	if err != nil {
		return err
	}
	d.reload.Lock() // a signal may ask for a reload already
	d.base = base
	for _, r := range d.table.Load().routes {
		r.start(base)
	}
	d.reload.Unlock()
	controlled := make(chan error, 1)
	go func() { controlled <- admin.Serve(base, l, d) }() // ended by end; waited for below
	for _, o := range d.doors {
		d.work.Go(func() { d.accept(ctx, o, o.wire, d.serveWire) }) // ended by door.close; drain waits for it
		d.work.Go(func() { d.accept(ctx, o, o.handoff, d.serveHandoff) })
		d.log.Info().Str(fieldSocket, o.dir).Msg("serving functions")
	}
	d.trail.Record(audit.Event{Event: audit.DaemonStarted})
	running := true
	select {
	case <-ctx.Done():
	case err = <-controlled:
		running = false
	}
	d.drain()
	for _, r := range d.table.Load().routes {
		r.close()
	}
	end()
	if running {
		<-controlled
	}
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

// nextLoop gives upstreams, and so their leases, to the loops in turn; nil if
// none is running.
func (d *Daemon) nextLoop() *loop.Loop {
	if len(d.loops) == 0 {
		return nil
	}
	return d.loops[int(d.next.Add(1))%len(d.loops)]
}

// Drain makes Run return, as the end of its context does.
func (d *Daemon) Drain() { d.stop() }

// drain stops accepting, ends the leases and waits until all work is done.
func (d *Daemon) drain() {
	d.reload.Lock() // none is under way, and none begins after this
	d.draining.Store(true)
	d.reload.Unlock()
	d.log.Info().Msg("draining: idle leases end now, running transactions may finish")
	var patience time.Duration
	for _, o := range d.doors {
		o.remove()
		o.close()
	}
	for _, r := range d.table.Load().routes {
		patience = max(patience, r.cfg.Timeouts.Drain.Std())
	}
	done := make(chan struct{})
	go func() { // ends with the work; waited for below
		d.work.Wait()
		close(done)
	}()
	until, hard := time.After(patience), false
	look := time.NewTicker(20 * time.Millisecond)
	defer look.Stop()
	told := map[*Lease]bool{}
	for {
		for _, l := range d.leases.all() { // those too that were being granted just now
			if !told[l] {
				told[l] = true
				l.revoke(errShutdown(), hard)
			}
		}
		select {
		case <-done:
			return
		case <-look.C:
		case <-until:
			hard = true
			clear(told)
		}
	}
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
