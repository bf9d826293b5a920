//go:build linux

package interop

import (
	"bytes"
	"maps"
	"slices"
	"testing"

	"cinnabar"
	"cinnabar/codes"
	"cinnabar/internal/cerealtest"
	margoface "cinnabar/margo"
)

// scenes are what is recorded of servers in C and C++. Each makes one call after the other, because requests that are under
// way at once may pass each other.
var scenes = []scene{
	{name: "hg_basics", peer: hgPeer, run: asMercury((*client).calls)},
	{name: "hg_basics_sums", peer: hgPeer, checksums: true, run: asMercury((*client).calls)},
	{name: "hg_basics_known_sums", peer: hgPeer, checksums: true, cfg: &cinnabar.Config{Checksums: cinnabar.WithChecksums}, run: asMercury((*client).calls)},
	{name: "hg_long", peer: hgPeer, run: asMercury((*client).longArguments)},
	{name: "hg_long_sums", peer: hgPeer, checksums: true, run: asMercury((*client).longArguments)},
	{name: "hg_pull", peer: hgPeer, run: asMercury((*client).pulls)},
	{name: "hg_pull_sums", peer: hgPeer, checksums: true, run: asMercury((*client).pulls)},
	{name: "hg_push", peer: hgPeer, run: asMercury((*client).pushes)},
	{name: "hg_push_sums", peer: hgPeer, checksums: true, run: asMercury((*client).pushes)},
	{name: "hg_1024_segments", peer: hgPeer, run: asMercury(func(c *client) { c.pulled(shape{total: 8192, segments: 1024}) })},
	{name: "hg_small_without_eager", peer: hgPeer, cfg: &cinnabar.Config{NoEager: true}, run: asMercury((*client).smallTransfers)},
	{name: "hg_bound", peer: hgPeer, listens: true, run: asMercury(func(c *client) { c.moves(boundShapes) })},
	{name: "hg_errors", peer: hgPeer, run: asMercury((*client).errors)},
	{name: "hg_errors_sums", peer: hgPeer, checksums: true, run: asMercury((*client).errors)},
	{name: "hg_held", peer: hgPeer, run: asMercury((*client).heldCall)},
	{name: "hg_callback", peer: hgPeer, listens: true, run: asMercury((*client).calledBack)},

	{name: "margo_basics", peer: margoPeer, run: asMargo((*client).calls)},
	{name: "margo_basics_sums", peer: margoPeer, checksums: true, run: asMargo((*client).calls)},
	{name: "margo_providers", peer: margoPeer, run: asMargo((*client).providers)},
	{name: "margo_nested", peer: margoPeer, listens: true, run: asMargo((*client).nestedCalls)},
	{name: "margo_long", peer: margoPeer, run: asMargo((*client).longArguments)},
	{name: "margo_transfers", peer: margoPeer, run: asMargo((*client).smallTransfers)},
	{name: "margo_transfers_sums", peer: margoPeer, checksums: true, run: asMargo((*client).smallTransfers)},
	{name: "margo_errors", peer: margoPeer, run: asMargo((*client).errors)},
	{name: "margo_shutdown", peer: margoPeer, options: []string{"--shutdown"}, run: asMargo((*client).shutDown)},
	{name: "margo_shutdown_refused", peer: margoPeer, run: asMargo((*client).shutDownRefused)},

	{name: "thallium_calls", peer: thalliumPeer, run: asThallium((*thalliumClient).callsInOrder)},
	{name: "thallium_callback", peer: thalliumPeer, listens: true, run: asThallium((*thalliumClient).calledBack)},
	{name: "thallium_providers", peer: thalliumPeer, run: asThallium((*thalliumClient).providers)},
	{name: "thallium_values", peer: thalliumPeer, run: asThallium((*thalliumClient).valuesInOrder)},
	{name: "thallium_handles", peer: thalliumPeer, run: asThallium((*thalliumClient).handles)},
	{name: "thallium_transfers", peer: thalliumPeer, run: asThallium((*thalliumClient).allTransfers)},
	{name: "thallium_transfers_without_eager", peer: thalliumPeer, cfg: &cinnabar.Config{NoEager: true}, run: asThallium((*thalliumClient).allTransfers)},
}

func asMercury(f func(c *client)) func(*testing.T, *cinnabar.Engine, *cinnabar.Endpoint) {
	return func(t *testing.T, e *cinnabar.Engine, to *cinnabar.Endpoint) { f(&client{e, t, mercury, to}) }
}

