package handoff

import (
	"bytes"
	"errors"
	"slices"
)

// Claim names a lease and what its bearer has to show for it.
type Claim struct {
	Lease  string
	Owner  bool    // the connection that says so has acquired it
	Secret *Secret // nil: none given. Counting and slowing down wrong ones is up to the daemon
}

// MaxPending is how many bytes of a Conversation may wait without anything to be had: once there are more, Next gives a
// request or a fault.
const MaxPending = maxCallSize

// maxOwned is how many leases a connection is remembered to have acquired; older ones need their secret.
const maxOwned = 1024

// Conversation is the daemon's end of one connection of the handoff socket, without the connection: bytes go in and
// requests come out. It is plain data: it does no input and output, holds no lock, and has a buffer only while bytes wait.
// The zero value is ready to use.
//
// Whoever drives it owns the connection, answers in the order of requests, with AppendReply, and sends nothing behind an
// unread grant, since the kernel tells only whether something is unread, not what.
type Conversation struct {
	whole  string // a line that came alone and whole, as most do; it precedes what is in lines
	alone  bool   // there is such a line, which may be empty
	closed bool   // the peer sends no more
	over   bool   // a fault was given
	lines  lines
	owned  []string // leases acquired here, oldest first
}

// Feed takes bytes that were received; it copies them. After Close or a fault it drops them.
//
// Whoever feeds stops reading from the connection while Pending is more than MaxPending: then what a peer sends ahead
// costs memory only up to that and the size of one Feed.
func (c *Conversation) Feed(p []byte) {
	if len(p) == 0 || c.closed || c.over {
		return
	}
	end := bytes.IndexByte(p, '\n')
	if end == len(p)-1 && end <= maxCallSize && c.Pending() == 0 {
		c.whole, c.alone = string(p[:end]), true
		return
	}
	c.lines.add(p)
}

// Close tells that the peer sends no more. The requests before that still come, and a last line without its line break
// is a fault.
func (c *Conversation) Close() { c.closed = true }

// Next returns the next request. Without one, and without a fault, ok is false: more bytes are needed, or, after Close,
// nothing is left. The strings of a request share the memory of its line, see ParseCall.
//
// A fault is what to tell the peer, with SQLSTATE 08P01, before the connection is closed; call then holds only the ID
// that goes back with it. Nothing comes after a fault.
func (c *Conversation) Next() (call Call, ok bool, fault *Refusal) {
	line, ok, err := c.line()
	if ok {
		call, err = parseCall(line)
	}
	if err == nil {
		return call, ok, nil
	}
	*c = Conversation{over: true, owned: c.owned}
	return Call{ID: call.ID}, false, faultOf(err)
}

// faultOf is a function of its own so that only errors cost what errors.As does.
func faultOf(err error) *Refusal {
	var fault *Refusal
	if errors.As(err, &fault) {
		return fault
	}
	return malformed("%v", err) // it is nothing else today
}

// line returns the next line without its line break.
func (c *Conversation) line() (line string, ok bool, err error) {
	if c.alone {
		line, c.whole, c.alone = c.whole, "", false
		return line, true, nil
	}
	raw, ok, tooLong := c.lines.next(maxCallSize)
	switch {
	case tooLong:
		return "", false, callTooLong()
	case !ok && c.closed && c.lines.pending() > 0:
		return "", false, malformed("the last line does not end")
	}
	return string(raw), ok, nil
}

// Pending is how many bytes wait: for Next to be called, or for the rest of their line.
func (c *Conversation) Pending() int {
	n := c.lines.pending()
	if c.alone {
		n += len(c.whole) + len("\n")
	}
	return n
}

// Claim is what a request to cancel or release a lease has to show for itself.
func (c *Conversation) Claim(call Call) Claim {
	return Claim{Lease: call.Lease, Secret: call.Secret, Owner: slices.Contains(c.owned, call.Lease)}
}

// Acquired notes that the lease was granted on this connection. The oldest is forgotten if there are too many.
func (c *Conversation) Acquired(lease string) {
	if len(c.owned) == maxOwned {
		c.owned = slices.Delete(c.owned, 0, 1)
	}
	c.owned = append(c.owned, lease)
}

// Released notes that the lease has ended, in whatever way.
func (c *Conversation) Released(lease string) {
	i := slices.Index(c.owned, lease)
	switch {
	case i < 0:
	case len(c.owned) == 1:
		c.owned = nil
	default:
		c.owned = slices.Delete(c.owned, i, i+1)
	}
}
