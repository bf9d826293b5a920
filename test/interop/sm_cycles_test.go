//go:build linux

package interop

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"
)

// cycles is how often a program in C is to go to sleep, and to be woken, in each test of this file. Other tests make some
// hundreds of calls without gaps.
func cycles(t *testing.T) int {
	t.Helper()
	n, err := strconv.Atoi(os.Getenv("CINNABAR_SM_CYCLES"))
	if err != nil {
		t.Skip("takes minutes; set CINNABAR_SM_CYCLES to how often to go to sleep, 1000000 say, to run it")
	}
	return n
}

// spinWindow is for how long a Go side looks for messages before it parks, where there are two processors.
const spinWindow = 40 * time.Microsecond

// stall is what no call may take.
const stall = time.Second

// idle keeps the processor for a random time of up to two spin windows: who sleeps is woken later than that.
func idle() {
	for end := time.Now().Add(rand.N(2 * spinWindow)); time.Now().Before(end); {
		continue
	}
}

// chunk is how many calls are made before it is looked how often the program in C has slept.
const chunk = 10_000

// TestSharedMemoryParkCyclesClientC has a client in C, which waits in the kernel, call a Go server after random times around
// the spin window; the handlers take such times too.
// parity(peer): H126
func TestSharedMemoryParkCyclesClientC(t *testing.T) {
	n := cycles(t)
	overSharedMemory(t, false, []named{{"sum", func(t *testing.T) {
		s := listen(t, mercury, nil)
		must(t, s.rpc.sum.Remove(s.Engine), s.rpc.sum.Handle(s.Engine, func(_ context.Context, in sumIn) (sumOut, error) {
			idle()
			return sumOut{in.A + in.B}, nil
		}))
		client := startPeer(t, hgPeer)
		client.aim(s.Addr())
		sum := fmt.Sprintf("sum a=1 b=2 count=%d gap=%d", chunk, 2*spinWindow.Microseconds())
		sleepOften(t, n, client.process, func() time.Duration {
			got := client.do(sum)
			if !got.has(fmt.Sprintf("ret=0 ok=%d", chunk)) {
				t.Fatalf("the client says %q", got)
			}
			return time.Duration(got.number(t, "longest")) * time.Microsecond
		})
		client.stop()
	}}})
}

// TestSharedMemoryParkCyclesServerC has a Go client call a server in C, which waits in the kernel, after random times around
// the spin window.
// parity(peer): H126
func TestSharedMemoryParkCyclesServerC(t *testing.T) {
	n := cycles(t)
	overSharedMemory(t, false, []named{{"sum", func(t *testing.T) {
		q := startPeer(t, hgPeer)
		c := dial(t, mercury, q.addr, nil)
		ctx := context.Background()
		sleepOften(t, n, q.process, func() (longest time.Duration) {
			for i := range chunk {
				idle()
				sent := time.Now()
				if out, err := c.rpc.sum.Call(ctx, c.to, sumIn{int32(i), 1}); err != nil || int(out.Ret) != i+1 {
					t.Fatalf("call %d: sum is %d, %v", i, out.Ret, err)
				}
				longest = max(longest, time.Since(sent))
			}
			return longest
		})
		closeEngine(t, c.Engine)
		q.stop()
	}}})
}

// sleepOften makes calls, a chunk at a time, until p has gone to sleep n times. calls returns how long the longest took: if
// that is too long, it was not woken.
func sleepOften(t *testing.T, n int, p *process, calls func() time.Duration) {
	t.Helper()
	first := sleeps(t, p)
	var made, slept int
	var longest time.Duration
	begin := time.Now()
	for ; slept < n; slept = sleeps(t, p) - first {
		longest = max(longest, calls())
		made += chunk
	}
	if longest > stall {
		t.Errorf("a call took %v", longest)
	}
	t.Logf("%d calls in %v, the longest %v; the program in C has slept %d times", made, time.Since(begin).Round(time.Millisecond), longest, slept)
}

// sleeps is how often a process has gone to sleep so far, as the kernel counts it.
func sleeps(t *testing.T, p *process) int {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.Pid()))
	must(t, err)
	_, text, _ := strings.Cut(string(b), "\nvoluntary_ctxt_switches:")
	text, _, _ = strings.Cut(text, "\n")
	n, err := strconv.Atoi(strings.TrimSpace(text))
	must(t, err)
	return n
}
