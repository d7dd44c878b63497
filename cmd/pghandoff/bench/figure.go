package bench

import (
	"cmp"
	"slices"
)

// Figure is one quantity of one target, measured once a round.
type Figure struct {
	Group   Group     `json:"group"`
	Case    string    `json:"case"`
	Clients int       `json:"clients,omitempty"` // 0: not a matter of clients
	Metric  Metric    `json:"metric"`
	Target  string    `json:"target"`
	Rounds  []float64 `json:"rounds"`
	Spread
	Ratios []Ratio `json:"ratios,omitempty"`
	Bound  *Bound  `json:"bound,omitempty"` // for the median itself
}

// Spread is the median of some values and between which they lie.
type Spread struct {
	Median float64 `json:"median"`
	Min    float64 `json:"min"`
	Max    float64 `json:"max"`
}

// Ratio is how a figure compares with another target's, in the same rounds.
type Ratio struct {
	To string `json:"to"`
	Spread
	Bound *Bound `json:"bound,omitempty"` // nil: nothing is demanded
}

// Bound is what the project demands of a number, and whether it holds.
type Bound struct {
	Must    float64 `json:"must"`
	Reach   float64 `json:"reach_for"`
	AtLeast bool    `json:"at_least,omitempty"` // else at most
	Met     bool    `json:"met"`
}

// Group is what belongs into one table.
type Group string

const (
	Acquisition Group = "acquisition"
	Throughput  Group = "throughput"
	Results     Group = "results"
	FixedRate   Group = "rate"
	Plaintext   Group = "plaintext"
	Memory      Group = "memory"
	Storm       Group = "storm"
)

// Metric is what a figure counts; its unit is part of it.
type Metric string

const (
	readyP50 Metric = "ready_p50_us"
	readyP90 Metric = "ready_p90_us"
	readyP99 Metric = "ready_p99_us"
	queryP50 Metric = "query_p50_us"
	queryP90 Metric = "query_p90_us"
	queryP99 Metric = "query_p99_us"
	perSec   Metric = "tps"
	cpuPerTx Metric = "cpu_us_per_transaction"
	latP50   Metric = "latency_p50_us"
	latP99   Metric = "latency_p99_us"
	perLease Metric = "bytes_per_lease"
	lastConn Metric = "last_connected_ms"
	lastDone Metric = "last_answered_ms"
)

// results collects what is measured, in order of appearance.
type results struct {
	figures []*Figure
	samples map[string][]float64 // ready times of each target, in µs, for the plot
}

// add notes one round's value.
func (r *results) add(f Figure, metric Metric, value float64) {
	f.Metric = metric
	for _, g := range r.figures {
		if g.Group == f.Group && g.Case == f.Case && g.Metric == metric && g.Target == f.Target {
			g.Rounds = append(g.Rounds, value)
			return
		}
	}
	f.Rounds = []float64{value}
	r.figures = append(r.figures, &f)
}

// find returns the figure of another target, or nil.
func (r *results) find(f *Figure, target string) *Figure {
	for _, g := range r.figures {
		if g.Group == f.Group && g.Case == f.Case && g.Metric == f.Metric && g.Target == target {
			return g
		}
	}
	return nil
}

// finish computes medians and ratios and judges them.
func (r *results) finish() {
	for _, f := range r.figures {
		f.Spread = spread(f.Rounds)
	}
	for _, f := range r.figures {
		for _, to := range references(f) {
			reference := r.find(f, to)
			if reference == nil || reference == f {
				continue
			}
			var ratios []float64
			for i := range min(len(f.Rounds), len(reference.Rounds)) {
				if reference.Rounds[i] > 0 {
					ratios = append(ratios, f.Rounds[i]/reference.Rounds[i])
				}
			}
			if len(ratios) == 0 {
				continue
			}
			ratio := Ratio{To: to, Spread: spread(ratios)}
			ratio.Bound = demand(f, to).judge(ratio.Median)
			f.Ratios = append(f.Ratios, ratio)
		}
		f.Bound = demand(f, "").judge(f.Median)
	}
}

func spread(values []float64) Spread {
	sorted := slices.Sorted(slices.Values(values))
	n := len(sorted)
	return Spread{Median: (sorted[(n-1)/2] + sorted[n/2]) / 2, Min: sorted[0], Max: sorted[n-1]}
}

// quantile expects sorted values.
func quantile[T cmp.Ordered](sorted []T, q float64) T {
	return sorted[min(int(q*float64(len(sorted))), len(sorted)-1)]
}
