package config

import (
	"fmt"
	"slices"
)

// known are the parameters that have a meaning here; ignored ones change
// nothing that matters to a pooled connection; unsupported are libpq's others.
var (
	known = []string{"host", "hostaddr", "port", "dbname", "user", "password", "passfile", "service", "servicefile", "sslmode",
		"sslnegotiation", "sslrootcert", "sslcert", "sslkey", "channel_binding", "target_session_attrs", "connect_timeout",
		"ssl_min_protocol_version", "sslcrl"}
	ignored = []string{"application_name", "fallback_application_name", "client_encoding", "keepalives", "keepalives_idle",
		"keepalives_interval", "keepalives_count", "tcp_user_timeout", "gssencmode", "sslsni", "sslcompression", "options"}
	unsupported = []string{"gssdelegation", "gsslib", "krbsrvname", "load_balance_hosts", "max_protocol_version", "min_protocol_version",
		"replication", "require_auth", "requirepeer", "requiressl", "sslcertmode", "sslcrldir", "sslkeylogfile", "sslpassword",
		"ssl_max_protocol_version"}
)

// shown quotes a parameter's name, unless it may be the end of a password that
// was not quoted or percent-encoded: it must be a known one or one letter off.
func shown(name string) string {
	for _, k := range slices.Concat(known, ignored, unsupported) {
		if oneOff(name, k) {
			return fmt.Sprintf("connection parameter %q", name)
		}
	}
	return "a connection parameter"
}

// oneOff reports whether a becomes b by at most one letter put in, left out or
// replaced.
func oneOff(a, b string) bool {
	start := 0
	for start < min(len(a), len(b)) && a[start] == b[start] {
		start++
	}
	end := 0
	for end < min(len(a), len(b))-start && a[len(a)-1-end] == b[len(b)-1-end] {
		end++
	}
	return max(len(a), len(b))-start-end <= 1
}
