package handoff

import (
	"errors"
	"fmt"
)

const codeProtocol = "08P01" // protocol_violation, what this package itself answers with

// Refusal is the answer no: what the function is told, and nothing that is not meant for it. It is an error on both
// ends of the conversation.
type Refusal struct {
	SQLState string // five characters
	Message  string // what is the matter, one sentence
	Hint     string // what to do about it; may be empty
	Retry    bool   // the same request may succeed later
}

// Error returns the message, the hint and the SQLSTATE.
func (r *Refusal) Error() string {
	if r.Hint == "" {
		return fmt.Sprintf("%s (SQLSTATE %s)", r.Message, r.SQLState)
	}
	return fmt.Sprintf("%s: %s (SQLSTATE %s)", r.Message, r.Hint, r.SQLState)
}

// IsCode tells whether the error is a Refusal with the SQLSTATE.
func IsCode(err error, sqlState string) bool {
	var r *Refusal
	return errors.As(err, &r) && r.SQLState == sqlState
}

func malformed(format string, args ...any) *Refusal {
	return &Refusal{SQLState: codeProtocol, Message: "malformed line: " + fmt.Sprintf(format, args...),
		Hint: "send one JSON object a line, as version 1 of the handoff protocol has it"}
}
