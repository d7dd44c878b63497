package handoff

import (
	"slices"
	"strconv"
	"unicode/utf8"
)

// maxDepth bounds the nesting of objects and arrays in a line.
const maxDepth = 16

// scanner reads JSON (RFC 8259) strictly: names are case-sensitive, duplicate names, invalid UTF-8, unpaired surrogates,
// NUL characters and anything after the value are errors. encoding/json accepts or repairs all of these.
//
// What it reads shares the memory of data. Every method that fails returns a *Refusal with SQLSTATE 08P01.
type scanner struct {
	data  string
	pos   int
	depth int
}

func newScanner(data string) (scanner, error) {
	if !utf8.ValidString(data) {
		return scanner{}, malformed("the line is not valid UTF-8")
	}
	return scanner{data: data}, nil
}

// space skips blank space and returns the next byte, or 0 at the end.
func (s *scanner) space() byte {
	for s.pos < len(s.data) {
		switch c := s.data[s.pos]; c {
		case ' ', '\t', '\r', '\n':
			s.pos++
		default:
			return c
		}
	}
	return 0
}

func (s *scanner) expect(c byte) error {
	if s.space() != c {
		return malformed("byte %d: %q expected", s.pos+1, c)
	}
	s.pos++
	return nil
}

// end fails unless only blank space is left.
func (s *scanner) end() error {
	if s.space(); s.pos < len(s.data) {
		return malformed("byte %d: something follows the object", s.pos+1)
	}
	return nil
}

// list reads open, items parted by commas, and shut.
func (s *scanner) list(open, shut byte, item func() error) error {
	if err := s.expect(open); err != nil {
		return err
	}
	if s.depth++; s.depth > maxDepth {
		return malformed("nested deeper than %d levels", maxDepth)
	}
	defer func() { s.depth-- }()
	if s.space() == shut {
		s.pos++
		return nil
	}
	for {
		if err := item(); err != nil {
			return err
		}
		if s.space() == shut {
			s.pos++
			return nil
		}
		if err := s.expect(','); err != nil {
			return err
		}
	}
}

// names are those that one object has had so far. A map costs more than a look at each of a few.
type names struct {
	few  [16]string
	n    int
	many map[string]bool // all of them, once they are more than a few
}

// add reports whether the name is new.
func (n *names) add(name string) bool {
	if n.many != nil {
		if n.many[name] {
			return false
		}
		n.many[name] = true
		return true
	}
	if slices.Contains(n.few[:n.n], name) {
		return false
	}
	if n.n < len(n.few) {
		n.few[n.n] = name
		n.n++
		return true
	}
	n.many = map[string]bool{name: true}
	for _, old := range n.few {
		n.many[old] = true
	}
	return true
}

// object reads an object; each must consume the value that belongs to the name.
func (s *scanner) object(each func(name string) error) error {
	var seen names
	return s.list('{', '}', func() error {
		name, err := s.text()
		if err != nil {
			return err
		}
		if !seen.add(name) {
			return malformed("name %.64q occurs twice", name)
		}
		if err := s.expect(':'); err != nil {
			return err
		}
		return each(name)
	})
}

// texts reads an object whose values are strings, at most limit of them, in the order in which they stand there. An
// empty one is nil.
func (s *scanner) texts(limit int) ([]Parameter, error) {
	var few [16]Parameter // most have no more, so that one allocation does
	all := few[:0]
	err := s.object(func(name string) error {
		value, err := s.text()
		if err != nil {
			return err
		}
		if len(all) == limit {
			return malformed("more than %d parameters", limit)
		}
		all = append(all, Parameter{name, value})
		return nil
	})
	if len(all) == 0 {
		return nil, err
	}
	return slices.Clone(all), err
}

// integer reads a whole number from 0 to limit, written without fraction and exponent.
func (s *scanner) integer(limit uint64) (uint64, error) {
	s.space()
	start := s.pos
	raw, err := s.number()
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseUint(raw, 10, 64)
	if err != nil || n > limit {
		return 0, malformed("byte %d: a whole number from 0 to %d expected", start+1, limit)
	}
	return n, nil
}

// number reads any number as it is written.
func (s *scanner) number() (string, error) {
	start := s.pos
	digits := func() bool {
		from := s.pos
		for s.pos < len(s.data) && '0' <= s.data[s.pos] && s.data[s.pos] <= '9' {
			s.pos++
		}
		return s.pos > from
	}
	optional := func(set string) bool {
		if s.pos < len(s.data) && (s.data[s.pos] == set[0] || s.data[s.pos] == set[len(set)-1]) {
			s.pos++
			return true
		}
		return false
	}
	optional("-")
	first := s.pos
	ok := digits() && (s.data[first] != '0' || s.pos == first+1)
	if ok && optional(".") {
		ok = digits()
	}
	if ok && optional("eE") {
		optional("+-")
		ok = digits()
	}
	if !ok {
		return "", malformed("byte %d: a number expected", start+1)
	}
	return s.data[start:s.pos], nil
}

// boolean reads true or false.
func (s *scanner) boolean() (bool, error) {
	switch {
	case s.word("true"):
		return true, nil
	case s.word("false"):
		return false, nil
	}
	return false, malformed("byte %d: true or false expected", s.pos+1)
}

func (s *scanner) word(w string) bool {
	s.space()
	if len(s.data)-s.pos < len(w) || s.data[s.pos:s.pos+len(w)] != w {
		return false
	}
	s.pos += len(w)
	return true
}

// skip reads any value, as strictly as if it were wanted.
func (s *scanner) skip() error {
	switch c := s.space(); {
	case c == '{':
		return s.object(func(string) error { return s.skip() })
	case c == '[':
		return s.list('[', ']', s.skip)
	case c == '"':
		_, err := s.text()
		return err
	case c == '-' || '0' <= c && c <= '9':
		_, err := s.number()
		return err
	case s.word("true") || s.word("false") || s.word("null"):
		return nil
	}
	return malformed("byte %d: a value expected", s.pos+1)
}
