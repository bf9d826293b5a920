package hg

import (
	"bytes"
	"context"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"cinnabar/codes"
	"cinnabar/internal/invariants"
	"cinnabar/internal/na/natest"
)

// TestScratchClass checks that each class has room for the sizes in it, wastes at most a quarter, and contains its own size.
func TestScratchClass(t *testing.T) {
	for n := LargePayload; n <= scratchMost; n += n/9 + 1 {
		for _, n := range []int{n - 1, n, n + 1} {
			class, size := scratchClass(n)
			if size < n || size > n+n/scratchSteps+1 {
				t.Fatalf("%d bytes in memory of %d", n, size)
			}
			if again, same := scratchClass(size); again != class || same != size {
				t.Fatalf("%d bytes are of class %d with %d bytes, and those of class %d with %d", n, class, size, again, same)
			}
		}
	}
	for _, n := range []int{LargePayload - 1, scratchMost + 1} {
		if takeScratch(n) != nil {
			t.Errorf("%d bytes are in scratch memory", n)
		}
	}
}

// TestScratchIsUsedAgain has payloads of changing sizes and bytes pulled into memory that was used before, by requests and by responses.
func TestScratchIsUsedAgain(t *testing.T) {
	n := natest.New(natest.Config{Chunk: 1 << 20, Direct: true})
	server, client := open(t, n, Config{Dispatch: handler(echo)}), open(t, n, Config{})
	for i := range 20 {
		in := bytes.Repeat([]byte{byte(i + 1)}, LargePayload+(i*i*7919)%(3*pullOpening))
		if out, err := call(t, client, server.ep.Addr(), 1, in); err != nil || !bytes.Equal(out, in) {
			t.Fatalf("%d bytes: %d come back, %v", len(in), len(out), err)
		}
	}
}

// TestScratchAllocations checks that a call whose payload is pulled allocates no memory for it, at either side.
func TestScratchAllocations(t *testing.T) {
	if invariants.Race {
		t.Log("the race detector makes pools forget")
		return
	}
	n := natest.New(natest.Config{Chunk: 1 << 20, Direct: true})
	server, client := open(t, n, Config{Dispatch: handler(func(r *Request) { _ = r.Respond(t.Context(), nil) })}), open(t, n, Config{})
	in := make([]byte, 4<<20)
	const calls = 50
	var before, after runtime.MemStats
	for i := range calls + 1 {
		if i == 1 {
			runtime.ReadMemStats(&before)
		}
		k := client.NewCall()
		k.Start(server.ep.Addr(), 1, CallOptions{}, append(k.InputFor(len(in)), in...))
		if err := k.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
		k.Free()
	}
	runtime.ReadMemStats(&after)
	if got := (after.TotalAlloc - before.TotalAlloc) / calls; got > uint64(len(in))/2 {
		t.Errorf("a call with %d bytes allocates %d", len(in), got)
	}
}

// TestLentScratchIsKept cancels calls whose payloads the peer has not pulled. Their memory is not used again, because the peer may still pull it.
func TestLentScratchIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := natest.New(natest.Config{Fault: func(s *natest.Step) natest.Action {
			if s.Kind == natest.KindGet {
				return natest.Lose
			}
			return natest.Proceed
		}})
		server, client := open(t, n, Config{Dispatch: handler(echo)}), open(t, n, Config{})
		used := map[*byte]bool{}
		for range 5 {
			k := client.NewCall()
			payload := append(k.InputFor(LargePayload), make([]byte, LargePayload)...)
			if used[&payload[0]] {
				t.Fatal("memory that the peer may pull is used again")
			}
			used[&payload[0]] = true
			ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
			k.Start(server.ep.Addr(), 1, CallOptions{}, payload)
			if err := k.Wait(ctx); codeFrom(t, err) != codes.Timeout {
				t.Error(err)
			}
			cancel()
			k.Free()
		}
		elapse(time.Hour)
	})
}

// keeping is a Dispatcher that keeps inputs.
type keeping struct{ handler }

func (keeping) Keeps(id ID) bool { return id == 1 }

// TestKeptInput checks which inputs and outputs are in memory of their own, and that this memory keeps its bytes when it is kept after Free.
func TestKeptInput(t *testing.T) {
	n := natest.New(natest.Config{Chunk: 1 << 20, Direct: true})
	var kept [][]byte
	var owned bool
	server := open(t, n, Config{Dispatch: keeping{func(r *Request) {
		if owned = r.Owned(); owned {
			kept = append(kept, r.Input())
		}
		echo(r)
	}}})
	client := open(t, n, Config{})
	for i, test := range []struct {
		id   ID
		size int
		keep bool // of the client
		want bool // of the server
	}{
		{1, 100, true, false},
		{1, LargePayload, true, true},
		{1, 3 * pullOpening, false, true},
		{2, 3 * pullOpening, true, false},
		{2, 3 * pullOpening, false, false},
		{1, 3 * pullOpening, true, true},
		{1, pullOpening, true, true},
	} {
		in := bytes.Repeat([]byte{byte(i + 1)}, test.size)
		k := client.NewCall()
		k.Start(server.ep.Addr(), test.id, CallOptions{Keep: test.keep}, append(k.InputFor(len(in)), in...))
		if err := k.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
		out := k.Output()
		if got := k.Owned(); got != (test.keep && test.size >= LargePayload) || owned != test.want {
			t.Errorf("%d bytes for RPC %d: output owned: %v, input owned: %v", test.size, test.id, got, owned)
		} else if got {
			kept = append(kept, out)
		}
		if !bytes.Equal(out, in) {
			t.Errorf("%d bytes: %d others come back", len(in), len(out))
		}
		k.Free()
	}
	for _, b := range kept {
		if !bytes.Equal(b, bytes.Repeat(b[:1], len(b))) {
			t.Errorf("%d bytes that were kept have changed", len(b))
		}
	}
}
