package tests

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"errors"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"pghandoff/tests/testpg"
)

// benchFigure is what this test reads of one figure of "bench --json".
type benchFigure struct {
	Group, Case, Metric, Target string
	Rounds                      []float64
	Median, Min, Max            float64
	Ratios                      []struct {
		To     string
		Median float64
		Bound  *benchBound
	}
	Bound *benchBound
}

type benchBound struct {
	Must float64
	Met  bool
}

// Proves that the bench measures everything that a target is set for, with
// figures that can be true, says how each compares, and leaves nothing behind.
// Whether the targets are met is not for a shared machine to say.
func TestBench(t *testing.T) {
	testpg.Require(t, "pgbouncer", "pgbouncer")
	if raceEnabled {
		t.Skip("under the race detector the daemon is too slow for pgbench's rates; the run without it is the test")
	}
	dir := t.TempDir()
	os.Chmod(dir, 0o755)
	os.Chmod(filepath.Dir(dir), 0o755)
	exe, plot := program(t), filepath.Join(t.TempDir(), "acquisition.svg")
	cmd := exec.CommandContext(t.Context(), exe, "bench", "--quick", "--json", "--against", "pgbouncer", "--plot", plot)
	cmd.Env = append(os.Environ(), "TMPDIR="+dir)
	var progress bytes.Buffer
	cmd.Stderr = &progress
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, progress.String())
	}
	var report struct {
		Peers   []string
		Figures []benchFigure
	}
	if err := json.Unmarshal(out, &report); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if len(report.Peers) != 1 || !strings.HasPrefix(report.Peers[0], "PgBouncer ") {
		t.Errorf("peers are %q", report.Peers)
	}
	seen := map[string]benchFigure{}
	for _, f := range report.Figures {
		checkFigure(t, f)
		seen[strings.Join([]string{f.Group, f.Case, f.Metric, f.Target}, "/")] = f
	}
	for _, want := range benchFigures() {
		if _, ok := seen[want]; !ok {
			t.Errorf("no figure %s", want)
		}
		delete(seen, want)
	}
	for unexpected := range seen {
		t.Errorf("a figure %s that this test does not know", unexpected)
	}
	checkSVG(t, plot)
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	for _, p := range processesOf(t, exe) {
		t.Errorf("process %s still runs", p)
	}
}

// benchFigures are all figures of a quick run against PgBouncer.
func benchFigures() (all []string) {
	add := func(prefix, metrics, targets string) {
		for _, m := range strings.Fields(metrics) {
			for _, target := range strings.Fields(targets) {
				all = append(all, prefix+"/"+m+"/"+target)
			}
		}
	}
	add("acquisition/1 ms apart", "ready_p50_us ready_p90_us ready_p99_us query_p50_us query_p90_us query_p99_us",
		"direct-tls direct-unix pghandoff-wire pghandoff-handoff pgbouncer")
	loads := []string{"throughput/simple, 8 clients", "throughput/extended, 8 clients", "throughput/prepared, 8 clients",
		"results/2 MB, 1 clients", "results/2 MB, 4 clients"}
	for _, load := range loads {
		add(load, "tps", "direct-tls pghandoff pgbouncer")
		add(load, "cpu_us_per_transaction", "pghandoff pgbouncer")
	}
	add("rate/extended, 4 clients, 1500 a second", "latency_p50_us latency_p99_us", "direct-tls pghandoff pgbouncer")
	add("storm/200 functions", "last_connected_ms last_answered_ms", "direct-tls pghandoff-wire pghandoff-handoff pgbouncer")
	add("storm/200 functions", "cpu_us_per_transaction", "pghandoff-wire pghandoff-handoff pgbouncer")
	add("plaintext/extended, 8 clients", "tps cpu_us_per_transaction", "pghandoff pgbouncer")
	add("memory/1000 leases", "bytes_per_lease", "pghandoff")
	return all
}

func checkFigure(t *testing.T, f benchFigure) {
	t.Helper()
	for _, v := range append(f.Rounds, f.Median, f.Min, f.Max) {
		if v <= 0 || math.IsInf(v, 0) {
			t.Errorf("%s, %s, %s of %s is %v", f.Group, f.Case, f.Metric, f.Target, v)
		}
	}
	if len(f.Rounds) != 1 || f.Min > f.Median || f.Median > f.Max {
		t.Errorf("%s, %s, %s of %s: %v, median %v of %v..%v", f.Group, f.Case, f.Metric, f.Target, f.Rounds, f.Median, f.Min, f.Max)
	}
	ours, judged := strings.HasPrefix(f.Target, "pghandoff"), f.Bound != nil
	if ours && len(f.Ratios) == 0 && f.Group != "memory" {
		t.Errorf("%s, %s, %s of %s is compared with nothing", f.Group, f.Case, f.Metric, f.Target)
	}
	for _, r := range f.Ratios {
		if r.Median <= 0 {
			t.Errorf("%s, %s, %s of %s is %v times that of %s", f.Group, f.Case, f.Metric, f.Target, r.Median, r.To)
		}
		judged = judged || r.Bound != nil
	}
	switch must := f.Group + " " + f.Metric; must {
	case "acquisition ready_p50_us", "throughput tps", "throughput cpu_us_per_transaction", "results cpu_us_per_transaction", "rate latency_p50_us",
		"rate latency_p99_us", "plaintext cpu_us_per_transaction", "memory bytes_per_lease":
		if judged != ours {
			t.Errorf("%s, %s of %s is judged: %v", must, f.Case, f.Target, judged)
		}
	default:
		if judged {
			t.Errorf("%s, %s of %s is judged", must, f.Case, f.Target)
		}
	}
}

// checkSVG reads the plot: well-formed, with a curve for each of five targets.
func checkSVG(t *testing.T, path string) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	curves := 0
	for d := xml.NewDecoder(bytes.NewReader(text)); ; {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatalf("the plot: %v", err)
		}
		if e, ok := token.(xml.StartElement); ok && e.Name.Local == "polyline" {
			curves++
		}
	}
	if curves != 5 {
		t.Errorf("the plot has %d curves", curves)
	}
}

// Proves that what cannot be measured is named before anything is started.
func TestBenchRefuses(t *testing.T) {
	for _, c := range []struct{ option, value, want string }{
		{"--against", "pgpool", "pgpool"},
		{"--modes", "turbo", "turbo"},
		{"--clients", "0", "not 0"},
		{"--only", "everything", "everything"},
	} {
		out, err := exec.CommandContext(t.Context(), program(t), "bench", c.option, c.value).CombinedOutput()
		if err == nil || !strings.Contains(string(out), c.want) || bytes.Count(out, []byte("\n")) != 1 {
			t.Errorf("%s %s: %v, %s", c.option, c.value, err, out)
		}
	}
	cmd := exec.CommandContext(t.Context(), program(t), "bench", "--against", "odyssey")
	cmd.Env = []string{"PATH=/nonexistent"}
	if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), "odyssey is not installed (build it from") {
		t.Errorf("a peer that is not there: %v, %s", err, out)
	}
}
