package bench

import "slices"

// The names of what is measured.
const (
	directTLS  = "direct-tls"
	directUnix = "direct-unix"
	ours       = "pghandoff"
	oursWire   = "pghandoff-wire"
	oursLease  = "pghandoff-handoff"
	pgbouncer  = "pgbouncer"
	odyssey    = "odyssey"
	stunnel    = "stunnel"
)

// target is one line of the project's table of targets.
type target struct {
	group   Group
	metric  Metric
	names   []string // of ours; nil: ours
	clients int      // 0: any number
	to      string   // "": the number itself
	bound   Bound
}

// targets is the table. Ratios are paired by round.
var targets = []target{
	{group: Throughput, metric: cpuPerTx, clients: 1, to: pgbouncer, bound: Bound{Must: 0.95, Reach: 0.85}},
	{group: Throughput, metric: cpuPerTx, clients: 8, to: pgbouncer, bound: Bound{Must: 0.85, Reach: 0.65}},
	{group: Throughput, metric: cpuPerTx, clients: 32, to: pgbouncer, bound: Bound{Must: 0.85, Reach: 0.50}},
	{group: Throughput, metric: perSec, clients: 8, to: pgbouncer, bound: Bound{Must: 1.0, Reach: 1.15, AtLeast: true}},
	{group: Throughput, metric: perSec, clients: 32, to: pgbouncer, bound: Bound{Must: 1.0, Reach: 1.15, AtLeast: true}},
	{group: Results, metric: cpuPerTx, to: pgbouncer, bound: Bound{Must: 0.6, Reach: 0.35}},
	{group: Acquisition, metric: readyP50, names: []string{oursWire}, to: pgbouncer, bound: Bound{Must: 0.9, Reach: 0.7}},
	{group: Acquisition, metric: readyP50, names: []string{oursLease}, to: pgbouncer, bound: Bound{Must: 0.9, Reach: 0.6}},
	{group: Acquisition, metric: readyP50, names: []string{oursWire, oursLease}, to: directTLS, bound: Bound{Must: 1.0 / 50, Reach: 1.0 / 400}},
	{group: FixedRate, metric: latP50, to: directTLS, bound: Bound{Must: 1.2, Reach: 1.1}},
	{group: FixedRate, metric: latP99, to: directTLS, bound: Bound{Must: 1.6, Reach: 1.3}},
	{group: Memory, metric: perLease, bound: Bound{Must: 6 << 10, Reach: 3 << 10}},
	{group: Plaintext, metric: cpuPerTx, clients: 8, to: pgbouncer, bound: Bound{Must: 1.1, Reach: 0.8}},
	{group: Plaintext, metric: cpuPerTx, clients: 32, to: pgbouncer, bound: Bound{Must: 1.1, Reach: 0.8}},
}

// references are the targets that a figure is compared with, the most telling
// one last.
func references(f *Figure) []string {
	switch {
	case f.Target == directTLS || f.Target == directUnix:
		return nil
	case f.Group == FixedRate:
		return []string{directTLS}
	case f.Group == Acquisition && f.Metric == readyP50, f.Group == Storm && f.Metric == lastDone:
		return []string{directTLS, pgbouncer}
	}
	return []string{pgbouncer}
}

// demand returns what is demanded of a figure against a reference, or nil.
func demand(f *Figure, to string) *target {
	for i, t := range targets {
		named := slices.Contains(t.names, f.Target) || t.names == nil && f.Target == ours
		if t.group == f.Group && t.metric == f.Metric && t.to == to && named && (t.clients == 0 || t.clients == f.Clients) {
			return &targets[i]
		}
	}
	return nil
}

// judge returns the bound with its verdict on a value; nil for nil.
func (t *target) judge(value float64) *Bound {
	if t == nil {
		return nil
	}
	b := t.bound
	b.Met = value <= b.Must
	if b.AtLeast {
		b.Met = value >= b.Must
	}
	return &b
}
