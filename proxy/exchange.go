package proxy

import (
	"errors"
	"fmt"
	"time"

	"pghandoff/pgwire"
	"pghandoff/proxy/loop"
)

// exchange is a script of ours under way on a quiet upstream. It belongs to the
// upstream's loop.
type exchange struct {
	up     *Upstream
	script *pgwire.Script
	timer  *time.Timer
	done   chan error // capacity 1
	over   bool
}

var (
	errNoAnswer  = errors.New("the server did not answer in time")
	errMore      = errors.New("the server said more than was asked")
	errLoopEnded = errors.New("the event loop has ended")
)

// exchange runs a script of ours on the quiet session, within limit, and blocks
// until it has ended. On an error the session cannot be used any more.
func (u *Upstream) exchange(request []byte, ready int, limit time.Duration) (*pgwire.Outcome, error) {
	x := &exchange{up: u, script: pgwire.NewScript(ready), done: make(chan error, 1)}
	if !u.loop.Post(func() { x.begin(request, limit) }) {
		return nil, errLoopEnded
	}
	if err := <-x.done; err != nil {
		return nil, err
	}
	out := x.script.Outcome()
	for _, p := range out.Reported {
		u.parameters.set(p)
	}
	return out, nil
}

func (x *exchange) begin(request []byte, limit time.Duration) {
	u := x.up
	if err := u.send(u.loop.Out, request); err != nil {
		x.finish(fmt.Errorf("send to server: %w", err))
		return
	}
	var err error
	if u.token, err = u.loop.Add(u.fd, x, x.wants()); err != nil {
		x.finish(err)
		return
	}
	x.timer = time.AfterFunc(limit, func() { // stopped by finish
		u.loop.Post(func() { x.finish(errNoAnswer) })
	})
}

func (x *exchange) wants() loop.Events {
	if len(x.up.unsent()) > 0 {
		return loop.Readable | loop.Writable
	}
	return loop.Readable
}

// Ready is called when the server has said something or takes more.
func (x *exchange) Ready(e loop.Events) {
	u := x.up
	if e&loop.Writable != 0 {
		if err := u.flush(); err != nil {
			x.finish(fmt.Errorf("send to server: %w", err))
			return
		}
	}
	plain, _, err := u.receive(u.loop.In)
	rest, done, scriptErr := x.script.Feed(plain)
	switch {
	case scriptErr != nil:
		x.finish(scriptErr)
	case done:
		if u.note(rest) {
			x.finish(nil)
		} else {
			x.finish(errMore)
		}
	case err != nil:
		x.finish(fmt.Errorf("read from server: %w", err))
	default:
		if err := u.answer(); err != nil {
			x.finish(err)
		} else if err := u.loop.Want(u.token, x.wants()); err != nil {
			x.finish(err)
		}
	}
}

// answer sends what the record layer owes.
func (u *Upstream) answer() error {
	if u.tls != nil && u.tls.Owes() && len(u.unsent()) == 0 {
		return u.send(u.loop.Out, nil)
	}
	return nil
}

func (x *exchange) finish(err error) {
	if x.over {
		return
	}
	x.over = true
	if x.timer != nil {
		x.timer.Stop()
	}
	x.up.loop.Remove(x.up.token)
	x.done <- err
}
