package proxy

import (
	"errors"
	"slices"
	"strings"
	"time"

	"pghandoff/pgwire"
)

// settingPatience is how long the server may take to set parameters.
const settingPatience = 5 * time.Second

// maxRemembered bounds how many parameters are remembered on one route. Each is
// no longer than a start-up packet.
const maxRemembered = 1000

// remembered is what servers have made of start-up parameters, such as "ISO, MDY"
// of DateStyle=iso, by name in lower case and value as it was given. It belongs
// to the front loop.
type remembered map[pgwire.Parameter]string

func memoryKey(p pgwire.Parameter) pgwire.Parameter {
	return pgwire.Parameter{Name: strings.ToLower(p.Name), Value: p.Value}
}

// add remembers a value. When there are too many, any of the others goes.
func (r remembered) add(p pgwire.Parameter, value string) {
	k := memoryKey(p)
	if _, there := r[k]; !there && len(r) >= maxRemembered {
		for other := range r {
			delete(r, other)
			break
		}
	}
	r[k] = value
}

// forget forgets parameters that the server does not take any more.
func (r remembered) forget(parameters []pgwire.Parameter) {
	for _, p := range parameters {
		delete(r, memoryKey(p))
	}
}

// value returns what the server will show for p, if that is known.
func (r remembered) value(p pgwire.Parameter) (string, bool) {
	if v, ok := r[memoryKey(p)]; ok {
		return v, true
	}
	return p.Value, isPlainName(p)
}

// isPlainName reports whether p is an application_name that the server takes as
// it is: of at most 63 printable characters of ASCII. Each function may have one
// of its own, which is not worth a round trip, nor a place in the memory.
func isPlainName(p pgwire.Parameter) bool {
	return strings.EqualFold(p.Name, "application_name") && len(p.Value) < 64 && !strings.ContainsFunc(p.Value, func(c rune) bool { return c < ' ' || c > '~' })
}

// match compares parameters with what a session has: due are those that it does
// not have by itself, in their order, and told is what it will report when it has
// them. known says that this is all remembered.
func (r remembered) match(has *parameterSet, settings []pgwire.Parameter) (due []pgwire.Parameter, told *parameterSet, known bool) {
	told, known = has, true
	for _, s := range settings {
		reported, ok := has.find(s.Name)
		value, seen := r.value(s)
		if ok && (reported.Value == s.Value || seen && reported.Value == value) && !sets(due, s.Name) {
			continue
		}
		due = append(due, s)
		known = known && seen
		if ok {
			told = told.with(pgwire.Parameter{Name: reported.Name, Value: value})
		}
	}
	return due, told, known
}

// sets reports whether one of the parameters has that name.
func sets(parameters []pgwire.Parameter, name string) bool {
	return slices.ContainsFunc(parameters, func(p pgwire.Parameter) bool { return strings.EqualFold(p.Name, name) })
}

// set gives the lease the function's start-up parameters and then calls done,
// perhaps at once: what the server reports already costs nothing, and what is
// remembered travels with the function's first message. It runs on the front
// loop.
func (d *Daemon) set(l *Lease, settings []pgwire.Parameter, done func(error)) {
	var sent []pgwire.Parameter
	if g := l.luggage; g != nil { // from the request; these are of the start-up message
		if g.due {
			settings = append(slices.Clone(g.settings), settings...)
		} else {
			sent = slices.Clone(g.settings)
		}
	}
	due, told, known := l.route.known.match(l.up.parameters, settings)
	switch {
	case len(due) == 0:
		done(nil)
	case known:
		l.luggage = newLuggage(append(sent, due...), true, told)
		done(nil)
	default:
		d.try(l, sent, due, done)
	}
}

// try sets parameters at once, since it is not known what the server will make of
// them; sent are those of the lease that were set before.
func (d *Daemon) try(l *Lease, sent, due []pgwire.Parameter, done func(error)) {
	d.inquire(l, pgwire.AppendSettings(nil, due), func(out *pgwire.Outcome, err error) {
		switch {
		case err != nil:
			done(err)
		case out.Refused != nil:
			done(out.Refused)
		case len(out.Values) != len(due): // these are answers to something else
			l.up.tracker.Spoil()
			done(&dialError{server: l.up.server.String(), err: errOtherAnswer})
		default:
			for i, p := range due {
				if !isPlainName(p) {
					l.route.known.add(p, out.Values[i])
				}
			}
			l.luggage = newLuggage(append(sent, due...), false, l.up.parameters)
			done(nil)
		}
	})
}

// inquire runs a batch of ours on the session of a lease that has not begun. It
// runs on the front loop.
func (d *Daemon) inquire(l *Lease, request []byte, done func(*pgwire.Outcome, error)) {
	u := l.up
	l.used = true
	d.work.Add(1) // nobody may wait for this any more
	u.exchange(request, 1, settingPatience, func(out *pgwire.Outcome, err error) {
		defer d.work.Done()
		u.leave()
		if err != nil {
			u.tracker.Spoil()
			done(nil, &dialError{server: u.server.String(), err: err})
			return
		}
		u.tracker = pgwire.NewTracker('I')
		done(out, nil)
	})
}

// codeCannotChange is PostgreSQL's answer to a parameter that cannot be changed
// any more, be it in this session or before the next start of the server.
const codeCannotChange = "55P02"

// needsOwn calls done with whether a refusal of parameters is one of those that
// only the start of a session can set, so that the lease needs an upstream of its
// own.
func (d *Daemon) needsOwn(l *Lease, settings []pgwire.Parameter, refusal error, done func(bool)) {
	var server *pgwire.ServerError
	if !errors.As(refusal, &server) || server.Code != codeCannotChange || !l.up.tracker.Quiet() {
		done(false)
		return
	}
	d.inquire(l, pgwire.AppendStartOnly(nil, settings), func(out *pgwire.Outcome, err error) {
		done(err == nil && out.Refused == nil && len(out.Values) > 0)
	})
}

// replace gives the lease an upstream of its own, which starts with these
// parameters and is closed at the end, in the place of the one that it has. On an
// error that one is closed, too, and not quiet. It runs on the front loop.
func (d *Daemon) replace(l *Lease, startup []pgwire.Parameter, done func(error)) {
	old := l.up
	old.leave()
	old.close()
	old.tracker.Spoil()
	var u *Upstream
	var err error
	d.later(d.front(), func() { u, err = l.route.own(d.base, startup) }, func() {
		if err != nil {
			done(err)
			return
		}
		u.loop, u.tracker, u.own = d.front(), pgwire.NewTracker('I'), true
		l.mu.Lock()
		l.up, l.luggage = u, nil
		l.mu.Unlock()
		l.route.pool.replaced(old, u)
		done(nil)
	})
}
