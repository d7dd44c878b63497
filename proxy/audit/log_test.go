package audit_test

import (
	"bufio"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"pghandoff/proxy/audit"
)

func lines(t *testing.T, path string) []audit.Event {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var out []audit.Event
	for s := bufio.NewScanner(f); s.Scan(); {
		var e audit.Event
		if err := json.Unmarshal(s.Bytes(), &e); err != nil {
			t.Fatalf("%s: %v", s.Text(), err)
		}
		out = append(out, e)
	}
	return out
}

func TestLinesAreNumberedAndNoneIsLostByRotation(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.jsonl")
	l, err := audit.Open(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	l.Record(audit.Event{Event: audit.LeaseGranted, Lease: "a"})
	os.Rename(path, path+".1")
	if err := l.Reopen(); err != nil {
		t.Fatal(err)
	}
	l.Record(audit.Event{Event: audit.LeaseReleased, Lease: "a"})
	l.Close()
	l.Close()
	all := append(lines(t, path+".1"), lines(t, path)...)
	if len(all) != 2 || all[0].Seq != 1 || all[1].Seq != 2 || all[0].Time.IsZero() {
		t.Errorf("got %+v", all)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
}

// stuck is a disk that does not move until it is let go.
type stuck struct {
	free  chan struct{}
	mu    sync.Mutex
	lines strings.Builder
}

func (s *stuck) Write(p []byte) (int, error) {
	<-s.free
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lines.Write(p)
}

func TestSlowDiskDelaysNobodyAndTheGapIsCounted(t *testing.T) {
	disk := &stuck{free: make(chan struct{})}
	l, err := audit.Open("", disk)
	if err != nil {
		t.Fatal(err)
	}
	const n = 10000
	for range n {
		l.Record(audit.Event{Event: audit.LeaseGranted})
	}
	close(disk.free)
	for { // until the queue has room again
		l.Record(audit.Event{Event: audit.DaemonStopped})
		if err := l.Reopen(); err != nil { // waits for the writer
			t.Fatal(err)
		}
		disk.mu.Lock()
		got := disk.lines.String()
		disk.mu.Unlock()
		if strings.Contains(got, `"missed":`) {
			break
		}
	}
	l.Close()
}
