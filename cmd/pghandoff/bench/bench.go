package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"time"
)

// Report is what was measured.
type Report struct {
	Version string    `json:"version"`
	Go      string    `json:"go"`
	System  string    `json:"system"`
	CPUs    int       `json:"cpus"`
	Server  string    `json:"server"`
	Peers   []string  `json:"peers"` // with their versions
	Quick   bool      `json:"quick"`
	Rounds  int       `json:"rounds"`
	Notes   []string  `json:"notes,omitempty"` // what was left out, and why
	Figures []*Figure `json:"figures"`
}

// Run measures and prints.
func Run(ctx context.Context, o Options) (err error) {
	if err := o.Validate(); err != nil {
		return err
	}
	s := &stage{Options: o.withDefaults(), started: time.Now(), results: results{samples: map[string][]float64{}}}
	defer func() { err = errors.Join(err, s.close()) }()
	if err := s.open(ctx); err != nil {
		return err
	}
	for _, part := range s.parts() {
		if s.Only != nil && !slices.Contains(s.Only, string(part.group)) {
			continue
		}
		if err := part.measure(ctx); err != nil {
			return err
		}
	}
	s.results.finish()
	s.progress("done")
	return s.show()
}

// part is what measures one group.
type part struct {
	group   Group
	measure func(context.Context) error
}

func (s *stage) parts() []part {
	return []part{
		{Acquisition, s.measureAcquisition}, {Throughput, s.measureThroughput}, {Results, s.measureResults},
		{FixedRate, s.measureRate}, {Storm, s.measureStorm}, {Plaintext, s.measurePlaintext}, {Memory, s.measureMemory},
	}
}

// Groups are the names of what can be measured.
func Groups() (names []string) {
	for _, p := range new(stage).parts() {
		names = append(names, string(p.group))
	}
	return names
}

// show prints the report and draws the plot.
func (s *stage) show() error {
	r := &Report{Version: s.Version, Go: runtime.Version(), System: system(), CPUs: runtime.NumCPU(), Server: s.version,
		Quick: s.Quick, Rounds: s.Rounds, Notes: s.notes, Figures: s.results.figures, Peers: []string{}}
	for _, p := range s.peers {
		r.Peers = append(r.Peers, p.version)
	}
	if s.Plot != "" {
		if err := os.WriteFile(s.Plot, s.results.plot(), 0o644); err != nil {
			return fmt.Errorf("write the plot: %w", err)
		}
	}
	if s.JSON {
		e := json.NewEncoder(s.Out)
		e.SetIndent("", "  ")
		return e.Encode(r)
	}
	return r.print(s.Out)
}

// progress prints a line on what comes next.
func (s *stage) progress(format string, args ...any) {
	fmt.Fprintf(s.Progress, "%4.0f s  %s\n", time.Since(s.started).Seconds(), fmt.Sprintf(format, args...))
}

// inTurn calls f for each subject, in the reverse order in every second round,
// with a pause before each, in which what the one before left behind is done.
func inTurn[T any](ctx context.Context, round int, subjects []T, f func(T) error) error {
	order := slices.Clone(subjects)
	if round%2 == 1 {
		slices.Reverse(order)
	}
	for _, subject := range order {
		if err := pause(ctx, settle); err != nil {
			return err
		}
		if err := f(subject); err != nil {
			return err
		}
	}
	return nil
}

// settle is enough for a daemon to clean the sessions of those who just left.
const settle = 50 * time.Millisecond

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
