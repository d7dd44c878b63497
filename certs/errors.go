package certs

import (
	"fmt"
	"time"
)

// Reason tells in one word why a set was not accepted. Its String is short and stable, fit for a metric's label.
type Reason uint8

const (
	Unreadable   Reason = iota // missing, not a regular file, too large, changing while it is read
	Exposed                    // the private key can be read or replaced by other users
	Malformed                  // not PEM, cut off, of an unexpected kind, not parseable
	Encrypted                  // the private key needs a passphrase
	Mismatched                 // the key does not belong to the first certificate
	Incomplete                 // a part is missing, or the chain is not leaf first and each signed by the next
	Expired                    // past its end
	NotYetValid                // before its start
	WrongPurpose               // the leaf may not be a TLS client
	Revoked                    // given up by an operator
	Unissued                   // the authority has not signed
)

// String returns the reason in the spelling used for metrics and the audit.
func (r Reason) String() string {
	names := [...]string{"unreadable", "exposed", "malformed", "encrypted", "mismatched", "incomplete", "expired",
		"not_yet_valid", "wrong_purpose", "revoked", "unissued"}
	if int(r) < len(names) {
		return names[r]
	}
	return fmt.Sprintf("reason(%d)", uint8(r))
}

// Error is a set that was refused. Its text is a sentence that names the file and says what to do; it never holds
// bytes of the file.
type Error struct {
	Reason   Reason
	Path     string // the file at fault, empty if the set did not come from files
	Sentence string // what is wrong and, after a colon, what to do about it
	Err      error  // the cause, or nil
}

// Error returns the sentence.
func (e *Error) Error() string { return e.Sentence }

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// refuse builds an *Error; the sentence names the path itself where it reads best.
func refuse(reason Reason, path, format string, args ...any) *Error {
	return &Error{Reason: reason, Path: path, Sentence: fmt.Sprintf(format, args...)}
}

// span writes a duration the way people say it, in its largest unit only: "45 s", "12 min", "2 h", "3 d".
func span(d time.Duration) string {
	if d < 0 {
		d = -d
	}
	switch {
	case d < 2*time.Minute:
		return fmt.Sprintf("%d s", int(d/time.Second))
	case d < 2*time.Hour:
		return fmt.Sprintf("%d min", int(d/time.Minute))
	case d < 48*time.Hour:
		return fmt.Sprintf("%d h", int(d/time.Hour))
	}
	return fmt.Sprintf("%d d", int(d/(24*time.Hour)))
}

// stamp writes an instant for an error sentence.
func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }
