package audit_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
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

func TestLinesRecordedBeforeAReopeningAreInTheOldFile(t *testing.T) {
	for range 100 {
		path := filepath.Join(t.TempDir(), "audit.jsonl")
		l, err := audit.Open(path, nil)
		if err != nil {
			t.Fatal(err)
		}
		for range 5 {
			l.Record(audit.Event{Event: audit.LeaseGranted})
		}
		os.Rename(path, path+".1")
		if err := l.Reopen(); err != nil {
			t.Fatal(err)
		}
		l.Close()
		if old, young := lines(t, path+".1"), lines(t, path); len(old) != 5 || len(young) != 0 {
			t.Fatalf("%d lines in the old file, %d in the new one", len(old), len(young))
		}
	}
}

// full is a disk that takes only so many bytes of each write.
type full struct {
	room  []int // of each of the next writes; then there is room for all
	bytes strings.Builder
}

func (f *full) Write(p []byte) (int, error) {
	if len(f.room) > 0 {
		n := min(f.room[0], len(p))
		f.room = f.room[1:]
		f.bytes.Write(p[:n])
		return n, syscall.ENOSPC
	}
	return f.bytes.Write(p)
}

func TestFullDiskDamagesOneLineAndWhatIsLostIsCounted(t *testing.T) {
	for name, c := range map[string]struct {
		room []int
		want []string // "seq missed" of each line, "-" for a damaged one
	}{
		"room for all":           {nil, []string{"1 0", "2 0", "3 0", "4 0"}},
		"no room, twice":         {[]int{0, 0}, []string{"3 2", "4 0"}},
		"half a line":            {[]int{20}, []string{"-", "2 1", "3 0", "4 0"}},
		"half a line, twice":     {[]int{20, 20}, []string{"-", "-", "3 2", "4 0"}},
		"half, none, half":       {[]int{20, 0, 20}, []string{"-", "-", "4 3"}},
		"half, then one newline": {[]int{20, 1}, []string{"-", "3 2", "4 0"}},
		"an error and all of it": {[]int{1 << 20}, []string{"1 0", "2 0", "3 0", "4 0"}},
	} {
		disk := &full{room: c.room}
		l, err := audit.Open("", disk)
		if err != nil {
			t.Fatal(err)
		}
		for range 4 {
			l.Record(audit.Event{Event: audit.LeaseGranted})
			if err := l.Reopen(); err != nil { // waits for the writer
				t.Fatal(err)
			}
		}
		l.Close()
		var got []string
		for line := range strings.Lines(disk.bytes.String()) {
			var e audit.Event
			if json.Unmarshal([]byte(line), &e) != nil {
				got = append(got, "-")
				continue
			}
			got = append(got, fmt.Sprint(e.Seq, e.Missed))
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: got %q, want %q", name, got, c.want)
		}
	}
}

func TestBurstOnAFullDiskKeepsItsWholeLines(t *testing.T) {
	disk := &gate{free: make(chan struct{}), full: full{room: []int{1 << 20, 250}}}
	l, err := audit.Open("", disk)
	if err != nil {
		t.Fatal(err)
	}
	const n = 10
	for range n {
		l.Record(audit.Event{Event: audit.LeaseGranted})
	}
	close(disk.free)
	l.Reopen()
	l.Record(audit.Event{Event: audit.LeaseReleased})
	l.Close()
	var through, missed, damaged uint64
	for line := range strings.Lines(disk.bytes.String()) {
		var e audit.Event
		if json.Unmarshal([]byte(line), &e) != nil {
			damaged++
			continue
		}
		through, missed = through+1, missed+e.Missed
	}
	if through+missed != n+1 || damaged > 1 {
		t.Errorf("%d lines got through, %d are told as missed, of %d; %d are damaged", through, missed, n+1, damaged)
	}
}

// gate is a full disk whose first write waits.
type gate struct {
	free chan struct{}
	full
}

func (g *gate) Write(p []byte) (int, error) {
	<-g.free
	return g.full.Write(p)
}

func TestFileThatEndsWithinALineIsGoneOnWithInANewOne(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.jsonl")
	os.WriteFile(path, []byte("{\"seq\":1}\n{\"se"), 0o600)
	l, err := audit.Open(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	l.Record(audit.Event{Event: audit.DaemonStarted})
	if err := l.Reopen(); err != nil { // the same file, now whole
		t.Fatal(err)
	}
	l.Record(audit.Event{Event: audit.DaemonStopped})
	l.Close()
	text, _ := os.ReadFile(path)
	if got := strings.Split(string(text), "\n"); len(got) != 5 || got[1] != "{\"se" || !strings.Contains(got[2], "daemon.started") || !strings.Contains(got[3], "daemon.stopped") {
		t.Errorf("got %q", got)
	}
}
