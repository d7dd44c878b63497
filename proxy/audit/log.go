package audit

import (
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
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
	w := new(writer)
	if err := l.open(w); err != nil {
		return nil, err
	}
	go l.write(w) // ends when Close closes the queue; Close waits for it
	return l, nil
}

// open lets w go on in the file that now has the path.
func (l *Log) open(w *writer) error {
	if l.path == "" {
		w.to = l.fallback
		return nil
	}
	f, err := os.OpenFile(l.path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return fmt.Errorf("open audit file: %w", err)
	}
	w.close()
	w.to, w.file, w.torn = f, f, endsWithinLine(l.path)
	return nil
}

// endsWithinLine reports whether a file ends within a line, as one does whose disk
// was full.
func endsWithinLine(path string) bool {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return false
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() || info.Size() == 0 {
		return false
	}
	var last [1]byte
	_, err = f.ReadAt(last[:], info.Size()-1)
	return err == nil && last[0] != '\n'
}

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

// write is the only user of w. A burst is written in one go.
func (l *Log) write(w *writer) {
	defer close(l.done)
	for {
		select {
		case e, ok := <-l.queue:
			if !ok {
				w.flush()
				w.close()
				return
			}
			w.add(e)
			if len(l.queue) == 0 {
				w.flush()
			}
		case answer := <-l.reopen:
			for range len(l.queue) { // what was recorded before, which select may have passed over
				w.add(<-l.queue)
			}
			w.flush()
			answer <- l.open(w)
		}
	}
}
