package pgwire

import "encoding/binary"

// Tracker follows one session by the frames that pass in either direction and
// says what it is doing. It keeps counts, the current frame's header and, for
// the two messages whose content matters, a bounded body; never data.
//
// After an error in an extended message the server ignores everything up to the
// next Sync, simple queries and function calls included. One that is sent when
// the error has been seen is owed no answer. One that was sent before, behind
// extended messages without a Sync, may have been answered or ignored, and if
// an error comes then, the count of owed answers is uncertain. So it is where a
// COPY can have read or left what was sent ahead. An uncertain session is never
// quiet again and nobody waits for it to become so.
//
// The zero value stands at a fresh ReadyForQuery, except that its status is
// unset: use [NewTracker]. Not safe for concurrent use.
type Tracker struct {
	front, back  direction
	status       byte   // of the last ReadyForQuery: 'I', 'T' or 'E'
	owed         int    // ReadyForQuery messages that the server still owes
	last         byte   // last message that made the server owe one: Q, F or S
	unsynced     bool   // extended messages were sent and no Sync behind them: an error makes the server skip
	copyIn       bool   // the server reads CopyData from the function
	copyOut      bool   // the server sends CopyData
	skipping     bool   // the server ignores all up to the next Sync
	doubtful     bool   // a query was sent that an error in front of it would make the server ignore
	early        bool   // copy messages were sent before the server asked for them
	mixed        bool   // and something else behind them
	ended        int    // ends of a COPY among them
	ignored      bool   // a Sync is taken as ignored by a COPY that may yet fail
	uncertain    bool   // the count of owed answers can no longer be known
	resets       resets // of the session by the function, if they are minded
	transactions uint64 // answers after which the session was idle
	body         []byte
	reported     []Parameter
}

// maxTrackedBody bounds a ParameterStatus that the tracker will read. 64 KiB.
const maxTrackedBody = 64 << 10

// direction is where one stream stands in its current frame.
type direction struct {
	header [headerLen]byte
	have   int    // bytes of the header seen
	left   uint32 // bytes of the body still to come, once have == headerLen
}

func (d *direction) atBoundary() bool { return d.have == 0 }

// take consumes header bytes from p. It reports whether the header is whole.
func (d *direction) take(p []byte) (n int, whole bool) {
	n = copy(d.header[d.have:], p)
	d.have += n
	return n, d.have == headerLen
}

func (d *direction) length() uint32 { return binary.BigEndian.Uint32(d.header[1:]) }

// skip consumes body bytes from p and closes the frame at its end.
func (d *direction) skip(p []byte) (n int, done bool) {
	n = len(p)
	if uint64(n) > uint64(d.left) {
		n = int(d.left)
	}
	d.left -= uint32(n)
	if d.left == 0 {
		d.have = 0
		return n, true
	}
	return n, false
}

// NewTracker returns a tracker of a session that stands at ReadyForQuery with
// the given transaction status.
func NewTracker(status byte) Tracker { return Tracker{status: status} }

// Status returns the transaction status of the last ReadyForQuery.
func (t *Tracker) Status() byte { return t.status }

// Owed returns how many ReadyForQuery the server still owes.
func (t *Tracker) Owed() int { return t.owed }

// Transactions returns how many answers left the session outside a transaction.
func (t *Tracker) Transactions() uint64 { return t.transactions }

// InCopy reports whether a COPY is under way, in either direction.
func (t *Tracker) InCopy() bool { return t.copyIn || t.copyOut }

// AtBoundary reports whether both streams stand between two messages.
func (t *Tracker) AtBoundary() bool { return t.front.atBoundary() && t.back.atBoundary() }

// BackendAtBoundary reports whether the server's stream stands between two
// messages, so that one of ours may be put there for the function.
func (t *Tracker) BackendAtBoundary() bool { return t.back.atBoundary() }

// Quiet reports whether nothing is under way: no message half sent, no answer
// owed, no COPY, no extended message without its Sync, and all that is certain.
// The session may still be in a transaction.
func (t *Tracker) Quiet() bool {
	return t.AtBoundary() && t.owed == 0 && !t.unsynced && !t.InCopy() && !t.uncertain
}

// Idle reports whether the session is quiet and outside a transaction.
func (t *Tracker) Idle() bool { return t.Quiet() && t.status == 'I' }

