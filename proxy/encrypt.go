package proxy

import (
	"context"
	"crypto/tls"
	"net"
	"sync"
	"time"

	"pghandoff/proxy/config"
	"pghandoff/tlsstate"
)

// encrypt puts TLS on the connection to the server of u, which it borrows until
// it succeeds.
func (d *dialler) encrypt(ctx context.Context, u *Upstream, nc net.Conn) (*tlsstate.Stream, error) {
	cfg := tlsstate.Config{Mode: d.mode, Negotiation: d.direct, Host: u.server.Host, Roots: d.roots, MinVersion: d.oldest,
		Handshaker: d.hello, Group: d.groups.of(u.server)}
	if d.identity != nil {
		u.identity = d.identity.Current()
		if err := u.identity.Check(time.Now()); err != nil {
			return nil, err
		}
		cfg.Certificate = u.identity.Certificate
		if cfg.Roots == nil && !d.system {
			cfg.Roots = u.identity.Roots
		}
	}
	stream, err := tlsstate.Client(ctx, nc, cfg)
	if err != nil {
		d.groups.forget(u.server)
		return nil, err
	}
	d.groups.learn(u.server, stream.Info())
	return stream, nil
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
