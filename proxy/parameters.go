package proxy

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"pghandoff/handoff"
	"pghandoff/pgwire"
)

// parameterSet is what a server has reported, in the order of its first report.
// Upstreams share the sets that are the same: a set is never changed, only
// replaced. The nil set is empty.
type parameterSet struct {
	list []pgwire.Parameter
	// How a function is told, by either way: most are told the same.
	status  []byte // ParameterStatus messages
	granted handoff.WrittenParameters
}

func newParameterSet(list []pgwire.Parameter) *parameterSet {
	s := &parameterSet{list: list}
	told := make([]handoff.Parameter, 0, len(list))
	for _, p := range list {
		s.status = pgwire.AppendParameterStatus(s.status, p)
		told = append(told, handoff.Parameter{Name: p.Name, Value: p.Value})
	}
	s.granted = handoff.WriteParameters(told)
	return s
}

// Bounds of what a server may report: in number and, as messages, in bytes. Real
// ones report some fifteen parameters, of less than 1 KB together.
const (
	maxReported     = 1000
	maxReportedSize = 128 << 10 // 128 KiB
)

var errParameters error = &Failure{SQLState: codeProtocolViolation, Message: "the server reports too many parameters", Reason: "protocol"}

// excessive reports whether that is more than a server may report.
func (s *parameterSet) excessive() bool {
	return s != nil && (len(s.list) > maxReported || len(s.status) > maxReportedSize)
}

// with is the set after one more report.
func (s *parameterSet) with(p pgwire.Parameter) *parameterSet {
	if s == nil {
		return newParameterSet([]pgwire.Parameter{p})
	}
	i := slices.IndexFunc(s.list, func(q pgwire.Parameter) bool { return q.Name == p.Name })
	switch {
	case i < 0:
		return newParameterSet(append(slices.Clip(s.list), p))
	case s.list[i].Value == p.Value:
		return s
	}
	list := slices.Clone(s.list)
	list[i].Value = p.Value
	return newParameterSet(list)
}

// find returns what is reported under a name, of whatever case.
func (s *parameterSet) find(name string) (pgwire.Parameter, bool) {
	if s == nil {
		return pgwire.Parameter{}, false
	}
	for i := range s.list {
		if strings.EqualFold(s.list[i].Name, name) {
			return s.list[i], true
		}
	}
	return pgwire.Parameter{}, false
}

func (s *parameterSet) get(name string) (value string, ok bool) {
	p, ok := s.find(name)
	return p.Value, ok
}

// settingName is an identifier, or several joined by dots, as
// valid_custom_variable_name and the built-in names have it.
var settingName = regexp.MustCompile(`^[A-Za-z_\x80-\xff][A-Za-z0-9_$\x80-\xff]*(\.[A-Za-z_\x80-\xff][A-Za-z0-9_$\x80-\xff]*)*$`)

// maxSettings bounds how many parameters one function may bring.
const maxSettings = 200

// settingsOf takes from start-up parameters those that are to be set for the
// session, in the order given: the ones within "options" first, as PostgreSQL
// applies them. What cannot be had is refused with a *Failure.
func settingsOf(parameters []pgwire.Parameter, ignore []string) ([]pgwire.Parameter, error) {
	var options string // the last counts, as of every parameter
	var out []pgwire.Parameter
	for _, p := range parameters {
		switch p.Name {
		case "user", "database", "replication":
		case "options":
			options = p.Value
		default:
			out = append(out, p)
		}
	}
	all, err := pgwire.ParseOptions(options)
	if err != nil {
		code := codeNotSupported
		if errors.Is(err, pgwire.ErrNoValue) {
			code = codeSyntax
		}
		return nil, &Failure{SQLState: code, Message: err.Error(), Reason: "parameter"}
	}
	all = append(all, out...)
	if len(all) > maxSettings {
		return nil, &Failure{SQLState: codeProtocolViolation, Message: fmt.Sprintf("more than %d start-up parameters", maxSettings), Reason: "parameter"}
	}
	kept := all[:0]
	for _, p := range all {
		if slices.ContainsFunc(ignore, func(name string) bool { return strings.EqualFold(name, p.Name) }) {
			continue
		}
		if err := checkSetting(p.Name); err != nil {
			return nil, err
		}
		kept = append(kept, p)
	}
	return kept, nil
}

func checkSetting(name string) error {
	switch strings.ToLower(name) {
	case "role", "session_authorization":
		return &Failure{SQLState: codeNotSupported, Message: fmt.Sprintf("parameter %q cannot be set at start-up here", name),
			Hint: "a route logs in as one role; use SET ROLE in the session", Reason: "parameter"}
	}
	if len(name) > 127 || !settingName.MatchString(name) {
		return &Failure{SQLState: "42602", Message: fmt.Sprintf("invalid configuration parameter name %q", name), Reason: "parameter"}
	}
	return nil
}

// replicationOf returns the start-up parameter that asks for a connection for
// replication, which no other one can become; nil: there is none.
func replicationOf(parameters []pgwire.Parameter) (own []pgwire.Parameter) {
	for _, p := range parameters {
		if p.Name == "replication" {
			own = nil
			if !isFalse(p.Value) {
				own = []pgwire.Parameter{p}
			}
		}
	}
	return own
}

// isFalse reads a boolean as PostgreSQL does, as far as "false" goes.
func isFalse(v string) bool {
	switch strings.ToLower(v) {
	case "0", "f", "fa", "fal", "fals", "false", "n", "no", "of", "off":
		return true
	}
	return false
}
