package tests

import (
	"fmt"
	"math/rand/v2"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pghandoff/tests/testpg"
)

// whole reports whether tests shall be as long and as large as the issues ask
// for. Under the race detector they are short also then: it makes everything
// many times slower, and does not find more in the tenth minute.
func whole() bool { return os.Getenv(testpg.RequireEnv) == "all" && !raceEnabled }

// footprint is what the daemon takes, as the kernel counts it.
type footprint struct{ resident, descriptors, threads int }

func (d *daemon) footprint() (f footprint) {
	d.t.Helper()
	f.resident = d.residentMemory()
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", d.cmd.Process.Pid))
	if err != nil {
		d.t.Fatal(err)
	}
	f.descriptors = len(entries)
	m := regexp.MustCompile(`Threads:\s+(\d+)`).FindStringSubmatch(readFile(d.t, fmt.Sprintf("/proc/%d/status", d.cmd.Process.Pid)))
	if m == nil {
		d.t.Fatal("no Threads")
	}
	f.threads, _ = strconv.Atoi(m[1])
	return f
}

// goroutines ends the daemon with SIGQUIT and counts the goroutines that it
// shows.
func (d *daemon) goroutines() int {
	d.t.Helper()
	d.cmd.Process.Signal(syscall.SIGQUIT)
	select {
	case <-d.done:
	case <-time.After(40 * time.Second):
		d.t.Fatal("the daemon goes on after SIGQUIT")
	}
	return len(regexp.MustCompile(`(?m)^goroutine \d+ `).FindAllString(d.stderr.String(), -1))
}

// needDescriptors skips the test where this process, or the daemon, may not hold
// both ends of so many leases.
func needDescriptors(t *testing.T, leases int) {
	t.Helper()
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	if need := uint64(2*leases + 500); limit.Max < need {
		testpg.Missing(t, fmt.Sprintf("%d leases need %d descriptors, and %d are allowed (ulimit -Hn)", leases, need, limit.Max))
	}
}

// echo sends a query to the fake server and wants it back.
func (r *raw) echo(text string) error {
	if _, err := r.conn.Write(message('Q', text+"\x00")); err != nil {
		return err
	}
	got := ""
	for {
		typ, body, err := r.frames.Next()
		switch {
		case err != nil:
			return err
		case typ == 'D':
			got += string(body[6:])
		case typ == 'Z' && got != text:
			return fmt.Errorf("got %.60q for %.60q", got, text)
		case typ == 'Z':
			return nil
		}
	}
}

// busy keeps each of the leases busy until the returned function is called,
// which says how many queries were answered.
func busy(t *testing.T, leases []*raw) (stop func() int) {
	done := make(chan struct{})
	answered := make([]int, len(leases))
	var work sync.WaitGroup
	for i, r := range leases {
		work.Go(func() { // ended by stop, which waits for it
			random := rand.New(rand.NewPCG(uint64(i), 3))
			for n := 0; ; n++ {
				select {
				case <-done:
					return
				default:
				}
				text := fmt.Sprintf("lease %d, query %d ", i, n) + strings.Repeat("x", random.IntN(2<<10))
				if n%100 == 0 {
					text += strings.Repeat("y", 200<<10)
				}
				if err := r.echo(text); err != nil {
					t.Errorf("busy lease %d, query %d: %v", i, n, err)
					return
				}
				answered[i]++
			}
		})
	}
	return func() (sum int) {
		close(done)
		work.Wait()
		for i, n := range answered {
			if n == 0 {
				t.Errorf("busy lease %d got no answer", i)
			}
			sum += n
		}
		return sum
	}
}

// watch returns what the daemon takes, four times a second for so long.
func (d *daemon) watch(period time.Duration) (seen []footprint) {
	look := time.NewTicker(250 * time.Millisecond)
	defer look.Stop()
	for end := time.After(period); ; {
		select {
		case <-look.C:
			seen = append(seen, d.footprint())
		case <-end:
			return seen
		}
	}
}

// median returns the one of the values that is in the middle.
func median[T int | time.Duration](values []T) T {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[len(sorted)/2]
}

// Proves that thousands of leases of which 64 are busy cost no error, mix
// nothing up, and that the daemon's memory, descriptors, threads and goroutines
// do not grow with the work.
func TestThousandsOfLeasesHeldAndSomeBusy(t *testing.T) {
	count, warmup, period := 2000, 2*time.Second, 10*time.Second
	switch {
	case raceEnabled:
		count = 500 // the race detector ends a process that has 8,128 goroutines
	case whole():
		count, warmup, period = 8000, 10*time.Second, 60*time.Second
	}
	needDescriptors(t, count)
	server := startFakeServer(t, func(*fakeServer) {})
	d := serve(t, server.cluster, settings{Pool: fmt.Sprintf("min_idle: 16, max: %d, wait_timeout: 60s, reset: close", count+100),
		Global: fmt.Sprintf("limits: {leases: %[1]d, waiting: %[1]d, connections: %[1]d}", count+100)})
	before, began := d.footprint(), time.Now()
	held := make([]*raw, count)
	for i := range held {
		held[i] = d.session()
		held[i].conn.SetDeadline(time.Time{})
	}
	d.awaitWarm()
	took, stop := time.Since(began), busy(t, held[:64])
	d.watch(warmup)
	seen := d.watch(period)
	answered := stop()
	for i, r := range held {
		if err := r.echo(fmt.Sprintf("lease %d at last", i)); err != nil {
			t.Fatalf("lease %d: %v", i, err)
		}
	}
	t.Logf("%d leases after %s: %+v before, %+v with them, %+v at the end; %d queries answered", count, took, before, seen[0], seen[len(seen)-1], answered)
	flat(t, seen)
	if regexp.MustCompile(`"level":"(warn|error)"`).MatchString(d.stderr.String()) {
		t.Error("the daemon has something to complain of")
	}
	n := d.goroutines()
	t.Logf("%d goroutines", n)
	if n < 5 || n > 100 {
		t.Errorf("that is no number of goroutines for %d leases", count)
	}
}

// flat checks that nothing has grown from the first to the last quarter.
func flat(t *testing.T, seen []footprint) {
	t.Helper()
	of := func(part []footprint) (f footprint) {
		var resident, descriptors, threads []int
		for _, s := range part {
			resident, descriptors, threads = append(resident, s.resident), append(descriptors, s.descriptors), append(threads, s.threads)
		}
		return footprint{median(resident), median(descriptors), median(threads)}
	}
	quarter := len(seen) / 4
	first, last := of(seen[:quarter]), of(seen[len(seen)-quarter:])
	if grown := last.resident - first.resident; grown > 8<<20 {
		t.Errorf("resident memory grew by %d KB, from %d KB", grown>>10, first.resident>>10)
	}
	if last.descriptors > first.descriptors {
		t.Errorf("%d descriptors, %d before", last.descriptors, first.descriptors)
	}
	if last.threads > first.threads+3 {
		t.Errorf("%d threads, %d before", last.threads, first.threads)
	}
}
