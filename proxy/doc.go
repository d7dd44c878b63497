// Package proxy is the daemon: it keeps authenticated connections to PostgreSQL
// warm (upstreams), lends each to one function at a time (a lease), relays
// between the two, cleans the session afterwards, and writes down who held
// which backend.
//
// It refuses to hand out an upstream that it is not certain of: a session whose
// answers cannot be counted, that is in the middle of a message or that does
// not settle in time is closed, never pooled.
//
// Invariants:
//   - an upstream is in exactly one place: being made, idle in its pool, in one
//     lease, being reset, or closed;
//   - checkout runs no query;
//   - nothing of the server's credentials crosses to a function;
//   - whatever a function or a server sends ends at most its own lease;
//   - nothing on a loop waits for a disk, a name, a login or a lock that is held
//     for long;
//   - every goroutine ends with the context of [Daemon.Run].
//
// The life of a lease, and the code of each step:
//
//	accept (door) → peer → start-up or request (wire, handoff) → access, limits
//	→ pool → parameters → granted (lease) → relay → release → reset → pool
//
//	d, err := proxy.New(ctx, cfg, proxy.Options{RunDir: dir, Log: log})
//	err = d.Run(ctx) // until ctx is done, then drains
package proxy
