package handoff

import (
	"errors"
	"fmt"
	"math"
)

const maxReplySize = 64 << 10 // 64 KiB, a reply's line without its line break

// errReplyTooLong is a reply beyond maxReplySize.
var errReplyTooLong = errors.New("reply is longer than 64 KiB")

// Reply is one answer as it stands on a line. Without Granted and Refusal it says yes to a cancel, release or ping.
type Reply struct {
	ID      *string  // of the request
	Granted *Granted // yes to an acquire; one descriptor comes along
	Refusal *Refusal // no
}

// Granted is what a function is told about its lease.
type Granted struct {
	Lease     string
	Database  string // the route, for those that asked without naming one; may be empty
	Transport Transport
	State     State
	// What start-up would have told; with State Startup it may be missing.
	Tx         byte              // transaction status as in ReadyForQuery: I, T or E; 0: not told
	PID        uint32            // the backend's process id; 0: not told
	Secret     *Secret           // for cancel and release; nil: withheld
	Parameters []Parameter       // in the order of the line; nil: none told
	Written    WrittenParameters // goes out instead of Parameters, unless it is nil; never comes in
}

// WrittenParameters are parameters as a line has them, for whoever tells many functions the same.
type WrittenParameters []byte

// WriteParameters writes parameters, each of which has another name.
func WriteParameters(parameters []Parameter) WrittenParameters {
	var w objectWriter
	w.texts("parameters", parameters)
	return w.dst
}

// AppendReply writes the reply as a line with its line break. It fails, leaving dst as it was, if the line would be too
// long.
func AppendReply(dst []byte, r Reply) ([]byte, error) {
	start := len(dst)
	out := append(appendReply(dst, r), '\n')
	if len(out)-start-1 > maxReplySize {
		return dst, errReplyTooLong
	}
	return out, nil
}

func appendReply(dst []byte, r Reply) []byte {
	w := objectWriter{append(dst, versionMember...)}
	if r.ID != nil {
		w.text("id", *r.ID)
	}
	w.boolean("ok", r.Refusal == nil)
	switch {
	case r.Refusal != nil:
		w.text("sqlstate", r.Refusal.SQLState)
		w.text("message", r.Refusal.Message)
		w.textUnlessEmpty("hint", r.Refusal.Hint)
		w.boolean("retry", r.Refusal.Retry)
	case r.Granted != nil:
		g := r.Granted
		w.text("lease", g.Lease)
		w.textUnlessEmpty("database", g.Database)
		w.text("transport", string(g.Transport))
		w.text("state", string(g.State))
		if g.Tx != 0 {
			w.text("tx", string(rune(g.Tx)))
		}
		if g.PID != 0 {
			w.number("pid", uint64(g.PID))
		}
		if g.Secret != nil {
			w.number("secret", uint64(*g.Secret))
		}
		if g.Written != nil {
			w.dst = append(w.dst, g.Written...)
		} else {
			w.texts("parameters", g.Parameters)
		}
	}
	return append(w.dst, '}')
}

// ParseReply reads one line, given without its line break. Unknown names are ignored, other deviations are errors (not
// of type *Refusal: nobody has refused anything).
//
// The Reply's strings share one copy of the line.
func ParseReply(line []byte) (r Reply, err error) {
	if len(line) > maxReplySize {
		return Reply{}, errReplyTooLong
	}
	s, err := newScanner(string(line))
	if err == nil {
		r, err = readReply(&s)
	}
	if err == nil {
		err = s.end()
	}
	if err != nil {
		return Reply{}, replyFault(err)
	}
	return r, nil
}

// replyFault makes an error about a reply of what a scanner says.
func replyFault(err error) error {
	var r *Refusal
	if errors.As(err, &r) {
		return fmt.Errorf("reply of pghandoff: %s", r.Message)
	}
	return fmt.Errorf("reply of pghandoff: %w", err)
}

// readReply reads one reply object.
func readReply(s *scanner) (Reply, error) {
	var r Reply
	var g Granted
	var no Refusal
	var seenVersion, seenOK, ok bool
	err := s.object(func(name string) (err error) {
		switch name {
		case "v":
			seenVersion = true
			return readVersion(s)
		case "id":
			r.ID, err = readID(s)
		case "ok":
			seenOK = true
			ok, err = s.boolean()
		case "sqlstate":
			no.SQLState, err = s.text()
		case "message":
			no.Message, err = s.text()
		case "hint":
			no.Hint, err = s.text()
		case "retry":
			no.Retry, err = s.boolean()
		default:
			return g.member(s, name)
		}
		return err
	})
	switch {
	case err != nil:
		return Reply{}, err
	case !seenVersion || !seenOK:
		return Reply{}, malformed("the reply lacks \"v\" or \"ok\"")
	case !ok:
		r.Refusal = new(no)
	case g.Lease != "" && (g.Transport == "" || g.State == ""):
		return Reply{}, malformed("the grant lacks \"transport\" or \"state\"")
	case g.Lease != "":
		r.Granted = new(g)
	}
	return r, nil
}

// member reads the value of one name that belongs to a grant, and skips that of an unknown one.
func (g *Granted) member(s *scanner, name string) (err error) {
	switch name {
	case "lease":
		g.Lease, err = s.text()
	case "database":
		g.Database, err = s.text()
	case "transport":
		g.Transport, err = choice(s, name, Bridge, Plain, Kernel)
	case "state":
		g.State, err = choice(s, name, Startup, Ready)
	case "tx":
		var tx string
		if tx, err = choice(s, name, "I", "T", "E"); err == nil {
			g.Tx = tx[0]
		}
	case "pid":
		var n uint64
		n, err = s.integer(math.MaxUint32)
		g.PID = uint32(n)
	case "secret":
		g.Secret, err = readSecret(s)
	case "parameters":
		g.Parameters, err = s.texts(maxReported)
	default:
		return s.skip()
	}
	return err
}
