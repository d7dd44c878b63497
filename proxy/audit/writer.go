package audit

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
)

// writeSize is how many bytes of lines are gathered at most. 64 KiB.
const writeSize = 64 << 10

// writer numbers events and writes their lines, and knows which of them got
// through.
type writer struct {
	to     io.Writer
	file   *os.File // to, if it is ours to close
	seq    uint64
	lines  bytes.Buffer
	encode *json.Encoder // to lines
	stand  []uint64      // for each of the lines the events that it stands for: itself and those it tells as missed
	lost   uint64        // events that no line that got through stands for
	torn   bool          // what was written last ends within a line
}

func newWriter() *writer {
	w := new(writer)
	w.encode = json.NewEncoder(&w.lines)
	return w
}

// add appends the line of an event, which it numbers.
func (w *writer) add(e *Event) {
	w.seq++
	e.Seq = w.seq
	e.Missed += w.lost
	if err := w.encode.Encode(e); err != nil { // then nothing is in lines
		w.lost++
		return
	}
	w.lost = 0
	w.stand = append(w.stand, 1+e.Missed)
	if w.lines.Len() >= writeSize {
		w.flush()
	}
}

// flush writes the lines. Those that a full disk does not take are lost; one
// that it took half of is ended before the next.
func (w *writer) flush() {
	if w.lines.Len() == 0 {
		return
	}
	out, front := w.lines.Bytes(), 0
	if w.torn {
		out, front = append([]byte{'\n'}, out...), 1
	}
	n, _ := w.to.Write(out) // an error shows in n
	n = max(0, min(n, len(out)))
	whole := bytes.Count(out[front:max(front, n)], []byte{'\n'})
	for _, events := range w.stand[whole:] {
		w.lost += events
	}
	if n > 0 {
		w.torn = out[n-1] != '\n'
	}
	w.lines.Reset()
	w.stand = w.stand[:0]
}

func (w *writer) close() {
	if w.file != nil {
		w.file.Close()
	}
}
