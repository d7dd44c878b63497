package handoff

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"time"
)

// Request asks for a lease. The zero value asks for the only route, in State Startup, on any transport, and waits as
// long as the route allows.
type Request struct {
	Socket    string // path of the handoff socket; "": $PGHANDOFF_SOCKET, else the one in RunDir
	ServerUID *int   // uid that the daemon must run as; nil: any

	Database        string // the route
	User            string // "": see UserName
	State           State
	Transport       Transport
	Wait            *time.Duration // nil: as long as the route allows; 0: not at all; rounded up to milliseconds
	ApplicationName string
	Parameters      map[string]string // start-up parameters
}

func (r Request) call() Call {
	return Call{Op: OpAcquire, Database: r.Database, User: UserName(r.User), State: r.State, Transport: r.Transport, Wait: r.Wait,
		ApplicationName: r.ApplicationName, Parameters: parametersOf(r.Parameters)}
}

// Acquire asks the daemon for a lease and waits for the answer. A refusal is an error of type *Refusal. When ctx ends
// first, the request is abandoned.
func Acquire(ctx context.Context, r Request) (*Lease, error) {
	socket := SocketPath(r.Socket)
	control, err := dial(socket, r.ServerUID, false)
	if err != nil {
		return nil, err
	}
	lease, err := control.acquire(ctx, r.call())
	if err != nil {
		_ = control.release()
		return nil, err
	}
	lease.socket, lease.serverUID = socket, r.ServerUID
	if lease.Transport == Bridge {
		_ = control.release() // the lease ends with its descriptor; its secret opens a way back when one is needed
	} else {
		control.keep()
		lease.control = control
	}
	return lease, nil
}

func (c *control) acquire(ctx context.Context, call Call) (*Lease, error) {
	reply, fd, err := c.exchange(ctx, call)
	switch {
	case err != nil:
		return nil, err
	case reply.Granted == nil:
		return nil, errNoLease
	}
	return newLease(*reply.Granted, os.NewFile(uintptr(fd), "pghandoff lease"))
}

var errNoLease = errors.New("reply of pghandoff names no lease")

// newLease takes over the file and closes it; the connection made of it is a duplicate.
func newLease(g Granted, file *os.File) (*Lease, error) {
	conn, err := net.FileConn(file)
	_ = file.Close()
	if err != nil {
		return nil, fmt.Errorf("adopt descriptor from pghandoff: %w", err)
	}
	l := &Lease{ID: g.Lease, Database: g.Database, State: g.State, Transport: g.Transport, TxStatus: g.Tx, PID: g.PID,
		Parameters: parameterMap(g.Parameters), conn: conn}
	if g.Secret != nil {
		l.Secret, l.hasSecret = *g.Secret, true
	}
	return l, nil
}
