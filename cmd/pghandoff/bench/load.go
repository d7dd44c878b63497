package bench

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"pghandoff/cmd/pghandoff/child"
)

// load is one use of pgbench.
type load struct {
	group   Group
	name    string
	clients int
	args    []string
}

// measureThroughput runs small selects in every mode.
func (s *stage) measureThroughput(ctx context.Context) error {
	var loads []load
	for _, mode := range s.Modes {
		for _, n := range s.Clients {
			loads = append(loads, load{Throughput, fmt.Sprintf("%s, %d clients", mode, n), n, []string{"-S", "-M", mode}})
		}
	}
	return s.runLoads(ctx, loads, append([]subject{s.direct()}, s.pooled()...))
}

// measureResults runs queries that return 2,000 rows of 1 KB.
func (s *stage) measureResults(ctx context.Context) error {
	script := filepath.Join(s.dir, "results.sql")
	if err := os.WriteFile(script, []byte("select filler from bulk;\n"), 0o644); err != nil {
		return err
	}
	var loads []load
	for _, n := range []int{1, 4} {
		loads = append(loads, load{Results, fmt.Sprintf("2 MB, %d clients", n), n, []string{"-f", script, "-M", "simple"}})
	}
	return s.runLoads(ctx, loads, append([]subject{s.direct()}, s.pooled()...))
}

// measurePlaintext compares daemons that use no TLS to the server, started for
// it: the cost of carrying bytes without that of encryption.
func (s *stage) measurePlaintext(ctx context.Context) error {
	s.progress("starting the daemons without TLS")
	d, err := s.startDaemon("plain", "mode: disable")
	if err != nil {
		return err
	}
	defer d.Kill() // by then nobody uses it
	subjects := []subject{s.wire(d)}
	for _, p := range s.peers {
		if p.name != pgbouncer {
			continue
		}
		plain, err := s.startPeer(ctx, p.kind, false)
		if err != nil {
			return err
		}
		defer plain.Kill()
		subjects = append(subjects, plain.subject)
	}
	return s.runPlaintext(ctx, d, subjects)
}

func (s *stage) runPlaintext(ctx context.Context, d *child.Daemon, subjects []subject) error {
	if _, err := d.AwaitWarm(ctx); err != nil {
		return err
	}
	if err := s.warm(ctx, subjects); err != nil {
		return err
	}
	var loads []load
	for _, n := range s.Clients {
		if n > 1 {
			loads = append(loads, load{Plaintext, fmt.Sprintf("extended, %d clients", n), n, []string{"-S", "-M", "extended"}})
		}
	}
	return s.runLoads(ctx, loads, subjects)
}

// runLoads measures each load on all subjects in turn, round by round.
func (s *stage) runLoads(ctx context.Context, loads []load, subjects []subject) error {
	for round := range s.Rounds {
		for _, l := range loads {
			s.progress("%s, %s: round %d of %d", l.group, l.name, round+1, s.Rounds)
			err := inTurn(ctx, round, subjects, func(to subject) error { return s.runLoad(ctx, l, to) })
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// runLoad measures one load on one subject. The CPU time includes the start and
// the cleaning of the sessions.
func (s *stage) runLoad(ctx context.Context, l load, to subject) error {
	before, err := to.cpuTime()
	if err != nil {
		return err
	}
	seconds := 1
	if to.pid == 0 {
		seconds += l.clients / 32 // for the server to start as many backends
	}
	r, err := s.runPgbench(ctx, to, l.clients, seconds, l.args...)
	if err != nil {
		return fmt.Errorf("%s, %s, on %s: %w", l.group, l.name, to.name, err)
	}
	if err := pause(ctx, settle); err != nil {
		return err
	}
	after, err := to.cpuTime()
	if err != nil {
		return err
	}
	f := Figure{Group: l.group, Case: l.name, Clients: l.clients, Target: to.name}
	s.results.add(f, perSec, r.tps)
	if to.pid != 0 {
		s.results.add(f, cpuPerTx, micros(after-before)/float64(r.transactions))
	}
	return nil
}
