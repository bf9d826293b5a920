package cinnabar

import (
	"context"
	"math/rand/v2"
	"testing"
	"time"

	"cinnabar/codes"
	"cinnabar/internal/na/natest"
	"cinnabar/regmem/pool"
)

// TestCancelOnTime cancels ten thousand operations that wait at random times: calls, started calls, transfers both ways,
// and the wait for a buffer. Each returns within 100 ms, in simulated time, so that a busy machine makes no difference.
// The cancelled transfers' memory is written by the test at once: the race detector would see the network touch it.
// parity: Y01
func TestCancelOnTime(t *testing.T) {
	runs := 10_000
	if brief() {
		runs = 1000
	}
	simulate(t, natest.Config{Delay: 2 * time.Millisecond, Chunk: 4 << 10}, nil, func(t *testing.T, s *sim) {
		must(t, nap.Handle(s.server, handleNap))
		c := newCancelOnTime(t, s)
		cancelled := map[string]int{}
		for range runs {
			kind := c.one(t)
			cancelled[kind]++
		}
		for _, kind := range []string{"call", "start", "pull", "push", "buffer"} {
			if cancelled[kind] < runs/20 {
				t.Errorf("only %d of kind %s were cancelled", cancelled[kind], kind)
			}
		}
		elapse(time.Minute) // until the last handlers are done
		for _, b := range []*Bulk{c.local, c.taken} {
			must(t, b.Close())
		}
		must(t, c.pool.Close())
		if n := s.client.Stats(); n.CallsActive != 0 || n.TransfersActive != 0 {
			t.Errorf("left over: %+v", n)
		}
	})
}

// cancelOnTime makes operations that take longer than anybody waits.
type cancelOnTime struct {
	s      *sim
	rng    *rand.Rand
	remote RemoteBulk
	local  *Bulk
	pool   *pool.Pool[*Bulk]
	taken  *Bulk // the pool's only buffer
}

func newCancelOnTime(t *testing.T, s *sim) *cancelOnTime {
	t.Helper()
	const size = 256 << 10
	c := &cancelOnTime{s: s, rng: rand.New(rand.NewPCG(3, 4))}
	theirs, err := s.server.Alloc(ReadWrite, size)
	must(t, err)
	c.remote = travel(t, theirs.Handle()).On(s.ep)
	c.local, err = s.client.Alloc(ReadWrite, size)
	must(t, err)
	c.pool = newPool(t, s.client, ReadWrite, 1, 100)
	c.taken, err = c.pool.Get(t.Context())
	must(t, err)
	return c
}

// one makes one operation, whose kind it returns if it was cancelled.
func (c *cancelOnTime) one(t *testing.T) (kind string) {
	t.Helper()
	after := time.Duration(c.rng.IntN(int(20 * time.Millisecond)))
	ctx, cancel := context.WithTimeout(t.Context(), after)
	defer cancel()
	var err error
	switch c.rng.IntN(5) {
	case 0:
		kind = "call"
		_, err = nap.Call(ctx, c.s.ep, 50)
	case 1:
		kind = "start"
		_, err = nap.Start(ctx, c.s.ep, 50).Wait()
	case 2:
		kind = "pull"
		_, err = c.remote.Pull(ctx, c.local)
		clear(c.local.Bytes())
	case 3:
		kind = "push"
		_, err = c.remote.StartPush(ctx, c.local).Wait()
		clear(c.local.Bytes())
	default:
		kind = "buffer"
		_, err = c.pool.Get(ctx)
	}
	deadline, _ := ctx.Deadline()
	if late := time.Since(deadline); late > 100*time.Millisecond {
		t.Errorf("%s returns %v after its deadline", kind, late)
	}
	if err == nil {
		return ""
	}
	if codes.Of(err) != codes.Timeout {
		t.Errorf("%s: error %v, want codes.Timeout", kind, err)
	}
	return kind
}
