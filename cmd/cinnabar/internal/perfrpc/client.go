package perfrpc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"cinnabar"
	"cinnabar/cmd/cinnabar/internal/cli"
	"cinnabar/codes"
)

// The iterations of a size that the client of perf makes before it measures, as Mercury's programs.
const (
	warmSmall = 100
	warmLarge = 10
	large     = 8192 // bytes; larger sizes have warmLarge
)

// job is one of the client's measurements.
type job struct {
	op          string // "rate", "bw-read", "bw-write"
	least, most int64  // bytes of a size
	// prepare makes one client ready for sizes up to the largest. It is called for one client after the other.
	prepare func(context.Context, *run) (caller, error)
}

// caller makes the calls of one client's measurement. It is used by one goroutine.
type caller interface {
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

// run is one client of a measurement, with an engine of its own, as a process of Mercury's programs.
type run struct {
	o       *options
	rank    int // from 0 on: which of the clients it is
	engine  *cinnabar.Engine
	servers []*cinnabar.Endpoint
	watch   watch
}

// openRun opens the engine of one client at the address local, with the configuration cfg. Nothing goes to the servers yet.
func openRun(ctx context.Context, o *options, cfg *cinnabar.Config, rank int, local string, addresses []string) (*run, error) {
	engine, err := cinnabar.Open(ctx, local, cli.Logged(ctx, cfg))
	switch {
	case err != nil && o.clients > 1:
		return nil, fmt.Errorf("client %d of %d: %w", rank+1, o.clients, err)
	case err != nil:
		return nil, err
	}
	r := &run{o: o, rank: rank, engine: engine}
	for _, a := range addresses {
		server, err := engine.Lookup(a)
		if err != nil {
			return nil, errors.Join(err, engine.Close())
		}
		r.servers = append(r.servers, server)
	}
	return r, nil
}

// handle is the number of call i over all clients (hg_perf_set_handles), which decides where the call goes.
func (r *run) handle(i int) uint32 { return uint32(r.rank + i*r.o.clients) }

// target is the server of call i, and the number by which that one knows the call's memory.
func (r *run) target(i int) (server *cinnabar.Endpoint, number uint32) {
	n := uint32(len(r.servers))
	return r.servers[r.handle(i)%n], r.handle(i) / n
}

// maxPortFile bounds the bytes of a port file.
const maxPortFile = 1 << 20

// readServers returns the addresses of the servers: the arguments, or the lines of the port file.
func (o *options) readServers(ctx context.Context) ([]string, error) {
	if o.portFile == "" {
		return o.addresses, nil
	}
	f, err := cli.OpenInput(ctx, o.portFile)
	if err != nil {
		return nil, fmt.Errorf("port file: %w; a server that was started with --port-file writes it", err)
	}
	defer cli.Shut(f)
	text, err := io.ReadAll(io.LimitReader(f, maxPortFile+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("port file: %w", err)
	case len(text) > maxPortFile:
		return nil, fmt.Errorf("port file %s has more than %s, so no server has written it", o.portFile, cli.SizeText(maxPortFile))
	}
	addresses := strings.Fields(string(text)) // as hg_rate's fscanf does
	switch {
	case len(addresses) == 0:
		return nil, fmt.Errorf("port file %s is empty; a server that was started with --port-file writes it", o.portFile)
	case len(addresses) > maxServers:
		return nil, fmt.Errorf("port file %s has %d addresses; at most %d are used", o.portFile, len(addresses), maxServers)
	}
	return addresses, nil
}

// finish sends the servers DONE, which ends them unless they are to stay.
func (r *run) finish(ctx context.Context) error {
	if r.o.keep {
		return nil
	}
	return r.each(ctx, "end at the server", doneRPC)
}

// each makes a call without arguments at every server (hg_perf_send_done).
func (r *run) each(ctx context.Context, what string, rpc *cinnabar.RPC[none, none]) error {
	ctx, cancel := context.WithTimeout(ctx, r.o.timeout)
	defer cancel()
	for _, server := range r.servers {
		if _, err := rpc.Call(ctx, server, none{}); err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
	}
	return nil
}

// result is one client's measurement of one size.
type result struct {
	size  int64
	calls int64
	bytes int64
	watch *stopwatch
}

// callTimes is the times of single calls. Clients share it, because one takes 270 KiB.
type callTimes struct {
	mu sync.Mutex
	// +checklocks:mu
	histogram *hdrhistogram.Histogram // in nanoseconds
}

func newCallTimes() *callTimes {
	return &callTimes{histogram: hdrhistogram.New(1, int64(time.Hour), 3)}
}

// add notes the time of a call. A call of more than an hour is left out.
func (c *callTimes) add(d time.Duration) {
	c.mu.Lock()
	_ = c.histogram.RecordValue(int64(d))
	c.mu.Unlock()
}

// addTo adds the times to sum.
func (c *callTimes) addTo(sum *hdrhistogram.Histogram) {
	c.mu.Lock()
	defer c.mu.Unlock()
	sum.Merge(c.histogram)
}

// stopwatch measures iterations of calls that follow each other without a gap, unless resume says so. It reads the
// clock once for each call, because percentiles need the time of each.
type stopwatch struct {
	start time.Time
	took  time.Duration // from start to the end of the last call
	calls *callTimes    // nil: the times are not kept
}

func newStopwatch(calls *callTimes) *stopwatch {
	return &stopwatch{start: time.Now(), calls: calls}
}

// resume leaves out the time since the last call.
func (w *stopwatch) resume() { w.start = time.Now().Add(-w.took) }

// called notes the end of a call of the iteration that began at the time begin. A call of more than an hour is not in
// the percentiles; the wall time counts it all the same.
func (w *stopwatch) called(begin time.Duration) {
	w.took = time.Since(w.start)
	if w.calls != nil {
		w.calls.add(w.took - begin)
	}
}

// measure warms up, waits for the other clients at the line, and makes iterations until the count or the time is reached
// or group ends. The calls have ctx, which does not end: watching it would cost.
func (r *run) measure(ctx, group context.Context, c caller, size int64, calls *callTimes, line *barrier) (result, error) {
	if err := line.warm(group, func() error { return r.warm(ctx, group, c, size) }); err != nil {
		return result{}, err
	}
	if err := line.wait(group); err != nil {
		return result{}, err
	}
	defer r.watch.guard(r.o.timeout, r.engine)()
	result := result{size: size, watch: newStopwatch(calls)}
	for n := 0; r.o.more(n, result.watch.took) && group.Err() == nil; n++ {
		if err := r.checked(ctx, c, size, result.watch); err != nil {
			return result, r.blame(err)
		}
		result.calls += int64(r.o.inflight)
	}
	result.bytes = result.calls * c.moved(size)
	return result, nil
}

// warm makes the iterations that are not measured.
func (r *run) warm(ctx, group context.Context, c caller, size int64) error {
	defer r.watch.guard(r.o.timeout, r.engine)()
	n := warmSmall
	if size > large {
		n = warmLarge
	}
	if r.o.clients > warmTogether { // so that all together warm up in a time of the same order
		n = max(1, n*warmTogether/r.o.clients)
	}
	if r.o.count > 0 {
		n = min(n, r.o.count)
	}
	ignored := newStopwatch(nil)
	for ; n > 0 && group.Err() == nil; n-- {
		if err := r.iterate(ctx, c, size, ignored); err != nil {
			return r.blame(err)
		}
	}
	return nil
}

// blame returns why calls have failed: if that is because the engine was closed for want of answers, the server that
// gives none.
func (r *run) blame(err error) error {
	if !r.watch.gaveUp.Load() {
		return err
	}
	where := r.servers[0].String()
	if e, ok := errors.AsType[*cinnabar.Error](err); ok {
		where = e.Addr
	}
	return fmt.Errorf("%w: no answer from %s for %v: it is frozen, or --timeout is too short for such calls", codes.Timeout, where, r.o.timeout)
}

// more reports whether another iteration is due.
func (o *options) more(done int, took time.Duration) bool {
	if o.count > 0 {
		return done < o.count
	}
	return took < o.duration
}

// checked makes one iteration and checks the data, if that was asked for.
func (r *run) checked(ctx context.Context, c caller, size int64, w *stopwatch) error {
	if !r.o.verify {
		return r.iterate(ctx, c, size, w)
	}
	r.watch.rest(c.before)
	w.resume()
	if err := r.iterate(ctx, c, size, w); err != nil {
		return err
	}
	var err error
	r.watch.rest(func() { err = c.after(size) })
	return err
}

// iterate makes as many calls at once as are to be in flight, and waits for all of them. A call's time is that from the
// iteration's begin until this goroutine has seen the call's end.
func (r *run) iterate(ctx context.Context, c caller, size int64, w *stopwatch) error {
	begin := w.took
	if r.o.inflight == 1 {
		err := c.call(ctx, size)
		w.called(begin)
		r.watch.called()
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
		r.watch.called()
	}
	return failed
}
