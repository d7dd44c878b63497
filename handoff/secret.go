package handoff

import (
	"fmt"
	"io"
)

// Secret is a lease's cancel key: who knows it may cancel and release the lease. It prints as [redacted] in every way;
// convert it to uint32 to send it.
type Secret uint32

const redacted = "[redacted]"

// String returns "[redacted]".
func (Secret) String() string { return redacted }

// Format prints "[redacted]" for every verb.
func (Secret) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, redacted) }

// MarshalText returns "[redacted]"; encoders and loggers use it.
func (Secret) MarshalText() ([]byte, error) { return []byte(redacted), nil }
