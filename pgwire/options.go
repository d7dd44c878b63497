package pgwire

import "strings"

// ParseOptions reads the start-up parameter "options" as PostgreSQL's backend
// does: words parted by white space, where a backslash makes the next character
// part of the word, and "-c name=value" (or "-cname=value") and "--name=value"
// set a parameter, with "-" in a name standing for "_". One without a value is
// an [ErrNoValue]. Other switches are an [ErrProtocol]: they belong to the
// command line of a server.
func ParseOptions(s string) ([]Parameter, error) {
	words := splitOptions(s)
	var out []Parameter
	for i := 0; i < len(words); i++ {
		w := words[i]
		setting, shown := "", "-c "
		switch {
		case w == "-c":
			if i++; i == len(words) {
				return nil, &protocolError{"invalid command-line argument for server process: -c", ErrNoValue}
			}
			setting = words[i]
		case strings.HasPrefix(w, "-c"):
			setting = w[2:]
		case strings.HasPrefix(w, "--"):
			setting, shown = w[2:], "--"
		default:
			return nil, protocolErrorf("options: %q is not supported, only -c name=value and --name=value", w)
		}
		name, value, ok := strings.Cut(setting, "=")
		if !ok {
			return nil, &protocolError{shown + setting + " requires a value", ErrNoValue}
		}
		if name == "" {
			return nil, protocolErrorf("options: %q names no parameter", setting)
		}
		out = append(out, Parameter{Name: strings.ReplaceAll(name, "-", "_"), Value: value})
	}
	return out, nil
}

func splitOptions(s string) []string {
	var words []string
	var word strings.Builder
	in := false
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case c == '\\' && i+1 < len(s):
			i++
			word.WriteByte(s[i])
			in = true
		case strings.IndexByte(" \t\n\v\f\r", c) >= 0:
			if in {
				words = append(words, word.String())
				word.Reset()
				in = false
			}
		default:
			word.WriteByte(c)
			in = true
		}
	}
	if in {
		words = append(words, word.String())
	}
	return words
}
