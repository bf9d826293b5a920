package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"cinnabar"
	"cinnabar/verbs"
	"cinnabar/verbs/auto"
	"cinnabar/verbs/iwarp"
)

// blob is bytes of any number.
type blob struct {
	N    uint32
	Data []byte `proc:"count=N"`
}

// number is a number of bytes, or of milliseconds.
type number struct{ N uint64 }

// memoryOf names exposed memory.
type memoryOf struct{ B cinnabar.BulkHandle }

var (
	rpcEcho  = cinnabar.NewRPC[blob, blob]("echo")
	rpcSleep = cinnabar.NewRPC[number, number]("sleep")
	rpcLong  = cinnabar.NewRPC[number, blob]("long")
	rpcPull  = cinnabar.NewRPC[memoryOf, number]("pull")
	rpcShare = cinnabar.NewRPC[number, memoryOf]("share")
)

// serveTCP, serveSM and serveVerbs are the RPC server over each network.
func serveTCP(a *attack, log io.Writer) (*server, error) {
	return serveRPC(a, log, nil, "ofi+tcp://127.0.0.1:0")
}

func serveSM(a *attack, log io.Writer) (*server, error) { return serveRPC(a, log, nil, "na+sm://") }

func serveVerbs(a *attack, log io.Writer) (*server, error) {
	dev, err := softwareDevice(slog.New(slog.NewTextHandler(log, nil)))
	if err != nil {
		return nil, err
	}
	s, err := serveRPC(a, log, auto.Use(dev), "ofi+verbs://127.0.0.1:0")
	if err != nil {
		return nil, errors.Join(err, dev.Close())
	}
	return &server{s.notice, func() time.Duration {
		longest := s.close()
		_ = dev.Close() // the process ends
		return longest
	}}, nil
}

// softwareDevice opens the software device, which asks for no CRC within this host, as that of package auto, and warns of nothing.
func softwareDevice(log *slog.Logger) (*verbs.Device, error) {
	return iwarp.Open(iwarp.Config{Logger: log, NoLocalCRC: true})
}

// serveRPC serves at an address. dev is the device of the address; nil: it needs none.
func serveRPC(a *attack, log io.Writer, dev *auto.Device, addr string) (*server, error) {
	cfg := &cinnabar.Config{MaxHandlers: a.handlers, Logger: slog.New(slog.NewTextHandler(log, nil))}
	if dev != nil {
		cfg.Device = dev
	}
	e, err := cinnabar.Listen(context.Background(), addr, cfg)
	if err != nil {
		return nil, err
	}
	l := &lender{engine: e}
	for _, err := range []error{
		rpcEcho.Handle(e, func(_ context.Context, b blob) (blob, error) { return b, nil }),
		rpcSleep.Handle(e, func(ctx context.Context, n number) (number, error) {
			pause(ctx, time.Duration(min(n.N, 1000))*time.Millisecond)
			return n, nil
		}),
		rpcLong.Handle(e, func(_ context.Context, n number) (blob, error) {
			size := min(n.N, 1<<16)
			return blob{uint32(size), make([]byte, size)}, nil
		}),
		rpcPull.Handle(e, func(ctx context.Context, h memoryOf) (number, error) { return pullAll(ctx, e, h.B) }),
		rpcShare.Handle(e, func(context.Context, number) (memoryOf, error) { return l.handle(), nil }),
	} {
		if err != nil {
			return nil, err
		}
	}
	stop := func() {}
	if a.lend {
		stop = l.start()
	}
	return &server{notice{Addr: e.Addr()}, func() time.Duration {
		stop()
		ctx, cancel := context.WithTimeout(context.Background(), shutdownLimit)
		defer cancel()
		_ = e.Shutdown(ctx) // reports handlers that attackers hold
		return time.Duration(l.longest.Load())
	}}, nil
}

// shutdownLimit is how long a server waits for handlers that attackers hold.
const shutdownLimit = 3 * time.Second

// pullAll is the handler of nearly all Mercury services: it pulls the memory of its caller.
func pullAll(ctx context.Context, e *cinnabar.Engine, h cinnabar.BulkHandle) (n number, err error) {
	const most = 1 << 20
	if h.Len() > most {
		return n, fmt.Errorf("%d bytes, at most %d", h.Len(), most)
	}
	local, err := e.Alloc(cinnabar.ReadWrite, h.Len())
	if err != nil {
		return n, err
	}
	moved, err := h.On(cinnabar.InfoFrom(ctx).Peer).Pull(ctx, local)
	n.N = uint64(moved)
	if cerr := local.Close(); err == nil {
		err = cerr
	}
	return n, err
}

