package proxy

import (
	"crypto/x509"
	"time"

	"pghandoff/certs"
)

// rotation is what a new snapshot means for the upstreams of a pool. The zero value
// means nothing.
type rotation struct {
	generation uint64        // older ones logged in with another certificate; 0: all are as good as before
	at         time.Time     // since when
	window     time.Duration // over which they are replaced
	// trusts says whether a server's certificate still chains to an anchor that is
	// trusted; nil: no anchor is gone.
	trusts func(*Upstream) bool
}

// rotate lets the pool replace upstreams that a rotation makes old, and try again
// at once what has failed: that may have been for the sake of the set before.
func (p *pool) rotate(r rotation) {
	p.mu.Lock()
	if r.generation == 0 {
		r.generation, r.at = p.rotation.generation, p.rotation.at
	}
	if r.trusts != nil {
		p.trustEpoch++
	} else {
		r.trusts = p.rotation.trusts
	}
	p.rotation, p.failure = r, nil
	p.mu.Unlock()
	p.nudge()
}

// retiredLocked says why an upstream has served its time: by its age, its keys, or
// because of a rotation; empty: it has not.
func (p *pool) retiredLocked(u *Upstream, now time.Time) (why string) {
	switch {
	case u.retired(now):
		return "max_lifetime"
	case p.rotatedLocked(u, now):
		return "identity rotated"
	case p.distrustedLocked(u):
		return "trust anchor removed"
	}
	return ""
}

// rotatedLocked reports whether it is time for an upstream to give way to one of
// the new generation: at its own moment of the window, and before its certificate
// ends.
func (p *pool) rotatedLocked(u *Upstream, now time.Time) bool {
	r := &p.rotation
	if u.identity == nil || u.identity.Leaf == nil || u.identity.Generation >= r.generation {
		return false
	}
	leaves := r.at.Add(time.Duration(u.chance * float64(r.window)))
	if end := u.identity.NotAfter.Add(-margin(u.identity)); end.Before(leaves) {
		leaves = end
	}
	return !now.Before(leaves)
}

// distrustedLocked reports whether the server's certificate is trusted no longer.
// It is looked at once after each change.
func (p *pool) distrustedLocked(u *Upstream) bool {
	if p.rotation.trusts != nil && u.trustEpoch < p.trustEpoch && !u.distrusted {
		u.trustEpoch = p.trustEpoch
		u.distrusted = !p.rotation.trusts(u)
	}
	return u.distrusted
}

// trustedBy says whether servers' certificates chain to an anchor of a snapshot.
func trustedBy(s *certs.Snapshot) func(*Upstream) bool {
	return func(u *Upstream) bool {
		if u.info == nil || len(u.info.PeerCertificates) == 0 {
			return true
		}
		between := x509.NewCertPool()
		for _, c := range u.info.PeerCertificates[1:] {
			between.AddCert(c)
		}
		leaf := u.info.PeerCertificates[0]
		at := time.Now()
		if at.After(leaf.NotAfter) {
			at = leaf.NotAfter // it is the anchor that is asked about
		}
		_, err := leaf.Verify(x509.VerifyOptions{Roots: s.Roots, Intermediates: between, CurrentTime: at, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}})
		return err == nil
	}
}

func sameCertificate(a, b *x509.Certificate) bool { return a.Equal(b) }
