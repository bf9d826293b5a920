package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"cinnabar"
)

// What the client of perf does before it measures, as Mercury's programs: so many iterations of a size.
const (
	perfWarmSmall = 100
	perfWarmLarge = 10
	perfLarge     = 8192 // bytes; what is larger has perfWarmLarge
)

// perfPatience is how long a call that is no measurement may take.
const perfPatience = 5 * time.Second

// perfJob is one of the client's measurements.
type perfJob struct {
	op          string // "rate", "bw-read", "bw-write"
	least, most int64  // bytes of a size
	// prepare makes ready for sizes up to the largest.
	prepare func(context.Context, *perfRun) (perfCaller, error)
}

// perfCaller makes the calls of one measurement. It is used by one goroutine.
type perfCaller interface {
	// call makes call 0 of an iteration and waits for it.
	call(ctx context.Context, size int64) error
	// start begins call i of an iteration.
	start(ctx context.Context, i int, size int64)
	// wait waits for a call that was started.
	wait(i int) error
	// before and after stand around each iteration, outside its time, if the data is to be checked.
	before()
	after(size int64) error
	// moved is how many bytes one call moves.
	moved(size int64) int64
	close()
}

// perfRun is one run of perf as a client.
type perfRun struct {
	o      *perfOptions
	engine *cinnabar.Engine
	server *cinnabar.Endpoint
}

// runPerf measures with an engine of its own until that is done or ctx ends.
func runPerf(ctx context.Context, job perfJob, o *perfOptions, s streams) (err error) {
	address, err := o.server()
	if err != nil {
		return err
	}
	engine, err := cinnabar.Open(localFor(ctx, address), nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, engine.Close()) }()
	server, err := engine.Lookup(ctx, address)
	if err != nil {
		return err
	}
	r := &perfRun{o: o, engine: engine, server: server}
	// The end of ctx ends all calls by closing the engine, so that no call has to watch ctx, which costs.
	defer context.AfterFunc(ctx, func() { _ = engine.Close() })()
	if err := r.run(context.WithoutCancel(ctx), job, s); err != nil {
		return reason(ctx, err)
	}
	return nil
}

// run measures every size, prints a line for each, and says goodbye.
func (r *perfRun) run(ctx context.Context, job perfJob, s streams) error {
	caller, err := job.prepare(ctx, r)
	if err != nil {
		return err
	}
	defer caller.close()
	report := &perfReport{op: job.op, transport: transportOf(r.engine.Addr()), o: r.o, w: s.out}
	if err := report.header(); err != nil {
		return err
	}
	for _, size := range r.o.sizes {
		result, err := r.measure(ctx, caller, size)
		if err != nil {
			return fmt.Errorf("%s of %s: %w", job.op, sizeText(size), err)
		}
		if err := report.line(result); err != nil {
			return err
		}
	}
	return r.finish(ctx)
}

// server is the address of the server: the argument, or what the port file says.
func (o *perfOptions) server() (string, error) {
	if o.portFile == "" {
		return o.address, nil
	}
	text, err := os.ReadFile(o.portFile)
	if err != nil {
		return "", fmt.Errorf("port file: %w; a server that was started with --port-file writes it", err)
	}
	address, _, _ := strings.Cut(strings.TrimSpace(string(text)), "\n")
	if address == "" {
		return "", fmt.Errorf("port file %s is empty; a server that was started with --port-file writes it", o.portFile)
	}
	return strings.TrimSpace(address), nil
}

// localFor is what to open for talking to address: the protocol, with the address of this host from which the system
// would go there, so that the server can reach for this process's memory on the way that the calls take. Where the
// system does not tell, the protocol alone, and Lookup or the first call says what is wrong.
func localFor(ctx context.Context, address string) string {
	protocol, peer, _ := strings.Cut(address, "://")
	if port, ok := strings.CutPrefix(peer, "localhost:"); ok { // the one name that Lookup takes
		peer = "127.0.0.1:" + port
	}
	to, err := netip.ParseAddrPort(peer)
	if err != nil || !to.IsValid() {
		return protocol
	}
	var d net.Dialer
	c, err := d.DialContext(ctx, "udp", to.String()) // finds a route and sends nothing
	if err != nil {
		return protocol
	}
	defer shut(c)
	from, err := netip.ParseAddrPort(c.LocalAddr().String())
	if err != nil {
		return protocol
	}
	return protocol + "://" + netip.AddrPortFrom(from.Addr().Unmap(), 0).String()
}

