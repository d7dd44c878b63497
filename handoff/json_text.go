package handoff

import (
	"unicode/utf16"
	"unicode/utf8"
)

// text reads a string.
func (s *scanner) text() (string, error) {
	if err := s.expect('"'); err != nil {
		return "", err
	}
	start := s.pos
	s.plain()
	if s.pos < len(s.data) && s.data[s.pos] == '"' {
		s.pos++
		return s.data[start : s.pos-1], nil
	}
	return s.escapedText([]byte(s.data[start:s.pos]))
}

// plain goes to the next byte that does not stand for itself in a string.
func (s *scanner) plain() {
	for s.pos < len(s.data) {
		if c := s.data[s.pos]; c == '"' || c == '\\' || c < ' ' {
			return
		}
		s.pos++
	}
}

// escapedText goes on with a string from the first byte that does not stand for itself.
func (s *scanner) escapedText(out []byte) (string, error) {
	for s.pos < len(s.data) {
		switch c := s.data[s.pos]; {
		case c == '"':
			s.pos++
			return string(out), nil
		case c < ' ':
			return "", malformed("byte %d: control character in a string", s.pos+1)
		case c == '\\':
			r, err := s.escape()
			if err != nil {
				return "", err
			}
			out = utf8.AppendRune(out, r)
		}
		start := s.pos
		s.plain()
		out = append(out, s.data[start:s.pos]...)
	}
	return "", malformed("a string does not end")
}

// escapes are the letters that may follow a backslash, but for u, and what they stand for.
var escapes = [256]rune{'"': '"', '\\': '\\', '/': '/', 'b': '\b', 'f': '\f', 'n': '\n', 'r': '\r', 't': '\t'}

// escape reads a backslash and what belongs to it.
func (s *scanner) escape() (rune, error) {
	at := s.pos + 1
	if at < len(s.data) {
		if r := escapes[s.data[at]]; r != 0 {
			s.pos += 2
			return r, nil
		}
	}
	r, ok := s.unit()
	if ok && utf16.IsSurrogate(r) {
		var low rune
		if low, ok = s.unit(); ok {
			r = utf16.DecodeRune(r, low)
			ok = r != utf8.RuneError
		}
	}
	switch {
	case !ok:
		return 0, malformed("byte %d: invalid escape in a string", at)
	case r == 0:
		return 0, malformed("byte %d: NUL character in a string", at)
	}
	return r, nil
}

// unit reads \uXXXX.
func (s *scanner) unit() (rune, bool) {
	if len(s.data)-s.pos < 6 || s.data[s.pos] != '\\' || s.data[s.pos+1] != 'u' {
		return 0, false
	}
	var r rune
	for _, c := range []byte(s.data[s.pos+2 : s.pos+6]) {
		switch {
		case '0' <= c && c <= '9':
			c -= '0'
		case 'a' <= c && c <= 'f':
			c -= 'a' - 10
		case 'A' <= c && c <= 'F':
			c -= 'A' - 10
		default:
			return 0, false
		}
		r = r<<4 | rune(c)
	}
	s.pos += 6
	return r, true
}
