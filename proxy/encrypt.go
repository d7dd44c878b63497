package proxy

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"pghandoff/certs"
	"pghandoff/proxy/config"
	"pghandoff/tlsstate"
)

// encrypt puts TLS on the connection to the server of u, which it borrows until
// it succeeds.
func (d *dialler) encrypt(ctx context.Context, u *Upstream, nc net.Conn) (*tlsstate.Stream, error) {
	if d.identity != nil {
		if u.identity == nil {
			u.identity = d.identity.Current()
		}
		if err := d.identity.Check(u.identity, time.Now()); err != nil {
			return nil, err
		}
	}
	stream, err := tlsstate.Client(ctx, nc, d.handshake(u.server, u.identity))
	if err != nil {
		d.groups.forget(u.server)
		return nil, err
	}
	u.info = stream.Info()
	d.groups.learn(u.server, u.info)
	d.hellos.count(u.info)
	return stream, nil
}

// handshake says how TLS with a server is to be; id may be nil.
func (d *dialler) handshake(to config.Server, id *certs.Snapshot) tlsstate.Config {
	c := tlsstate.Config{Mode: d.mode, Negotiation: d.direct, Host: to.Host, Roots: d.trust.roots, Revocations: d.trust.revoked,
		MinVersion: d.oldest, Handshaker: d.hello, Group: d.groups.of(to)}
	if id != nil {
		c.Certificate = id.Certificate
		if c.Roots == nil && !d.trust.system {
			c.Roots = id.Roots
		}
	}
	return c
}

// checkTLS says before the first dial what cannot be meant.
func (d *dialler) checkTLS() error {
	if d.mode == tlsstate.Disable {
		return nil
	}
	var id *certs.Snapshot
	if d.identity != nil {
		id = d.identity.Current()
	}
	for _, s := range d.servers {
		if s.Unix {
			continue
		}
		c := d.handshake(s, id)
		if err := c.Check(); err != nil {
			return err
		}
	}
	return nil
}

// trust is what the certificates of servers are checked against.
type trust struct {
	roots   *x509.CertPool        // nil: those of the identity, else the system's
	system  bool                  // the system's, whatever the identity brings
	revoked *tlsstate.Revocations // nil: not checked
	digest  [32]byte              // of the files that were read
}

// newTrust reads the files that a route names.
func newTrust(ctx context.Context, route string, cfg config.TLS) (trust, error) {
	t := trust{system: cfg.Roots == "system"}
	if cfg.Roots != "" && !t.system {
		anchors := certs.NewIdentity("roots of route "+route, certs.FileSource{Roots: cfg.Roots})
		if _, err := anchors.Reload(ctx, time.Now()); err != nil {
			return t, err
		}
		t.roots, t.digest = anchors.Current().Roots, anchors.Current().Digest
	}
	if cfg.CRL != "" {
		lists, err := certs.ReadLists(cfg.CRL)
		if err != nil {
			return t, fmt.Errorf("tls.crl: %w", err)
		}
		if t.revoked, err = tlsstate.ParseRevocations(lists); err != nil {
			return t, fmt.Errorf("tls.crl: %s: %w", cfg.CRL, err)
		}
		t.digest = sha256.Sum256(append(t.digest[:], lists...))
	}
	return t, nil
}

// hellos counts what TLS handshakes with servers cost. Safe for concurrent use.
type hellos struct {
	retries atomic.Uint64 // HelloRetryRequests, each a round trip
	group   atomic.Uint32 // of the last key exchange; 0: not known
}

func (h *hellos) count(i *tlsstate.Info) {
	if i.HelloRetryRequest {
		h.retries.Add(1)
	}
	h.group.Store(uint32(i.Curve))
}

// keyExchange names the group of the last handshake; empty: not known.
func (h *hellos) keyExchange() string {
	if g := tls.CurveID(h.group.Load()); g != 0 {
		return g.String()
	}
	return ""
}

// groups remembers for each server which group it wants a key share for, if that
// cost a round trip to learn: PostgreSQL up to 17 wants P-256, for which crypto/tls
// sends none unasked. Safe for concurrent use.
type groups struct {
	mu    sync.Mutex
	known map[config.Server]tls.CurveID
}

func (g *groups) of(s config.Server) tls.CurveID {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.known[s]
}

func (g *groups) learn(s config.Server, i *tlsstate.Info) {
	if !i.HelloRetryRequest {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.known == nil {
		g.known = map[config.Server]tls.CurveID{}
	}
	g.known[s] = i.Curve
}

// forget makes the next handshake an unprejudiced one, as what was remembered may
// be why this one failed.
func (g *groups) forget(s config.Server) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.known, s)
}
