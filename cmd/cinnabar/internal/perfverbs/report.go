package perfverbs

import (
	"encoding/json"
	"fmt"
	"io"

	"cinnabar/cmd/cinnabar/internal/cli"
)

// report prints a line for each size as it comes, under a header with the units, or a JSON object.
type report struct {
	o                 *options
	device, transport string
	w                 io.Writer
}

// line is the JSON object of one size: with the first of the two groups at the end for bandwidth, with the second
// for latency.
type line struct {
	Op        string  `json:"op"`
	Measure   string  `json:"measure"` // bandwidth or latency
	Device    string  `json:"device"`
	Transport string  `json:"transport"`
	SizeBytes int64   `json:"size_bytes"`
	Depth     int     `json:"depth"` // requests
	Count     int64   `json:"count"` // operations, or round trips
	Seconds   float64 `json:"seconds"`

	*bandwidthLine
	*latencyLine
}

type bandwidthLine struct {
	MiBPerSecond        float64 `json:"mib_per_second"`
	OperationsPerSecond float64 `json:"operations_per_second"`
}

type latencyLine struct {
	MinUsec     float64 `json:"min_usec"`
	TypicalUsec float64 `json:"typical_usec"` // the median
	AverageUsec float64 `json:"average_usec"`
	P99Usec     float64 `json:"p99_usec"`
	MaxUsec     float64 `json:"max_usec"`
	ClockUsec   float64 `json:"clock_usec"` // the cost of reading the clock; it is taken off
}

func (r *report) header() error {
	if r.o.json {
		return nil
	}
	columns := fmt.Sprintf("%10s %12s %12s %12s %14s", "bytes", "operations", "seconds", "MiB/s", "operations/s")
	if r.o.latency {
		columns = fmt.Sprintf("%10s %11s %10s %10s %10s %10s %10s", "bytes", "round trips", "min µs", "typical µs", "average µs", "p99 µs", "max µs")
	}
	_, err := fmt.Fprintf(r.w, "# %s of %s over %s (%s), depth %d\n%s\n", r.o.measure(), r.o.op, r.device, r.transport, r.o.depth, columns)
	return err
}

// unit returns the unit of a measurement.
func (o *options) unit() string {
	if o.latency {
		return "round trips"
	}
	return "operations"
}

// line prints the measurement of one size.
func (r *report) line(v result) error {
	l := line{
		Op: r.o.op.String(), Measure: r.o.measure(), Device: r.device, Transport: r.transport,
		SizeBytes: v.size, Depth: r.o.depth, Count: v.count, Seconds: v.took.Seconds(),
	}
	if v.times == nil {
		l.bandwidthLine = v.bandwidth()
	} else {
		l.latencyLine = v.latency()
	}
	if r.o.json {
		return json.NewEncoder(r.w).Encode(l)
	}
	_, err := fmt.Fprintln(r.w, l.text())
	return err
}

func (v *result) bandwidth() *bandwidthLine {
	return &bandwidthLine{
		MiBPerSecond:        cli.Round2(cli.MiBPerSecond(v.size*v.count, v.took)),
		OperationsPerSecond: cli.Round2(cli.PerSecond(v.count, v.took)),
	}
}

func (v *result) latency() *latencyLine {
	return &latencyLine{
		MinUsec: cli.Micros(v.times.Min()), TypicalUsec: cli.Micros(v.times.ValueAtQuantile(50)), AverageUsec: cli.Round2(v.times.Mean() / 1e3),
		P99Usec: cli.Micros(v.times.ValueAtQuantile(99)), MaxUsec: cli.Micros(v.times.Max()), ClockUsec: cli.Round2(float64(v.clock) / 1e3),
	}
}

// text is the line for people.
func (l *line) text() string {
	if b := l.bandwidthLine; b != nil {
		return fmt.Sprintf("%10d %12d %12.6f %12.2f %14.2f",
			l.SizeBytes, l.Count, l.Seconds, b.MiBPerSecond, b.OperationsPerSecond)
	}
	t := l.latencyLine
	return fmt.Sprintf("%10d %11d %10.2f %10.2f %10.2f %10.2f %10.2f",
		l.SizeBytes, l.Count, t.MinUsec, t.TypicalUsec, t.AverageUsec, t.P99Usec, t.MaxUsec)
}
