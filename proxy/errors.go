package proxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"pghandoff/certs"
	"pghandoff/pgwire"
	"pghandoff/tlsstate"
)

// SQLSTATEs that pghandoff itself says (PostgreSQL, appendix "Error Codes").
const (
	codeConnectionRefused = "08001" // sqlclient_unable_to_establish_sqlconnection
	codeConnectionFailure = "08006"
	codeProtocolViolation = "08P01"
	codeNotSupported      = "0A000"
	codeNotAuthorized     = "28000"
	codeWrongPassword     = "28P01"
	codeNoSuchDatabase    = "3D000"
	codeSyntax            = "42601"
	codeTooMany           = "53300"
	codeShutdown          = "57P01"
	codeIdle              = "57P05" // idle_session_timeout
	codeIdleInTransaction = "25P03"
	codeInternal          = "XX000"
)

// Failure is what a function is told instead of what it asked for: the one
// form that every refusal takes before it becomes an ErrorResponse, a reply on
// the handoff socket, an audit line or a line of `check`.
type Failure struct {
	SQLState string
	Message  string // a sentence that says what is wrong
	Hint     string // what to do about it; may be empty
	Retry    bool   // the same request may succeed later
	Reason   string // label in audit and metrics
}

// Error returns message and hint.
func (f *Failure) Error() string {
	if f.Hint != "" {
		return f.Message + " (" + f.Hint + ")"
	}
	return f.Message
}

func (f *Failure) notice() pgwire.Notice {
	return pgwire.Notice{Severity: "FATAL", Code: f.SQLState, Message: f.Message, Hint: f.Hint}
}

// dialError says which server could not be reached or did not let us in.
type dialError struct {
	server string
	err    error
}

func (e *dialError) Error() string { return e.server + ": " + e.err.Error() }
func (e *dialError) Unwrap() error { return e.err }

// credentialError is a password that could not be fetched.
type credentialError struct{ err error }

func (e *credentialError) Error() string { return e.err.Error() }
func (e *credentialError) Unwrap() error { return e.err }

// failureOf is the table from an error to what a function is told. An error it
// does not know is internal: its text stays in the log.
func failureOf(err error) *Failure {
	var f *Failure
	var server *pgwire.ServerError
	var credential *credentialError
	switch {
	case errors.As(err, &f):
		return f
	case errors.As(err, &server):
		return &Failure{SQLState: server.Code, Message: server.Message, Hint: server.Hint, Retry: !lasting(err), Reason: "server_refused"}
	case errors.As(err, &credential):
		return &Failure{SQLState: codeConnectionRefused, Message: "the password of this route cannot be fetched", Hint: "the daemon's log says why", Retry: true, Reason: "no_password"}
	case isTrust(err):
		return &Failure{SQLState: codeConnectionFailure, Message: inner(err), Reason: "tls"}
	case errors.Is(err, pgwire.ErrNoPassword), errors.Is(err, pgwire.ErrClearText), errors.Is(err, pgwire.ErrBindingRequired):
		return &Failure{SQLState: codeConnectionFailure, Message: inner(err), Reason: "login"}
	case errors.Is(err, pgwire.ErrVersion):
		return &Failure{SQLState: codeNotSupported, Message: inner(err), Reason: "protocol"}
	case errors.Is(err, pgwire.ErrProtocol):
		return &Failure{SQLState: codeProtocolViolation, Message: inner(err), Reason: "protocol"}
	case errors.Is(err, errGone):
		return &Failure{SQLState: codeConnectionFailure, Message: "the function went away while it waited", Retry: true, Reason: "gone"}
	case errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENFILE):
		return errDescriptors()
	case errors.Is(err, context.Canceled), errors.Is(err, errPoolClosed):
		return &Failure{SQLState: codeShutdown, Message: "pghandoff is shutting down", Retry: true, Reason: "shutdown"}
	}
	var dial *dialError
	if errors.As(err, &dial) {
		return &Failure{SQLState: codeConnectionRefused, Message: "could not connect to server " + dial.server + ": " + plain(dial.err), Retry: true, Reason: "unreachable"}
	}
	return &Failure{SQLState: codeInternal, Message: "internal error", Hint: "the daemon's log says more", Reason: "internal"}
}

// isTrust reports whether an error is about certificates or TLS.
func isTrust(err error) bool { return trustError(err) != nil }

