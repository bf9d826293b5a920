//go:build invariants

package cinnabar

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"testing"

	"cinnabar/internal/invariants"
	"cinnabar/internal/testproc"
)

// The number of locks that one call may take at each side.
const (
	callerLocks = 9
	serverLocks = 8
)

// awake keeps both sides from parking between calls even on a busy machine, because parking takes locks of the poller.
var awake = &Config{Progress: Progress{Mode: map[bool]string{false: "latency", true: "balanced"}[runtime.NumCPU() == 1]}}

// lockCount is an RPC that returns the number of locks that the server's process has taken.
var lockCount = NewRPC[struct{}, uint64]("lock count")

func init() {
	peers["locks"] = peerLocks
	notOverVerbs = append(notOverVerbs, "TestLocksOfCall")
	notOverTLS = append(notOverTLS, "TestLocksOfCall")
}

// peerLocks serves lockCount at the address args[0].
func peerLocks(args []string) error {
	e, err := Listen(context.Background(), args[0], awake)
	if err != nil {
		return err
	}
	invariants.CountLocks()
	err = lockCount.Handle(e, func(context.Context, struct{}) (uint64, error) { return invariants.Locks(), nil })
	if err != nil {
		return err
	}
	fmt.Println(e.Addr())
	<-testproc.InputClosed()
	return e.Close()
}

// A call with one caller on an idle connection takes few locks: at the server, from one handler to the next, and at the caller,
// from the begin of the call to its end. A goroutine that waits takes further locks, for each look at the poller and for each parking, and
// timers of both processes take some. Therefore the test checks the tenth of the calls that took the fewest locks, in which the waits were
// short; on an idle machine the median is the same.
func TestLocksOfCall(t *testing.T) {
	const calls = 2000
	server := spawn(t, "locks", "ofi+tcp://127.0.0.1")
	e, err := Open(t.Context(), "ofi+tcp://127.0.0.1", awake)
	ep := find(t, opened(t, e, err), server.Stdout.Line())
	ctx := patient(t)
	invariants.CountLocks()
	var atCaller, atServer []uint64
	var last uint64
	for i := range calls {
		before := invariants.Locks()
		there, err := lockCount.Call(ctx, ep, struct{}{})
		if err != nil {
			t.Fatal(err)
		}
		if i >= calls/2 { // the first calls make the connection, and show that the handler is quick
			atCaller = append(atCaller, invariants.Locks()-before)
			atServer = append(atServer, there-last)
		}
		last = there
	}
	for _, side := range []struct {
		name  string
		locks []uint64
		most  uint64
	}{{"caller", atCaller, callerLocks}, {"server", atServer, serverLocks}} {
		slices.Sort(side.locks)
		n := len(side.locks)
		least, tenth, median, most := side.locks[0], side.locks[n/10], side.locks[n/2], side.locks[n-1]
		t.Logf("locks of one call at the %s: %d without long waits, median %d, from %d to %d", side.name, tenth, median, least, most)
		if tenth > side.most {
			t.Errorf("one call takes %d locks at the %s, want at most %d", tenth, side.name, side.most)
		}
	}
}
