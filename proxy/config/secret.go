package config

import (
	"fmt"
	"io"
	"log/slog"
)

const redacted = "[redacted]"

// Secret is a string that never shows itself: every formatting verb, JSON,
// YAML and structured loggers print "[redacted]". Reveal gives the value.
type Secret struct{ value string }

// NewSecret hides s.
func NewSecret(s string) Secret { return Secret{value: s} }

// Reveal returns the hidden value. Pass it on, do not keep or print it.
func (s Secret) Reveal() string { return s.value }

// Empty reports whether there is no value.
func (s Secret) Empty() bool { return s.value == "" }

// String returns "[redacted]".
func (s Secret) String() string { return redacted }

// GoString returns "[redacted]".
func (s Secret) GoString() string { return redacted }

// Format prints "[redacted]" for every verb and flag.
func (s Secret) Format(f fmt.State, _ rune) { io.WriteString(f, redacted) }

// MarshalText encodes as "[redacted]", for JSON and its like.
func (s Secret) MarshalText() ([]byte, error) { return []byte(redacted), nil }

// MarshalYAML encodes as "[redacted]".
func (s Secret) MarshalYAML() ([]byte, error) { return []byte(`"` + redacted + `"`), nil }

// LogValue logs as "[redacted]".
func (s Secret) LogValue() slog.Value { return slog.StringValue(redacted) }

// UnmarshalYAML reads a plain string.
func (s *Secret) UnmarshalYAML(unmarshal func(any) error) error {
	return unmarshal(&s.value)
}
