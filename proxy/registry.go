package proxy

import (
	"bufio"
	"crypto/rand"
	"crypto/subtle"
	"encoding/binary"
	"io"
	"slices"
	"sync"

	"github.com/google/uuid"
)

// registry names leases and finds them. Safe for concurrent use.
type registry struct {
	mu       sync.Mutex
	byID     map[string]*Lease
	bySecret map[uint32]*Lease
	ended    [keepsEnded]cancelKey // the leases that ended last, in a ring
	next     int
	// random is from the kernel, and read ahead for a hundred leases or two: a
	// function waits for each of them.
	random *bufio.Reader
}

// cancelKey is all that a cancel request must show to be heard.
type cancelKey struct {
	pid, secret uint32
	from        holder
}

// keepsEnded is how many leases are remembered that have ended. Drivers cancel
// what they close, perhaps too late, and are not to be kept waiting as one who
// guesses secrets is.
const keepsEnded = 1024

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

// moreSecret is how many bytes a long cancel key has beyond the secret: 32 in all,
// as PostgreSQL's own.
const moreSecret = 28

// lengthen gives the lease a long cancel key.
func (r *registry) lengthen(l *Lease) {
	r.mu.Lock()
	defer r.mu.Unlock()
	more := make([]byte, moreSecret)
	if _, err := io.ReadFull(r.random, more); err != nil {
		panic(err)
	}
	l.more = more
}

// withKey returns the lease for which a cancel request is; nil: there is none. ended
// says that there was one not long ago.
func (r *registry) withKey(k cancelKey, more []byte) (_ *Lease, ended bool) {
	r.mu.Lock()
	l := r.bySecret[k.secret]
	ended = l == nil && k.secret != 0 && slices.Contains(r.ended[:], k)
	r.mu.Unlock()
	if l == nil || l.upstream().pid != k.pid || l.peer.holder() != k.from || subtle.ConstantTimeCompare(l.more, more) == 0 {
		return nil, ended
	}
	return l, false
}

func (r *registry) remove(l *Lease) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.byID, l.id)
	delete(r.bySecret, l.secret)
	r.ended[r.next] = cancelKey{l.up.pid, l.secret, l.peer.holder()}
	r.next = (r.next + 1) % keepsEnded
}

func (r *registry) withID(id string) *Lease {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.byID[id]
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
