package handoff

import "bytes"

// lines parts a stream of bytes at its line breaks, and keeps what follows the last one.
type lines struct {
	limit int // longest line, without its line break
	buf   []byte
	from  int // start of what has not been returned
}

// add takes bytes from the stream; it copies them.
func (l *lines) add(p []byte) {
	if l.from > 0 {
		l.buf = append(l.buf[:0], l.buf[l.from:]...)
		l.from = 0
	}
	l.buf = append(l.buf, p...)
}

// next returns the next whole line without its line break, valid until add. tooLong means that the limit is passed and
// no line will come any more.
func (l *lines) next() (line []byte, ok, tooLong bool) {
	rest := l.buf[l.from:]
	n := bytes.IndexByte(rest, '\n')
	if n > l.limit || n < 0 && len(rest) > l.limit {
		return nil, false, true
	}
	if n < 0 {
		return nil, false, false
	}
	l.from += n + 1
	return rest[:n], true, false
}

// pending is how many bytes wait for a line break or to be asked for.
func (l *lines) pending() int { return len(l.buf) - l.from }
