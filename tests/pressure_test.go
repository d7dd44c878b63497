package tests

import (
	"bytes"
	"fmt"
	"regexp"
	"strconv"
	"testing"
	"time"

	"pghandoff/tests/testpg"
)

// residentMemory returns what the daemon keeps in memory, in bytes.
func (d *daemon) residentMemory() int {
	d.t.Helper()
	m := regexp.MustCompile(`VmRSS:\s+(\d+) kB`).FindStringSubmatch(readFile(d.t, fmt.Sprintf("/proc/%d/status", d.cmd.Process.Pid)))
	if m == nil {
		d.t.Fatal("no VmRSS")
	}
	kb, _ := strconv.Atoi(m[1])
	return kb << 10
}

// Proves that functions which do not read a huge result, and ones that send
// without ever reading, cost the daemon no memory and the others no service,
// and that their upstreams are reclaimed when they go.
func TestFunctionsThatDoNotRead(t *testing.T) {
	for _, loops := range []int{1, 2} {
		t.Run(fmt.Sprintf("%d loops", loops), func(t *testing.T) {
			pg := testpg.Start(t)
			d := serve(t, pg, settings{Global: fmt.Sprintf("loops: %d", loops), Pool: "min_idle: 2, max: 20"})
			other := d.connect()
			before := d.residentMemory()
			var greedy []*raw
			for range 5 {
				r := d.session()
				r.send(message('Q', "select repeat('x', 1000) from generate_series(1, 1000000)\x00"))
				greedy = append(greedy, r)
			}
			flood := bytes.Repeat(message('Q', "select repeat('y', 1000)\x00"), 1000)
			for range 5 {
				r := d.session()
				r.conn.SetWriteDeadline(time.Now().Add(time.Second))
				for err := error(nil); err == nil; { // until nobody takes any more
					_, err = r.conn.Write(flood)
				}
				greedy = append(greedy, r)
			}
			start := time.Now()
			for i := range 200 {
				if got := query(t, other, fmt.Sprintf("select %d", i)); got != strconv.Itoa(i) {
					t.Fatalf("got %s", got)
				}
			}
			if took := time.Since(start); took > 5*time.Second {
				t.Errorf("200 queries of another function took %s", took)
			}
			if grown := d.residentMemory() - before; grown > 40<<20 {
				t.Errorf("the daemon has grown by %d MB", grown>>20)
			}
			for _, r := range greedy {
				r.conn.Close()
			}
			eventually(t, "their backends to rest", func() bool {
				n, err := pg.Psql(t.Context(), "select count(*) from pg_stat_activity where usename = 'app' and state <> 'idle'")
				return err == nil && n == "0"
			})
		})
	}
}
