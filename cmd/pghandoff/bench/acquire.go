package bench

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"pghandoff/handoff"
)

// way is one way to get a connection.
type way struct {
	name string
	slow bool // costs the server a new backend each time
	get  func() (acquired, error)
}

const betweenAcquisitions = time.Millisecond

// measureAcquisition times each way in turn, a few hundred times a round.
func (s *stage) measureAcquisition(ctx context.Context) error {
	ways, err := s.ways(ctx)
	if err != nil {
		return err
	}
	parts, fast, slow := 10, 50, 4
	if s.Quick {
		parts = 4
	}
	for round := range s.Rounds {
		s.progress("acquisition, 1 ms apart: round %d of %d", round+1, s.Rounds)
		got := map[string][]acquired{}
		for part := range parts { // a shared machine is another one a second later
			err := inTurn(ctx, part, ways, func(w way) error {
				n := fast
				if w.slow {
					n = slow
				}
				more, err := w.repeat(ctx, n)
				if err != nil {
					return fmt.Errorf("acquire by %s: %w", w.name, err)
				}
				got[w.name] = append(got[w.name], more...)
				return nil
			})
			if err != nil {
				return err
			}
		}
		for _, w := range ways {
			s.noteAcquisitions(w.name, got[w.name])
		}
	}
	return nil
}

// ways are direct connections, ours, and the peers that pool.
func (s *stage) ways(ctx context.Context) ([]way, error) {
	config, err := pgconn.ParseConfig(s.pg.URL())
	if err != nil {
		return nil, err
	}
	call, err := acquireCall(s.pg.Role, route)
	if err != nil {
		return nil, err
	}
	c := new(client)
	wire := func(path, user string) func() (acquired, error) {
		hello := startup(user, route)
		return func() (acquired, error) { return c.wire(path, hello) }
	}
	lease := filepath.Join(s.daemon.RunDir, handoff.SocketName)
	local := filepath.Join(s.pg.SocketDir, fmt.Sprintf(".s.PGSQL.%d", s.pg.Port))
	ways := []way{
		{directTLS, true, func() (acquired, error) { return overTLS(ctx, config) }},
		{directUnix, true, wire(local, s.pg.Role)},
		{oursWire, false, wire(s.wire(s.daemon).socket, s.pg.Role)},
		{oursLease, false, func() (acquired, error) { return c.handoff(lease, call) }},
	}
	for _, p := range s.peers {
		if p.kind.pools {
			ways = append(ways, way{p.name, false, wire(p.socket, p.role)})
		}
	}
	return ways, nil
}

// repeat gets n connections, one after the other, and drops the first few,
// which find caches cold.
func (w way) repeat(ctx context.Context, n int) ([]acquired, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	runtime.GC()
	defer debug.SetGCPercent(debug.SetGCPercent(-1)) // not in between
	const cold = 5
	var got []acquired
	for i := range n + cold {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		runtime.Gosched() // or the scheduler interrupts us, some time
		rawSleep(betweenAcquisitions)
		a, err := w.get()
		if err != nil {
			return nil, err
		}
		if i >= cold {
			got = append(got, a)
		}
	}
	return got, nil
}

// overTLS is a direct connection by a driver: no client of a few lines does TLS.
func overTLS(ctx context.Context, config *pgconn.Config) (a acquired, err error) {
	start := time.Now()
	conn, err := pgconn.ConnectConfig(ctx, config)
	a.ready = time.Since(start)
	if err != nil {
		return a, err
	}
	_, err = conn.Exec(ctx, "select 1").ReadAll()
	a.query = time.Since(start)
	return a, errors.Join(err, conn.Close(ctx))
}

func (s *stage) noteAcquisitions(name string, got []acquired) {
	ready, query := make([]float64, len(got)), make([]float64, len(got))
	for i, a := range got {
		ready[i], query[i] = micros(a.ready), micros(a.query)
	}
	s.results.samples[name] = append(s.results.samples[name], ready...)
	slices.Sort(ready)
	slices.Sort(query)
	f := Figure{Group: Acquisition, Case: "1 ms apart", Target: name}
	for _, m := range []struct {
		metric Metric
		sorted []float64
		q      float64
	}{
		{readyP50, ready, 0.5}, {readyP90, ready, 0.9}, {readyP99, ready, 0.99},
		{queryP50, query, 0.5}, {queryP90, query, 0.9}, {queryP99, query, 0.99},
	} {
		s.results.add(f, m.metric, quantile(m.sorted, m.q))
	}
}

func micros(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1000 }
