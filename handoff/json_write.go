package handoff

import (
	"maps"
	"slices"
	"strconv"
	"unicode/utf8"
)

// objectWriter appends members to an object that has one already.
type objectWriter struct{ dst []byte }

func (w *objectWriter) name(name string) {
	w.dst = append(appendText(append(w.dst, ','), name), ':')
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

// texts writes an object in the order of its names, and nothing if it is empty.
func (w *objectWriter) texts(name string, values map[string]string) {
	if len(values) == 0 {
		return
	}
	w.name(name)
	separator := byte('{')
	for _, key := range slices.Sorted(maps.Keys(values)) {
		w.dst = appendText(append(w.dst, separator), key)
		w.dst = appendText(append(w.dst, ':'), values[key])
		separator = ','
	}
	w.dst = append(w.dst, '}')
}

// appendText writes a string. Bytes that are not UTF-8, as a database in SQL_ASCII may report, become U+FFFD.
func appendText(dst []byte, text string) []byte {
	const hex = "0123456789abcdef"
	dst = append(dst, '"')
	for _, r := range text {
		switch {
		case r == '"' || r == '\\':
			dst = append(dst, '\\', byte(r))
		case r < ' ' || r == 0x7f:
			dst = append(dst, '\\', 'u', '0', '0', hex[r>>4], hex[r&15])
		default:
			dst = utf8.AppendRune(dst, r)
		}
	}
	return append(dst, '"')
}
