package handoff

import (
	"fmt"
	"math"
	"slices"
	"time"
)

const (
	maxCallSize   = 8 << 10 // 8 KiB, a request's line without its line break
	maxID         = 64      // bytes of an id
	maxParameters = 128     // start-up parameters of a request
	maxReported   = 1024    // parameters of a reply
	version       = 1
	versionMember = `{"v":1` // begins every line
)

// Op is what a request asks for.
type Op string

const (
	OpAcquire Op = "acquire"
	OpCancel  Op = "cancel"
	OpRelease Op = "release"
	OpPing    Op = "ping"
)

// State is where a handed-over descriptor stands in PostgreSQL's protocol.
type State string

const (
	Startup State = "startup" // before the start-up message, which the function sends itself
	Ready   State = "ready"   // at ReadyForQuery
)

// Transport is how a lease's bytes reach the server.
type Transport string

const (
	Any    Transport = "any"    // in a request only: what the route prefers
	Bridge Transport = "bridge" // relayed by the daemon
	Plain  Transport = "plain"  // the TCP socket to the server, no TLS
	Kernel Transport = "kernel" // the TCP socket to the server, TLS done by the Linux kernel
)

// Call is one request as it stands on a line.
type Call struct {
	ID *string // comes back in the reply; nil: none
	Op Op

	Database        string // the route; "" leaves it to the daemon (OpAcquire, as all down to Parameters)
	User            string
	State           State          // Startup if the line names none
	Transport       Transport      // Any if the line names none
	Wait            *time.Duration // whole milliseconds; nil: as long as the route allows; 0: not at all
	ApplicationName string
	Parameters      []Parameter // start-up parameters in the order of the line; nil if there are none

	Lease  string  // OpCancel and OpRelease
	Secret *Secret // nil: none given
}

// ParseCall reads one line, given without its line break. Unknown names are ignored; whatever else is not as the
// protocol has it is a *Refusal with SQLSTATE 08P01. The Call then holds the ID if that was read, so that it can go back.
//
// The Call's strings share one copy of the line: what is to be kept for long, and is not all of it, is better cloned.
func ParseCall(line []byte) (Call, error) {
	if len(line) > maxCallSize {
		return Call{}, callTooLong()
	}
	return parseCall(string(line))
}

func callTooLong() *Refusal { return malformed("the line is longer than %d KiB", maxCallSize>>10) }

func parseCall(line string) (Call, error) {
	c := Call{State: Startup, Transport: Any}
	s, err := newScanner(line)
	if err != nil {
		return c, err
	}
	var seenVersion bool
	if err := s.object(func(name string) error { return c.member(&s, name, &seenVersion) }); err != nil {
		return c, err
	}
	if err := s.end(); err != nil {
		return c, err
	}
	switch {
	case !seenVersion:
		return c, malformed("\"v\" is missing")
	case c.Op == "":
		return c, malformed("\"op\" is missing")
	case (c.Op == OpCancel || c.Op == OpRelease) && c.Lease == "":
		return c, malformed("\"lease\" is missing")
	}
	return c, nil
}

// member reads the value of one name.
func (c *Call) member(s *scanner, name string, seenVersion *bool) (err error) {
	switch name {
	case "v":
		*seenVersion = true
		return readVersion(s)
	case "id":
		c.ID, err = readID(s)
	case "op":
		c.Op, err = choice(s, name, OpAcquire, OpCancel, OpRelease, OpPing)
	case "database":
		c.Database, err = s.text()
	case "user":
		c.User, err = s.text()
	case "state":
		c.State, err = choice(s, name, Startup, Ready)
	case "transport":
		c.Transport, err = choice(s, name, Any, Bridge, Plain, Kernel)
	case "wait_ms":
		var ms uint64
		ms, err = s.integer(math.MaxInt64 / uint64(time.Millisecond))
		wait := time.Duration(ms) * time.Millisecond
		c.Wait = &wait
	case "application_name":
		c.ApplicationName, err = s.text()
	case "parameters":
		c.Parameters, err = s.texts(maxParameters)
	case "lease":
		c.Lease, err = s.text()
	case "secret":
		c.Secret, err = readSecret(s)
	default:
		return s.skip()
	}
	return err
}

func readVersion(s *scanner) error {
	if n, err := s.integer(math.MaxUint32); err != nil {
		return err
	} else if n != version {
		return malformed("version %d is unknown, this is version %d", n, version)
	}
	return nil
}

func readID(s *scanner) (*string, error) {
	id, err := s.text()
	if err != nil {
		return nil, err
	}
	if len(id) > maxID {
		return nil, malformed("\"id\" is longer than %d bytes", maxID)
	}
	return &id, nil
}

func readSecret(s *scanner) (*Secret, error) {
	n, err := s.integer(math.MaxUint32)
	secret := Secret(n)
	return &secret, err
}

// choice reads a string that must be one of several, and returns that one.
func choice[T ~string](s *scanner, name string, options ...T) (T, error) {
	text, err := s.text()
	if err != nil {
		return "", err
	}
	for _, option := range options {
		if string(option) == text {
			return option, nil
		}
	}
	// The clone keeps the options of the usual case on the stack.
	return "", malformed("%q is %.64q, must be one of %q", name, text, slices.Clone(options))
}

// AppendCall writes the request as a line with its line break. It fails if the line would be too long.
func AppendCall(dst []byte, c Call) ([]byte, error) {
	start := len(dst)
	w := objectWriter{append(dst, versionMember...)}
	if c.ID != nil {
		w.text("id", *c.ID)
	}
	w.text("op", string(c.Op))
	w.textUnlessEmpty("database", c.Database)
	w.textUnlessEmpty("user", c.User)
	if c.Op == OpAcquire {
		w.textUnlessEmpty("state", string(c.State))
		w.textUnlessEmpty("transport", string(c.Transport))
	}
	if c.Wait != nil {
		const roundUp = time.Millisecond - 1 // a short wait is not "not at all"
		w.number("wait_ms", uint64(max(0, (*c.Wait+roundUp).Milliseconds())))
	}
	w.textUnlessEmpty("application_name", c.ApplicationName)
	w.texts("parameters", c.Parameters)
	w.textUnlessEmpty("lease", c.Lease)
	if c.Secret != nil {
		w.number("secret", uint64(*c.Secret))
	}
	out := append(w.dst, '}', '\n')
	if size := len(out) - start - 1; size > maxCallSize {
		return dst, fmt.Errorf("handoff request has %d bytes, at most %d are allowed: send fewer or shorter parameters",
			size, maxCallSize)
	}
	return out, nil
}