func asMargo(f func(c *client)) func(*testing.T, *cinnabar.Engine, *cinnabar.Endpoint) {
	return func(t *testing.T, e *cinnabar.Engine, to *cinnabar.Endpoint) { f(&client{e, t, margo, to}) }
}

func asThallium(f func(c *thalliumClient)) func(*testing.T, *cinnabar.Engine, *cinnabar.Endpoint) {
	return func(t *testing.T, e *cinnabar.Engine, to *cinnabar.Endpoint) { f(&thalliumClient{t: t, e: e, to: to}) }
}

// calls makes calls whose arguments and results fit into messages.
func (c *client) calls() {
	t := c.t
	t.Helper()
	for _, in := range []sumIn{{40, 2}, {1<<31 - 1, 1}, {-7, 3}} {
		if out, err := c.rpc.sum.Call(c.ctx(), c.to, in); err != nil || out.Ret != in.A+in.B {
			t.Errorf("sum of %+v is %d, %v", in, out.Ret, err)
		}
	}
	c.echoes()
	if err := c.rpc.notify.Send(c.ctx(), c.to, note{1, "bob"}); err != nil {
		t.Errorf("notification: %v", err)
	}
	if out, err := c.rpc.sum.Call(c.ctx(), c.to, sumIn{20, 22}); err != nil || out.Ret != 42 {
		t.Errorf("sum after a notification is %d, %v; want 42", out.Ret, err)
	}
}

// longArguments has arguments and results that just fit into a message, and that do not.
func (c *client) longArguments() {
	c.t.Helper()
	for _, size := range []struct{ in, out int }{
		{0, 0}, {1, 1}, {4000, 4000}, {4044, 4067}, {4045, 4068}, {4052, 4071}, {4053, 4072}, {5000, 0}, {0, 5000}, {1 << 20, 1 << 20},
	} {
		in := blobIn{Seed: 5, Reply: uint64(size.out), Blob: blob{uint64(size.in), pattern(size.in, 5)}}
		out, err := c.rpc.blob.Call(c.ctx(), c.to, in)
		if err != nil || !out.OK || !bytes.Equal(out.Blob.Bytes, pattern(size.out, 6)) {
			c.t.Errorf("%d bytes with %d bytes back: %v, arrived %v, %d bytes came back", size.in, size.out, err, out.OK, len(out.Blob.Bytes))
		}
	}
}

// recordedShapes are the transfers of recordings: 1 B to 4 MiB, in 1 to 64 segments at either end.
var recordedShapes = []shape{
	{total: 1, segments: 1},
	{total: 2, segments: 2},
	{total: 7, segments: 3},
	{total: 64, segments: 1, mode: cinnabar.ReadWrite},
	{total: 1000, segments: 7, parts: 3},
	{total: 4000, segments: 1},
	{total: 4096, segments: 2},
	{total: 100, segments: 4, offset: 30, size: 45, localOffset: 13, localSize: 80},
	{total: 65536, segments: 16},
	{total: 65537, segments: 1, parts: 64},
	{total: 1 << 20, segments: 1},
	{total: 1<<20 + 1, segments: 64, parts: 3},
	{total: 1<<20 + 1, segments: 64, offset: 12345, size: 1 << 19, localOffset: 77},
	{total: 4 << 20, segments: 1},
	{total: 4 << 20, segments: 64},
}

func (c *client) pulls() {
	c.t.Helper()
	for _, s := range recordedShapes {
		c.pulled(s)
	}
}

func (c *client) pushes() {
	c.t.Helper()
	for _, s := range recordedShapes {
		c.pushed(s)
	}
}

// smallTransfers transfers in both directions.
func (c *client) smallTransfers() {
	c.t.Helper()
	c.moves(recordedShapes[:9])
}

