package proxy

import (
	"sync"

	"pghandoff/proxy/config"
)

// usage is what one uid holds.
type usage struct{ connections, leases, waiting int }

// limits counts what each peer uid holds, so that none can starve the others.
// Safe for concurrent use.
type limits struct {
	mu  sync.Mutex
	max config.Limits
	of  map[uint32]*usage
}

func newLimits(max config.Limits) *limits { return &limits{max: max, of: map[uint32]*usage{}} }

func (l *limits) set(max config.Limits) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.max = max
}

// take counts one more of what field names, or refuses with a *Failure.
func (l *limits) take(uid uint32, setting string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	u := l.of[uid]
	if u == nil {
		u = new(usage)
		l.of[uid] = u
	}
	n, max := u.field(setting, &l.max)
	if *n >= max {
		return errOverLimit(uid, setting, max)
	}
	*n++
	return nil
}

// give counts one less.
func (l *limits) give(uid uint32, setting string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	u := l.of[uid]
	n, _ := u.field(setting, &l.max)
	*n--
	if *u == (usage{}) {
		delete(l.of, uid)
	}
}

// The names of the settings below "limits".
const (
	limitConnections = "connections"
	limitLeases      = "leases"
	limitWaiting     = "waiting"
)

func (u *usage) field(setting string, max *config.Limits) (n *int, limit int) {
	switch setting {
	case limitConnections:
		return &u.connections, max.Connections
	case limitLeases:
		return &u.leases, max.Leases
	}
	return &u.waiting, max.Waiting
}
