package perfrpc

import (
	"context"
	"errors"
	"fmt"

	"cinnabar"
	"cinnabar/cmd/cinnabar/internal/cli"
	"cinnabar/codec"
	"cinnabar/codes"
)

// prepareRate makes ready for calls with a block of data, which the server reads and answers with nothing, or with the
// same block.
func prepareRate(ctx context.Context, r *run) (caller, error) {
	data := make([]byte, r.o.largest())
	fill(data)
	if r.rank == 0 {
		if err := r.each(ctx, "begin at the server", rateInitRPC); err != nil {
			return nil, err
		}
	}
	if r.o.bidirectional {
		return &echoCaller{r: r, data: data, pending: make([]*cinnabar.Pending[block], r.o.inflight)}, nil
	}
	return &rateCaller{r: r, data: data, pending: make([]*cinnabar.Pending[none], r.o.inflight)}, nil
}

// uncheckedCaller is for operations that are checked in the call itself, or at the server.
type uncheckedCaller struct{}

func (uncheckedCaller) before()           {}
func (uncheckedCaller) after(int64) error { return nil }
func (uncheckedCaller) close()            {}

// rateCaller calls with a block of the size.
type rateCaller struct {
	uncheckedCaller
	r       *run
	data    []byte
	pending []*cinnabar.Pending[none]
}

func (c *rateCaller) call(ctx context.Context, size int64) error {
	server, _ := c.r.target(0)
	_, err := callRPC.Call(ctx, server, block{c.data[:size]})
	return err
}

func (c *rateCaller) start(ctx context.Context, i int, size int64) {
	server, _ := c.r.target(i)
	c.pending[i] = callRPC.Start(ctx, server, block{c.data[:size]})
}

func (c *rateCaller) wait(i int) error {
	_, err := c.pending[i].Wait()
	return err
}

func (c *rateCaller) moved(size int64) int64 { return size }

// echoCaller calls with a block of the size and wants it back.
type echoCaller struct {
	uncheckedCaller
	r       *run
	data    []byte
	pending []*cinnabar.Pending[block]
	size    int64 // of the block in flight
}

func (c *echoCaller) call(ctx context.Context, size int64) error {
	server, _ := c.r.target(0)
	out, err := echoRPC.Call(ctx, server, block{c.data[:size]})
	return c.check(out, size, err)
}

func (c *echoCaller) start(ctx context.Context, i int, size int64) {
	c.size = size
	server, _ := c.r.target(i)
	c.pending[i] = echoRPC.Start(ctx, server, block{c.data[:size]})
}

func (c *echoCaller) wait(i int) error {
	out, err := c.pending[i].Wait()
	return c.check(out, c.size, err)
}

// check compares the block that came back with the sent one. An answer without a block is that of a server which does not send
// them back.
func (c *echoCaller) check(out block, size int64, err error) error {
	if errors.Is(err, codec.ErrOverflow) {
		return fmt.Errorf("%w; start the server with --bidirectional too", err)
	}
	if err != nil {
		return err
	}
	if got := int64(len(out.data)); got != size {
		return fmt.Errorf("the answer carries %s instead of %s", cli.SizeText(got), cli.SizeText(size))
	}
	if !c.r.o.verify {
		return nil
	}
	return check(out.data)
}

func (c *echoCaller) moved(size int64) int64 { return 2 * size }

// bulkCaller has the server push into its memory (bw-read), or pull from it (bw-write).
type bulkCaller struct {
	r       *run
	rpc     *cinnabar.RPC[transfer, none]
	op      uint32
	bulk    []*cinnabar.Bulk // one for each call in flight
	pending []*cinnabar.Pending[none]
}

func prepareBwRead(ctx context.Context, r *run) (caller, error) {
	return prepareBulk(ctx, &bulkCaller{r: r, rpc: bwReadRPC, op: opPush}, cinnabar.WriteOnly)
}

func prepareBwWrite(ctx context.Context, r *run) (caller, error) {
	return prepareBulk(ctx, &bulkCaller{r: r, rpc: bwWriteRPC, op: opPull}, cinnabar.ReadOnly)
}

// prepareBulk makes the memory of each call in flight and announces it.
func prepareBulk(ctx context.Context, c *bulkCaller, mode cinnabar.Mode) (caller, error) {
	c.pending = make([]*cinnabar.Pending[none], c.r.o.inflight)
	for i := range c.r.o.inflight {
		if err := c.announce(ctx, i, mode); err != nil {
			c.close()
			return nil, err
		}
	}
	return c, nil
}

// announce makes the memory of call i and announces it to the server, which makes its own: that may take time.
func (c *bulkCaller) announce(ctx context.Context, i int, mode cinnabar.Mode) error {
	each := c.r.o.largest()
	b, err := c.r.engine.Alloc(mode, each*int64(c.r.o.transfers))
	if err != nil {
		return err
	}
	c.bulk = append(c.bulk, b)
	if c.op == opPull {
		fillAll(b.Bytes(), each, c.r.handle(i))
	}
	ctx, cancel := context.WithTimeout(ctx, c.r.o.timeout)
	defer cancel()
	server, _ := c.r.target(i)
	targets := uint32(len(c.r.servers))
	_, err = bwInitRPC.Call(ctx, server, bwInfo{
		Bulk: remoteHandle{b.Handle()}, Op: c.op, Handle: c.r.handle(i), Handles: uint32(c.r.o.inflight), Count: uint32(c.r.o.transfers),
		SizeMax: uint32(each), Clients: uint32(c.r.o.clients), Target: c.r.handle(i) % targets, Targets: targets, Checking: c.r.o.verify,
	})
	if errors.Is(err, codes.NoMem) {
		return fmt.Errorf("%w; the server needs %s for each call in flight; start it with a larger --memory, or ask for less", err, cli.SizeText(each*int64(c.r.o.transfers)))
	}
	return err
}

func (c *bulkCaller) call(ctx context.Context, size int64) error {
	server, number := c.r.target(0)
	_, err := c.rpc.Call(ctx, server, transfer{Handle: number, Size: uint32(size)})
	return err
}

func (c *bulkCaller) start(ctx context.Context, i int, size int64) {
	server, number := c.r.target(i)
	c.pending[i] = c.rpc.Start(ctx, server, transfer{Handle: number, Size: uint32(size)})
}

func (c *bulkCaller) wait(i int) error {
	_, err := c.pending[i].Wait()
	return err
}

func (c *bulkCaller) moved(size int64) int64 { return size * int64(c.r.o.transfers) }

// before wipes the memory, so that the check sees only bytes of this iteration.
func (c *bulkCaller) before() {
	if c.op != opPush {
		return
	}
	for _, b := range c.bulk {
		clear(b.Bytes())
	}
}

func (c *bulkCaller) after(size int64) error {
	if c.op != opPush {
		return nil // the server checks
	}
	for i, b := range c.bulk {
		if err := checkAll(b.Bytes(), c.r.o.largest(), size, c.r.handle(i)); err != nil {
			return err
		}
	}
	return nil
}

func (c *bulkCaller) close() {
	for _, b := range c.bulk {
		_ = b.Close() // the engine's end is next
	}
}
