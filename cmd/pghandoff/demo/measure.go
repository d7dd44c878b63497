package demo

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/jackc/pgx/v5"

	"pghandoff/handoff"
	"pghandoff/handoff/pgxhandoff"
)

const (
	rounds     = 100 // acquisitions a way, interleaved
	execRounds = 25  // of exec, each a process
	between    = 3 * time.Millisecond
	atLeast    = 10 // times faster than direct, or something is wrong
)

// way is one way to get a connection and how long it took, each time.
type way struct {
	name  string
	get   func(context.Context) (time.Duration, error)
	times []time.Duration
}

// showTable measures every way, the direct one beside them, and prints the
// table. slow says that some way is not as much faster as it must be.
func (s *stage) showTable(ctx context.Context) (slow bool, err error) {
	ways, err := s.ways()
	if err != nil {
		return false, err
	}
	for i := range rounds + 1 {
		for _, w := range ways {
			if err := w.measure(ctx, i > 0); err != nil {
				return false, err
			}
		}
	}
	exec := &way{name: "exec, descriptor 3", get: s.timeExec}
	for i := range execRounds + 1 {
		if err := exec.measure(ctx, i > 0); err != nil {
			return false, err
		}
	}
	return s.print(append(ways, exec))
}

// ways returns the ways that are measured in turn, the direct one first. What
// can be prepared ahead (reading the connection string, loading the
// certificate) is, for all of them.
func (s *stage) ways() ([]*way, error) {
	direct, err := pgx.ParseConfig(s.pg.URL())
	if err != nil {
		return nil, err
	}
	wire, err := pgx.ParseConfig(wireString(s.daemon.RunDir))
	if err != nil {
		return nil, err
	}
	handedOver, err := pgxhandoff.Config(request(s.daemon.RunDir))
	if err != nil {
		return nil, err
	}
	return []*way{
		{name: "direct: TCP, mTLS, SCRAM", get: timed(direct)},
		{name: "wire socket, pgx", get: timed(wire)},
		{name: "handoff socket, pgx", get: timed(handedOver)},
		{name: "handoff socket, descriptor", get: s.timeLease},
	}, nil
}

// measure takes one time; the first of each way warms it up and is not kept.
func (w *way) measure(ctx context.Context, keep bool) error {
	t, err := w.get(ctx)
	if err != nil {
		return fmt.Errorf("%s: %w", w.name, err)
	}
	if keep {
		w.times = append(w.times, t)
	}
	select {
	case <-time.After(between):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// timed times a connect. The query behind it proves that the connection works
// and is not counted.
func timed(config *pgx.ConnConfig) func(context.Context) (time.Duration, error) {
	return func(ctx context.Context) (time.Duration, error) {
		start := time.Now()
		conn, err := pgx.ConnectConfig(ctx, config)
		took := time.Since(start)
		if err != nil {
			return 0, err
		}
		defer conn.Close(ctx)
		return took, conn.Ping(ctx)
	}
}

// timeLease times the descriptor alone, standing at ReadyForQuery.
func (s *stage) timeLease(ctx context.Context) (time.Duration, error) {
	r := request(s.daemon.RunDir)
	r.State = handoff.Ready
	start := time.Now()
	l, err := handoff.Acquire(ctx, r)
	took := time.Since(start)
	if err != nil {
		return 0, err
	}
	return took, l.Close()
}

// timeExec runs a function by exec, which tells its program how long it took to
// get the descriptor; the start of the processes is not counted, as it is not
// in the other ways.
func (s *stage) timeExec(ctx context.Context) (time.Duration, error) {
	cmd := s.command(ctx, kindExec)
	i := slices.Index(cmd.Args, "--")
	cmd.Args = append(cmd.Args[:i+1:i+1], "/bin/sh", "-c", `echo "$`+handoff.EnvAcquired+`"`)
	out, err := cmd.Output()
	if err != nil {
		return 0, err
	}
	micros, err := strconv.ParseInt(strings.TrimSpace(string(out)), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%s is %q", handoff.EnvAcquired, out)
	}
	return time.Duration(micros) * time.Microsecond, nil
}

// quantile expects sorted times.
func quantile(times []time.Duration, q float64) time.Duration {
	return times[min(int(q*float64(len(times))), len(times)-1)]
}

func (s *stage) print(ways []*way) (slow bool, err error) {
	fmt.Fprintf(s.out, "\nHow long a function waits for its connection (%d times each, in turn, in this run):\n\n", rounds)
	t := tabwriter.NewWriter(s.out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "  way\tp50\tp99\ttimes faster (p50)\t")
	for _, w := range ways {
		slices.Sort(w.times)
	}
	direct := quantile(ways[0].times, 0.5)
	for _, w := range ways {
		p50 := quantile(w.times, 0.5)
		ratio := float64(direct) / float64(p50)
		slow = slow || w != ways[0] && ratio < atLeast
		fmt.Fprintf(t, "  %s\t%s\t%s\t%.1f\t\n", w.name, show(p50), show(quantile(w.times, 0.99)), ratio)
	}
	return slow, t.Flush()
}

func show(d time.Duration) string { return fmt.Sprintf("%.0f µs", float64(d.Nanoseconds())/1000) }
