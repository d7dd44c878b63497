package tests

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"pghandoff/proxy/audit"
)

// Proves that the README's first command does what it says: three functions, a
// table in which every way is at least ten times faster than a direct
// connection, the audit lines of the three leases, and nothing left behind.
func TestDemo(t *testing.T) {
	dir := t.TempDir()
	os.Chmod(dir, 0o755)
	os.Chmod(filepath.Dir(dir), 0o755)
	exe := program(t)
	cmd := exec.CommandContext(t.Context(), exe, "demo")
	cmd.Env = append(os.Environ(), "TMPDIR="+dir)
	start := time.Now()
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if took := time.Since(start); took > 30*time.Second {
		t.Errorf("it took %s", took)
	}
	text := string(out)
	row := regexp.MustCompile(`(?m)^ +(\w.*?) +(\d+) µs +(\d+) µs +([\d.]+) *$`)
	rows := row.FindAllStringSubmatch(text, -1)
	if len(rows) != 5 {
		t.Fatalf("the table has %d rows:\n%s", len(rows), text)
	}
	for _, r := range rows[1:] {
		if ratio, err := strconv.ParseFloat(r[4], 64); err != nil || ratio < 10 {
			t.Errorf("%s is %s times faster", r[1], r[4])
		}
	}
	ways := map[string]int{}
	for line := range strings.Lines(text) {
		var e audit.Event
		if strings.HasPrefix(line, "{") {
			if err := json.Unmarshal([]byte(line), &e); err != nil {
				t.Errorf("%s: %v", line, err)
			}
			ways[string(e.Event)+" "+e.Way]++
		}
	}
	if ways["lease.granted wire"] != 1 || ways["lease.granted handoff"] != 2 || ways["lease.released wire"] != 1 || ways["lease.released handoff"] != 2 {
		t.Errorf("the audit lines are of %v", ways)
	}
	left, err := os.ReadDir(dir)
	if err != nil || len(left) != 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	for _, p := range processesOf(t, exe) {
		t.Errorf("process %s still runs", p)
	}
}

// processesOf lists the processes that run a program.
func processesOf(t *testing.T, exe string) (pids []string) {
	t.Helper()
	all, err := filepath.Glob("/proc/[0-9]*/exe")
	if err != nil {
		t.Fatal(err)
	}
	for _, link := range all {
		if target, err := os.Readlink(link); err == nil && target == exe {
			pids = append(pids, filepath.Base(filepath.Dir(link)))
		}
	}
	return pids
}
