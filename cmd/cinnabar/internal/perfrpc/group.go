package perfrpc

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"cinnabar/cmd/cinnabar/internal/cli"
)

// group is the clients of one measurement. Mercury's programs are as many processes, which mpirun starts; here they
// are engines of this one.
type group struct {
	job     job
	o       *options
	runs    []*run
	callers []caller // of the runs
}

// runClients measures until that is done or ctx ends.
func runClients(ctx context.Context, job job, o *options, s cli.Streams) (err error) {
	addresses, err := o.readServers()
	if err != nil {
		return err
	}
	g := &group{job: job, o: o}
	defer func() { err = errors.Join(err, g.close()) }()
	for rank := range o.clients {
		r, err := openRun(ctx, o, rank, addresses)
		if err != nil {
			return err
		}
		g.runs = append(g.runs, r)
	}
	// The end of ctx ends all calls by closing the engines, so that no call has to watch ctx, which costs.
	defer context.AfterFunc(ctx, func() { _ = g.closeEngines() })()
	if err := g.run(context.WithoutCancel(ctx), s); err != nil {
		return cli.Reason(ctx, err)
	}
	return nil
}

func (g *group) closeEngines() error {
	var errs []error
	for _, r := range g.runs {
		errs = append(errs, r.engine.Close())
	}
	return errors.Join(errs...)
}

// close gives back everything.
func (g *group) close() error {
	for _, c := range g.callers {
		c.close()
	}
	return g.closeEngines()
}

// run measures every size, prints a line for each, and says goodbye.
func (g *group) run(ctx context.Context, s cli.Streams) error {
	for _, r := range g.runs {
		c, err := g.job.prepare(ctx, r)
		if err != nil {
			return err
		}
		g.callers = append(g.callers, c)
	}
	first := g.runs[0]
	report := &report{op: g.job.op, transport: transportOf(first.engine.Addr()), servers: len(first.servers), o: g.o, w: s.Out}
	if err := report.header(); err != nil {
		return err
	}
	for _, size := range g.o.sizes {
		results, err := g.measure(ctx, s, size)
		if err != nil {
			return fmt.Errorf("%s of %s: %w", g.job.op, cli.SizeText(size), err)
		}
		if err := report.line(results...); err != nil {
			return err
		}
	}
	return first.finish(ctx)
}

// measure has all clients measure one size at once. If one fails, the others stop.
func (g *group) measure(ctx context.Context, s cli.Streams, size int64) ([]result, error) {
	group, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	line := newBarrier(len(g.runs))
	defer cli.RateLines{To: s, Every: g.o.interval, Size: size, Bytes: g.callers[0].moved(size), Unit: "calls", Made: g.ended}.Start(line.open)()
	results := make([]result, len(g.runs))
	var wg sync.WaitGroup
	for i, r := range g.runs {
		wg.Go(func() {
			var err error
			if results[i], err = r.measure(ctx, group, g.callers[i], size, line); err != nil {
				fail(err) // the first counts
			}
		})
	}
	wg.Wait()
	return results, context.Cause(group)
}

// ended returns the number of calls of all clients that have ended.
func (g *group) ended() (n uint64) {
	for _, r := range g.runs {
		n += r.watch.ended.Load()
	}
	return n
}

// barrier is a line that clients pass together, once.
type barrier struct {
	mu sync.Mutex
	// +checklocks:mu
	missing int
	open    chan struct{} // closed when missing is 0
}

func newBarrier(clients int) *barrier {
	return &barrier{missing: clients, open: make(chan struct{})}
}

// wait returns when all are there, or with the reason when ctx ends.
func (b *barrier) wait(ctx context.Context) error {
	b.mu.Lock()
	b.missing--
	if b.missing == 0 {
		close(b.open)
	}
	b.mu.Unlock()
	select {
	case <-b.open:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
