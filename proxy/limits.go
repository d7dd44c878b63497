package proxy

import (
	"fmt"
	"net/netip"
	"sync"

	"pghandoff/proxy/config"
)

// usage is what one holder holds.
type usage struct{ connections, leases, waiting int }

// holder is whose usage is counted: a uid of this host, or an address from
// elsewhere, behind which may be several hosts.
type holder struct {
	uid     uint32
	address netip.Addr
}

func (h holder) String() string {
	if h.address.IsValid() {
		return "address " + h.address.String()
	}
	return fmt.Sprintf("uid %d", h.uid)
}

// limits counts what each holder holds, so that none can starve the others.
// Safe for concurrent use.
type limits struct {
	mu  sync.Mutex
	max config.Limits
	of  map[holder]*usage
}

func newLimits(max config.Limits) *limits { return &limits{max: max, of: map[holder]*usage{}} }

func (l *limits) set(max config.Limits) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.max = max
}

// take counts one more of what field names, or refuses with a *Failure.
func (l *limits) take(who holder, setting string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	u := l.of[who]
	if u == nil {
		u = new(usage)
		l.of[who] = u
	}
	n, max := u.field(setting, &l.max)
	if *n >= max {
		return errOverLimit(who, setting, max)
	}
	*n++
	return nil
}

// give counts one less.
func (l *limits) give(who holder, setting string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	u := l.of[who]
	n, _ := u.field(setting, &l.max)
	*n--
	if *u == (usage{}) {
		delete(l.of, who)
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
