package proxy

import (
	"crypto/rand"
	"encoding/binary"
	"sync"
)

// registry finds leases. Safe for concurrent use.
type registry struct {
	mu       sync.Mutex
	byID     map[string]*Lease
	bySecret map[uint32]*Lease
}

func newRegistry() *registry {
	return &registry{byID: map[string]*Lease{}, bySecret: map[uint32]*Lease{}}
}

// add registers l under a fresh secret.
func (r *registry) add(l *Lease) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for {
		var b [4]byte
		rand.Read(b[:])
		l.secret = binary.BigEndian.Uint32(b[:])
		if _, taken := r.bySecret[l.secret]; !taken && l.secret != 0 {
			break
		}
	}
	r.byID[l.id], r.bySecret[l.secret] = l, l
}

func (r *registry) remove(l *Lease) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.byID, l.id)
	delete(r.bySecret, l.secret)
}

func (r *registry) withID(id string) *Lease {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.byID[id]
}

func (r *registry) withSecret(secret uint32) *Lease {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.bySecret[secret]
}

// all returns the leases there are.
func (r *registry) all() []*Lease {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := make([]*Lease, 0, len(r.byID))
	for _, l := range r.byID {
		out = append(out, l)
	}
	return out
}
