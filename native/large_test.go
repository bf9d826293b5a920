package native_test

import (
	"bytes"
	"context"
	"runtime"
	"testing"

	"cinnabar"
	"cinnabar/internal/invariants"
	"cinnabar/native"
)

type large struct {
	Name string
	Data []byte `proc:"counted=uint64"`
}

// largePair returns the address of a server that serves rpc by h.
func largePair(t *testing.T, network string, rpc *native.RPC[large, large], h func(context.Context, large) (large, error)) *cinnabar.Endpoint {
	t.Helper()
	server, to := pair(t, network, nil, nil)
	must(t, rpc.Handle(server, h))
	return to
}

// TestLargeArgumentsAreKept has handler and caller keep, change and extend large arguments and results, while later calls use the memory of the
// engines.
func TestLargeArgumentsAreKept(t *testing.T) {
	onAllNetworks(t, func(t *testing.T, network string) {
		rpc := native.New[large, large]("keep")
		kept := make(chan large, 9)
		to := largePair(t, network, rpc, func(_ context.Context, in large) (large, error) {
			out := large{in.Name + "!", bytes.Clone(in.Data)}
			for i := range in.Data {
				in.Data[i]++
			}
			in.Data = append(in.Data, in.Data[:min(len(in.Data), 1)]...)
			kept <- in
			return out, nil
		})
		var results []large
		sizes := []int{1, 100_000, 200_000, 1 << 20, 3 << 20, 0, 5 << 20, 5 << 20, 5 << 20}
		for i, n := range sizes {
			in := large{"name", bytes.Repeat([]byte{byte(2 * i)}, n)}
			out, err := rpc.Call(patient(t), to, in)
			must(t, err)
			clear(in.Data)
			results = append(results, out)
		}
		for i, n := range sizes {
			if got := <-kept; got.Name != "name" || !bytes.Equal(got.Data, bytes.Repeat([]byte{byte(2*i + 1)}, n+min(n, 1))) {
				t.Errorf("call %d: the arguments of %d bytes have changed", i, n)
			}
			if got := results[i]; got.Name != "name!" || !bytes.Equal(got.Data, bytes.Repeat([]byte{byte(2 * i)}, n)) {
				t.Errorf("call %d: the results of %d bytes have changed", i, n)
			}
		}
	})
}

// TestLargeArgumentsAreNotCopied checks that the engines allocate the memory of large arguments once.
func TestLargeArgumentsAreNotCopied(t *testing.T) {
	if invariants.Race {
		t.Log("the race detector makes pools forget")
		return
	}
	rpc := native.New[large, large]("large")
	to := largePair(t, tcps, rpc, func(context.Context, large) (large, error) { return large{}, nil })
	in := large{Data: make([]byte, 8<<20)}
	const calls = 10
	var before, after runtime.MemStats
	for i := range calls + 3 {
		if i == 3 {
			runtime.ReadMemStats(&before)
		}
		_, err := rpc.Call(patient(t), to, in)
		must(t, err)
	}
	runtime.ReadMemStats(&after)
	if got := int(after.TotalAlloc-before.TotalAlloc) / calls; got > len(in.Data)*3/2 {
		t.Errorf("a call with %d bytes allocates %d", len(in.Data), got)
	}
}
