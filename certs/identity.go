package certs

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// Source gives the current set of one identity, validated whole at the given instant. Errors that concern the set are
// of type *Error. Both a set and an error: the set is still good, and could not be renewed. ctx bounds what waits for
// somebody else.
type Source interface {
	Load(ctx context.Context, now time.Time) (*Material, error)
}

// Identity holds the current snapshot of one source. All methods are safe for concurrent use.
type Identity struct {
	name    string
	source  Source
	current atomic.Pointer[Snapshot]
	mu      sync.Mutex    // serialises Publish and the numbering of candidates
	last    uint64        // the highest generation given to a candidate
	revoked atomic.Uint64 // up to this generation nothing may be used any more
}

// NewIdentity returns an identity that has no snapshot yet; Reload loads the first.
func NewIdentity(name string, source Source) *Identity {
	return &Identity{name: name, source: source}
}

// Name returns the name it was made with.
func (i *Identity) Name() string { return i.name }

// Current returns the published snapshot, or nil before the first.
func (i *Identity) Current() *Snapshot { return i.current.Load() }

// ContinueFrom makes the next candidate's generation greater than the given one: a successor process takes up its
// predecessor's numbering.
func (i *Identity) ContinueFrom(generation uint64) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.last = max(i.last, generation)
}

// Candidate loads the source and returns what it holds as a snapshot that nobody uses yet, so that it can be tried
// before it is published. If the bytes are those of the published snapshot it returns that one. On error the published
// snapshot stays, unless the source has a good set all the same: then both are returned.
func (i *Identity) Candidate(ctx context.Context, now time.Time) (*Snapshot, error) {
	material, err := i.source.Load(ctx, now)
	if err != nil {
		err = fmt.Errorf("identity %q: %w", i.name, err)
	}
	if material == nil {
		return nil, err
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if current := i.current.Load(); current != nil && current.Digest == material.digest {
		return current, err
	}
	i.last++
	return newSnapshot(i.name, i.last, material), err
}

// Publish makes a candidate of this identity the current snapshot. It reports false, and does nothing, if that
// generation or a newer one is published already.
func (i *Identity) Publish(candidate *Snapshot) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	if current := i.current.Load(); current != nil && current.Generation >= candidate.Generation {
		return false
	}
	i.current.Store(candidate)
	return true
}

// Revoke gives up the snapshots up to a generation: Check refuses them from now on.
func (i *Identity) Revoke(generation uint64) { i.revoked.Store(max(generation, i.revoked.Load())) }

// Check says whether a snapshot of this identity may be used for a new connection at the given instant. Errors are of
// type *Error: Revoked, Expired, NotYetValid.
func (i *Identity) Check(s *Snapshot, now time.Time) error {
	if s.Leaf != nil && s.Generation <= i.revoked.Load() {
		return refuse(Revoked, "", "the certificate of identity %q (%s, serial %s) was revoked by an operator: give the identity a new one", i.name,
			s.Leaf.Subject, s.Serial())
	}
	return s.Check(now)
}

// Reload is Candidate and Publish in one, for those who need no trial: changed tells whether there is a new
// generation. A bad set keeps the old snapshot and is the error.
func (i *Identity) Reload(ctx context.Context, now time.Time) (changed bool, err error) {
	candidate, err := i.Candidate(ctx, now)
	if candidate == nil {
		return false, err
	}
	return i.Publish(candidate), err
}
