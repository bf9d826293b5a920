package debugpage

import (
	"fmt"
	"math"
	"strings"
	"time"
)

// Size of a chart in units of its view box.
const (
	chartWidth  = 320
	chartHeight = 64
	axisHeight  = 14
	leastTick   = 44.0 // between two labels of the axis
)

// chart is a histogram as SVG. Its texts consist of digits and units, so they need no escaping.
type chart struct {
	Title  string
	Width  int
	Height int // of the bars; the axis is below
	Total  int // with the axis
	Bars   string
	P50    string // place of the median on the axis
	P99    string
	Ticks  []tick
}

// tick is a label of the axis.
type tick struct {
	X     string
	Label string
}

// chartOf draws the buckets of a distribution from the first to the last that is not empty, on a logarithmic axis of time; the height of
// a bar is the square root of its count, so that rare slow calls are seen beside many quick ones.
func chartOf(l *Latency) *chart {
	first, last, most := -1, 0, uint64(0)
	for i, n := range l.counts {
		if n > 0 {
			if first < 0 {
				first = i
			}
			last, most = i, max(most, n)
		}
	}
	if first < 0 {
		return nil
	}
	first, last = max(0, first-1), min(numBuckets-1, last+1)
	c := &chart{
		Title: fmt.Sprintf("%d times, from %v to %v; median %v, 99%% below %v", l.Count, short(bucketStart(first)), short(l.Max), short(l.P50), short(l.P99)),
		Width: chartWidth, Height: chartHeight, Total: chartHeight + axisHeight,
	}
	width := float64(chartWidth) / float64(last-first+1)
	var bars strings.Builder
	for i := first; i <= last; i++ {
		if n := l.counts[i]; n > 0 {
			h := max(1, math.Sqrt(float64(n)/float64(most))*(chartHeight-4))
			_, _ = fmt.Fprintf(&bars, "M%.1f %dv-%.1fh%.1fv%.1fz", float64(i-first)*width, chartHeight, h, max(width-0.6, 0.4), h) // a Builder has no errors
		}
	}
	c.Bars = bars.String()
	place := func(d time.Duration) float64 {
		if d <= 0 {
			return 0
		}
		// Buckets have equal widths, and the position within one is linear in time.
		i := bucketOf(d)
		within := 0.0
		if from := bucketStart(i); i+1 < numBuckets {
			within = float64(d-from) / float64(bucketStart(i+1)-from)
		}
		return min(max((float64(i-first)+within)*width, 0), chartWidth)
	}
	c.P50, c.P99 = fmt.Sprintf("%.1f", place(l.P50)), fmt.Sprintf("%.1f", place(l.P99))
	from, to := bucketStart(first), bucketStart(last)
	steps := []time.Duration{1, 2, 5} // of each power of ten
	if decades := math.Log10(float64(to+1) / float64(max(from, time.Microsecond))); decades > 2 {
		steps = steps[:1]
	}
	after := -leastTick
	for unit := time.Microsecond; unit < to; unit *= 10 {
		for _, n := range steps {
			if d := n * unit; d > from && d < to {
				if x := place(d); x-after >= leastTick && x < chartWidth-leastTick/2 {
					c.Ticks = append(c.Ticks, tick{fmt.Sprintf("%.1f", x), short(d)})
					after = x
				}
			}
		}
	}
	if len(c.Ticks) == 0 { // all times lie within one power of ten
		c.Ticks = []tick{{"0", short(from)}}
	}
	return c
}

// short returns a time with three digits.
func short(d time.Duration) string {
	switch {
	case d < 0:
		return "-"
	case d < time.Microsecond:
		return d.String()
	case d < time.Millisecond:
		return fmt.Sprintf("%.3g µs", float64(d)/1e3)
	case d < time.Second:
		return fmt.Sprintf("%.3g ms", float64(d)/1e6)
	case d < time.Minute:
		return fmt.Sprintf("%.3g s", d.Seconds())
	}
	return d.Round(time.Second).String()
}

// age returns an age, which is exact to a tenth of a second.
func age(d time.Duration) string {
	switch {
	case d < 0:
		return "-"
	case d < time.Minute:
		return fmt.Sprintf("%.1f s", d.Seconds())
	}
	return d.Round(time.Second).String()
}
