package tests

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"pghandoff/cmd/pghandoff/throwaway"
	"pghandoff/pgwire"
	"pghandoff/tests/testpg"
)

// shortOfCPU is what the kernel's scheduler may cost a query where there are
// fewer processors than the server and the function that reads keep busy.
const shortOfCPU = 20 * time.Millisecond

// pipelined is how many queries a function sends before it reads an answer.
const pipelined = 100_000

// Proves that functions which stop reading amid a gigabyte, which send a message
// byte by byte, and which send queries without reading cost the daemon no memory
// and the others on the same loop at most a doubled median time for a query, and
// that the last two get all of their answers.
func TestMisbehavingFunctionsOnOneLoop(t *testing.T) {
	rounds := 2
	if whole() {
		rounds = 7
	}
	pg := testpg.Start(t)
	d := serve(t, pg, settings{Global: "loops: 1", Pool: "min_idle: 2, max: 20"})
	others := []*raw{d.session(), d.session(), d.session()}
	for _, r := range others {
		r.conn.SetDeadline(time.Now().Add(8 * time.Minute))
	}
	measure(t, others, after(time.Second)) // to warm up
	before := d.residentMemory()
	most := before
	var alone, beside, reading []time.Duration
	slow := func() bool {
		return bestRatio(beside, alone) > 2 || bestRatio(reading, alone) > 2 && slices.Min(reading) > shortOfCPU
	}
	for i := 0; i < rounds || i < 12 && slow(); i++ {
		alone = append(alone, measure(t, others, after(time.Second)))
		m := d.misbehave()
		beside = append(beside, measure(t, others, after(time.Second)))
		most = max(most, d.residentMemory())
		reading = append(reading, measure(t, others, m.read()))
		most = max(most, d.residentMemory())
		m.end()
		awaitRest(t, pg)
	}
	t.Logf("medians alone %v, beside those that do not read %v, beside one that reads %v; memory %d KB before, %d KB at most",
		alone, beside, reading, before>>10, most>>10)
	if most > before+8<<20 {
		t.Errorf("the daemon has grown by %d KB", (most-before)>>10)
	}
	if slow() {
		t.Error("in no round was the median within twice that alone")
	}
}

// awaitRest waits until no backend works any more.
func awaitRest(t *testing.T, pg *throwaway.Cluster) {
	t.Helper()
	eventually(t, "the backends to rest", func() bool {
		n, err := pg.Psql(t.Context(), "select count(*) from pg_stat_activity where usename = 'app' and state <> 'idle'")
		return err == nil && n == "0"
	})
}

// bestRatio is the least ratio of one round. A machine that is busy with
// something else spoils some rounds, but makes none better.
func bestRatio(with, without []time.Duration) float64 {
	best := 1e9
	for i := range with {
		best = min(best, float64(with[i])/float64(without[i]))
	}
	return best
}

// after is closed after a while.
func after(d time.Duration) <-chan struct{} {
	done := make(chan struct{})
	time.AfterFunc(d, func() { close(done) })
	return done
}

// measure lets each of the sessions send a query now and then, until done, and
// returns the median of the times to its answer.
func measure(t *testing.T, sessions []*raw, done <-chan struct{}) time.Duration {
	t.Helper()
	times := make([][]time.Duration, len(sessions))
	var work sync.WaitGroup
	for i, r := range sessions {
		work.Go(func() { // ended by done; waited for below
			pause := time.NewTicker(2 * time.Millisecond)
			defer pause.Stop()
			for n := 0; ; n++ {
				select {
				case <-done:
					return
				case <-pause.C:
				}
				start := time.Now()
				if err := r.ask(n); err != nil {
					t.Errorf("a function beside: %v", err)
					return
				}
				times[i] = append(times[i], time.Since(start))
			}
		})
	}
	work.Wait()
	var all []time.Duration
	for _, s := range times {
		all = append(all, s...)
	}
	if len(all) == 0 {
		t.Fatal("no query was answered")
	}
	return median(all)
}

// ask sends a query for a number and wants it back.
func (r *raw) ask(n int) error {
	if _, err := r.conn.Write(message('Q', fmt.Sprintf("select %d\x00", n))); err != nil {
		return err
	}
	return wantNumber(r.frames, n)
}

func wantNumber(frames *pgwire.FrameReader, n int) error {
	var got []byte
	for {
		typ, body, err := frames.Next()
		switch {
		case err != nil:
			return err
		case typ == 'D':
			got = append(got, body[6:]...)
		case typ == 'Z' && string(got) != strconv.Itoa(n):
			return fmt.Errorf("answer %q to query %d", got, n)
		case typ == 'Z':
			return nil
		}
	}
}

// misbehaving are functions that do what they should not.
type misbehaving struct {
	d             *daemon
	stops, floods *raw
	byByte        *raw
	left          []byte // of the message that is sent byte by byte
	stop          chan struct{}
	work          sync.WaitGroup
}

// misbehave starts them.
func (d *daemon) misbehave() *misbehaving {
	d.t.Helper()
	m := &misbehaving{d: d, stops: d.session(), floods: d.session(), byByte: d.session(), stop: make(chan struct{})}
	for _, r := range []*raw{m.stops, m.floods, m.byByte} {
		r.conn.SetDeadline(time.Now().Add(2 * time.Minute))
	}
	m.stops.send(message('Q', "select repeat('x', 1000) from generate_series(1, 1000000)\x00"))
	if _, err := io.CopyN(io.Discard, m.stops.conn, 1<<20); err != nil {
		d.t.Fatal(err)
	}
	var queries bytes.Buffer
	for i := range pipelined {
		queries.Write(message('Q', fmt.Sprintf("select %d\x00", i)))
	}
	m.work.Go(func() { // ends when all is sent, for which read sees; end waits for it
		if _, err := m.floods.conn.Write(queries.Bytes()); err != nil {
			d.t.Errorf("the function that floods: %v", err)
		}
	})
	m.left = message('Q', "select 'byte by byte'\x00")
	m.work.Go(m.trickle) // ended by stop; end waits for it
	return m
}

// trickle sends a byte a second.
func (m *misbehaving) trickle() {
	second := time.NewTicker(time.Second)
	defer second.Stop()
	for len(m.left) > 1 {
		if _, err := m.byByte.conn.Write(m.left[:1]); err != nil {
			m.d.t.Errorf("the function that sends byte by byte: %v", err)
		}
		m.left = m.left[1:]
		select {
		case <-second.C:
		case <-m.stop:
			return
		}
	}
}

// read lets the function that floods read its answers, and says when it has them
// all.
func (m *misbehaving) read() <-chan struct{} {
	done := make(chan struct{})
	m.work.Go(func() { // ends with the last answer; end waits for it
		defer close(done)
		frames := pgwire.NewFrameReader(bufio.NewReaderSize(m.floods.conn, 64<<10), 0)
		for i := range pipelined {
			if err := wantNumber(frames, i); err != nil {
				m.d.t.Errorf("the function that floods, answer %d: %v", i, err)
				return
			}
		}
	})
	return done
}

// end sends what is left of the message, and ends them.
func (m *misbehaving) end() {
	m.d.t.Helper()
	close(m.stop)
	m.work.Wait()
	m.byByte.send(m.left)
	if got := m.byByte.answers(); got != "TD(byte by byte)CZ" {
		m.d.t.Errorf("the function that sends byte by byte reads %s", got)
	}
	for _, r := range []*raw{m.stops, m.floods, m.byByte} {
		r.conn.Close()
	}
}
