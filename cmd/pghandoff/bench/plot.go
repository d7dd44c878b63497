package bench

import (
	"bytes"
	"fmt"
	"math"
	"slices"
	"strings"
)

// The plot is written by hand: a drawing library would put its fonts into the
// program that functions start with exec.

const (
	plotWidth, plotHeight         = 900, 520
	plotLeft, plotTop             = 60, 40
	plotRight, plotBottom         = plotWidth - 190, plotHeight - 60
	plotColours                   = "#0b6e4f #c8553d #2d5d9f #8a5a9e #b8860b #555555 #1b9aaa"
	plotStep              float64 = 1 // pixels between two points of a curve
)

// plot draws the distribution of the time to get a connection, for each target
// the share of all acquisitions that took at most so long.
func (r *results) plot() []byte {
	var names []string
	low, high := math.Inf(1), 0.0
	for _, f := range r.figures { // in the order of the table
		samples := r.samples[f.Target]
		if f.Group != Acquisition || len(samples) == 0 || slices.Contains(names, f.Target) {
			continue
		}
		names = append(names, f.Target)
		low, high = min(low, slices.Min(samples)), max(high, slices.Max(samples))
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" font-family="sans-serif" font-size="13">`+"\n", plotWidth, plotHeight)
	fmt.Fprintf(&b, `<rect width="%d" height="%d" fill="white"/>`+"\n", plotWidth, plotHeight)
	if len(names) > 0 {
		a := axis{math.Log10(max(low, 1)), math.Log10(high) + 0.01}
		a.grid(&b)
		for i, name := range names {
			a.curve(&b, i, name, slices.Sorted(slices.Values(r.samples[name])))
		}
	}
	b.WriteString("</svg>\n")
	return b.Bytes()
}

// axis is the logarithmic one of the times: the powers of ten at its ends.
type axis struct{ low, high float64 }

// x returns where a time in µs is.
func (a axis) x(micros float64) float64 {
	return plotLeft + (plotRight-plotLeft)*(math.Log10(micros)-a.low)/(a.high-a.low)
}

func y(share float64) float64 { return plotBottom - (plotBottom-plotTop)*share }

// grid draws the frame, lines at 1, 2 and 5 of each power of ten, and names.
func (a axis) grid(b *bytes.Buffer) {
	fmt.Fprintf(b, `<text x="%d" y="24" font-size="15">Time until a connection is ready, 1 ms after the one before</text>`+"\n", plotLeft)
	for power := math.Floor(a.low); power <= a.high; power++ {
		for _, digit := range []float64{1, 2, 5} {
			t := digit * math.Pow(10, power)
			if x := a.x(t); x >= plotLeft && x <= plotRight {
				line(b, x, plotTop, x, plotBottom)
				fmt.Fprintf(b, `<text x="%.1f" y="%d" text-anchor="middle">%s</text>`+"\n", x, plotBottom+20, showTime(t))
			}
		}
	}
	for _, share := range []float64{0, 0.25, 0.5, 0.75, 0.9, 0.99} {
		line(b, plotLeft, y(share), plotRight, y(share))
		fmt.Fprintf(b, `<text x="%d" y="%.1f" text-anchor="end">%.0f %%</text>`+"\n", plotLeft-8, y(share)+4, share*100)
	}
}

func line(b *bytes.Buffer, x1, y1, x2, y2 float64) {
	fmt.Fprintf(b, `<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" stroke="#dddddd"/>`+"\n", x1, y1, x2, y2)
}

func showTime(micros float64) string {
	if micros >= 1000 {
		return fmt.Sprintf("%g ms", micros/1000)
	}
	return fmt.Sprintf("%g µs", micros)
}

// curve draws one distribution and its entry in the legend.
func (a axis) curve(b *bytes.Buffer, i int, name string, sorted []float64) {
	colours := strings.Fields(plotColours)
	colour := colours[i%len(colours)]
	fmt.Fprintf(b, `<polyline fill="none" stroke="%s" stroke-width="2" points="`, colour)
	last := math.Inf(-1)
	for k, t := range sorted {
		x := a.x(max(t, 1))
		if x-last < plotStep && k != len(sorted)-1 {
			continue
		}
		last = x
		fmt.Fprintf(b, "%.1f,%.1f ", x, y(float64(k+1)/float64(len(sorted))))
	}
	b.WriteString("\"/>\n")
	top := plotTop + 12 + 22*i
	fmt.Fprintf(b, `<rect x="%d" y="%d" width="16" height="4" fill="%s"/>`+"\n", plotRight+16, top-6, colour)
	fmt.Fprintf(b, `<text x="%d" y="%d">%s</text>`+"\n", plotRight+40, top, name)
}
