package main

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"time"
)

// perfReport prints a line for each size as it comes, under a header, or a JSON object.
type perfReport struct {
	op, transport string
	o             *perfOptions
	w             io.Writer
}

// perfLine is the JSON object of one size.
type perfLine struct {
	Op             string  `json:"op"`
	Transport      string  `json:"transport"`
	Size           int64   `json:"size"`     // bytes
	Inflight       int     `json:"inflight"` // calls
	Count          int64   `json:"count"`    // calls made
	UsecPerCall    float64 `json:"usec_per_call"`
	CallsPerSecond float64 `json:"calls_per_second"`
	MiBPerSecond   float64 `json:"mib_per_second"`
	P50Usec        float64 `json:"p50_usec"`
	P99Usec        float64 `json:"p99_usec"`
}

func (r *perfReport) header() error {
	if r.o.json {
		return nil
	}
	_, err := fmt.Fprintf(r.w, "# %s over %s, %d in flight\n%10s %10s %14s %14s %12s %12s %12s\n", r.op, r.transport, r.o.inflight,
		"bytes", "calls", "usec/call", "calls/s", "MiB/s", "p50 usec", "p99 usec")
	return err
}

func (r *perfReport) line(result perfResult) error {
	took := result.watch.took
	l := perfLine{
		Op: r.op, Transport: r.transport, Size: result.size, Inflight: r.o.inflight, Count: result.calls,
		CallsPerSecond: round2(perSecond(result.calls, took)), MiBPerSecond: round2(mibPerSecond(result.bytes, took)),
		P50Usec: micros(result.watch.calls.ValueAtQuantile(50)), P99Usec: micros(result.watch.calls.ValueAtQuantile(99)),
	}
	if result.calls > 0 {
		l.UsecPerCall = round2(float64(took) / float64(time.Microsecond) / float64(result.calls))
	}
	if r.o.json {
		return json.NewEncoder(r.w).Encode(l)
	}
	_, err := fmt.Fprintf(r.w, "%10d %10d %14.2f %14.2f %12.2f %12.2f %12.2f\n",
		l.Size, l.Count, l.UsecPerCall, l.CallsPerSecond, l.MiBPerSecond, l.P50Usec, l.P99Usec)
	return err
}

func micros(ns int64) float64  { return round2(float64(ns) / 1e3) }
func round2(x float64) float64 { return math.Round(x*100) / 100 }
