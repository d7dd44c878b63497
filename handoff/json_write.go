package handoff

import (
	"strconv"
	"unicode/utf8"
)

// objectWriter appends members to an object that has one already. Their names need no escapes.
type objectWriter struct{ dst []byte }

func (w *objectWriter) name(name string) {
	w.dst = append(append(append(w.dst, ',', '"'), name...), '"', ':')
}

func (w *objectWriter) text(name, value string) {
	w.name(name)
	w.dst = appendText(w.dst, value)
}

func (w *objectWriter) textUnlessEmpty(name, value string) {
	if value != "" {
		w.text(name, value)
	}
}

func (w *objectWriter) number(name string, value uint64) {
	w.name(name)
	w.dst = strconv.AppendUint(w.dst, value, 10)
}

func (w *objectWriter) boolean(name string, value bool) {
	w.name(name)
	w.dst = strconv.AppendBool(w.dst, value)
}

// texts writes an object in the order given, and nothing if it is empty.
func (w *objectWriter) texts(name string, values []Parameter) {
	if len(values) == 0 {
		return
	}
	w.name(name)
	separator := byte('{')
	for i := range values {
		w.dst = appendText(append(w.dst, separator), values[i].Name)
		w.dst = appendText(append(w.dst, ':'), values[i].Value)
		separator = ','
	}
	w.dst = append(w.dst, '}')
}

// appendText writes a string. Bytes that are not UTF-8, as a database in SQL_ASCII may report, become U+FFFD.
func appendText(dst []byte, text string) []byte {
	dst = append(dst, '"')
	for {
		n := plainLen(text)
		dst = append(dst, text[:n]...)
		if n == len(text) {
			return append(dst, '"')
		}
		r, size := utf8.DecodeRuneInString(text[n:])
		dst = appendEscaped(dst, r)
		text = text[n+size:]
	}
}

// plainLen is how many bytes at the start are ASCII that stands for itself.
func plainLen(text string) int {
	for i := range len(text) {
		if c := text[i]; c < ' ' || c == '"' || c == '\\' || c >= 0x7f {
			return i
		}
	}
	return len(text)
}

// appendEscaped writes a character that is not plain.
func appendEscaped(dst []byte, r rune) []byte {
	const hex = "0123456789abcdef"
	switch {
	case r == '"' || r == '\\':
		return append(dst, '\\', byte(r))
	case r < ' ' || r == 0x7f:
		return append(dst, '\\', 'u', '0', '0', hex[r>>4], hex[r&15])
	}
	return utf8.AppendRune(dst, r)
}