// trustError returns the error about certificates or TLS within err, whose own
// words are a sentence; nil: there is none.
func trustError(err error) error {
	var verify *tlsstate.VerifyError
	var alert *tlsstate.AlertError
	var version *tlsstate.VersionError
	var suite *tlsstate.SuiteError
	var protocol *tlsstate.ProtocolError
	var own *certs.Error
	switch {
	case errors.As(err, &verify):
		return verify
	case errors.As(err, &alert):
		return alert
	case errors.As(err, &version):
		return version
	case errors.As(err, &suite):
		return suite
	case errors.As(err, &protocol):
		return protocol
	case errors.As(err, &own):
		return own
	}
	for _, sentinel := range []error{tlsstate.ErrNotOffered, tlsstate.ErrRefused, tlsstate.ErrNotPostgres, tlsstate.ErrNotTLS, tlsstate.ErrNoALPN, tlsstate.ErrClientNoALPN, tlsstate.ErrHandover, tlsstate.ErrExhausted} {
		if errors.Is(err, sentinel) {
			return sentinel
		}
	}
	return nil
}

// inner returns the text of an error with the server's address in front and
// without what callers wrapped around it.
func inner(err error) string {
	text := err.Error()
	if trust := trustError(err); trust != nil {
		text = trust.Error()
	}
	var dial *dialError
	if errors.As(err, &dial) {
		return dial.server + ": " + strings.TrimPrefix(text, dial.server+": ")
	}
	return text
}

// plain says a network error in words.
func plain(err error) string {
	var dns *net.DNSError
	var op *net.OpError
	switch {
	case errors.As(err, &dns) && dns.IsNotFound:
		return fmt.Sprintf("host name %q not found", dns.Name)
	case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, context.DeadlineExceeded):
		return "no answer in time"
	case errors.Is(err, unix.ECONNRESET):
		return "connection reset by peer"
	case errors.Is(err, errEnded):
		return "the server closed the connection"
	case errors.As(err, &op):
		return strings.TrimPrefix(op.Err.Error(), "connect: ")
	}
	return strings.TrimSuffix(err.Error(), ": "+io.ErrUnexpectedEOF.Error())
}

// lasting reports whether a failed dial would fail the same way if it were
// repeated at once: a refused login or a certificate, not an unreachable host.
func lasting(err error) bool {
	var server *pgwire.ServerError
	if errors.As(err, &server) {
		// 53300 too many connections, 57P0x starting up or shutting down
		return !strings.HasPrefix(server.Code, "53") && !strings.HasPrefix(server.Code, "57P")
	}
	return isTrust(err) || errors.Is(err, pgwire.ErrNoPassword) || errors.Is(err, pgwire.ErrClearText) || errors.Is(err, pgwire.ErrBindingRequired)
}

func errNoRoute(name string) *Failure {
	return &Failure{SQLState: codeNoSuchDatabase, Message: fmt.Sprintf("there is no route %q", name), Hint: "functions name a route of the configuration as their database", Reason: "no_route"}
}

func errOtherRoute(route, named string) *Failure {
	return &Failure{SQLState: codeNoSuchDatabase, Message: fmt.Sprintf("this descriptor is a lease of route %q, not of %q", route, named), Reason: "no_route"}
}

func errNotAllowed(p *Peer, route string) *Failure {
	return &Failure{SQLState: codeNotAuthorized, Message: fmt.Sprintf("%s may not use route %q", p, route), Hint: "the route's allow rules must match it", Reason: "not_allowed"}
}

func errPoolFull(route string, waited time.Duration, max int) *Failure {
	return &Failure{SQLState: codeTooMany, Message: fmt.Sprintf("no connection of route %q became free within %s", route, waited.Round(time.Millisecond)),
		Hint: fmt.Sprintf("all %d are in use: pool.max and pool.wait_timeout bound them", max), Retry: true, Reason: "pool_full"}
}

func errOverLimit(who holder, setting string, n int) *Failure {
	return &Failure{SQLState: codeTooMany, Message: fmt.Sprintf("%s is over its limit of %d", who, n), Hint: "setting limits." + setting, Retry: true, Reason: "over_limit"}
}

func errDescriptors() *Failure {
	return &Failure{SQLState: codeTooMany, Message: "the daemon is out of file descriptors", Hint: "raise its LimitNOFILE", Retry: true, Reason: "descriptors"}
}

// errGone: the function hung up before it was granted anything.
var errGone = errors.New("the function went away")

func errShutdown() *Failure {
	return &Failure{SQLState: codeShutdown, Message: "terminating connection: pghandoff is shutting down", Retry: true, Reason: "shutdown"}
}
