package sm

import (
	"fmt"
	"net"
	"os"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"
)

// Every wait of these tests has a limit, after which the test fails and names what it waited for, with the traces of all
// goroutines.
var (
	// testLimit bounds one wait.
	testLimit = waitLimit()
	// wholeLimit bounds a test together with its clean-up, for calls that do not return.
	wholeLimit = 4 * testLimit
)

// waitLimit returns 8 seconds in a worker of the fuzzer, because that ends after 10 seconds with one input without a report.
func waitLimit() time.Duration {
	if slices.Contains(os.Args, "-test.fuzzworker") {
		return 8 * time.Second
	}
	return 30 * time.Second
}

// await returns what comes from ch, or the zero value once ch is closed.
func await[T any](t testing.TB, what string, ch <-chan T) (v T) {
	t.Helper()
	limit := time.NewTimer(testLimit)
	defer limit.Stop()
	select {
	case v = <-ch:
	case <-limit.C:
		t.Fatalf("not within %v: %s\n%s", testLimit, what, traces())
	}
	return v
}

// accept takes a connection.
func accept(t testing.TB, ln *net.UnixListener) *net.UnixConn {
	t.Helper()
	if err := ln.SetDeadline(time.Now().Add(testLimit)); err != nil {
		t.Fatal(err)
	}
	c, err := ln.AcceptUnix()
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// traces returns the stacks of all goroutines.
func traces() string {
	b := make([]byte, 1<<20)
	return string(b[:runtime.Stack(b, true)])
}

// watched are the tests that a watchdog runs for.
var watched sync.Map

// watch ends the process, with the name of the test and the traces of all goroutines, if the test has not ended within
// wholeLimit. Helpers call it before anything else, so that the watchdog outlasts their clean-up. Benchmarks and fuzzing
// last as long as they are asked to, and so do tests whose length the environment sets.
func watch(t testing.TB) {
	test, ok := t.(*testing.T)
	if !ok || os.Getenv(cyclesEnv) != "" || os.Getenv(messagesEnv) != "" {
		return
	}
	if _, running := watched.LoadOrStore(test, true); running {
		return
	}
	dog := time.AfterFunc(wholeLimit, func() {
		fmt.Fprintf(os.Stderr, "%s has not ended within %v\n%s", t.Name(), wholeLimit, traces())
		os.Exit(2)
	})
	t.Cleanup(func() {
		dog.Stop()
		watched.Delete(test)
	})
}
