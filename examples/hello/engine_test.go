package hello_test

import (
	"context"
	"errors"
	"os"
	"runtime"
	"strings"
	"testing"

	"cinnabar"
	"cinnabar/examples/hello"
)

// greeting is a server at address that greets with the name alone, as long as it lives.
func greeting(t *testing.T, address string, cfg *cinnabar.Config) *cinnabar.Engine {
	t.Helper()
	e, err := cinnabar.Listen(t.Context(), address, cfg)
	check(t, err)
	check(t, hello.Greet.Handle(e, func(_ context.Context, in hello.In) (hello.Out, error) {
		return hello.Out{Greeting: in.Name}, nil
	}))
	return e
}

// cycle opens two engines, makes a call, and closes them: the server by Shutdown and by Close in turn.
func cycle(t *testing.T, number int) {
	t.Helper()
	server := greeting(t, "ofi+tcp://127.0.0.1", nil)
	client, err := cinnabar.Open(t.Context(), "ofi+tcp://127.0.0.1", nil)
	check(t, err)
	ep, err := client.Lookup(server.Addr())
	check(t, err)
	_, err = hello.Greet.Call(t.Context(), ep, hello.In{Name: "you"})
	check(t, err)
	if number%2 == 0 {
		check(t, server.Shutdown(t.Context()))
	}
	check(t, errors.Join(server.Close(), client.Close()))
}

// A thousand engines after each other leave neither descriptors nor goroutines nor memory behind, nor their ports in use.
// parity: H02 G11 D40
func TestThousandEngines(t *testing.T) {
	descriptors := func() int {
		entries, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Skipf("descriptors cannot be counted here: %v", err)
		}
		return len(entries)
	}
	heap := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc + m.StackInuse
	}
	for n := range 50 { // what is made once, and kept for the next
		cycle(t, n)
	}
	fds, goroutines, bytes := descriptors(), runtime.NumGoroutine(), heap()
	for n := range 1000 {
		cycle(t, n)
	}
	if n := descriptors(); n > fds+3 {
		t.Errorf("%d descriptors, %d before", n, fds)
	}
	if n := runtime.NumGoroutine(); n > goroutines+3 {
		t.Errorf("%d goroutines, %d before", n, goroutines)
	}
	if n := heap(); n > bytes+4<<20 { // 2 KiB of each engine would be more
		t.Errorf("%d bytes in use, %d before", n, bytes)
	}
}

// The port of an engine that was closed can be taken at once, and the engine there has that address.
// parity: H01 D11
func TestSamePortAgain(t *testing.T) {
	address := ""
	for n := range 10 {
		asked := address
		if n == 0 {
			asked = "ofi+tcp://127.0.0.1:0"
		}
		e := greeting(t, asked, nil)
		if address != "" && e.Addr() != address {
			t.Errorf("%s has the address %s", address, e.Addr())
		}
		address = e.Addr()
		check(t, e.Close())
	}
}

// With larger messages at both ends, arguments and results that fit travel in them; by default they take two more.
// parity: H20
func TestLargerMessages(t *testing.T) {
	const size = 64 << 10
	name := strings.Repeat("x", size)
	for _, tt := range []struct {
		cfg   *cinnabar.Config
		extra uint64
	}{
		{&cinnabar.Config{MaxRequest: size + 1024, MaxResponse: size + 1024}, 0},
		{nil, 1},
	} {
		server := greeting(t, "ofi+tcp://127.0.0.1", tt.cfg)
		client, err := cinnabar.Open(t.Context(), "ofi+tcp://127.0.0.1", tt.cfg)
		check(t, err)
		ep, err := client.Lookup(server.Addr())
		check(t, err)
		out, err := hello.Greet.Call(t.Context(), ep, hello.In{Name: name})
		if err != nil || out.Greeting != name {
			t.Errorf("%d bytes came back: %v", len(out.Greeting), err)
		}
		if s := client.Stats(); s.RequestsExtra != tt.extra || s.ResponsesExtra != tt.extra {
			t.Errorf("%d requests and %d responses took more messages, want %d", s.RequestsExtra, s.ResponsesExtra, tt.extra)
		}
		check(t, errors.Join(client.Close(), server.Shutdown(t.Context())))
	}
}
