package audit

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"sync"
	"time"
)

// queueLength is how many events may wait for the disk.
const queueLength = 4096

// Log is the audit trail. Record is safe from any goroutine.
type Log struct {
	path     string
	fallback io.Writer

	mu     sync.Mutex // guards missed, queue against Close, and the file
	queue  chan Event
	missed uint64
	closed bool
	reopen chan chan error
	done   chan struct{}
}

// Open opens the trail at path for appending, creating it with mode 0600; with
// an empty path the lines go to fallback. Close ends it.
func Open(path string, fallback io.Writer) (*Log, error) {
	l := &Log{path: path, fallback: fallback, queue: make(chan Event, queueLength), reopen: make(chan chan error), done: make(chan struct{})}
	f, err := l.open()
	if err != nil {
		return nil, err
	}
	go l.write(f) // ends when Close closes the queue; Close waits for it
	return l, nil
}

func (l *Log) open() (io.WriteCloser, error) {
	if l.path == "" {
		return nopCloser{l.fallback}, nil
	}
	f, err := os.OpenFile(l.path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open audit file: %w", err)
	}
	return f, nil
}

type nopCloser struct{ io.Writer }

func (nopCloser) Close() error { return nil }

// Record queues an event; time and sequence number are set here. If the queue
// is full the event is lost and counted.
func (l *Log) Record(e Event) {
	e.Time = time.Now().UTC()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return
	}
	e.Missed = l.missed
	select {
	case l.queue <- e:
		l.missed = 0
	default:
		l.missed++
	}
}

// Reopen opens the file anew, for logrotate. Lines recorded before it go to
// the old file. On error the old one stays in use.
func (l *Log) Reopen() error {
	answer := make(chan error, 1)
	select {
	case l.reopen <- answer:
		return <-answer
	case <-l.done:
		return nil
	}
}

// Close writes what is queued and closes the file. It is idempotent.
func (l *Log) Close() error {
	l.mu.Lock()
	if !l.closed {
		l.closed = true
		close(l.queue)
	}
	l.mu.Unlock()
	<-l.done
	return nil
}

// write is the only writer. A burst is written in one go.
func (l *Log) write(f io.WriteCloser) {
	defer close(l.done)
	w := bufio.NewWriterSize(f, 64<<10) // 64 KiB
	var seq uint64
	for {
		select {
		case e, ok := <-l.queue:
			if !ok {
				w.Flush()
				f.Close()
				return
			}
			seq++
			e.Seq = seq
			line, err := json.Marshal(e)
			if err == nil {
				w.Write(append(line, '\n'))
			}
			if len(l.queue) == 0 && w.Flush() != nil {
				w.Reset(f) // a full disk: what is lost shows as a gap in seq
			}
		case answer := <-l.reopen:
			w.Flush()
			g, err := l.open()
			if err == nil {
				f.Close()
				f = g
				w.Reset(f)
			}
			answer <- err
		}
	}
}
