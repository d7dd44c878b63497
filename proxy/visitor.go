package proxy

import "pghandoff/proxy/loop"

// visitor is a connection that is served by the front loop itself: one that has
// not become a lease, or that asks for leases.
type visitor interface {
	// leave ends the visit because the daemon stops.
	leave()
}

// enter counts a visitor; exit must follow. Front loop only, as is exit.
func (d *Daemon) enter(v visitor) {
	d.visitors[v] = struct{}{}
	d.work.Add(1)
}

func (d *Daemon) exit(v visitor) {
	delete(d.visitors, v)
	d.work.Done()
}

// front is the loop that accepts and serves until a lease is granted.
func (d *Daemon) front() *loop.Loop { return d.loops[0] }

// later runs f in a worker, which may block, and then on the loop.
func (d *Daemon) later(l *loop.Loop, f, then func()) {
	d.work.Add(1)
	d.work.Go(func() { // ends with f; Run waits for it and for then, and the loop outlives both
		f()
		l.Post(func() {
			then()
			d.work.Done()
		})
	})
}
