// Package config is the configuration of the daemon as one struct: read from a
// YAML file or from a libpq URL, with defaults filled in and every problem
// reported at once, each by its key.
//
// It refuses to open connections, to look up users and hosts, and to read
// secrets: a password is described here and fetched where it is needed.
// Unknown keys are errors that show line and key, never a value.
//
// Invariants: a *Config that [Load], [Parse] or [FromURL] returned is valid and
// is not changed afterwards; a [Secret] prints as "[redacted]" every way Go can
// print a value.
//
//	cfg, err := config.Load("/etc/pghandoff/pghandoff.yaml")
package config
