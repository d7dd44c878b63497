package tests

import (
	"math"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"pghandoff/tests/testpg"
)

// traced is a line that Go's runtime writes after a collection: the time that
// it takes to stop the world and to work in it, the concurrent part, and the
// same as the first at the end, in milliseconds.
var traced = regexp.MustCompile(`(?m)^gc \d+ @[\d.]+s \d+%: ([\d.]+)\+([\d.]+)\+([\d.]+) ms clock,`)

// Proves that no loop holds up the garbage collector, nor it the loops, while
// functions come, go and keep the loops busy: it runs hundreds of times, ends
// each time and stops the world for a moment only.
func TestGarbageCollectionIsNotHeldUpUnderLoad(t *testing.T) {
	pgbench := testpg.Require(t, "pgbench", "postgresql-contrib")
	seconds := "5"
	if whole() {
		seconds = "20"
	}
	pg := testpg.Start(t)
	d := newDaemon(t)
	d.configure(pg, settings{Pool: "min_idle: 4, max: 40"})
	// Its lines would stand between the parts of the runtime's.
	write(t, d.config, strings.Replace(readFile(t, d.config), "level: debug", "level: error", 1))
	d.cmd = exec.Command(program(t), "serve", "--config", d.config)
	d.cmd.Stderr, d.cmd.Stdout = d.stderr, d.stderr
	// A limit that is below what it needs makes it collect all the time.
	d.cmd.Env = append(os.Environ(), "GODEBUG=gctrace=1", "GOGC=1", "GOMEMLIMIT=1MiB")
	d.run()
	d.awaitWarm()
	if out, err := shell(t, nil, pgbench, "-h", d.runDir, "-i", "-q", "orders"); err != nil {
		t.Fatalf("pgbench -i: %v, %s", err, out)
	}
	var load sync.WaitGroup
	for _, options := range [][]string{{"-c", "8", "-j", "2"}, {"-c", "4", "-C"}} { // those that stay, and those that make garbage
		load.Go(func() { // ends by itself
			out, err := shell(t, nil, pgbench, append([]string{"-h", d.runDir, "-S", "-n", "-T", seconds, "orders"}, options...)...)
			if err != nil || !strings.Contains(out, "number of failed transactions: 0 ") {
				t.Errorf("pgbench %v: %v, %s", options, err, out)
			}
		})
	}
	load.Wait()
	checkPauses(t, d.stderr.String())
}

// checkPauses judges what the runtime says of its collections. The bounds are
// for a busy machine: a loop that waited where the runtime cannot stop it would
// hold it up for seconds.
func checkPauses(t *testing.T, said string) {
	t.Helper()
	var pauses, collections []time.Duration
	for _, m := range traced.FindAllStringSubmatch(said, -1) {
		var total time.Duration
		for i, text := range m[1:] {
			ms, _ := strconv.ParseFloat(text, 64)
			part := time.Duration(math.Round(ms * 1e6))
			total += part
			if i != 1 {
				pauses = append(pauses, part)
			}
		}
		collections = append(collections, total)
	}
	if len(collections) < 50 {
		t.Fatalf("only %d collections in %d bytes of output, at least 50 are wanted", len(collections), len(said))
	}
	slices.Sort(pauses)
	slices.Sort(collections)
	most, rare, longest := pauses[len(pauses)-1], pauses[len(pauses)*99/100], collections[len(collections)-1]
	t.Logf("%d collections: the world stood still for %s in the median, %s in 99 %%, %s at most; the longest collection took %s",
		len(collections), pauses[len(pauses)/2], rare, most, longest)
	if rare > 50*time.Millisecond || most > 500*time.Millisecond || longest > 5*time.Second {
		t.Error("garbage collection is held up")
	}
}
