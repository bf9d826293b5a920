package perfrpc

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"strings"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"cinnabar/cmd/cinnabar/internal/cli"
	"cinnabar/internal/progress"
)

// report prints a line for each size as it comes, under a header, or a JSON object.
type report struct {
	op, transport string
	servers       int
	o             *options
	w             io.Writer

	// lates and tolls are the numbers of delayed wake-ups and signals before the size. Those of the engine's own measurement of the price are among them.
	lates, tolls uint64
}

// begin notes the state before a size.
func (r *report) begin() { r.lates, r.tolls = progress.DearWakeUps() }

// reportLine is the JSON object of one size. With several clients, inflight is of each, and all else of all together.
type reportLine struct {
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
	Clients        int     `json:"clients,omitempty"`                // if there are several
	Least          float64 `json:"least_calls_per_second,omitempty"` // of the slowest client, if the clients have rates of their own
	Most           float64 `json:"most_calls_per_second,omitempty"`  // of the fastest one
	Late           uint64  `json:"delayed_wake_ups,omitempty"`       // in this process during the size, by --late
	Tolls          uint64  `json:"delayed_signals,omitempty"`        // the same by --toll
}

// apart reports whether each client's rate is shown: with a common end they have none of their own.
func (r *report) apart() bool { return r.o.clients > 1 && !r.o.barrier }

func (r *report) header() error {
	if r.o.json {
		return nil
	}
	var b strings.Builder
	fmt.Fprintf(&b, "# %s over %s, %d in flight", r.op, r.transport, r.o.inflight)
	if r.o.clients > 1 {
		fmt.Fprintf(&b, " of each of %d clients", r.o.clients)
	}
	if r.servers > 1 {
		fmt.Fprintf(&b, ", %d servers", r.servers)
	}
	b.WriteByte('\n')
	if calls := r.o.clients * r.o.inflight; calls < r.servers {
		fmt.Fprintf(&b, "# %d of the servers get no calls: raise --inflight or --clients\n", r.servers-calls)
	}
	_, unit := r.unit()
	fmt.Fprintf(&b, "%10s %9s %9s %11s %9s %9s %9s", "bytes", "calls", "µs/call", "calls/s", unit, "p50 µs", "p99 µs")
	_, err := fmt.Fprintln(r.w, b.String())
	return err
}

// unit returns the unit of the table's bandwidth.
func (r *report) unit() (bytes float64, name string) {
	if r.o.megabytes {
		return 1e6, "MB/s"
	}
	return cli.MiB, "MiB/s"
}

// total is the sum of the clients' results.
type total struct {
	calls                     int64
	callsPerSecond            float64
	bytesPerSecond            float64
	leastPerSecond, mostCalls float64 // calls per second of the slowest and the fastest client
	histogram                 *hdrhistogram.Histogram
}

// total adds up. Clients that ended at a common time are one; the others have rates of their own.
func (r *report) total(results []result) total {
	t := total{leastPerSecond: math.Inf(1), histogram: hdrhistogram.New(1, int64(time.Hour), 3)}
	var took time.Duration
	var bytes int64
	added := map[*callTimes]bool{}
	for _, one := range results {
		took = max(took, one.watch.took)
		rate := cli.PerSecond(one.calls, one.watch.took)
		t.calls += one.calls
		bytes += one.bytes
		t.callsPerSecond += rate
		t.bytesPerSecond += cli.PerSecond(one.bytes, one.watch.took)
		t.leastPerSecond, t.mostCalls = min(t.leastPerSecond, rate), max(t.mostCalls, rate)
		if times := one.watch.calls; !added[times] { // clients share them
			added[times] = true
			times.addTo(t.histogram)
		}
	}
	if !r.apart() {
		t.callsPerSecond, t.bytesPerSecond = cli.PerSecond(t.calls, took), cli.PerSecond(bytes, took)
	}
	return t
}

// line prints the clients' results for one size.
func (r *report) line(results ...result) error {
	t := r.total(results)
	l := reportLine{
		Op: r.op, Transport: r.transport, Size: results[0].size, Inflight: r.o.inflight, Count: t.calls,
		CallsPerSecond: cli.Round2(t.callsPerSecond), MiBPerSecond: cli.Round2(t.bytesPerSecond / cli.MiB),
		P50Usec: cli.Micros(t.histogram.ValueAtQuantile(50)), P99Usec: cli.Micros(t.histogram.ValueAtQuantile(99)),
	}
	lates, tolls := progress.DearWakeUps()
	l.Late, l.Tolls = lates-r.lates, tolls-r.tolls
	if r.o.clients > 1 {
		l.Clients = r.o.clients
	}
	if r.apart() {
		l.Least, l.Most = cli.Round2(t.leastPerSecond), cli.Round2(t.mostCalls)
	}
	if t.callsPerSecond > 0 {
		l.UsecPerCall = cli.Round2(1e6 / t.callsPerSecond)
	}
	if r.o.json {
		return json.NewEncoder(r.w).Encode(l)
	}
	per, _ := r.unit()
	var b strings.Builder
	fmt.Fprintf(&b, "%10d %9d %9.2f %11.2f %9.2f %9.2f %9.2f",
		l.Size, l.Count, l.UsecPerCall, l.CallsPerSecond, t.bytesPerSecond/per, l.P50Usec, l.P99Usec)
	if r.apart() {
		fmt.Fprintf(&b, "\n# of each client: %.2f to %.2f calls/s", t.leastPerSecond, t.mostCalls)
	}
	_, err := fmt.Fprintln(r.w, b.String())
	return err
}
