//go:build linux

package interop

import (
	"bytes"
	"testing"

	"cinnabar"
	"cinnabar/codes"
)

// TestEmptySegmentsAtC lends memory with empty segments in its middle and at its ends to a server in C, which reads through a null
// pointer where a handle has such a segment.
// parity(peer): H75
func TestEmptySegmentsAtC(t *testing.T) {
	q := startPeer(t, hgPeer)
	for name, cfg := range map[string]*cinnabar.Config{"default": nil, "no eager": {NoEager: true}} {
		t.Run(name, func(t *testing.T) {
			c := dial(t, mercury, q.addr, cfg)
			for _, size := range []int{100, 100_000} {
				memory := pattern(size, 3)
				for _, segments := range [][][]byte{
					{memory[:40], nil, memory[40:]},
					{nil, memory[:40], {}, nil, memory[40:90], memory[90:], nil},
					{memory, nil},
				} {
					c.segments(segments, memory)
				}
			}
			c.nothing([][]byte{nil, {}})
		})
	}
	q.stop()
}

// segments has the server pull and push memory that has these segments, which are parts of memory.
func (c *client) segments(segments [][]byte, memory []byte) {
	t := c.t
	t.Helper()
	want := pattern(len(memory), 3)
	b, err := c.Expose(cinnabar.ReadWrite, segments...)
	must(t, err)
	in := shape{total: len(memory)}.in(b)
	in.Seed = 9
	if out, err := c.rpc.pull.Call(c.ctx(), c.to, in); err != nil || out.Ret != 0 || out.Hash != fnv1a(want) {
		t.Errorf("pull of %d segments: %v, %+v", len(segments), err, out)
	}
	out, err := c.rpc.push.Call(c.ctx(), c.to, in)
	must(t, b.Close())
	if err != nil || out.Ret != 0 || !bytes.Equal(memory, pattern(len(memory), 9)) {
		t.Errorf("push of %d segments: %v, %+v", len(segments), err, out)
	}
	copy(memory, want)
}

// nothing has the server pull and push memory without bytes, for which it cannot make any of its own.
func (c *client) nothing(segments [][]byte) {
	t := c.t
	t.Helper()
	b, err := c.Expose(cinnabar.ReadWrite, segments...)
	must(t, err)
	for _, rpc := range []*cinnabar.RPC[moveIn, moveOut]{c.rpc.pull, c.rpc.push} {
		out, err := rpc.Call(c.ctx(), c.to, shape{}.in(b))
		if err != nil || codes.Code(out.Ret) != codes.InvalidArg {
			t.Errorf("%s of no bytes: %v, %v; want %v", rpc.Name(), err, codes.Code(out.Ret), codes.InvalidArg)
		}
	}
	must(t, b.Close())
}

// TestManySegmentsAtC lends memory of as many segments to a server in C. Over shared memory its own memory is of one segment,
// because Mercury's servers crash otherwise, those of clients in C too.
// parity(peer): H70
func TestManySegmentsAtC(t *testing.T) {
	q := startPeer(t, hgPeer)
	c := dial(t, mercury, q.addr, nil)
	parts := 7
	if network == sharedMemory {
		parts = 1
	}
	c.moves([]shape{{total: 100_003, segments: 1025}, {total: 100_003, segments: 20_000, parts: parts}})
	q.stop()
}
