package proxy

import (
	"cmp"

	"pghandoff/pgwire"
)

// luggage is what a function's start-up parameters are to its lease: settings
// that the session does not have by itself. They travel to the server in front of
// the function's first message, and those that it has reset in front of the next
// one. It belongs to the lease's loop.
type luggage struct {
	settings []pgwire.Parameter
	due      bool           // they go with the next message
	again    bool           // they were sent before: those go that are missing
	script   *pgwire.Script // the server's answer to them; nil: none is under way
	commands int            // of which it consists
	told     *parameterSet  // what the function believes that the server reports
	first    *parameterSet  // what it was told at its start
}

func newLuggage(settings []pgwire.Parameter, due bool, told *parameterSet) *luggage {
	return &luggage{settings: settings, due: due, again: !due, told: told, first: told}
}

// parameters are those that the function is told of.
func (l *Lease) parameters() *parameterSet {
	if l.luggage != nil {
		return l.luggage.told
	}
	return l.up.parameters
}

// load puts what is due in front of what the function says, if the session can
// take it; quiet says that it was when the function began to speak.
func (g *luggage) load(p []byte, quiet bool, status byte) []byte {
	if !g.due || !quiet || status == 'E' {
		return p
	}
	var batch []byte
	switch {
	case g.again:
		batch, g.commands = pgwire.AppendMissing(nil, g.settings), len(g.settings)
	default:
		batch, g.commands = pgwire.AppendSettingsInFront(nil, g.settings), len(g.settings)+1
	}
	g.due, g.again, g.script = false, true, pgwire.NewScript(1)
	return append(batch, p...)
}

// hearWithLuggage is hear for a function with start-up parameters: of what the
// server says of them it is told what it would be if the session had started with
// them.
func (b *bridge) hearWithLuggage(p []byte) (out []byte, fault error) {
	g, t := b.lease.luggage, &b.up.tracker
	if g.script != nil {
		p, fault = b.unload(p)
	}
	for fault == nil && len(p) > 0 {
		var n int
		n, fault = t.Backend(p)
		reported := t.TakeReported()
		fault = cmp.Or(fault, b.up.report(reported))
		switch {
		case t.Withheld():
			reported = nil
		case out == nil && n == len(p):
			out = p
		default:
			out = append(out, p[:n]...)
		}
		for _, r := range reported {
			g.told = g.told.with(r)
		}
		p = p[n:]
		if t.TakeReset() {
			g.due = true
			out = g.restore(out, b.up.parameters)
		}
	}
	return out, fault
}

// restore tells the function what the server reports, which the function has
// reset, as it will be when the settings are back.
func (g *luggage) restore(dst []byte, reported *parameterSet) []byte {
	for _, r := range reported.list {
		if p, ok := g.first.find(r.Name); ok && sets(g.settings, r.Name) {
			r = p
		}
		dst = g.tell(dst, r)
	}
	return dst
}

// unload takes the server's answer to the settings out of what it says, and
// returns the rest. What it reports otherwise than the function believes is put
// in front of that.
func (b *bridge) unload(p []byte) (rest []byte, fault error) {
	g := b.lease.luggage
	rest, done, err := g.script.Feed(p)
	if !done && err == nil {
		return nil, nil
	}
	out := g.script.Outcome()
	g.script = nil
	switch {
	case err != nil: // a refusal, too
	case out.Refused != nil: // in a transaction, in which nothing more is done
		err = out.Refused
	case len(out.Done) != g.commands:
		err = errOtherAnswer
	default:
		err = b.up.report(out.Reported)
	}
	if err != nil {
		b.d.front().Post(func() { b.lease.route.known.forget(g.settings) })
		return nil, err
	}
	var told []byte
	for _, r := range out.Reported {
		told = g.tell(told, r)
	}
	return append(told, rest...), nil
}

// tell appends a report of the server for the function, unless that believes so
// already.
func (g *luggage) tell(dst []byte, r pgwire.Parameter) []byte {
	if p, ok := g.told.find(r.Name); ok && p.Value == r.Value {
		return dst
	}
	g.told = g.told.with(r)
	return pgwire.AppendParameterStatus(dst, r)
}
