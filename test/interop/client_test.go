//go:build linux

package interop

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"cinnabar"
	"cinnabar/codes"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// client is a Go engine and the server that it calls.
type client struct {
	*cinnabar.Engine
	t   *testing.T
	rpc *procedures
	to  *cinnabar.Endpoint
}

// dial makes a client that listens if the server is to call it back.
func dial(t *testing.T, p *procedures, addr string, cfg *cinnabar.Config) *client {
	t.Helper()
	e, err := cinnabar.Open(t.Context(), network, configured(t, cfg))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeEngine(t, e) })
	return aim(t, p, e, addr)
}

// aim makes a client of an engine that is there.
func aim(t *testing.T, p *procedures, e *cinnabar.Engine, addr string) *client {
	t.Helper()
	to, err := e.Lookup(addr)
	if err != nil {
		t.Fatal(err)
	}
	return &client{Engine: e, t: t, rpc: p, to: to}
}

// limited is a context for one call.
func limited(t *testing.T, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

// ctx ends long after everything that works.
func (c *client) ctx() context.Context { return limited(c.t, patience/4) }

// refused checks that a call failed because the peer said so.
func (c *client) refused(what string, err error, want codes.Code) {
	c.t.Helper()
	e, ok := errors.AsType[*cinnabar.Error](err)
	if !ok || !e.Remote || e.Code != want {
		c.t.Errorf("%s fails with %v; want %v from the peer", what, err, want)
	}
}

// echoes calls void, and echo with a value of each type.
func (c *client) echoes() {
	t := c.t
	t.Helper()
	if _, err := c.rpc.void.Call(c.ctx(), c.to, none{}); err != nil {
		t.Errorf("void: %v", err)
	}
	for i, want := range variants {
		got, err := c.rpc.echo.Call(c.ctx(), c.to, want)
		if err != nil {
			t.Errorf("echo of variant %d: %v", i, err)
		}
		if diff := cmp.Diff(want, got, cmpopts.EquateComparable(cinnabar.BulkHandle{})); diff != "" && err == nil {
			t.Errorf("echo of variant %d changes it (-want +got):\n%s", i, diff)
		}
	}
}

// basics calls the procedures that both peer programs serve.
func (c *client) basics() {
	t := c.t
	t.Helper()
	if out, err := c.rpc.sum.Call(c.ctx(), c.to, sumIn{40, 2}); err != nil || out.Ret != 42 {
		t.Errorf("sum is %d, %v; want 42", out.Ret, err)
	}
	c.echoes()
	_, err := c.rpc.unknown.Call(c.ctx(), c.to, none{})
	c.refused("an unknown RPC", err, codes.NoEntry)
	for _, n := range []note{{1, "bob"}, {2, strings.Repeat("x", 1<<20)}} {
		if err := c.rpc.notify.Send(c.ctx(), c.to, n); err != nil {
			t.Errorf("notification %d: %v", n.Seq, err)
		}
	}
	c.blobs()
	c.pipeline(2000, 64)
}

// blobs sends and receives what fits into a message and what does not.
func (c *client) blobs() {
	c.t.Helper()
	for _, size := range []int{0, 1, 4000, 4044, 4045, 4052, 4053, 4072, 4073, 5000, 1 << 20} {
		for _, reply := range []int{0, 4000, 4067, 4068, 4071, 4072, 4080, 1 << 20} {
			in := blobIn{Seed: uint32(size), Reply: uint64(reply), Blob: blob{uint64(size), pattern(size, uint32(size))}}
			out, err := c.rpc.blob.Call(c.ctx(), c.to, in)
			if err != nil || !out.OK || !bytes.Equal(out.Blob.Bytes, pattern(reply, uint32(size)+1)) {
				c.t.Errorf("blob of %d bytes with %d bytes back: %v, arrived %v, %d bytes came back", size, reply, err, out.OK, len(out.Blob.Bytes))
			}
		}
	}
}

// pipeline makes calls from as many goroutines as are to be in flight.
func (c *client) pipeline(calls, inFlight int) {
	c.t.Helper()
	ctx := c.ctx()
	var wg sync.WaitGroup
	for g := range inFlight {
		wg.Go(func() {
			for i := g; i < calls; i += inFlight {
				out, err := c.rpc.sum.Call(ctx, c.to, sumIn{int32(i), 1})
				if err != nil || int(out.Ret) != i+1 {
					c.t.Errorf("sum of %d and 1 is %d, %v", i, out.Ret, err)
					return
				}
			}
		})
	}
	wg.Wait()
}

// shape is a transfer as the server is to make it, of memory that this side exposes.
type shape struct {
	total, segments    int
	mode               cinnabar.Mode // 0: what the transfer needs
	offset, size       int           // size 0: all behind offset
	localSize          int           // of the server's memory; 0: what is needed
	localOffset, parts int           // parts 0: 1
	origin             string
	bound              bool
}

var shapes = []shape{
	{total: 1, segments: 1},
	{total: 16, segments: 1},
	{total: 16, segments: 1, mode: cinnabar.ReadWrite},
	{total: 60, segments: 3},
	{total: 20000, segments: 1},
	{total: 1 << 20, segments: 1},
	{total: 1<<20 + 1, segments: 1024, parts: 7},
	{total: 1<<20 + 1, segments: 7, parts: 1024},
	{total: 100, segments: 4, offset: 30, size: 45, localOffset: 13, localSize: 80},
	{total: 1<<25/raceFactor + 1, segments: 1},
}

// boundShapes need a peer that can use the address in a handle.
var boundShapes = []shape{
	{total: 16, segments: 1, origin: "bound", bound: true},
	{total: 60000, segments: 3, origin: "bound", bound: true},
}

func (s shape) String() string {
	return fmt.Sprintf("%d bytes in %d segments, from %d", s.total, s.segments, s.offset)
}

// in makes the arguments of pull or push for memory behind b.
func (s shape) in(b *cinnabar.Bulk) moveIn {
	if s.size == 0 {
		s.size = s.total - s.offset
	}
	h := b.Handle()
	if s.bound {
		h = b.Bound()
	}
	return moveIn{
		Origin: s.origin, Offset: uint64(s.offset), Size: uint64(s.size), Seed: 7, Bulk: h,
		LocalOffset: uint64(s.localOffset), LocalSize: uint64(max(s.localSize, s.localOffset+s.size)), LocalSegments: uint32(max(s.parts, 1)),
	}
}

// moves has the server transfer in all shapes.
func (c *client) moves(list []shape) {
	c.t.Helper()
	for _, s := range list {
		c.pulled(s)
		c.pushed(s)
	}
}

// pulled has the server read memory of this side.
func (c *client) pulled(s shape) {
	c.t.Helper()
	memory := pattern(s.total, 3)
	b := c.expose(cinnabar.ReadOnly, s, memory)
	defer b.Close() // this side started no transfers
	in := s.in(b)
	out, err := c.rpc.pull.Call(c.ctx(), c.to, in)
	want := make([]byte, in.LocalSize)
	copy(want[s.localOffset:], memory[in.Offset:in.Offset+in.Size])
	if err != nil || out.Ret != 0 || out.Count != in.Size || out.Hash != fnv1a(want) {
		c.t.Errorf("pull of %v: %v, %+v", s, err, out)
	}
}

// pushed has the server write memory of this side.
func (c *client) pushed(s shape) {
	c.t.Helper()
	memory := make([]byte, s.total)
	b := c.expose(cinnabar.WriteOnly, s, memory)
	in := s.in(b)
	out, err := c.rpc.push.Call(c.ctx(), c.to, in)
	if err := b.Close(); err != nil { // now the memory may be read
		c.t.Error(err)
	}
	want := make([]byte, s.total)
	copy(want[s.offset:], pattern(int(in.LocalSize), in.Seed)[s.localOffset:][:in.Size])
	if err != nil || out.Ret != 0 || out.Count != in.Size || !bytes.Equal(memory, want) {
		c.t.Errorf("push of %v: %v, ret %d, count %d, memory right: %v", s, err, out.Ret, out.Count, bytes.Equal(memory, want))
	}
}

func (c *client) expose(mode cinnabar.Mode, s shape, memory []byte) *cinnabar.Bulk {
	c.t.Helper()
	if s.mode != 0 {
		mode = s.mode
	}
	b, err := c.Expose(mode, cut(memory, s.segments)...)
	if err != nil {
		c.t.Fatal(err)
	}
	return b
}

// modes checks that memory is not used against its mode.
func (c *client) modes() {
	c.t.Helper()
	for _, m := range []struct {
		mode cinnabar.Mode
		rpc  *cinnabar.RPC[moveIn, moveOut]
	}{{cinnabar.WriteOnly, c.rpc.pull}, {cinnabar.ReadOnly, c.rpc.push}} {
		s := shape{total: 16, segments: 1, mode: m.mode}
		b := c.expose(m.mode, s, make([]byte, s.total))
		out, err := m.rpc.Call(c.ctx(), c.to, s.in(b))
		if err != nil || codes.Code(out.Ret) != codes.Permission {
			c.t.Errorf("%s of %v memory: %v, %v; want %v", m.rpc.Name(), m.mode, err, codes.Code(out.Ret), codes.Permission)
		}
		if err := b.Close(); err != nil {
			c.t.Error(err)
		}
	}
}

// heldCall cancels a call that is not answered before; the late answer must not disturb what follows.
func (c *client) heldCall() {
	t := c.t
	t.Helper()
	ctx, cancel := context.WithCancel(c.ctx())
	p := c.rpc.hold.Start(ctx, c.to, none{})
	if _, err := c.rpc.void.Call(c.ctx(), c.to, none{}); err != nil { // hold has been sent before
		t.Errorf("void: %v", err)
	}
	cancel()
	if _, err := p.Wait(); !errors.Is(err, context.Canceled) {
		t.Errorf("a canceled call fails with %v", err)
	}
	if out, err := c.rpc.release.Call(c.ctx(), c.to, none{}); err != nil || out.Count != 1 {
		t.Errorf("release answers %d calls, %v; want 1", out.Count, err)
	}
	if out, err := c.rpc.sum.Call(c.ctx(), c.to, sumIn{1, 2}); err != nil || out.Ret != 3 {
		t.Errorf("sum after a late answer is %d, %v; want 3", out.Ret, err)
	}
}

// configs are Go sides that differ on the wire. Only a C side without options meets all of them.
func configs(checksums bool, options []string) map[string]*cinnabar.Config {
	if len(options) > 0 {
		return map[string]*cinnabar.Config{"default": nil}
	}
	known := cinnabar.NoChecksums
	if checksums {
		known = cinnabar.WithChecksums
	}
	return map[string]*cinnabar.Config{
		"default":         nil,
		"no-eager":        {NoEager: true},
		"known-checksums": {Checksums: known},
	}
}

// TestMercuryServerC has Go clients call a C server, which calls them back.
// parity(peer): H43 H46 H48 H51 H55 H70 H80 D26
func TestMercuryServerC(t *testing.T) {
	eachSetting(t, func(t *testing.T, options []string) {
		q := startPeer(t, hgPeer, options...)
		for name, cfg := range configs(q.checksums, options) {
			t.Run(name, func(t *testing.T) {
				s := listen(t, mercury, cfg)
				callMercury(aim(t, mercury, s.Engine, q.addr))
			})
		}
		q.stop()
	})
}

// TestMercuryGoToGo shows that the calls of the test above are right: both sides are Go.
func TestMercuryGoToGo(t *testing.T) {
	s := listen(t, mercury, nil).serveMercury(t)
	callMercury(aim(t, mercury, listen(t, mercury, nil).Engine, s.Addr()))
}

// TestMercuryBoundServerC has a C server transfer by the address in the handle, and a Go server too.
// parity(peer): H84
func TestMercuryBoundServerC(t *testing.T) {
	q := startPeer(t, hgPeer)
	s := listen(t, mercury, nil)
	aim(t, mercury, s.Engine, q.addr).moves(boundShapes)
	q.stop()
	aim(t, mercury, listen(t, mercury, nil).Engine, s.Addr()).moves(boundShapes)
}

// callMercury calls everything that an hg_peer serves, from an engine that serves sum.
func callMercury(c *client) {
	c.basics()
	_, err := c.rpc.null.Call(c.ctx(), c.to, none{})
	c.refused("an RPC without handler", err, codes.InvalidArg)
	c.moves(shapes)
	c.modes()
	c.heldCall()
	if out, err := c.rpc.callback.Call(c.ctx(), c.to, sumIn{20, 22}); err != nil || out.Ret != 42 {
		c.t.Errorf("the sum that the server calls for is %d, %v; want 42", out.Ret, err)
	}
}

// TestMercuryOpenOnly has a Go client that does not listen call a C server and expose memory to it.
func TestMercuryOpenOnly(t *testing.T) { openOnly(t, hgPeer, mercury) }

// openOnly starts a program in C and uses it from an engine that does not listen.
func openOnly(t *testing.T, p *program, rpcs *procedures) {
	t.Helper()
	q := startPeer(t, p)
	c := dial(t, rpcs, q.addr, nil)
	c.basics()
	c.moves(shapes)
	if _, err := c.rpc.quit.Call(c.ctx(), c.to, none{}); err != nil {
		t.Errorf("quit: %v", err)
	}
	q.bye()
}

// TestMessageSizes has both sides agree on larger messages, which then need no transfers.
func TestMessageSizes(t *testing.T) {
	const size = 16384
	limits := []string{"--max-unexpected", strconv.Itoa(size), "--max-expected", strconv.Itoa(size)}
	q := startPeer(t, hgPeer, limits...)
	s := listen(t, mercury, &cinnabar.Config{MaxRequest: size, MaxResponse: size})
	c := aim(t, mercury, s.Engine, q.addr)
	in := blobIn{Seed: 1, Reply: size - 100, Blob: blob{size - 100, pattern(size-100, 1)}}
	if out, err := c.rpc.blob.Call(c.ctx(), c.to, in); err != nil || !out.OK || !bytes.Equal(out.Blob.Bytes, pattern(size-100, 2)) {
		t.Errorf("a blob there and back: %v, arrived %v, %d bytes came back", err, out.OK, len(out.Blob.Bytes))
	}
	q.aim(s.Addr())
	q.check(fmt.Sprintf("blob size=%d reply=%d", size-100, size-100), "ret=0 sent-ok=1 reply-ok=1")
	q.stop()
	if n := s.Stats(); n.RequestsExtra != 0 || n.ResponsesExtra != 0 {
		t.Errorf("%d requests and %d responses did not fit into a message", n.RequestsExtra, n.ResponsesExtra)
	}
}