// lender exposes memory, closes it again, and measures for how long that takes.
type lender struct {
	engine  *cinnabar.Engine
	longest atomic.Int64 // nanoseconds
	mu      sync.Mutex
	// +checklocks:mu
	now *cinnabar.Bulk
}

func (l *lender) handle() memoryOf {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.now == nil {
		return memoryOf{}
	}
	return memoryOf{l.now.Handle()}
}

// lendEvery is for how long the memory of a lender is exposed, and lendSize the length of each of its segments.
const (
	lendEvery    = 300 * time.Millisecond
	lendSize     = 16 << 20
	lendSegments = 2
)

// start lends until stop is called.
func (l *lender) start() (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		for ctx.Err() == nil {
			b, err := l.engine.Expose(cinnabar.ReadOnly, make([]byte, lendSize), make([]byte, lendSize))
			if err != nil {
				break
			}
			l.mu.Lock()
			l.now = b
			l.mu.Unlock()
			pause(ctx, lendEvery)
			l.mu.Lock()
			l.now = nil
			l.mu.Unlock()
			l.close(b)
		}
	})
	return func() {
		cancel()
		wg.Wait()
	}
}

// close closes b and notes for how long that took.
func (l *lender) close(b *cinnabar.Bulk) {
	start := time.Now()
	_ = b.Close()
	l.longest.Store(max(l.longest.Load(), int64(time.Since(start))))
}

// rpcClient makes the innocent client of an RPC server over the network of an address. Its steady calls are, in turn, a
// small echo, one with arguments that are too long for a message, and a call with a handler that pulls from the client.
func rpcClient(own string) func(context.Context, notice) (*client, error) {
	return func(ctx context.Context, at notice) (*client, error) { return newRPCClient(ctx, own, at, nil) }
}

// verbsClient is rpcClient over ofi+verbs. All engines of the process use one device.
func verbsClient(ctx context.Context, at notice) (*client, error) {
	dev, err := softwareDevice(nil)
	if err != nil {
		return nil, err
	}
	c, err := newRPCClient(ctx, "ofi+verbs://127.0.0.1", at, &cinnabar.Config{Device: auto.Use(dev)})
	if err != nil {
		return nil, errors.Join(err, dev.Close())
	}
	end := c.close
	c.close = func() {
		end()
		_ = dev.Close() // the process ends
	}
	return c, nil
}

func newRPCClient(ctx context.Context, own string, at notice, cfg *cinnabar.Config) (*client, error) {
	e, err := cinnabar.Open(ctx, own, cfg)
	if err != nil {
		return nil, err
	}
	ep, err := e.Lookup(at.Addr)
	if err != nil {
		return nil, err
	}
	mem, err := e.Alloc(cinnabar.ReadOnly, 64<<10)
	if err != nil {
		return nil, err
	}
	var turn atomic.Uint64
	return &client{
		notice: notice{Addr: e.Addr()},
		steady: func(ctx context.Context) error {
			switch turn.Add(1) % 3 {
			case 0:
				return echo(ctx, ep, 64)
			case 1:
				return echo(ctx, ep, 8192)
			default:
				n, err := rpcPull.Call(ctx, ep, memoryOf{mem.Handle()})
				return equal(err, n.N, uint64(mem.Len()))
			}
		},
		newcomer: func(ctx context.Context) error { return visit(ctx, own, at.Addr, cfg) },
		close:    func() { _ = e.Close() },
	}, nil
}

// visit connects by an engine of its own, calls, and leaves.
func visit(ctx context.Context, own, to string, cfg *cinnabar.Config) error {
	e, err := cinnabar.Open(ctx, own, cfg)
	if err != nil {
		return err
	}
	defer func() { _ = e.Close() }() // the call's result is at hand
	ep, err := e.Lookup(to)
	if err != nil {
		return err
	}
	return echo(ctx, ep, 64)
}

func echo(ctx context.Context, ep *cinnabar.Endpoint, size int) error {
	in := blob{uint32(size), bytes.Repeat([]byte{7}, size)}
	out, err := rpcEcho.Call(ctx, ep, in)
	if err == nil && !bytes.Equal(in.Data, out.Data) {
		err = fmt.Errorf("%d other bytes came back for %d", len(out.Data), size)
	}
	return err
}

func equal(err error, got, want uint64) error {
	if err == nil && got != want {
		return fmt.Errorf("got %d, not %d", got, want)
	}
	return err
}

// portOf returns the port of an address of ofi+tcp, 0 if it has none.
func portOf(addr string) uint16 {
	for i := len(addr) - 1; i >= 0; i-- {
		if addr[i] == ':' {
			port, _ := strconv.ParseUint(addr[i+1:], 10, 16)
			return uint16(port)
		}
	}
	return 0
}
