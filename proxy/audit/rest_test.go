package audit_test

import (
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pghandoff/proxy/audit"
)

// counted is a disk that counts.
type counted struct {
	mu            sync.Mutex
	lines, writes int
}

func (c *counted) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lines += strings.Count(string(p), "\n")
	c.writes++
	return len(p), nil
}

// expect compares the counts when the writer waits.
func (c *counted) expect(t *testing.T, when string, lines, writes int) {
	t.Helper()
	synctest.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.lines != lines || c.writes != writes {
		t.Errorf("%s: %d lines in %d writes, want %d in %d", when, c.lines, c.writes, lines, writes)
	}
}

func record(l *audit.Log, n int) {
	for range n {
		l.Record(audit.Event{Event: audit.LeaseGranted})
	}
}

func TestWriterRestsInABusyTimeOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := new(counted)
		l, err := audit.Open("", disk)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		for range 3 {
			disk.mu.Lock()
			disk.lines, disk.writes = 0, 0
			disk.mu.Unlock()
			record(l, 1)
			disk.expect(t, "first after a quiet time", 1, 1)
			record(l, 5)
			time.Sleep(9 * time.Millisecond)
			disk.expect(t, "at rest", 1, 1)
			record(l, 5)
			time.Sleep(time.Millisecond)
			disk.expect(t, "after the rest", 11, 2)
			record(l, 1)
			disk.expect(t, "the next rest", 11, 2)
			time.Sleep(20 * time.Millisecond) // it rests once more after that
			disk.expect(t, "quiet", 12, 3)
		}
	})
}

func TestQueueThatFillsEndsTheRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := new(counted)
		l, err := audit.Open("", disk)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		record(l, 1)
		synctest.Wait()
		begin := time.Now()
		record(l, 2047)
		disk.expect(t, "almost half", 1, 1)
		record(l, 1)
		synctest.Wait()
		disk.mu.Lock()
		defer disk.mu.Unlock()
		if disk.lines != 2049 || time.Since(begin) != 0 {
			t.Errorf("%d lines after %s", disk.lines, time.Since(begin))
		}
	})
}

func TestReopenAndCloseDoNotWaitForTheRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "audit.jsonl")
		l, err := audit.Open(path, nil)
		if err != nil {
			t.Fatal(err)
		}
		begin := time.Now()
		record(l, 1)
		synctest.Wait()
		record(l, 1)
		os.Rename(path, path+".1")
		if err := l.Reopen(); err != nil {
			t.Fatal(err)
		}
		record(l, 1)
		l.Close()
		if took := time.Since(begin); took != 0 {
			t.Errorf("it took %s", took)
		}
		if old, young := lines(t, path+".1"), lines(t, path); len(old) != 2 || len(young) != 1 {
			t.Errorf("%d lines in the old file, %d in the new one", len(old), len(young))
		}
	})
}
