package handoff

import (
	"context"
	"errors"
	"os"
)

// Broker decides about requests. Serve asks it from one goroutine a connection; it must be safe for several.
//
// A refusal is an error of type *Refusal and is shown to the function as it is; of any other error the function learns
// only that there was one.
type Broker interface {
	// Acquire blocks until the lease is granted or refused, or ctx is done, which says that the function has gone or the
	// daemon stops; it then still may return a grant, which Serve withdraws if nobody is there.
	Acquire(ctx context.Context, c Call) (*Grant, error)
	// Cancel cancels what the lease runs.
	Cancel(ctx context.Context, c Claim) error
	// Release ends the lease.
	Release(ctx context.Context, c Claim) error
}

// Claim names a lease and what its bearer has to show for it.
type Claim struct {
	Lease  string
	Owner  bool    // the connection that says so has acquired it
	Secret *Secret // nil: none given. Counting and slowing down wrong ones is up to the Broker
}

// Grant is a lease to be handed over.
type Grant struct {
	Granted

	// File is the descriptor for the function. The Grant owns it, and Serve closes it once it is sent or if it cannot
	// be.
	File *os.File

	// Withdraw is called, once, if the grant did not reach the function: it went away, did not read within the limit or
	// could not be written to. The Broker then reclaims the lease. nil: nothing to do.
	Withdraw func(reason error)

	// Ended is called, once, when the connection that acquired the lease has ended, for leases that end with it (plain
	// and kernel). nil: the lease outlives the connection, and a function may close it at once.
	Ended func()
}

// Reasons given to Grant.Withdraw.
var (
	ErrGone   = errors.New("the function went away before it was granted")
	ErrUnread = errors.New("the function did not read its grant in time")
	ErrUnsent = errors.New("the grant could not be sent")
)

// withdraw closes the descriptor and tells the Broker.
func (g *Grant) withdraw(reason error) {
	_ = g.File.Close() // it may be closed already
	if g.Withdraw != nil {
		g.Withdraw(reason)
	}
}

// refusalOf returns what to tell the function about an error of the Broker, and the error to report to the daemon if
// the function must not see it.
func refusalOf(err error) (told *Refusal, internal error) {
	var r *Refusal
	switch {
	case errors.As(err, &r):
		return r, nil
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return &Refusal{SQLState: codeStopping, Message: "pghandoff is stopping", Hint: "ask again in a moment",
			Retry: true}, nil
	}
	return &Refusal{SQLState: codeInternal, Message: "pghandoff could not do that", Hint: "its log says why"}, err
}
