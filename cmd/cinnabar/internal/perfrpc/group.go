package perfrpc

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"sync"

	"cinnabar"
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
	addresses, err := o.readServers(ctx)
	if err != nil {
		return err
	}
	local := cli.LocalFor(ctx, addresses[0])
	if err := checkFiles(o.clients, len(addresses), cli.Transport(local)); err != nil {
		return err
	}
	cfg := cinnabar.Config{AutoSM: slices.ContainsFunc(addresses, cli.Combined), Progress: cinnabar.Progress{Mode: o.progress}}
	release, err := o.device.Open(ctx, local, &cfg)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, release()) }()
	g := &group{job: job, o: o}
	defer func() { err = errors.Join(err, g.close()) }()
	for rank := range o.clients {
		r, err := openRun(ctx, o, &cfg, rank, localOf(local, rank, o.clients), addresses)
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

// Limits on clients of one process.
const (
	// clientsPerHost is the number of clients at one loopback address. A server grants one host nine sixteenths of its connections, and
	// the system has some 28,000 ports for each address, of which a client takes two.
	clientsPerHost = 1000

	// warmTogether is the number of clients that connect and warm up at a time. A server bounds unfinished handshakes.
	warmTogether = 128

	// sharedTimes is the number of histograms that the clients of a size share.
	sharedTimes = 64
)

// localOf returns the address at which the client of a rank opens its engine, which is local in most cases. On Linux, if local is a loopback
// address of ofi+tcp and there are more than clientsPerHost clients, localOf divides the clients among the addresses 127.0.0.2, 127.0.0.3 and so
// on, because a server limits the share of one host. Other systems have only the loopback address 127.0.0.1 unless an administrator adds others,
// and RDMA devices do not have those addresses.
func localOf(local string, rank, clients int) string {
	if runtime.GOOS != "linux" || clients <= clientsPerHost || cli.OverVerbs(local) {
		return local
	}
	protocol, where, _ := strings.Cut(local, "://")
	a, err := netip.ParseAddrPort(where)
	if err != nil || !a.Addr().Is4() || !a.Addr().IsLoopback() {
		return local
	}
	hosts := (clients + clientsPerHost - 1) / clientsPerHost
	return fmt.Sprintf("%s://127.0.0.%d:0", protocol, 2+rank%hosts)
}

// Descriptors that checkFiles reckons with, a little more than most clients have. Over tcp an engine has a listener and a spare
// descriptor, and a connection has a socket and, while a goroutine waits for it alone, an epoll set. Over sm there are about as many.
// A process has spareFiles beside them.
const (
	engineFiles     = 3
	connectionFiles = 2
	spareFiles      = 64
)

// checkFiles refuses more clients than the limit of open files has room for, because they would fail one by one with errors of the system.
func checkFiles(clients, servers int, transport string) error {
	each := engineFiles + connectionFiles*servers
	limit, known := openFiles()
	if need := clients*each + spareFiles; known && need > limit {
		return fmt.Errorf("--clients %d over %s needs about %d open files, and the limit is %d: raise it (ulimit -n %d), or take at most %d clients",
			clients, transport, need, limit, need, max(0, (limit-spareFiles)/each))
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
	report := &report{op: g.job.op, servers: len(first.servers), o: g.o, w: s.Out}
	for i, size := range g.o.sizes {
		combined := cli.Combined(first.servers[0].String())
		if i == 0 && !combined {
			if err := g.header(report); err != nil {
				return err
			}
		}
		report.begin()
		results, err := g.measure(ctx, s, size)
		if err != nil {
			return fmt.Errorf("%s of %s: %w", g.job.op, cli.SizeText(size), err)
		}
		if i == 0 && combined { // the calls choose between shared memory and the network
			if err := g.header(report); err != nil {
				return err
			}
		}
		if err := report.line(results...); err != nil {
			return err
		}
	}
	return first.finish(ctx)
}

// header prints the head of the report, with the network that carries the calls.
func (g *group) header(r *report) error {
	first := g.runs[0]
	r.transport = cli.Carried(first.engine, first.servers[0].String())
	return r.header()
}

// measure has all clients measure one size at once. If one fails, the others stop.
func (g *group) measure(ctx context.Context, s cli.Streams, size int64) ([]result, error) {
	group, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	line := newBarrier(len(g.runs))
	calls := make([]*callTimes, min(sharedTimes, len(g.runs)))
	for i := range calls {
		calls[i] = newCallTimes()
	}
	defer cli.RateLines{To: s, Every: g.o.interval, Size: size, Bytes: g.callers[0].moved(size), Unit: "calls", Made: g.ended}.Start(line.open)()
	results := make([]result, len(g.runs))
	var wg sync.WaitGroup
	for i, r := range g.runs {
		wg.Go(func() {
			var err error
			if results[i], err = r.measure(ctx, group, g.callers[i], size, calls[i%len(calls)], line); err != nil {
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

// barrier is a line that clients pass together, once. Before it warmTogether of them at a time may warm up.
type barrier struct {
	places chan struct{} // holds a value for each client that warms up

	mu sync.Mutex
	// +checklocks:mu
	missing int
	open    chan struct{} // closed when missing is 0
}

func newBarrier(clients int) *barrier {
	return &barrier{places: make(chan struct{}, warmTogether), missing: clients, open: make(chan struct{})}
}

// warm calls f when there is a place, or returns the reason when ctx ends.
func (b *barrier) warm(ctx context.Context, f func() error) error {
	select {
	case b.places <- struct{}{}:
		defer func() { <-b.places }()
		return f()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
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