// ServersTurn reports whether the server has something to say before the function
// has: an answer is owed, and it waits for no data of a COPY nor half a message.
func (t *Tracker) ServersTurn() bool { return t.owed > 0 && !t.copyIn && t.front.atBoundary() }

// Settling reports whether the server alone can make the session quiet: all
// that the function sent is whole and only answers are missing.
func (t *Tracker) Settling() bool {
	return t.front.atBoundary() && !t.unsynced && !t.copyIn && !t.uncertain
}

// TakeReported returns the ParameterStatus messages seen since the last call
// and forgets them.
func (t *Tracker) TakeReported() []Parameter {
	p := t.reported
	t.reported = nil
	return p
}

// Frontend follows bytes on their way from the function to the server. It
// returns how many may be forwarded: all of them, or those in front of a
// Terminate message (then terminate is true and the rest is void), or those in
// front of a message that no server accepts (then the error wraps
// [ErrProtocol]).
func (t *Tracker) Frontend(p []byte) (n int, terminate bool, err error) {
	for n < len(p) {
		if t.front.have < headerLen {
			start := n
			if t.front.have == 0 {
				if p[n] == 'X' {
					return n, true, nil
				}
				if !frontendType(p[n]) {
					return n, false, protocolErrorf("invalid frontend message type %d", p[n])
				}
			}
			used, whole := t.front.take(p[n:])
			n += used
			if !whole {
				return n, false, nil
			}
			length := t.front.length()
			if length < 4 || length > maxFrontendLength {
				if used == headerLen { // none of it is forwarded
					t.front.have = 0
				}
				return start, false, protocolErrorf("message %q announces a length of %d bytes", t.front.header[0], int32(length))
			}
			t.front.left = length - 4
			t.sent(t.front.header[0])
		}
		used, _ := t.front.skip(p[n:])
		n += used
	}
	return n, false, nil
}

// frontendType reports whether a function may send a message of this type
// after start-up.
func frontendType(c byte) bool {
	switch c {
	case 'B', 'C', 'D', 'E', 'F', 'H', 'P', 'Q', 'S', 'c', 'd', 'f':
		return true
	}
	return false
}

// sent counts a message of the function.
func (t *Tracker) sent(typ byte) {
	if t.owed == 0 && !t.unsynced && !t.copyIn && typ != 'd' && typ != 'c' && typ != 'f' {
		t.early, t.mixed, t.ended = false, false, 0 // copy messages from before this one were void
	}
	t.mixed = t.mixed || t.early && typ != 'd' && typ != 'c' && typ != 'f'
	switch typ {
	case 'Q', 'F':
		if t.skipping {
			return
		}
		t.doubtful = t.doubtful || t.unsynced
		if t.copyIn {
			t.uncertain = true // the server takes it as an error of the COPY
		}
		t.owed++
		t.last = typ
	case 'S':
		if t.copyIn {
			t.ignored = true // by a server in COPY FROM STDIN
			return
		}
		t.owed++
		t.last, t.unsynced, t.skipping = 'S', false, false
	case 'P', 'B', 'D', 'E', 'C', 'H':
		if typ == 'H' && (t.front.left == 0 || t.copyIn) {
			return // Flush fails only if it has a body, and a COPY ignores it
		}
		if t.copyIn {
			t.uncertain = true
		}
		t.unsynced = true
	case 'd':
		t.early = t.early || !t.copyIn
	case 'c', 'f':
		if !t.copyIn {
			t.early = true
			t.ended++
		}
		t.copyIn = false
	}
}

// Backend follows bytes on their way from the server to the function and
// returns how many of them may be forwarded: all, unless the error (which wraps
// [ErrProtocol]) says that the server does not speak the protocol, in front of
// the message in question unless some of that is forwarded already, or resets are
// minded (see [Tracker.MindResets]).
func (t *Tracker) Backend(p []byte) (n int, err error) {
	t.resets.withheld = t.resets.withheld && !t.back.atBoundary()
	start := -1 // of the message that p[n] belongs to; -1: in front of p
	for n < len(p) {
		if t.resets.seen && t.back.atBoundary() && t.resets.stop(p[n], n) {
			return n, nil
		}
		if t.back.atBoundary() {
			start = n
		}
		if t.back.have < headerLen {
			used, whole := t.back.take(p[n:])
			n += used
			if !whole {
				return n, nil
			}
			if err := t.announced(); err != nil {
				if used == headerLen { // none of it is forwarded
					t.back.have = 0
				}
				return max(start, 0), err
			}
		}
		used, done := t.back.skip(p[n:])
		if t.wantsBody() {
			t.body = append(t.body, p[n:n+used]...)
		}
		n += used
		if done {
			if err := t.arrived(t.back.header[0]); err != nil {
				if start < 0 { // its beginning is forwarded already
					start = n
				}
				return start, err
			}
		}
	}
	return n, nil
}

