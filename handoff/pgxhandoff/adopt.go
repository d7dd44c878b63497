package pgxhandoff

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"

	"github.com/jackc/pgx/v5"

	"pghandoff/handoff"
)

// Adopt returns a lease that this process holds already, such as one of handoff.Inherited, as a connection. It must
// stand at ReadyForQuery. The connection owns the lease from then on: closing it ends the lease. On an error the lease is
// closed.
//
// Cancelling goes by the lease itself. The changes are made to the configuration before it is used; its RuntimeParams
// have no effect, since the session has begun.
func Adopt(ctx context.Context, l *handoff.Lease, changes ...func(*pgx.ConnConfig)) (*pgx.Conn, error) {
	if l.State != handoff.Ready {
		_ = l.Close()
		return nil, fmt.Errorf("lease %s is in state %s: only one in state %s can be adopted (pghandoff exec --state ready)", l.ID, l.State, handoff.Ready)
	}
	wire := &net.UnixAddr{Net: "unix", Name: handoff.WirePath(handoff.SocketPath(""))}
	config, err := neutral("/", handoff.UserName(""))
	if err != nil {
		_ = l.Close()
		return nil, err
	}
	config.Password, config.RuntimeParams = "", map[string]string{}
	for _, change := range changes {
		change(config)
	}
	config.DialFunc = func(ctx context.Context, _, _ string) (net.Conn, error) {
		return dialledBy(ctx, wire, func(ctx context.Context, first []byte) (opened, error) { return adopt(ctx, l, first) }), nil
	}
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		_ = l.Close()
	}
	return conn, err
}

// adopt is open for a lease that is there.
func adopt(ctx context.Context, l *handoff.Lease, first []byte) (opened, error) {
	if binary.BigEndian.Uint32(first[4:]) == cancelCode {
		if err := l.Cancel(ctx); err != nil {
			return opened{}, err
		}
		return opened{conn: ended{}, closer: ended{}}, nil
	}
	answers, err := greeting(l)
	if err != nil {
		return opened{}, err
	}
	return opened{conn: l.Conn(), closer: l, greeting: answers, rest: first[binary.BigEndian.Uint32(first):]}, nil
}
