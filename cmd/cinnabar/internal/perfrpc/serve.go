package perfrpc

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"cinnabar"
	"cinnabar/cmd/cinnabar/internal/cli"
	"cinnabar/codes"
	"cinnabar/margo"
)

// drainTime bounds the wait for the answer to DONE, and for all other calls under way, at the end of a server with --once.
const drainTime = 5 * time.Second

// serveOptions are the options of perf serve.
type serveOptions struct {
	address       string
	portFile      string
	memoryText    string
	memory        int64 // bytes for all clients together
	classes       int   // servers in this process
	timeout       time.Duration
	once          bool // the server ends when a client calls DONE
	verify        bool // of rate's data
	bidirectional bool // rate's answers carry the data back
	query         bool // any process may ask for a description of the servers
	autoSM        bool
	progress      string // mode of the engines' waits
	limits        cli.EngineLimits
	device        cli.RPCDevice
	dear          dearWakeUps
}

// runServe serves until ctx ends, or with --once until a client is done.
func runServe(ctx context.Context, o *serveOptions, s cli.Streams) (err error) {
	cfg, err := o.limits.Config()
	if err != nil {
		return err
	}
	cfg.AutoSM, cfg.Progress.Mode = o.autoSM, o.progress
	release, err := o.device.Open(ctx, o.address, cfg)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, release()) }()
	sockets, err := cli.Sockets(o.classes)
	if err != nil {
		return err
	}
	memory := newHandleTable(o.memory)
	var servers []*server
	var engines []*cinnabar.Engine
	defer func() {
		for _, p := range servers { // before the memory, so that no peer reaches for it
			err = errors.Join(err, p.engine.Close())
		}
		memory.close()
	}()
	var addresses []string
	for class := range o.classes {
		own := *cfg
		if len(sockets) > 0 {
			own.Listener = sockets[class]
		}
		p, err := listen(ctx, o, &own, class, memory)
		if err != nil {
			return err
		}
		servers, engines = append(servers, p), append(engines, p.engine)
		addresses = append(addresses, p.engine.Addr())
	}
	if o.portFile != "" { // before the lines that announce it
		if err := writePortFile(o.portFile, addresses); err != nil {
			return err
		}
	}
	if _, err := fmt.Fprintln(s.Out, strings.Join(addresses, "\n")); err != nil {
		return err
	}
	stop, err := s.StartService(ctx, "serving at "+strings.Join(addresses, " "), cli.EngineChecks(engines...))
	if err != nil {
		return err
	}
	defer stop()
	for _, p := range servers { // a client says DONE to each
		select {
		case <-p.done:
		case <-ctx.Done():
			if o.once { // a client's DONE is how that server ends
				return context.Cause(ctx)
			}
			stop()
			return s.Drain(ctx, engines...)
		}
	}
	stop()
	drain, cancel := context.WithTimeout(ctx, drainTime)
	defer cancel()
	for _, p := range servers {
		err = errors.Join(err, p.engine.Shutdown(drain)) // DONE's answer is still on its way
	}
	return err
}

// listen makes one of the servers, which serves at once.
func listen(ctx context.Context, o *serveOptions, cfg *cinnabar.Config, class int, memory *handleTable) (*server, error) {
	address, err := classAddress(o.address, class)
	if err != nil {
		return nil, err
	}
	engine, err := cinnabar.Listen(ctx, address, cli.Logged(ctx, cfg))
	if err != nil {
		return nil, err
	}
	p := newServer(engine, o, class, memory)
	err = p.register()
	if err == nil && o.query {
		err = margo.ServeQuery(engine, &margo.Config{Config: *cfg, AllowQuery: true})
	}
	if err != nil {
		return nil, errors.Join(err, engine.Close())
	}
	return p, nil
}

// classAddress is where the server of that number listens: ports count up from one that address names, as those of
// hg_perf_server -C do.
func classAddress(address string, class int) (string, error) {
	_, where, ok := strings.Cut(address, "://")
	if class == 0 || !ok {
		return address, nil
	}
	host, text, err := net.SplitHostPort(where)
	if err != nil { // no port
		return address, nil
	}
	port, err := strconv.ParseUint(text, 10, 16)
	if err != nil || port == 0 { // Listen returns the error
		return address, nil
	}
	if port += uint64(class); port > math.MaxUint16 {
		return "", fmt.Errorf("%w: server %d of those at %s has no port; take fewer --classes or a lower port", codes.InvalidArg, class+1, address)
	}
	return strings.TrimSuffix(address, where) + net.JoinHostPort(host, strconv.FormatUint(port, 10)), nil
}