// announced checks the header of a server message.
func (t *Tracker) announced() error {
	length, typ := t.back.length(), t.back.header[0]
	if int32(length) < 4 {
		return protocolErrorf("server message %q announces a length of %d bytes", typ, int32(length))
	}
	if typ == 'Z' && length != 5 || typ == 'S' && length > maxTrackedBody {
		return protocolErrorf("server message %q announces a length of %d bytes", typ, length)
	}
	t.back.left = length - 4
	t.body = t.body[:0]
	if t.wantsBody() && cap(t.body) < int(t.back.left) {
		t.body = make([]byte, 0, t.back.left)
	}
	return nil
}

func (t *Tracker) wantsBody() bool {
	typ := t.back.header[0]
	return typ == 'Z' || typ == 'S' || typ == 'C' && t.resets.minded && t.back.length() <= maxTag
}

// arrived takes note of a whole server message.
func (t *Tracker) arrived(typ byte) error {
	switch typ {
	case 'Z':
		return t.ready(t.body[0])
	case 'S':
		p, err := ParseParameterStatus(t.body)
		if err != nil {
			return err
		}
		if len(t.reported) < maxParameters {
			t.reported = append(t.reported, p)
		}
	case 'G':
		t.copyInBegins()
	case 'H':
		t.copyOut = true
	case 'W': // COPY both ways: only replication, which is never pooled
		t.copyIn, t.copyOut, t.uncertain = true, true, true
	case 'c':
		t.copyOut = false
	case 'C':
		t.ignored = false // the COPY has read past it
		t.resets.completed(t.body)
	case 'E':
		t.resets.seen = false // it is undone
		// If a COPY fails before it has read the Sync that it would have
		// ignored, the server answers that too.
		t.uncertain = t.uncertain || t.ignored || t.doubtful
		t.skipping = t.unsynced && t.owed == 0
		t.copyIn, t.copyOut, t.ignored = false, false, false
	}
	return nil
}

func (t *Tracker) ready(status byte) error {
	if status != 'I' && status != 'T' && status != 'E' {
		return protocolErrorf("ReadyForQuery with transaction status %d", status)
	}
	if t.owed == 0 && !t.uncertain {
		return protocolErrorf("ReadyForQuery that nobody asked for")
	}
	if t.owed > 0 {
		t.owed--
	}
	if t.owed == 0 {
		t.doubtful = false
	}
	if status == 'I' {
		t.transactions++
	}
	t.status, t.copyIn, t.copyOut = status, false, false
	t.resets = resets{minded: t.resets.minded}
	return nil
}

// copyInBegins notes that the server now reads CopyData. In the extended
// protocol it ignores Sync and Flush until the copy ends, those included that
// were sent before the function could know (libpq does so): with exactly one
// Sync under way and nothing behind it that answer is no longer owed. A simple
// query that began it reads the copy messages right behind it, which pgx sends
// without waiting. Whatever else was sent ahead makes the count uncertain.
func (t *Tracker) copyInBegins() {
	t.copyIn = true
	switch {
	case t.early && !t.mixed && t.owed == 1 && t.last == 'Q' && !t.unsynced:
		if t.ended > 0 { // all of it has been sent
			t.ended--
			t.copyIn = false
		}
	case t.early || t.owed > 1:
		t.uncertain = true
	case t.owed == 0:
		t.uncertain = t.uncertain || !t.unsynced
	case t.last == 'S':
		if t.unsynced {
			t.uncertain = true
		}
		t.owed, t.unsynced, t.ignored = 0, true, true
	case t.unsynced: // extended messages behind a simple query
		t.uncertain = true
	}
}

// Spoil marks the session as one whose state is not known any more: it will
// never be quiet again.
func (t *Tracker) Spoil() { t.uncertain = true }
