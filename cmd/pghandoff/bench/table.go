package bench

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
)

var titles = map[Group]string{
	Acquisition: "How long a connection takes, 1 ms after the one before (raw client; direct-tls: pgx)",
	Throughput:  "pgbench -S through one daemon: transactions a second, and CPU of the daemon's process for each",
	Results:     "Results of 2 MB: CPU of the daemon's process for each",
	FixedRate:   "Latency at a fixed rate, schedule lag taken off",
	Plaintext:   "Plaintext to the server",
	Memory:      "Memory of the daemon for each idle lease (TLS to a server that does nothing)",
	Storm:       "200 functions at once on smaller pools: until the last one is ready, and until it has its answer (PgBouncer says\nready before it has a connection to the server)",
}

// units are how a metric is shown.
var units = map[Metric]struct {
	name   string
	scale  float64
	format string
}{
	readyP50: {"ready, p50, µs", 1, "%.0f"},
	readyP90: {"ready, p90, µs", 1, "%.0f"},
	readyP99: {"ready, p99, µs", 1, "%.0f"},
	queryP50: {"ready + query, p50, µs", 1, "%.0f"},
	queryP90: {"ready + query, p90, µs", 1, "%.0f"},
	queryP99: {"ready + query, p99, µs", 1, "%.0f"},
	perSec:   {"a second", 1, "%.0f"},
	cpuPerTx: {"CPU, µs", 1, "%.1f"},
	latP50:   {"p50, µs", 1, "%.0f"},
	latP99:   {"p99, µs", 1, "%.0f"},
	perLease: {"KB", 1.0 / 1024, "%.1f"},
	lastConn: {"last ready, ms", 1, "%.1f"},
	lastDone: {"last answer, ms", 1, "%.1f"},
}

// print shows a table for each group.
func (r *Report) print(w io.Writer) error {
	fmt.Fprintf(w, "pghandoff %s and %s; %s; PostgreSQL %s; %d CPUs, %s\n", r.Version, r.Go, strings.Join(r.Peers, ", "), r.Server, r.CPUs, r.System)
	fmt.Fprintf(w, "Medians of %d rounds with their range; ratios are taken within each round.\n", r.Rounds)
	if r.Quick {
		fmt.Fprintln(w, "A quick run: it shows that everything can be measured, its figures are worth little.")
	}
	for _, n := range r.Notes {
		fmt.Fprintln(w, n)
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	var group Group
	for _, f := range r.Figures {
		if f.Group != group {
			group = f.Group
			fmt.Fprintf(t, "\n%s:\n\n", titles[group])
			fmt.Fprintln(t, "  case\tmetric\ttarget\tmedian\trange\tratio\tto\tmust\tmet")
		}
		f.print(t)
	}
	return t.Flush()
}

// print writes a row, and one more for each further ratio.
func (f *Figure) print(w io.Writer) {
	u := units[f.Metric]
	show := func(v float64) string { return fmt.Sprintf(u.format, v*u.scale) }
	row := fmt.Sprintf("  %s\t%s\t%s\t%s\t%s..%s", f.Case, u.name, f.Target, show(f.Median), show(f.Min), show(f.Max))
	if len(f.Ratios) == 0 {
		fmt.Fprintf(w, "%s\t\t\t%s\n", row, f.Bound.columns(show))
	}
	for _, r := range f.Ratios {
		format := "%.2f (%.2f..%.2f)"
		if r.Median < 0.1 {
			format = "%.4f (%.4f..%.4f)"
		}
		plain := func(v float64) string { return fmt.Sprintf("%.3g", v) }
		fmt.Fprintf(w, "%s\t"+format+"\t%s\t%s\n", row, r.Median, r.Min, r.Max, r.To, r.Bound.columns(plain))
	}
}

// columns are the last two of a row.
func (b *Bound) columns(show func(float64) string) string {
	if b == nil {
		return "\t"
	}
	sign, met := "≤", "no"
	if b.AtLeast {
		sign = "≥"
	}
	if b.Met {
		met = "yes"
	}
	return sign + " " + show(b.Must) + "\t" + met
}
