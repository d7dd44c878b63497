package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"
)

// terminal shows what was written to it, when it is let go.
type terminal struct {
	free chan struct{} // nil: always
	mu   sync.Mutex
	text bytes.Buffer
}

func (s *terminal) Write(p []byte) (int, error) {
	if s.free != nil {
		<-s.free
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.Write(p)
}

func (s *terminal) lines() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Split(strings.TrimSuffix(s.text.String(), "\n"), "\n")
}

func TestLogLinesAreWrittenAtOnceAndInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		screen := new(terminal)
		q := newLogQueue(screen)
		go q.run()
		log := zerolog.New(q)
		log.Info().Msg("one")
		synctest.Wait()
		if got := screen.lines(); len(got) != 1 || !strings.Contains(got[0], "one") {
			t.Errorf("got %q", got)
		}
		for range 1000 {
			log.Info().Msg("more")
		}
		log.Info().Msg("last")
		q.Close()
		q.Close()
		log.Info().Msg("after it")
		got := screen.lines()
		if n := len(got); n != 1003 || !strings.Contains(got[n-2], "last") || !strings.Contains(got[n-1], "after it") {
			t.Errorf("%d lines, the last are %q", n, got[max(0, n-2):])
		}
	})
}

func TestStuckStandardErrorDelaysNobodyAndTheGapIsTold(t *testing.T) {
	screen := &terminal{free: make(chan struct{})}
	q := newLogQueue(screen)
	go q.run()
	const senders, each = 8, 2500
	var all sync.WaitGroup
	for range senders {
		all.Go(func() {
			for range each {
				fmt.Fprintf(q, "{\"message\":%q}\n", strings.Repeat("x", 200))
			}
		})
	}
	all.Wait() // although nothing was written
	close(screen.free)
	q.Close()
	through, missed := 0, 0
	for _, line := range screen.lines() {
		var e struct{ Missed int }
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		if missed += e.Missed; e.Missed == 0 {
			through++
		}
	}
	if missed == 0 || through+missed != senders*each {
		t.Errorf("%d lines and %d missed, of %d", through, missed, senders*each)
	}
}

func TestLogIsWrittenWhenServePanics(t *testing.T) {
	screen := new(terminal)
	func() {
		defer func() { recover() }()
		q := newLogQueue(screen)
		go q.run()
		defer q.Close()
		log := zerolog.New(q)
		log.Error().Msg("last words")
		panic("a bug")
	}()
	if got := screen.lines(); len(got) != 1 || !strings.Contains(got[0], "last words") {
		t.Errorf("got %q", got)
	}
}

func TestStuckStandardErrorDoesNotKeepTheDaemon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		screen := &terminal{free: make(chan struct{})}
		q := newLogQueue(screen)
		go q.run()
		fmt.Fprintln(q, "nobody reads this")
		begin := time.Now()
		q.Close()
		if took := time.Since(begin); took != logFlushPatience {
			t.Errorf("it took %s", took)
		}
		close(screen.free)
	})
}

func TestConsoleGetsOneLineAtATime(t *testing.T) {
	screen := new(terminal)
	q := newLogQueue(byLine{zerolog.ConsoleWriter{Out: screen, NoColor: true}})
	log := zerolog.New(q)
	log.Info().Msg("one")
	log.Info().Str("text", "two\nlines").Msg("two")
	go q.run()
	q.Close()
	if got := screen.lines(); len(got) != 2 || !strings.Contains(got[0], "INF one") || !strings.Contains(got[1], "INF two") {
		t.Errorf("got %q", got)
	}
}
