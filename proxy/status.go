package proxy

import (
	"cmp"
	"os"
	"slices"
	"strings"

	"pghandoff/proxy/admin"
	"pghandoff/tlsstate/ktls"
)

// kernelTLS tells what the kernel could take over. It is asked each time, as a
// module may be loaded meanwhile.
func kernelTLS() string { return strings.TrimPrefix(ktls.Probe().String(), "kernel TLS: ") }

// Status tells what there is: pools, leases, identities. It holds no secrets.
func (d *Daemon) Status() *admin.Status {
	t := d.table.Load()
	s := &admin.Status{Version: d.options.Version, PID: os.Getpid(), Started: d.started, RunDir: d.runDir, Address: d.Address(), Draining: d.draining.Load(), KernelTLS: kernelTLS(),
		Routes: []admin.Route{}, Leases: []admin.Lease{}, Identities: []admin.Identity{}}
	for name, r := range t.routes {
		e := admin.Route{Name: name, Servers: r.cfg.Servers, User: r.cfg.User, TLSMode: r.cfg.TLS.Mode, MinIdle: r.cfg.Pool.MinIdle, Max: r.cfg.Pool.Max}
		e.HelloRetries, e.KeyExchange = r.dialler.hellos.retries.Load(), r.dialler.hellos.keyExchange()
		var last error
		e.Idle, e.Leased, e.Dialling, e.Waiting, last = r.pool.counts()
		if last != nil {
			e.LastError = failureOf(last).Message
		}
		s.Routes = append(s.Routes, e)
	}
	for _, l := range d.leases.all() {
		s.Leases = append(s.Leases, admin.Lease{Address: l.peer.named.Address, ID: l.id, Route: l.route.name, Way: l.way, UID: l.peer.UID, PID: l.peer.PID, BackendPID: l.upstream().pid, Since: l.granted})
	}
	for name, k := range t.keepers {
		c := k.id.Current()
		e := admin.Identity{Name: name, Generation: c.Generation, Serial: c.Serial()}
		k.mu.Lock()
		if k.trouble != nil {
			e.LastError, e.Since = k.trouble.err.Error(), &k.trouble.since
			if !k.trouble.next.IsZero() {
				e.NextTry = &k.trouble.next
			}
		}
		k.mu.Unlock()
		if c.Leaf != nil {
			e.Subject, e.NotAfter = c.Leaf.Subject.String(), &c.NotAfter
		}
		s.Identities = append(s.Identities, e)
	}
	slices.SortFunc(s.Routes, func(a, b admin.Route) int { return cmp.Compare(a.Name, b.Name) })
	slices.SortFunc(s.Leases, func(a, b admin.Lease) int { return cmp.Compare(a.ID, b.ID) })
	slices.SortFunc(s.Identities, func(a, b admin.Identity) int { return cmp.Compare(a.Name, b.Name) })
	return s
}
