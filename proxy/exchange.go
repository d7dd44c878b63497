package proxy

import (
	"cmp"
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
	timer  loop.Timer
	done   func(*pgwire.Outcome, error)
	over   bool
}

var (
	errNoAnswer = errors.New("the server did not answer in time")
	errMore     = errors.New("the server said more than was asked")
	// errOtherAnswer is an answer to something else than was asked.
	errOtherAnswer error = &Failure{SQLState: codeProtocolViolation, Message: "the server did not answer what was asked", Reason: "protocol"}
)

// exchange runs a script of ours on the quiet session, on its loop and within
// limit, and then calls done. On an error the session cannot be used any more.
func (u *Upstream) exchange(request []byte, ready int, limit time.Duration, done func(*pgwire.Outcome, error)) {
	x := &exchange{up: u, script: pgwire.NewScript(ready), done: done}
	if err := u.send(u.loop.Out, request); err != nil {
		x.finish(fmt.Errorf("send to server: %w", err))
		return
	}
	if err := u.watch(x, x.wants()); err != nil {
		x.finish(err)
		return
	}
	u.loop.Set(&x.timer, limit, x)
}

// Expired is called when the server has not answered in time.
func (x *exchange) Expired(*loop.Timer) { x.finish(errNoAnswer) }

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
		if err := u.answer(u.loop.Out); err != nil {
			x.finish(err)
		} else if err := u.watch(x, x.wants()); err != nil {
			x.finish(err)
		}
	}
}

func (x *exchange) finish(err error) {
	if x.over {
		return
	}
	x.over = true
	u := x.up
	u.loop.Cancel(&x.timer)
	out := x.script.Outcome()
	if err = cmp.Or(err, u.report(out.Reported)); err != nil {
		x.done(nil, err)
		return
	}
	x.done(out, nil)
}
