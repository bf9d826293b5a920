//go:build linux

package interop

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"cinnabar"
	"cinnabar/codes"
	"cinnabar/internal/recording"
)

// TestLateAccessOfC gives up a call whose server in C has not begun it, closes the memory that the call lent, and has the server
// begin then: it reads or writes the closed memory, and none of twenty other calls at it fails. Over TCP what it writes is
// discarded; over shared memory the kernel writes it to where the memory was. Over RDMA the device cannot discard bytes, so memory of
// the program that peers may write is not kept: the device refuses the write, which ends the connection, and the error of the other
// calls says why.
// parity(peer): D04 H52
func TestLateAccessOfC(t *testing.T) {
	hgPeer.executable(t)
	for _, kind := range []string{"pull", "push"} {
		for _, memory := range []string{"of the program", "of the engine"} {
			t.Run(fmt.Sprintf("%s, memory %s", kind, memory), func(t *testing.T) {
				q := startPeer(t, hgPeer)
				addr, conversations := observed(t, q.addr)
				c := dial(t, mercury, addr, nil)
				c.givenUp(q, kind, memory == "of the engine")
				closeEngine(t, c.Engine)
				q.stop()
				wantTransfers(t, kind, conversations())
			})
		}
	}
}

// lateSize is more than what travels in a request.
const lateSize = 20000

// givenUp makes twenty calls that the server holds, and one that it begins after it was given up and its memory closed.
func (c *client) givenUp(q *peer, kind string, allocated bool) {
	t := c.t
	t.Helper()
	const innocent = 20
	var calls []*cinnabar.Pending[none]
	for range innocent {
		calls = append(calls, c.rpc.hold.Start(c.ctx(), c.to, none{}))
		q.expect("event hold")
	}
	mode, rpc := cinnabar.ReadOnly, c.rpc.pull
	if kind == "push" {
		mode, rpc = cinnabar.WriteOnly, c.rpc.push
	}
	memory := pattern(lateSize, 3)
	b, err := c.Expose(mode, memory)
	if allocated {
		b, err = c.Alloc(mode, lateSize)
	}
	must(t, err)
	if allocated {
		copy(b.Bytes(), memory)
	}
	q.Suspend()
	_, err = rpc.Call(limited(t, 200*time.Millisecond), c.to, shape{total: lateSize}.in(b))
	if codes.Of(err) != codes.Timeout {
		t.Errorf("a %s at a stopped server: %v; want %v", kind, err, codes.Timeout)
	}
	must(t, b.Close())
	clear(memory) // the program has it again
	q.Resume()
	if strings.HasPrefix(network, verbsScheme) && mode == cinnabar.WriteOnly && !allocated {
		c.lost(calls)
	} else {
		c.released(calls)
	}
	c.pipeline(10, 1)
	if network != sharedMemory && !allocated && string(memory) != string(make([]byte, lateSize)) {
		t.Error("the server has written to the program's memory after it was closed")
	}
}

// released makes the server answer the calls that it holds, and checks that all of them succeed.
func (c *client) released(calls []*cinnabar.Pending[none]) {
	c.t.Helper()
	if out, err := c.rpc.release.Call(c.ctx(), c.to, none{}); err != nil || int(out.Count) != len(calls) {
		c.t.Errorf("release answers %d calls, %v; want %d", out.Count, err, len(calls))
	}
	for i, p := range calls {
		if _, err := p.Wait(); err != nil {
			c.t.Errorf("call %d, which has nothing to do with it: %v", i, err)
		}
	}
}

// lost checks that all calls fail because the device has refused an access to memory that is not kept. Then it makes the server release the calls,
// over the next connection.
func (c *client) lost(calls []*cinnabar.Pending[none]) {
	c.t.Helper()
	const cause = "memory of the program that peers may write is not kept"
	for i, p := range calls {
		if _, err := p.Wait(); codes.Of(err) != codes.HostUnreach || !strings.Contains(err.Error(), cause) {
			c.t.Errorf("call %d at the server of which the device has refused an access: %v; want %v with %q", i, err, codes.HostUnreach, cause)
		}
	}
	if out, err := c.rpc.release.Call(c.ctx(), c.to, none{}); err != nil || int(out.Count) != len(calls) {
		c.t.Errorf("release answers %d calls, %v; want %d", out.Count, err, len(calls))
	}
}

// observed returns an address that leads to addr, and a function that returns the conversations after both sides have ended. Over
// shared memory, where nothing can stand in between, they are nil.
func observed(t *testing.T, addr string) (through string, conversations func() [][]recording.Raw) {
	t.Helper()
	if network != tcp {
		return addr, func() [][]recording.Raw { return nil }
	}
	r, err := recording.NewRelay("127.0.0.1:0", strings.TrimPrefix(addr, scheme))
	must(t, err)
	return scheme + r.Addr(), func() [][]recording.Raw {
		all, err := r.Close()
		must(t, err)
		return all
	}
}

// wantTransfers wants one connection, over which the server has transferred all of the closed memory.
func wantTransfers(t *testing.T, kind string, conversations [][]recording.Raw) {
	t.Helper()
	if conversations == nil {
		return
	}
	if len(conversations) != 1 {
		t.Fatalf("%d connections, want 1", len(conversations))
	}
	op, fromClient := byte(opReadRsp), true
	if kind == "push" {
		op, fromClient = opWrite, false
	}
	moved := 0
	for _, m := range conversations[0] {
		if m.FromDialer == fromClient && len(m.Bytes) > lateSize && m.Bytes[1] == op {
			moved++
			if got := m.Bytes[m.Bytes[6]:]; kind == "pull" && string(got) != string(pattern(lateSize, 3)) {
				t.Error("the server has read something else than what the memory held when it was closed")
			}
		}
	}
	if moved != 1 {
		t.Errorf("the server has made %d transfers of the closed memory, want 1", moved)
	}
}
