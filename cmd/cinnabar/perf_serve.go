package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"cinnabar"
)

// perfServeOptions are the options of perf serve.
type perfServeOptions struct {
	address       string
	portFile      string
	memoryText    string
	memory        int64 // bytes for all clients together
	keep          bool  // go on after a client's DONE
	verify        bool  // of rate's data
	bidirectional bool  // rate's answers carry the data back
}

// runPerfServe serves until a client is done, or ctx ends.
func runPerfServe(ctx context.Context, o *perfServeOptions, s streams) (err error) {
	engine, err := cinnabar.Listen(o.address, nil)
	if err != nil {
		return err
	}
	p := newPerfServer(engine, o)
	defer func() {
		err = errors.Join(err, engine.Close()) // before the memory, so that no peer reaches for it
		p.memory.close()
	}()
	if err := p.register(); err != nil {
		return err
	}
	if o.portFile != "" { // before the line that tells that it is there
		if err := writePortFile(o.portFile, engine.Addr()); err != nil {
			return err
		}
	}
	if _, err := fmt.Fprintln(s.out, engine.Addr()); err != nil {
		return err
	}
	select {
	case <-p.done:
	case <-ctx.Done():
		return nil // being stopped is how a server ends
	}
	drain, cancel := context.WithTimeout(ctx, perfPatience)
	defer cancel()
	return engine.Shutdown(drain) // DONE's answer is still on its way
}

// writePortFile writes the file through which Mercury's programs find a server, whole or not at all.
func writePortFile(name, address string) error {
	f, err := os.CreateTemp(filepath.Dir(name), ".port-*")
	if err != nil {
		return fmt.Errorf("port file: %w", err)
	}
	defer func() { _ = os.Remove(f.Name()) }() // fails after the rename, as it should
	_, err = fmt.Fprintln(f, address)
	err = errors.Join(err, f.Chmod(0o644), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), name)
	}
	if err != nil {
		return fmt.Errorf("port file: %w", err)
	}
	return nil
}

// perfServer is the state of perf serve.
type perfServer struct {
	engine *cinnabar.Engine
	o      *perfServeOptions
	memory *perfMemory
	once   sync.Once
	done   chan struct{} // closed when a client has said DONE
}

func newPerfServer(engine *cinnabar.Engine, o *perfServeOptions) *perfServer {
	return &perfServer{engine: engine, o: o, memory: newPerfMemory(o.memory), done: make(chan struct{})}
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
	return none{}, p.memory.announce(ctx, p.engine, number, in)
}

// transfer serves one call of BW_READ or BW_WRITE.
func (p *perfServer) transfer(ctx context.Context, t perfTransfer, op uint32) error {
	peer := cinnabar.PeerFrom(ctx)
	h, err := p.memory.find(peer.String(), t.Handle)
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
	return h.serve(ctx, handle.On(peer), int64(t.Size))
}

// clientDone gives up what the client has announced, and ends the server unless it is to stay.
func (p *perfServer) clientDone(ctx context.Context, _ none) (none, error) {
	p.memory.forget(cinnabar.PeerFrom(ctx).String())
	if !p.o.keep {
		p.once.Do(func() { close(p.done) })
	}
	return none{}, nil
}
