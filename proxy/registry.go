package proxy

import (
	"bufio"
	"crypto/rand"
	"encoding/binary"
	"io"
	"sync"

	"github.com/google/uuid"
)

// registry names leases and finds them. Safe for concurrent use.
type registry struct {
	mu       sync.Mutex
	byID     map[string]*Lease
	bySecret map[uint32]*Lease
	// random is from the kernel, and read ahead for a hundred leases or two: a
	// function waits for each of them.
	random *bufio.Reader
}

func newRegistry() *registry {
	return &registry{byID: map[string]*Lease{}, bySecret: map[uint32]*Lease{}, random: bufio.NewReader(rand.Reader)}
}

// add registers l under a fresh id, a UUID of version 7, and a fresh secret.
// Reading randomness does not fail on the kernels that Go supports.
func (r *registry) add(l *Lease) {
	r.mu.Lock()
	defer r.mu.Unlock()
	l.id = uuid.Must(uuid.NewV7FromReader(r.random)).String()
	for {
		var b [4]byte
		if _, err := io.ReadFull(r.random, b[:]); err != nil {
			panic(err)
		}
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
