//go:build linux

package interop

import (
	"context"
	"testing"

	"cinnabar"
)

// hgShim is a program of plain Mercury that talks to Margo's by margo-hg-shim.
var hgShim = &program{name: "hg_shim", sources: []string{"hg_shim.c"}, packages: []string{"margo-hg-shim"}}

var shimSum = cinnabar.NewRPC[sumIn, sumOut]("sum")

// TestShimClientC has plain Mercury call a Margo RPC of a Go server. The shim says that 0 is the caller's RPC.
// parity(peer): G46
func TestShimClientC(t *testing.T) {
	e, err := cinnabar.Listen(t.Context(), "ofi+tcp://127.0.0.1", nil)
	must(t, err)
	t.Cleanup(func() { closeEngine(t, e) })
	parents := make(chan uint64, 1)
	must(t, shimSum.Handle(e, func(ctx context.Context, in sumIn) (sumOut, error) {
		info := cinnabar.InfoFrom(ctx)
		parents <- info.Parent
		return sumOut{in.A + in.B}, nil
	}))
	p := start(t, hgShim, "call", e.Addr(), "40", "2")
	if got := p.expect("sum").value("value"); got != "42" {
		t.Errorf("the sum of 40 and 2 is %s", got)
	}
	must(t, p.Wait())
	if parent := <-parents; parent != 0 {
		t.Errorf("parent is %#x, want 0", parent)
	}
}

// TestShimServerC calls an RPC of plain Mercury as one of Margo.
// parity(peer): G46
func TestShimServerC(t *testing.T) {
	p := start(t, hgShim, "serve")
	addr := p.expect("ready").value("addr")
	e, err := cinnabar.Open(t.Context(), "ofi+tcp://127.0.0.1", nil)
	must(t, err)
	t.Cleanup(func() { closeEngine(t, e) })
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	ep, err := e.Lookup(addr)
	must(t, err)
	for range 10 {
		if out, err := shimSum.Call(ctx, ep, sumIn{40, 2}); err != nil || out.Ret != 42 {
			t.Fatalf("sum = %+v, %v", out, err)
		}
	}
	p.CloseInput()
	must(t, p.Wait())
}
