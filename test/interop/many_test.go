//go:build linux

package interop

import (
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"cinnabar"
	"cinnabar/internal/invariants"
)

// raceFactor divides the number of processes and the bytes of the largest transfer under the race detector, where only the duration
// of the tests depends on them.
var raceFactor = map[bool]int{false: 1, true: 8}[invariants.Race]

// crowd is how many processes call one at once in the tests of this file. The race detector finds with a few what it
// finds with many, and takes ten times as long for each.
var crowd = 1024 / raceFactor

// disguised returns a recorded conversation in which the client listens at another port, as another process would. It
// tells its port when it connects, and before each request.
func disguised(ms []message, port uint16) []message {
	const (
		portInConnect = 34
		addressInMsg  = 24 // behind the header and the CQ data
	)
	var recorded []byte
	ms = slices.Clone(ms)
	for i, m := range ms {
		at := 0
		switch {
		case isConnect(m.bytes) || i == 0:
			at = portInConnect
			recorded = m.bytes[at : at+2]
		case m.fromDialer && len(m.bytes) > addressInMsg+4 && slices.Equal(m.bytes[addressInMsg+2:addressInMsg+4], recorded):
			at = addressInMsg + 2
		default:
			continue
		}
		ms[i].bytes = slices.Clone(m.bytes)
		binary.BigEndian.PutUint16(ms[i].bytes[at:], port)
	}
	return ms
}

// TestCrowdOfRecordedClients plays the same recorded client in C to one server in Go many times at once: each step of all
// of them before the next of any.
// parity(recorded): H128
func TestCrowdOfRecordedClients(t *testing.T) {
	for _, name := range []string{"sum", "pull_20000", "overflow_both"} {
		t.Run(name, func(t *testing.T) {
			s := listen(t, mercury, nil).serveMercury(t)
			ms := conversation(t, name)
			players := make([]*player, crowd)
			conversations := make([][]message, crowd)
			for i := range players {
				players[i] = dialPlayer(t, s.Addr())
				conversations[i] = disguised(ms, uint16(10000+i))
				players[i].step(conversations[i], 0)
			}
			for m := 1; m < len(ms) && ms[m].bytes != nil; m++ {
				for i, p := range players {
					p.step(conversations[i], m)
				}
			}
		})
	}
}

// TestCrowdAtC has many engines in Go call one server in C at once.
// parity(peer): H128
func TestCrowdAtC(t *testing.T) {
	q := startPeer(t, hgPeer)
	clients := make([]*client, crowd)
	for i := range clients {
		clients[i] = dial(t, mercury, q.addr, nil)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for range 3 {
		var wg sync.WaitGroup
		for i, c := range clients {
			wg.Go(func() {
				if out, err := c.rpc.sum.Call(ctx, c.to, sumIn{int32(i), 1}); err != nil || int(out.Ret) != i+1 {
					t.Errorf("client %d: sum is %d, %v", i, out.Ret, err)
				}
			})
		}
		wg.Wait()
	}
	for _, c := range clients {
		closeEngine(t, c.Engine)
	}
	q.stop()
}

// TestCrowdOfC has as many processes in C call one server in Go as the environment says: each has some 35 MB.
// parity(peer): H128
func TestCrowdOfC(t *testing.T) {
	n, err := strconv.Atoi(os.Getenv("CINNABAR_C_CLIENTS"))
	if err != nil {
		t.Skip("takes 35 MB for each client in C; set CINNABAR_C_CLIENTS to their number to run it")
	}
	s := listen(t, mercury, nil).serveMercury(t)
	clients := make([]*peer, n)
	for i := range clients {
		clients[i] = startPeer(t, hgPeer)
		clients[i].aim(s.Addr())
	}
	for range 3 {
		for _, q := range clients {
			q.start("sum a=1 b=2 count=20 inflight=4")
		}
		for _, q := range clients {
			if got := q.result("sum"); !got.has("ret=0 ok=20") {
				t.Errorf("a client says %q", got)
			}
		}
	}
	for _, q := range clients {
		q.stop()
	}
}

// TestGreedyC has one C client send 10,000 calls to a server of 64 handlers: each is answered or refused, and another C
// client, which makes one call at a time, is never refused.
// parity(peer): Y12
func TestGreedyC(t *testing.T) {
	s := listen(t, mercury, &cinnabar.Config{MaxHandlers: 64, MaxQueued: 128})
	must(t, s.rpc.sum.Remove(s.Engine), s.rpc.sum.Handle(s.Engine, func(_ context.Context, in sumIn) (sumOut, error) {
		for start := time.Now(); time.Since(start) < 50*time.Microsecond; {
			runtime.Gosched()
		}
		return sumOut{in.A + in.B}, nil
	}))
	greedy, modest := startPeer(t, hgPeer), startPeer(t, hgPeer)
	greedy.aim(s.Addr())
	modest.aim(s.Addr())
	const calls = 10000
	greedy.start(fmt.Sprintf("sum a=1 b=2 count=%d inflight=1024", calls))
	modest.check("sum a=1 b=2 count=100 inflight=1", "ret=0 ok=100 again=0")
	got := greedy.result("sum")
	if ok, again := got.number(t, "ok"), got.number(t, "again"); ok+again != calls || ok == 0 {
		t.Errorf("the greedy client says %q; want each of %d calls answered or refused", got, calls)
	}
	if st := s.Stats().Handlers; st.Most > 64 {
		t.Errorf("%d handlers at once, want at most 64", st.Most)
	}
	greedy.stop()
	modest.stop()
}
