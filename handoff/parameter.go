package handoff

import (
	"maps"
	"slices"
)

// Parameter is one of PostgreSQL's run-time parameters. On a line they stand as one JSON object: a line with a name
// twice is malformed, so whoever writes one gives each name once.
type Parameter struct{ Name, Value string }

// parametersOf returns the parameters in the order of their names; nil if there are none.
func parametersOf(m map[string]string) []Parameter {
	if len(m) == 0 {
		return nil
	}
	all := make([]Parameter, 0, len(m))
	for _, name := range slices.Sorted(maps.Keys(m)) {
		all = append(all, Parameter{name, m[name]})
	}
	return all
}

// parameterMap is the other way round; nil for none.
func parameterMap(all []Parameter) map[string]string {
	if len(all) == 0 {
		return nil
	}
	m := make(map[string]string, len(all))
	for _, p := range all {
		m[p.Name] = p.Value
	}
	return m
}
