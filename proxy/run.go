package proxy

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"pghandoff/proxy/admin"
	"pghandoff/proxy/audit"
	"pghandoff/proxy/loop"
	"pghandoff/tlsstate"
)

// Run serves until ctx is done, then drains: idle leases end at once, running
// transactions within the timeouts.drain of their route. It returns when
// everything has ended.
func (d *Daemon) Run(ctx context.Context) error {
	defer d.closeAll()
	if err := raiseDescriptorLimit(); err != nil {
		d.log.Warn().Err(err).Msg("the limit of file descriptors stays as it is")
	}
	if notice := tlsstate.Notice(); notice != "" {
		d.log.Warn().Msg(notice)
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
	l, err := d.control.listen()
	if err != nil {
		return err
	}
	d.reload.Lock() // a signal may ask for a reload already
	d.base = base
	for _, r := range d.table.Load().routes {
		r.start(base)
	}
	for _, k := range d.table.Load().keepers {
		k.start(base)
	}
	d.reload.Unlock()
	controlled := make(chan error, 1)
	go func() { controlled <- admin.Serve(base, l, d) }() // ended by end; waited for below
	if err = d.openDoors(); err != nil {
		d.stop()
	}
	d.trail.Record(audit.Event{Event: audit.DaemonStarted})
	running := true
	select {
	case <-ctx.Done():
	case controlErr := <-controlled:
		err = errors.Join(err, controlErr)
		running = false
	}
	d.drain()
	for _, r := range d.table.Load().routes {
		r.close()
	}
	end()
	d.keepers.Wait()
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
	d.loads.began = d.started
	var running sync.WaitGroup
	stop = func() {
		for _, l := range d.loops {
			l.Stop()
		}
		running.Wait()
		for _, l := range d.loops {
			l.Free()
		}
	}
	for range n {
		l, err := loop.New()
		if err != nil {
			stop()
			return nil, fmt.Errorf("make an event loop: %w", err)
		}
		d.loops = append(d.loops, l)
		d.loads.all = append(d.loads.all, &load{loop: l})
		running.Go(func() { // ended by stop
			if err := l.Run(); err != nil {
				d.log.Error().Err(err).Msg("an event loop has ended: its leases hang until they are closed")
			}
		})
	}
	return stop, nil
}

// onFront runs f on the front loop and waits for it.
func (d *Daemon) onFront(f func()) {
	done := make(chan struct{})
	d.front().Post(func() {
		f()
		close(done)
	})
	<-done
}

// openDoors begins to serve functions.
func (d *Daemon) openDoors() (err error) {
	d.onFront(func() {
		d.descriptors.hold()
		d.pairs.loop = d.front()
		d.pairs.refill()
		for _, o := range d.doors {
			for _, e := range o.entries() {
				err = errors.Join(err, e.open())
			}
		}
		if d.tcp != nil {
			err = errors.Join(err, d.tcp.entry.open())
		}
	})
	for _, o := range d.doors {
		d.log.Info().Str(fieldSocket, o.dir).Msg("serving functions")
	}
	if d.tcp != nil {
		d.log.Info().Str(fieldAddress, d.Address()).Msg("serving functions by TCP")
	}
	return err
}

// closeDoors stops accepting and ends the visits.
func (d *Daemon) closeDoors() {
	d.onFront(func() {
		for _, o := range d.doors {
			o.remove()
			o.close()
		}
		d.tcp.close()
		d.descriptors.close()
		d.pairs.close()
		for v := range d.visitors {
			v.leave()
		}
	})
}

// Drain makes Run return, as the end of its context does.
func (d *Daemon) Drain() { d.stop() }

// drain stops accepting, ends the leases and waits until all work is done.
func (d *Daemon) drain() {
	d.reload.Lock() // none is under way, and none begins after this
	d.draining.Store(true)
	d.reload.Unlock()
	d.log.Info().Msg("draining: idle leases end now, running transactions may finish")
	d.closeDoors()
	began := time.Now()
	done := make(chan struct{})
	go func() { // ends with the work; waited for below
		d.work.Wait()
		close(done)
	}()
	look := time.NewTicker(20 * time.Millisecond)
	defer look.Stop()
	told := map[*Lease]bool{} // and whether its time was over
	for {
		for _, l := range d.leases.all() { // those too that were being granted just now
			over := time.Since(began) >= l.route.cfg.Timeouts.Drain.Std()
			if before, ok := told[l]; !ok || over && !before {
				told[l] = over
				l.revoke(errShutdown(), over)
			}
		}
		select {
		case <-done:
			return
		case <-look.C:
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