// errors has the server answer with errors, its own and Mercury's.
func (c *client) errors() {
	c.t.Helper()
	_, err := c.rpc.unknown.Call(c.ctx(), c.to, none{})
	c.refused("an unknown RPC", err, codes.NoEntry)
	want := codes.InvalidArg
	if c.rpc == margo {
		want = codes.NoEntry
	}
	_, err = c.rpc.null.Call(c.ctx(), c.to, none{})
	c.refused("an RPC without handler", err, want)
	c.modes()
	b := c.expose(cinnabar.ReadWrite, shape{segments: 3}, make([]byte, 60))
	defer b.Close() // no transfer of it was started
	in := shape{total: 60}.in(b)
	in.Offset, in.LocalSize = 1, 60 // 60 bytes from offset 1 on
	for _, rpc := range []*cinnabar.RPC[moveIn, moveOut]{c.rpc.pull, c.rpc.push} {
		out, err := rpc.Call(c.ctx(), c.to, in)
		if err != nil || codes.Code(out.Ret) != codes.InvalidArg {
			c.t.Errorf("%s beyond the end of memory: %v, %v; want %v", rpc.Name(), err, codes.Code(out.Ret), codes.InvalidArg)
		}
	}
	if out, err := c.rpc.sum.Call(c.ctx(), c.to, sumIn{20, 22}); err != nil || out.Ret != 42 {
		c.t.Errorf("sum after errors is %d, %v; want 42", out.Ret, err)
	}
}

// calledBack has the server call this side from its handler.
func (c *client) calledBack() {
	c.t.Helper()
	must(c.t, c.rpc.sum.Handle(c.Engine, (&server{}).sum))
	if out, err := c.rpc.callback.Call(c.ctx(), c.to, sumIn{20, 22}); err != nil || out.Ret != 42 {
		c.t.Errorf("the sum that the server calls for is %d, %v; want 42", out.Ret, err)
	}
}

// nestedCalls is nesting, with a provider that nobody has.
func (c *client) nestedCalls() {
	c.t.Helper()
	p, err := c.NewProvider(providerID, identity)
	must(c.t, err, c.rpc.sum.Handle(c.Engine, (&server{}).sum), c.rpc.sum.Handle(p, (&server{}).sum))
	c.nesting()
	out, err := c.rpc.nested.Call(c.ctx(), c.to, nestedIn{Provider: nobody, Sum: sumIn{20, 22}})
	if err != nil || codes.Code(out.Code) != codes.NoEntry {
		c.t.Errorf("nested with a provider that nobody has: %+v, %v", out, err)
	}
}

func (c *client) shutDown() {
	c.t.Helper()
	if err := margoface.ShutdownRemote(c.ctx(), c.to); err != nil {
		c.t.Errorf("shutdown: %v", err)
	}
}

func (c *client) shutDownRefused() {
	c.t.Helper()
	if err := margoface.ShutdownRemote(c.ctx(), c.to); codes.Of(err) != codes.Permission {
		c.t.Errorf("shutdown that is not allowed: %v; want %v", err, codes.Permission)
	}
}

// callsInOrder makes calls, one after the other.
func (c *thalliumClient) callsInOrder() {
	t := c.t
	t.Helper()
	sum, err := tlSum.Call(c.ctx(), c.to, numbers{40, 2})
	equal(t, "sum", 42, sum, err)
	parts, err := tlDivide.Call(c.ctx(), c.to, numbers{-7, 2})
	equal(t, "divide", quotient{-3, -1}, parts, err)
	_, err = tlNothing.Call(c.ctx(), c.to, none{})
	equal(t, "nothing", none{}, none{}, err)
	later, err := tlLater.Call(c.ctx(), c.to, 41)
	equal(t, "later", 42, later, err)
	_, err = tlUnknown.Call(c.ctx(), c.to, none{})
	equal(t, "an RPC that the server has not", codes.NoEntry, codes.Of(err), nil)
	must(t, tlHello.Send(c.ctx(), c.to, "bob"))
	null, err := tlNull.Call(c.ctx(), c.to, cinnabar.BulkHandle{})
	equal(t, "null", nullOut{Was: true}, null, err)
}

func (c *thalliumClient) calledBack() {
	c.t.Helper()
	must(c.t, tlSum.Handle(c.e, sumNumbers))
	back, err := tlCallback.Call(c.ctx(), c.to, numbers{20, 22})
	equal(c.t, "callback", 42, back, err)
}

// valuesInOrder is values, with the values in the order of their names.
func (c *thalliumClient) valuesInOrder() {
	c.t.Helper()
	all := cerealtest.Values()
	for _, name := range slices.Sorted(maps.Keys(all)) {
		c.value(name, all[name])
	}
}

// allTransfers has the server transfer in each spelling.
func (c *thalliumClient) allTransfers() {
	c.t.Helper()
	for i, s := range transfers {
		for _, spelling := range spellings {
			c.transfer(s, spelling, uint8(i))
		}
	}
}
