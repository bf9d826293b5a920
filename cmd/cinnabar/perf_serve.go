package main

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
)

// perfPatience is how long the answer to DONE, and what else is under way, may take at the end.
const perfPatience = 5 * time.Second

// perfServeOptions are the options of perf serve.
type perfServeOptions struct {
	address       string
	portFile      string
	memoryText    string
	memory        int64 // bytes for all clients together
	classes       int   // servers in this process
	timeout       time.Duration
	once          bool // the server ends when a client calls DONE
	verify        bool // of rate's data
	bidirectional bool // rate's answers carry the data back
	limits        cli.EngineLimits
}

// runPerfServe serves until ctx ends, or with --once until a client is done.
func runPerfServe(ctx context.Context, o *perfServeOptions, s cli.Streams) (err error) {
	memory := newPerfMemory(o.memory)
	var servers []*perfServer
	defer func() {
		for _, p := range servers { // before the memory, so that no peer reaches for it
			err = errors.Join(err, p.engine.Close())
		}
		memory.close()
	}()
	var addresses []string
	for class := range o.classes {
		p, err := listenPerf(ctx, o, class, memory)
		if err != nil {
			return err
		}
		servers = append(servers, p)
		addresses = append(addresses, p.engine.Addr())
	}
	if o.portFile != "" { // before the lines that tell that it is there
		if err := writePortFile(o.portFile, addresses); err != nil {
			return err
		}
	}
	if _, err := fmt.Fprintln(s.Out, strings.Join(addresses, "\n")); err != nil {
		return err
	}
	for _, p := range servers { // a client says DONE to each
		select {
		case <-p.done:
		case <-ctx.Done():
			return nil // being stopped is how a server ends
		}
	}
	drain, cancel := context.WithTimeout(ctx, perfPatience)
	defer cancel()
	for _, p := range servers {
		err = errors.Join(err, p.engine.Shutdown(drain)) // DONE's answer is still on its way
	}
	return err
}

// listenPerf makes one of the servers, which serves at once.
func listenPerf(ctx context.Context, o *perfServeOptions, class int, memory *perfMemory) (*perfServer, error) {
	address, err := classAddress(o.address, class)
	if err != nil {
		return nil, err
	}
	cfg, err := o.limits.Config()
	if err != nil {
		return nil, err
	}
	engine, err := cinnabar.Listen(address, cli.Logged(ctx, cfg))
	if err != nil {
		return nil, err
	}
	p := newPerfServer(engine, o, class, memory)
	if err := p.register(); err != nil {
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
	if err != nil || port == 0 { // Listen says what is wrong with it
		return address, nil
	}
	if port += uint64(class); port > math.MaxUint16 {
		return "", fmt.Errorf("%w: server %d of those at %s has no port", cinnabar.CodeInvalidArg, class+1, address)
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

// perfServer is one server of perf serve.
type perfServer struct {
	engine *cinnabar.Engine
	o      *perfServeOptions
	class  int         // which of the servers it is, from 0 on
	memory *perfMemory // of all servers
	once   sync.Once
	done   chan struct{} // closed when a client has said DONE
}

func newPerfServer(engine *cinnabar.Engine, o *perfServeOptions, class int, memory *perfMemory) *perfServer {
	return &perfServer{engine: engine, o: o, class: class, memory: memory, done: make(chan struct{})}
}

func (p *perfServer) register() error {
	e := p.engine
	empty := func(context.Context, none) (none, error) { return none{}, nil }
	return errors.Join(
		perfRateInit.Handle(e, empty),
		p.registerRate(),
		perfFirst.Handle(e, empty),
		perfBwInit.Handle(e, p.bwInit),
		perfBwRead.Handle(e, func(ctx context.Context, t perfTransfer) (none, error) { return none{}, p.transfer(ctx, t, perfPush) }),
		perfBwWrite.Handle(e, func(ctx context.Context, t perfTransfer) (none, error) { return none{}, p.transfer(ctx, t, perfPull) }),
		perfDone.Handle(e, p.clientDone),
	)
}

// registerRate serves the rate call, looking into its data only where that was asked for.
func (p *perfServer) registerRate() error {
	switch {
	case p.o.bidirectional:
		return perfEcho.Handle(p.engine, func(_ context.Context, in perfBlock) (perfBlock, error) {
			if p.o.verify {
				if err := perfCheck(in.data); err != nil {
					return perfBlock{}, err
				}
			}
			return in, nil
		})
	case p.o.verify:
		return perfVerify.Handle(p.engine, func(context.Context, perfPattern) (none, error) { return none{}, nil })
	default:
		return perfRate.Handle(p.engine, func(context.Context, perfCount) (none, error) { return none{}, nil })
	}
}

// bwInit takes note of a handle and makes the memory for it.
func (p *perfServer) bwInit(ctx context.Context, in perfBwInfo) (none, error) {
	if in.Targets == 0 || in.Count == 0 || in.SizeMax == 0 || in.Op > perfPull {
		return none{}, fmt.Errorf("%w: handle of %d targets, %d transfers, %d bytes, operation %d", cinnabar.CodeInvalidArg, in.Targets, in.Count, in.SizeMax, in.Op)
	}
	number := in.Handle / in.Targets
	if number >= perfMaxHandles || in.Count > perfMaxTransfers {
		return none{}, fmt.Errorf("%w: handle %d with %d transfers; at most %d and %d are served", cinnabar.CodeOverflow, number, in.Count, perfMaxHandles, perfMaxTransfers)
	}
	return none{}, p.memory.announce(ctx, p.engine, p.key(ctx, number), in)
}

// key names a handle of the client that has made the request.
func (p *perfServer) key(ctx context.Context, number uint32) perfKey {
	return perfKey{p.class, cinnabar.PeerFrom(ctx).String(), number}
}

// transfer serves one call of BW_READ or BW_WRITE.
func (p *perfServer) transfer(ctx context.Context, t perfTransfer, op uint32) error {
	peer := cinnabar.PeerFrom(ctx)
	h, err := p.memory.find(p.key(ctx, t.Handle))
	if err != nil {
		return err
	}
	if t.Size > h.info.SizeMax || op != h.info.Op {
		return fmt.Errorf("%w: %d bytes in direction %d for a handle of %d bytes and direction %d", cinnabar.CodeInvalidArg, t.Size, op, h.info.SizeMax, h.info.Op)
	}
	handle := h.info.Bulk.handle
	if !t.Bulk.handle.IsNull() {
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
func (p *perfServer) clientDone(ctx context.Context, _ none) (none, error) {
	p.memory.forget(p.key(ctx, 0))
	if p.o.once {
		p.once.Do(func() { close(p.done) })
	}
	return none{}, nil
}