// transportOf is an address's protocol without its class: "tcp" of "ofi+tcp://...".
func transportOf(address string) string {
	protocol, _, _ := strings.Cut(address, "://")
	if _, plain, ok := strings.Cut(protocol, "+"); ok {
		return plain
	}
	return protocol
}

// finish tells the server that the client is done, which ends it unless it is to stay.
func (r *perfRun) finish(ctx context.Context) error {
	if r.o.keep {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, perfPatience)
	defer cancel()
	if _, err := perfDone.Call(ctx, r.server, none{}); err != nil {
		return fmt.Errorf("telling the server that the measurement is over: %w", err)
	}
	return nil
}

// perfResult is the measurement of one size.
type perfResult struct {
	size  int64
	calls int64
	bytes int64
	watch *stopwatch
}

// stopwatch measures iterations of calls that follow each other without a gap, unless resume says so. It reads the
// clock once for each call: that is what it costs to have percentiles.
type stopwatch struct {
	start time.Time
	took  time.Duration           // from start to the end of the last call
	calls *hdrhistogram.Histogram // times of single calls, in nanoseconds
}

func newStopwatch() *stopwatch {
	return &stopwatch{start: time.Now(), calls: hdrhistogram.New(1, int64(time.Hour), 3)}
}

// resume leaves out the time since the last call.
func (w *stopwatch) resume() { w.start = time.Now().Add(-w.took) }

// called notes the end of a call of the iteration that began at the time begin. A call of more than an hour is not in
// the percentiles; the wall time counts it all the same.
func (w *stopwatch) called(begin time.Duration) {
	w.took = time.Since(w.start)
	_ = w.calls.RecordValue(int64(w.took - begin))
}

// measure warms up and then makes iterations until the count or the time is reached.
func (r *perfRun) measure(ctx context.Context, c perfCaller, size int64) (perfResult, error) {
	if err := r.warm(ctx, c, size); err != nil {
		return perfResult{}, err
	}
	result := perfResult{size: size, watch: newStopwatch()}
	for n := 0; r.o.more(n, result.watch.took); n++ {
		if err := r.checked(ctx, c, size, result.watch); err != nil {
			return result, err
		}
		result.calls += int64(r.o.inflight)
	}
	result.bytes = result.calls * c.moved(size)
	return result, nil
}

// warm makes the iterations that are not measured.
func (r *perfRun) warm(ctx context.Context, c perfCaller, size int64) error {
	n := perfWarmSmall
	if size > perfLarge {
		n = perfWarmLarge
	}
	if r.o.count > 0 {
		n = min(n, r.o.count)
	}
	ignored := newStopwatch()
	for range n {
		if err := r.iterate(ctx, c, size, ignored); err != nil {
			return err
		}
	}
	return nil
}

// more tells whether another iteration is due.
func (o *perfOptions) more(done int, took time.Duration) bool {
	if o.count > 0 {
		return done < o.count
	}
	return took < o.duration
}

// checked makes one iteration and checks the data, if that was asked for.
func (r *perfRun) checked(ctx context.Context, c perfCaller, size int64, w *stopwatch) error {
	if !r.o.verify {
		return r.iterate(ctx, c, size, w)
	}
	c.before()
	w.resume()
	if err := r.iterate(ctx, c, size, w); err != nil {
		return err
	}
	return c.after(size)
}

// iterate makes as many calls at once as are to be in flight, and waits for all of them. A call's time is that from the
// iteration's begin until this goroutine has seen the call's end.
func (r *perfRun) iterate(ctx context.Context, c perfCaller, size int64, w *stopwatch) error {
	begin := w.took
	if r.o.inflight == 1 {
		err := c.call(ctx, size)
		w.called(begin)
		return err
	}
	for i := range r.o.inflight {
		c.start(ctx, i, size)
	}
	var failed error
	for i := range r.o.inflight {
		if err := c.wait(i); err != nil && failed == nil {
			failed = err
		}
		w.called(begin)
	}
	return failed
}
