package hello_test

import (
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
func TestIdleEngines(t *testing.T) {
	const idle = 500 * time.Millisecond
	server := greeting(t, "ofi+tcp://127.0.0.1", nil)
	defer func() { check(t, server.Close()) }()
	for range 4 {
		client, err := cinnabar.Open("ofi+tcp://127.0.0.1", nil)
		check(t, err)
		defer func() { check(t, client.Close()) }()
		ep, err := client.Lookup(t.Context(), server.Addr())
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