// writePortFile writes the file through which Mercury's programs find servers, whole or not at all.
func writePortFile(name string, addresses []string) error {
	f, err := os.CreateTemp(filepath.Dir(name), ".port-*")
	if err != nil {
		return fmt.Errorf("port file: %w", err)
	}
	defer func() { _ = os.Remove(f.Name()) }() // fails after the rename, as it should
	_, err = fmt.Fprintln(f, strings.Join(addresses, "\n"))
	err = errors.Join(err, f.Chmod(0o644), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), name)
	}
	if err != nil {
		return fmt.Errorf("port file: %w", err)
	}
	return nil
}

// server is one server of perf serve.
type server struct {
	engine *cinnabar.Engine
	o      *serveOptions
	class  int          // which of the servers it is, from 0 on
	memory *handleTable // of all servers
	once   sync.Once
	done   chan struct{} // closed when a client has said DONE
}

func newServer(engine *cinnabar.Engine, o *serveOptions, class int, memory *handleTable) *server {
	return &server{engine: engine, o: o, class: class, memory: memory, done: make(chan struct{})}
}

func (p *server) register() error {
	e := p.engine
	empty := func(context.Context, none) (none, error) { return none{}, nil }
	return errors.Join(
		rateInitRPC.Handle(e, empty),
		p.registerRate(),
		firstRPC.Handle(e, empty),
		bwInitRPC.Handle(e, p.bwInit),
		bwReadRPC.Handle(e, func(ctx context.Context, t transfer) (none, error) { return none{}, p.transfer(ctx, t, opPush) }),
		bwWriteRPC.Handle(e, func(ctx context.Context, t transfer) (none, error) { return none{}, p.transfer(ctx, t, opPull) }),
		doneRPC.Handle(e, p.clientDone),
	)
}

// registerRate serves the rate call, looking into its data only where that was asked for.
func (p *server) registerRate() error {
	switch {
	case p.o.bidirectional:
		return echoRPC.Handle(p.engine, func(_ context.Context, in block) (block, error) {
			if p.o.verify {
				if err := check(in.data); err != nil {
					return block{}, err
				}
			}
			return in, nil
		})
	case p.o.verify:
		return verifyRPC.Handle(p.engine, func(context.Context, pattern) (none, error) { return none{}, nil })
	default:
		return rateRPC.Handle(p.engine, func(context.Context, count) (none, error) { return none{}, nil })
	}
}

// bwInit takes note of a handle and makes the memory for it.
func (p *server) bwInit(ctx context.Context, in bwInfo) (none, error) {
	if in.Targets == 0 || in.Count == 0 || in.SizeMax == 0 || in.Op > opPull {
		return none{}, fmt.Errorf("%w: handle of %d targets, %d transfers, %d bytes, operation %d", codes.InvalidArg, in.Targets, in.Count, in.SizeMax, in.Op)
	}
	number := in.Handle / in.Targets
	if number >= maxHandles || in.Count > maxTransfers {
		return none{}, fmt.Errorf("%w: handle %d with %d transfers; at most %d and %d are served", codes.Overflow, number, in.Count, maxHandles, maxTransfers)
	}
	return none{}, p.memory.announce(ctx, p.engine, p.key(ctx, number), in)
}

// key names a handle of the client that has made the request.
func (p *server) key(ctx context.Context, number uint32) handleKey {
	return handleKey{p.class, cinnabar.InfoFrom(ctx).Peer.String(), number}
}

// transfer serves one call of BW_READ or BW_WRITE.
func (p *server) transfer(ctx context.Context, t transfer, op uint32) error {
	peer := cinnabar.InfoFrom(ctx).Peer
	h, err := p.memory.find(p.key(ctx, t.Handle))
	if err != nil {
		return err
	}
	if t.Size > h.info.SizeMax || op != h.info.Op {
		return fmt.Errorf("%w: %d bytes in direction %d for a handle of %d bytes and direction %d", codes.InvalidArg, t.Size, op, h.info.SizeMax, h.info.Op)
	}
	handle := h.info.Bulk.handle
	if t.Bulk.handle != (cinnabar.BulkHandle{}) {
		handle = t.Bulk.handle
	}
	limited, cancel := context.WithTimeout(ctx, p.o.timeout)
	defer cancel()
	err = h.serve(limited, handle.On(peer), int64(t.Size))
	if err != nil && limited.Err() != nil && ctx.Err() == nil {
		return fmt.Errorf("%w; the client is frozen, or the server's --timeout of %v is too short for such calls", err, p.o.timeout)
	}
	return err
}

// clientDone releases the memory that the client has announced. It ends a server with --once.
func (p *server) clientDone(ctx context.Context, _ none) (none, error) {
	p.memory.forget(p.key(ctx, 0))
	if p.o.once {
		p.once.Do(func() { close(p.done) })
	}
	return none{}, nil
}
