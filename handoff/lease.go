package handoff

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"

	"golang.org/x/sys/unix"
)

// Lease is a connection on loan. It owns its descriptor. The fields do not change; methods may be called from any
// goroutine.
type Lease struct {
	ID        string
	Database  string // the route, if the daemon told it
	State     State
	Transport Transport

	// What start-up would have told, with State Ready.
	TxStatus   byte // I, T or E
	PID        uint32
	Secret     Secret // the cancel key; zero on an inherited lease
	Parameters map[string]string

	conn      net.Conn
	hasSecret bool
	socket    string
	serverUID *int
	control   *control // the connection that acquired, if it is kept
	closing   sync.Once
	closeErr  error
}

// Conn returns the connection, the same one each time. It still belongs to the lease: Close closes it. Closing it ends a
// bridge lease as well.
func (l *Lease) Conn() net.Conn { return l.conn }

// Cancel asks the daemon to cancel what the lease runs. The query then ends with SQLSTATE 57014, or has ended already.
func (l *Lease) Cancel(ctx context.Context) error { return l.ask(ctx, OpCancel) }

// Release asks the daemon to end the lease, before its last copy is closed elsewhere. It does not close this one.
func (l *Lease) Release(ctx context.Context) error { return l.ask(ctx, OpRelease) }

func (l *Lease) ask(ctx context.Context, op Op) error {
	call := Call{Op: op, Lease: l.ID}
	if l.hasSecret {
		secret := l.Secret
		call.Secret = &secret
	}
	control := l.control
	switch {
	case l.ID == "":
		return fmt.Errorf("%s lease: its id is unknown (%s was not passed on)", op, EnvReply)
	case control == nil && !l.hasSecret:
		return fmt.Errorf("%s lease: this process has neither its secret nor the connection that acquired it (%s)", op,
			EnvControl)
	case control == nil:
		fresh, err := dial(l.socket, l.serverUID, false)
		if err != nil {
			return err
		}
		defer func() { _ = fresh.release() }()
		control = fresh
	}
	_, fd, err := control.exchange(ctx, call)
	if fd >= 0 {
		_ = unix.Close(fd) // nobody asked for one
	}
	return err
}

// Close closes the connection and, where the lease keeps it up, the one that acquired it, which ends the lease unless
// another process holds a copy of a bridge's descriptor. It may be called more than once.
func (l *Lease) Close() error {
	l.closing.Do(func() {
		l.closeErr = l.conn.Close()
		if l.control != nil {
			l.closeErr = errors.Join(l.closeErr, l.control.release())
		}
	})
	return l.closeErr
}
