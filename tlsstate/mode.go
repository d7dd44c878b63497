package tlsstate

import "fmt"

// Mode is libpq's sslmode. The zero value is the safest.
type Mode int

const (
	VerifyFull Mode = iota // chain and name are checked
	VerifyCA               // the chain is checked, the name is not
	Require                // encrypted; the chain is checked only where roots are given, as libpq does
	Prefer                 // as Require, but the caller may go on in plaintext after ErrNotOffered
	Allow                  // plaintext first; when TLS is tried, as Prefer
	Disable                // plaintext; not for Client
)

var modeNames = [...]string{"verify-full", "verify-ca", "require", "prefer", "allow", "disable"}

// ParseMode reads libpq's spelling. The empty string is an error: whoever wants a default says which.
func ParseMode(s string) (Mode, error) {
	for i, name := range modeNames {
		if s == name {
			return Mode(i), nil
		}
	}
	return VerifyFull, fmt.Errorf("unknown TLS mode %q: use verify-full, verify-ca, require, prefer, allow or disable", s)
}

func (m Mode) String() string {
	if m < 0 || int(m) >= len(modeNames) {
		return fmt.Sprintf("Mode(%d)", int(m))
	}
	return modeNames[m]
}

// Negotiation is libpq's sslnegotiation: how the first TLS byte comes to be sent.
type Negotiation int

const (
	Postgres Negotiation = iota // SSLRequest first (PostgreSQL protocol, "SSL Session Encryption")
	Direct                      // TLS at once, with ALPN required (PostgreSQL 17 and newer)
)

var negotiationNames = [...]string{"postgres", "direct"}

// ParseNegotiation reads libpq's spelling.
func ParseNegotiation(s string) (Negotiation, error) {
	for i, name := range negotiationNames {
		if s == name {
			return Negotiation(i), nil
		}
	}
	return Postgres, fmt.Errorf("unknown TLS negotiation %q: use postgres or direct", s)
}

func (n Negotiation) String() string {
	if n < 0 || int(n) >= len(negotiationNames) {
		return fmt.Sprintf("Negotiation(%d)", int(n))
	}
	return negotiationNames[n]
}
