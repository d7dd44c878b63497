package handoff

import (
	"context"
	"errors"
	"time"
)

// acquire asks the broker and hands the lease over. The error is ErrGone if the peer has closed meanwhile.
func (c *conversation) acquire(ctx context.Context, call Call) error {
	grant, err, gone := c.await(ctx, call)
	if err != nil {
		if gone {
			return ErrGone
		}
		return c.reply(Reply{ID: call.ID, Refusal: c.told(err)})
	}
	if gone {
		grant.withdraw(ErrGone)
		return ErrGone
	}
	return c.handOver(call.ID, grant)
}

// await runs the broker's Acquire under a context that ends when the peer closes; gone tells that it has.
func (c *conversation) await(ctx context.Context, call Call) (grant *Grant, err error, gone bool) {
	if err := c.readBy(ctx, time.Time{}); err != nil {
		return nil, err, false
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	watched := make(chan bool)
	// Watches for the peer to close, without reading what it sends meanwhile. Ended by that, or by the deadline set
	// below; this function waits for it.
	go func() {
		hung := false
		_ = c.raw.Read(func(fd uintptr) bool {
			hung = hungUp(fd)
			return hung
		})
		if hung {
			cancel()
		}
		watched <- hung
	}()
	grant, err = c.broker.Acquire(ctx, call)
	_ = c.conn.SetReadDeadline(past)
	gone = <-watched
	return grant, err, gone
}

// handOver sends the reply with the descriptor. The grant passes to the function with the first byte that goes; up to
// there, and if the line cannot be completed, it is withdrawn.
func (c *conversation) handOver(id *string, grant *Grant) error {
	line, err := AppendReply(nil, Reply{ID: id, Granted: &grant.Granted})
	if err != nil {
		grant.withdraw(ErrUnsent)
		return c.reply(Reply{ID: id, Refusal: &Refusal{SQLState: codeLimit,
			Message: "what the server reports does not fit a reply of 64 KiB", Hint: "ask for state startup instead"}})
	}
	if err := c.send(line, grant.File); err != nil {
		reason := ErrUnsent
		if errors.Is(err, ErrGone) {
			reason = ErrGone
		}
		grant.withdraw(reason)
		return err
	}
	_ = grant.File.Close() // the function's copy is in its queue
	c.grant, c.until = grant, time.Now().Add(c.options.UnreadLimit)
	if len(c.owned) == maxOwned {
		c.owned = append(c.owned[:0], c.owned[1:]...)
	}
	c.owned = append(c.owned, grant.Lease)
	if grant.Ended != nil {
		c.ended = append(c.ended, grant.Ended)
	}
	return nil
}
