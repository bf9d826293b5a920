//go:build !race

package cinnabar

import (
	"context"
	"testing"
)

func init() {
	notOverVerbs = append(notOverVerbs, "TestCallAllocs", "TestProviderCallAllocs")
	notOverTLS = append(notOverTLS, "TestCallAllocs", "TestProviderCallAllocs")
}

// TestCallAllocs checks what one small call costs in client and server together.
func TestCallAllocs(t *testing.T) {
	server, ep := pair(t, nil)
	must(t, add.Handle(server, handleAdd))
	ctx := context.Background()
	call := func() {
		if out, err := add.Call(ctx, ep, addIn{X: 1, Y: 2}); err != nil || out.Sum != 3 {
			t.Fatal(out, err)
		}
	}
	for range 1000 {
		call()
	}
	if n := testing.AllocsPerRun(2000, call); n > 3 {
		t.Errorf("%v allocations per call, want at most 3", n)
	}
}

// TestProviderCallAllocs is the same through a ProviderHandle.
func TestProviderCallAllocs(t *testing.T) {
	server, ep := pair(t, nil)
	p, err := server.NewProvider(1, "x")
	must(t, err)
	must(t, add.Handle(p, handleAdd))
	ctx, to := context.Background(), ep.Provider(1)
	call := func() {
		if out, err := add.Call(ctx, to, addIn{X: 1, Y: 2}); err != nil || out.Sum != 3 {
			t.Fatal(out, err)
		}
	}
	for range 1000 {
		call()
	}
	if n := testing.AllocsPerRun(2000, call); n > 3 {
		t.Errorf("%v allocations per call, want at most 3", n)
	}
}
