package audit

import (
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// queueLength is how many events may wait for the writer.
const queueLength = 4096

// restTime is how long the writer leaves the queue alone after it wrote. To wake
// it costs whoever records a system call, which in a busy time is so for one of
// many events only.
const restTime = 10 * time.Millisecond

// Log is the audit trail. Record is safe from any goroutine.
type Log struct {
	path     string
	fallback io.Writer

	wake    chan struct{} // one, for the writer to look at the queue
	reopen  chan chan error
	closing chan struct{}
	done    chan struct{}

	mu     sync.Mutex // guards the fields below
	queue  []Event
	missed uint64
	idle   bool // the writer looks again only if it is woken
	closed bool
}

// Open opens the trail at path for appending, creating it with mode 0600; with
// an empty path the lines go to fallback. Close ends it.
func Open(path string, fallback io.Writer) (*Log, error) {
	l := &Log{path: path, fallback: fallback, wake: make(chan struct{}, 1), reopen: make(chan chan error),
		closing: make(chan struct{}), done: make(chan struct{})}
	w := newWriter()
	if err := l.open(w); err != nil {
		return nil, err
	}
	go l.write(w) // ended by Close, which waits for it
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
// is full the event is lost and counted. The event's Peer and Upstream must not
// be changed any more, and the Peer not be read: see there.
func (l *Log) Record(e Event) {
	e.Time = time.Now().UTC()
	l.mu.Lock()
	wake := l.recordLocked(&e)
	l.mu.Unlock()
	if wake {
		select {
		case l.wake <- struct{}{}:
		default:
		}
	}
}

// recordLocked reports whether the writer has to be woken: it is idle, or it
// rests while the queue fills.
func (l *Log) recordLocked(e *Event) (wake bool) {
	if l.closed {
		return false
	}
	if len(l.queue) == queueLength {
		l.missed++
		return false
	}
	e.Missed, l.missed = l.missed, 0
	l.queue = append(l.queue, *e)
	wake, l.idle = l.idle || len(l.queue) == queueLength/2, false
	return wake
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
		close(l.closing)
	}
	l.mu.Unlock()
	<-l.done
	return nil
}

// write is the only user of w. A burst is written in one go.
func (l *Log) write(w *writer) {
	defer close(l.done)
	rest := time.NewTimer(restTime)
	var batch []Event
	var asked chan error // to open the file anew, after what was recorded before
	for {
		var closed bool
		batch, closed = l.take(batch)
		for i := range batch {
			w.add(&batch[i])
		}
		w.flush()
		if asked != nil {
			asked <- l.open(w)
		}
		if closed {
			w.close()
			return
		}
		rest.Stop()
		if len(batch) > 0 {
			rest.Reset(restTime)
		}
		asked = l.pause(rest.C)
	}
}

// take swaps the queue with a slice that was written. Nothing comes after what
// it returns with closed.
func (l *Log) take(written []Event) (batch []Event, closed bool) {
	clear(written)
	l.mu.Lock()
	defer l.mu.Unlock()
	batch, l.queue = l.queue, written[:0]
	l.idle = len(batch) == 0
	return batch, l.closed
}

// pause waits until the writer has to look again, and why.
func (l *Log) pause(rested <-chan time.Time) (asked chan error) {
	select {
	case <-rested:
	case <-l.wake:
	case <-l.closing:
	case asked = <-l.reopen:
	}
	return asked
}
