package handoff

import (
	"bytes"
	"slices"
)

// lines parts a stream of bytes at its line breaks, and keeps what follows the last one. It has a buffer only while
// bytes wait.
type lines struct {
	buf  []byte
	from int // start of what has not been returned
}

// add takes bytes from the stream; it copies them.
func (l *lines) add(p []byte) { l.added(copy(l.room(len(p)), p)) }

// room returns space for at least n bytes of the stream; added then says how many it has got.
func (l *lines) room(n int) []byte {
	if l.from > 0 {
		l.buf = append(l.buf[:0], l.buf[l.from:]...)
		l.from = 0
	}
	l.buf = slices.Grow(l.buf, n)
	return l.buf[len(l.buf):cap(l.buf)]
}

func (l *lines) added(n int) { l.buf = l.buf[:len(l.buf)+n] }

// next returns the next whole line without its line break, valid until add. tooLong means that it has more bytes than
// limit and that no line will come any more.
func (l *lines) next(limit int) (line []byte, ok, tooLong bool) {
	rest := l.buf[l.from:]
	n := bytes.IndexByte(rest, '\n')
	if n > limit || n < 0 && len(rest) > limit {
		return nil, false, true
	}
	if n < 0 {
		l.trim()
		return nil, false, false
	}
	if l.from += n + 1; l.from == len(l.buf) {
		*l = lines{}
	}
	return rest[:n], true, false
}

// trim keeps no more memory than what waits needs.
func (l *lines) trim() {
	if l.from > 0 {
		*l = lines{buf: bytes.Clone(l.buf[l.from:])}
	}
}

// pending is how many bytes wait for a line break or to be asked for.
func (l *lines) pending() int { return len(l.buf) - l.from }
