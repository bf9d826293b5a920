package hello_test

import (
	"context"
	"runtime"
	"syscall"
	"testing"
	"time"

	"cinnabar"
	"cinnabar/examples/hello"
)

// processorTime is what this process has used so far.
func processorTime(t *testing.T) time.Duration {
	t.Helper()
	var ru syscall.Rusage
	check(t, syscall.Getrusage(syscall.RUSAGE_SELF, &ru))
	return time.Duration(ru.Utime.Nano() + ru.Stime.Nano())
}

// Engines that have just been busy, and wait for calls again, use less than a hundredth of a processor.
// parity: H14 H15 G72 G75 D30
func TestIdleEngines(t *testing.T) {
	const idle = 500 * time.Millisecond
	server := greeting(t, "ofi+tcp://127.0.0.1", nil)
	defer func() { check(t, server.Close()) }()
	for range 4 {
		client, err := cinnabar.Open(t.Context(), "ofi+tcp://127.0.0.1", nil)
		check(t, err)
		defer func() { check(t, client.Close()) }()
		ep, err := client.Lookup(server.Addr())
		check(t, err)
		for range 100 {
			_, err := hello.Greet.Call(t.Context(), ep, hello.In{Name: "you"})
			check(t, err)
		}
	}
	least := idle
	for range 5 { // the collector and the kernel have work of their own at times
		before := processorTime(t)
		<-time.NewTimer(idle).C
		least = min(least, processorTime(t)-before)
		if least <= idle/100 {
			return
		}
	}
	t.Errorf("%v of processor time in %v of doing nothing", least, idle)
}

// TestBusyWaiting: in mode "latency" a waiter over shared memory polls and uses a processor for it; in mode "economy" it sleeps. The answers are
// the same.
// parity: H15
func TestBusyWaiting(t *testing.T) {
	if runtime.NumCPU() == 1 {
		t.Skip("mode \"latency\" needs two processors")
	}
	const wait = 300 * time.Millisecond
	slow := cinnabar.NewRPC[hello.In, hello.Out]("slow")
	used := func(mode string) time.Duration {
		cfg := &cinnabar.Config{Progress: cinnabar.Progress{Mode: mode}}
		server, err := cinnabar.Listen(t.Context(), "na+sm://", cfg)
		check(t, err)
		defer func() { check(t, server.Close()) }()
		check(t, slow.Handle(server, func(_ context.Context, in hello.In) (hello.Out, error) {
			<-time.NewTimer(wait).C
			return hello.Out{Greeting: in.Name}, nil
		}))
		client, err := cinnabar.Open(t.Context(), "na+sm://", cfg)
		check(t, err)
		defer func() { check(t, client.Close()) }()
		ep, err := client.Lookup(server.Addr())
		check(t, err)
		before := processorTime(t)
		out, err := slow.Call(t.Context(), ep, hello.In{Name: "you"})
		if err != nil || out.Greeting != "you" {
			t.Errorf("in mode %v: %+v, %v", mode, out, err)
		}
		return processorTime(t) - before
	}
	asleep, busy := used("economy"), used("latency")
	for range 4 { // the collector has work of its own at times, and other programs take the processors
		if asleep <= wait/10 && busy >= wait/10 {
			return
		}
		asleep, busy = min(asleep, used("economy")), max(busy, used("latency"))
	}
	if asleep > wait/10 || busy < wait/10 {
		t.Errorf("a waiter used %v of processor time asleep and %v busy, in %v", asleep, busy, wait)
	}
}
