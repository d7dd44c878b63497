package proxy

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"time"

	"pghandoff/certs"
	"pghandoff/proxy/config"
)

// maxGuests is how many connections of the TCP listener may be at their handshake
// and login at a time, in all and from one address: each has a worker, and none has
// proved anything yet.
const (
	maxGuests     = 256
	maxGuestsFrom = 64
)

// listener is the TCP listener. It belongs to the front loop once that runs, but
// for what a worker needs, which does not change.
type listener struct {
	d      *Daemon
	entry  *entry
	door   *door
	guests map[holder]int  // workers, by whose they are
	base   context.Context // of the workers; ends when the daemon stops to accept
	stop   context.CancelFunc
	secret []byte // of the verifiers of users that there are not
}

// gate is what the TCP listener shows and wants, as a reload may change it.
type gate struct {
	identity *certs.Identity
	roots    *x509.CertPool // nil: no certificate is asked for
	users    users          // nil: no password is asked for
	oldest   uint16         // version of TLS
}

// newGate reads what the listener's configuration names; nil: there is none.
func newGate(ctx context.Context, cfg config.Listen, identities map[string]*certs.Identity) (*gate, error) {
	if cfg.Address == "" {
		return nil, nil
	}
	g := &gate{identity: identities[cfg.Identity], oldest: tls.VersionTLS12}
	if cfg.MinVersion == "1.3" {
		g.oldest = tls.VersionTLS13
	}
	var problems []error
	if cfg.ClientRoots != "" {
		anchors := certs.NewIdentity("client_roots", certs.FileSource{Roots: cfg.ClientRoots})
		if _, err := anchors.Reload(ctx, time.Now()); err != nil {
			problems = append(problems, fmt.Errorf("listen.client_roots: %w", err))
		} else {
			g.roots = anchors.Current().Roots
		}
	}
	if cfg.Users != "" {
		var err error
		if g.users, err = readUsers(cfg.Users); err != nil {
			problems = append(problems, fmt.Errorf("listen.users: %w", err))
		}
	}
	return g, errors.Join(problems...)
}

// openListener binds the TCP listener, at which nobody is accepted yet; nil: there is
// none.
func (d *Daemon) openListener(ctx context.Context, cfg config.Listen) (*listener, error) {
	if cfg.Address == "" {
		return nil, nil
	}
	t, err := net.Listen("tcp", cfg.Address)
	if err != nil {
		return nil, unavailable("listen: %w", err)
	}
	fd, err := takeDescriptor(t)
	if err != nil {
		return nil, unavailable("listen: %w", err)
	}
	l := &listener{d: d, door: &door{dir: t.Addr().String()}, guests: map[holder]int{}, secret: make([]byte, 32)}
	rand.Read(l.secret)
	l.base, l.stop = context.WithCancel(ctx)
	l.entry = &entry{d: d, door: l.door, fd: fd, listener: l}
	return l, nil
}

// Address returns where the TCP listener listens; empty: there is none.
func (d *Daemon) Address() string {
	if d.tcp == nil {
		return ""
	}
	return d.tcp.door.dir
}

// close stops listening, and the workers.
func (l *listener) close() {
	if l != nil {
		l.entry.close()
		l.stop()
	}
}
