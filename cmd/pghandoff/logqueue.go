package main

import (
	"bytes"
	"io"
	"sync"
	"time"

	"github.com/rs/zerolog"
)

const (
	logQueueSize     = 1 << 20 // 1 MiB of lines may wait for standard error
	logFlushPatience = 5 * time.Second
)

// logQueue takes log lines and writes them from a goroutine of its own, so that
// whoever logs never waits for a terminal or a pipe that nobody reads. Lines that
// do not fit are counted, and told in a line after those that did.
//
// zerolog's own diode is not used: where its writers collide it writes to the
// standard logger, which may wait; it can leave a line lying until the next one
// comes; and when it is full it drops all that it holds.
type logQueue struct {
	to   io.Writer
	wake chan struct{} // one, for run to look at the queue
	done chan struct{}

	mu     sync.Mutex // guards the fields below
	lines  []byte
	missed int
	idle   bool // run looks again only if it is woken
	closed bool
}

// newLogQueue returns a queue of lines for a writer; run writes them.
func newLogQueue(to io.Writer) *logQueue {
	return &logQueue{to: to, wake: make(chan struct{}, 1), done: make(chan struct{})}
}

// Write queues a whole line. It never fails. After Close it writes it itself, so
// that nothing is lost. Safe from any goroutine.
func (q *logQueue) Write(line []byte) (int, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case q.closed:
		return q.to.Write(line)
	case len(q.lines)+len(line) > logQueueSize:
		q.missed++
		return len(line), nil
	}
	q.lines = append(q.lines, line...)
	q.wakeLocked()
	return len(line), nil
}

func (q *logQueue) wakeLocked() {
	if q.idle {
		q.idle = false
		q.wake <- struct{}{} // there is room: run takes one each time it is idle
	}
}

// Close writes what is queued, as long as it gets through within the patience.
// It is idempotent. zerolog calls it before a fatal line ends the process.
func (q *logQueue) Close() error {
	q.mu.Lock()
	q.closed = true
	q.wakeLocked()
	q.mu.Unlock()
	select {
	case <-q.done:
	case <-time.After(logFlushPatience): // nobody reads
	}
	return nil
}

// run writes until Close.
func (q *logQueue) run() {
	defer close(q.done)
	var lines []byte
	for {
		var missed int
		var closed bool
		lines, missed, closed = q.take(lines)
		if len(lines) > 0 {
			q.to.Write(lines)
		}
		if missed > 0 {
			log := zerolog.New(q.to).With().Timestamp().Logger()
			log.Warn().Int("missed", missed).Msg("log lines are lost: standard error took them too slowly")
		}
		switch {
		case closed:
			return
		case len(lines) == 0:
			<-q.wake
		}
	}
}

// take swaps the queue with a slice that was written. Nothing comes after what
// it returns with closed.
func (q *logQueue) take(written []byte) (lines []byte, missed int, closed bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	lines, q.lines = q.lines, written[:0]
	missed, q.missed = q.missed, 0
	q.idle = len(lines) == 0 && !q.closed
	return lines, missed, q.closed
}

// byLine gives a writer one line at a time, as a zerolog.ConsoleWriter needs it.
type byLine struct{ to io.Writer }

func (w byLine) Write(lines []byte) (int, error) {
	for line := range bytes.Lines(lines) {
		if _, err := w.to.Write(line); err != nil {
			return 0, err
		}
	}
	return len(lines), nil
}
