package bench

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

const (
	rateClients = 4
	ratePerSec  = 1500
)

// measureRate measures the latency when there is less to do than could be done.
func (s *stage) measureRate(ctx context.Context) error {
	parts := 4
	if s.Quick {
		parts = 1
	}
	subjects := append([]subject{s.direct()}, s.pooled()...)
	for round := range s.Rounds {
		s.progress("latency at %d a second: round %d of %d", ratePerSec, round+1, s.Rounds)
		got := map[string][]float64{}
		for part := range parts { // a shared machine is another one a second later
			err := inTurn(ctx, part, subjects, func(to subject) error {
				latencies, err := s.latencies(ctx, to, 1)
				if err != nil {
					return fmt.Errorf("latency of %s: %w", to.name, err)
				}
				got[to.name] = append(got[to.name], latencies...)
				return nil
			})
			if err != nil {
				return err
			}
		}
		for _, to := range subjects {
			latencies := got[to.name]
			slices.Sort(latencies)
			f := Figure{Group: FixedRate, Case: fmt.Sprintf("extended, %d clients, %d a second", rateClients, ratePerSec), Clients: rateClients, Target: to.name}
			s.results.add(f, latP50, quantile(latencies, 0.5))
			s.results.add(f, latP99, quantile(latencies, 0.99))
		}
	}
	return nil
}

// latencies returns how long each transaction took, in µs.
func (s *stage) latencies(ctx context.Context, to subject, seconds int) ([]float64, error) {
	dir, err := os.MkdirTemp(s.dir, "log-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	_, err = s.runPgbench(ctx, to, rateClients, seconds, "-S", "-M", "extended", "-R", strconv.Itoa(ratePerSec), "-l", "--log-prefix="+filepath.Join(dir, "log"))
	if err != nil {
		return nil, err
	}
	files, err := filepath.Glob(filepath.Join(dir, "log.*"))
	if err != nil || len(files) == 0 {
		return nil, fmt.Errorf("pgbench has written no log (%v)", err)
	}
	var all []float64
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			return nil, err
		}
		if all, err = appendLatencies(all, text); err != nil {
			return nil, err
		}
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("pgbench's log is empty")
	}
	return all, nil
}

// appendLatencies reads pgbench's log: client, number, µs from the time at which
// the transaction was due, script, second, microsecond, µs that it started late.
func appendLatencies(all []float64, text []byte) ([]float64, error) {
	lines := bufio.NewScanner(bytes.NewReader(text))
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) < 7 {
			return nil, fmt.Errorf("pgbench's log has a line %q", lines.Text())
		}
		took, err := strconv.ParseFloat(fields[2], 64)
		if err != nil {
			return nil, fmt.Errorf("pgbench's log: %w", err)
		}
		late, err := strconv.ParseFloat(fields[6], 64)
		if err != nil {
			return nil, fmt.Errorf("pgbench's log: %w", err)
		}
		all = append(all, took-late)
	}
	return all, lines.Err()
}
