package pgwire

// resets watches a session for RESET and DISCARD ALL. They take the settings away
// that a pooler gave it in the place of start-up parameters, to which they would
// go back in a session that had started with them.
type resets struct {
	minded   bool
	seen     bool // one has been completed since the last ReadyForQuery
	withheld bool // the frame that Backend is in is a report that is not forwarded
	halted   bool // Backend has stopped in front of ReadyForQuery
	taken    bool // and that was told
}

// maxTag bounds a CommandComplete that may be one of these, with its length.
const maxTag = 4 + 16

// MindResets lets [Tracker.Backend] stop where the parameters of a session can be
// set right that the function has reset: reports of parameters that come behind
// RESET or DISCARD ALL, up to the next ReadyForQuery, are returned by themselves,
// and [Tracker.Withheld] says that they are not to be forwarded; and in front of
// that ReadyForQuery it stops, and [Tracker.TakeReset] says so.
func (t *Tracker) MindResets() { t.resets.minded = true }

// Withheld reports whether the bytes that Backend has returned last are a report
// that the function is not to have.
func (t *Tracker) Withheld() bool { return t.resets.withheld }

// TakeReset reports, once, that Backend has stopped in front of a ReadyForQuery
// because the function has reset its session.
func (t *Tracker) TakeReset() bool {
	at := t.resets.halted && !t.resets.taken
	t.resets.taken = t.resets.halted
	return at
}

// stop says whether Backend stops in front of a frame of this type; n bytes of
// others come first.
func (r *resets) stop(typ byte, n int) bool {
	switch {
	case r.withheld:
		return true // behind one that is not forwarded
	case typ == 'S':
		r.withheld = n == 0
		return n > 0
	case typ == 'Z' && !r.halted:
		r.halted = true
		return true
	}
	return false
}

// completed takes note of the tag of a command.
func (r *resets) completed(body []byte) {
	if r.minded {
		tag := string(body)
		r.seen = r.seen || tag == "RESET\x00" || tag == "DISCARD ALL\x00"
	}
}
