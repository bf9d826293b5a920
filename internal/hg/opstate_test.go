package hg

import (
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"cinnabar/codes"
	"cinnabar/internal/na"
	"cinnabar/internal/na/natest"
)

// TestOpStatePhases moves an object through its phases. Each step out of order is refused.
func TestOpStatePhases(t *testing.T) {
	var s opState
	if s.begin() {
		t.Error("a pooled object was started")
	}
	s.prepare()
	if _, ok := s.claim(flagCancelled); ok {
		t.Error("an idle object was cancelled")
	}
	if !s.begin() || s.begin() {
		t.Error("an idle object starts once")
	}
	first := s.load().sequence()
	if !s.take(opSend|opReceive|flagLaunched, 2) {
		t.Error("a started object takes no operations")
	}
	if s.drop(opSend) || s.drop(0) {
		t.Error("the object ended with an operation in flight")
	}
	if w := s.load(); w.ops() != opReceive || w.holds() != oneHold || !w.has(flagLaunched) {
		t.Errorf("state %x", w)
	}
	if _, ok := s.set(flagFailed, 0); !ok {
		t.Error("the first failure is not recorded")
	}
	if _, ok := s.set(flagFailed, 0); ok {
		t.Error("a second failure is recorded")
	}
	if _, ok := s.set(flagSucceeded, flagFailed); ok {
		t.Error("a failed object succeeds")
	}
	if s.take(opPull, 1) {
		t.Error("a failed object starts an operation")
	}
	if s.claimOf(first-1, flagAckMissing) || s.claimTarget(first) {
		t.Error("a claim of another start, or of a target that has no hold, succeeds")
	}
	if !s.claimOf(first, flagAckMissing) || s.drop(0) {
		t.Error("a claim of this start fails")
	}
	if p := s.free(); p != phaseStarted {
		t.Errorf("freed in phase %x", p)
	}
	if !s.drop(opReceive) {
		t.Error("the last hold does not end the object")
	}
	if _, ok := s.claim(flagCancelled); ok {
		t.Error("an object at its end was cancelled")
	}
	if !s.finish() {
		t.Error("finish does not see that the object was freed")
	}
	s.retire()
	if w := s.load(); w.phase() != phasePooled || w.sequence() != first || w != w&^(flagsMask|opsMask|holdsMask) {
		t.Errorf("retired in state %x", w)
	}
}

// TestOpStateTarget lets the target of a call to the own address answer while the call is cancelled. Exactly one of the two gets the
// target's hold.
func TestOpStateTarget(t *testing.T) {
	for range 2000 {
		var s opState
		s.prepare()
		s.begin()
		s.take(flagWithTarget, 1)
		s.drop(0) // Start has returned
		var ends atomic.Int32
		var wg sync.WaitGroup
		for _, claim := range []func() bool{
			func() bool { return s.claimTarget(s.load().sequence()) },
			func() bool { _, ok := s.claim(flagCancelled); return ok },
		} {
			wg.Go(func() {
				if claim() && s.drop(0) {
					ends.Add(1)
				}
			})
		}
		wg.Wait()
		if n := ends.Load(); n != 1 {
			t.Fatalf("the call ended %d times", n)
		}
	}
}

// TestOpStateEndsOnce ends, starts, fails and cancels operations on several goroutines. Each object ends once, with a result that was
// set while it had holds.
func TestOpStateEndsOnce(t *testing.T) {
	for round := range uint64(2000) {
		var s opState
		s.prepare()
		s.begin()
		var ends atomic.Int32
		drop := func(bits stateWord) {
			if s.drop(bits) {
				ends.Add(1)
			}
		}
		var wg sync.WaitGroup
		if s.take(opSend|opReceive, 2) {
			wg.Go(func() { drop(opSend) })
			wg.Go(func() {
				r := rand.New(rand.NewPCG(round, 1))
				switch r.IntN(3) {
				case 0:
					s.set(flagSucceeded, flagFailed)
				case 1:
					s.set(flagFailed, 0)
				case 2:
					if s.take(opPull, 1) {
						s.clear(opPull)
						s.hold(opAck)
						s.drop(opAck)
						drop(0)
					}
				}
				drop(opReceive)
			})
		}
		wg.Go(func() {
			if _, ok := s.claim(flagCancelled); ok {
				drop(0)
			}
		})
		wg.Go(func() { s.free() })
		drop(0)
		wg.Wait()
		if n, w := ends.Load(), s.load(); n != 1 || w.holds() != 0 || w.ops() != 0 {
			t.Fatalf("round %d: the object ended %d times; state %x", round, n, w)
		}
		s.finish()
	}
}

// TestInterruptMeetsStart interrupts calls and transfers while Start runs. Their errors are those of the interruption.
func TestInterruptMeetsStart(t *testing.T) {
	me := open(t, natest.New(natest.Config{}), Config{Dispatch: handler(echo)})
	cause := errors.New("interrupted")
	// during calls start while another goroutine calls interrupt until it has an effect, and reports whether interrupt had one.
	during := func(start func(), interrupt func(codes.Code, error) func()) (interrupted bool) {
		var started atomic.Bool
		var wg sync.WaitGroup
		wg.Go(func() {
			for !started.Load() {
				if finish := interrupt(codes.HostUnreach, cause); finish != nil {
					interrupted = true
					finish()
					return
				}
			}
		})
		start()
		started.Store(true)
		wg.Wait()
		return interrupted
	}
	check := func(t *testing.T, interrupted bool, err error) {
		t.Helper()
		if err != nil && (!interrupted || codeFrom(t, err) != codes.HostUnreach || !errors.Is(err, cause)) {
			t.Fatalf("interrupted %v: %v", interrupted, err)
		}
	}
	t.Run("call", func(t *testing.T) {
		payload := make([]byte, 1<<20) // which Start copies
		for range 50 {
			k := me.NewCall()
			interrupted := during(func() { k.Start(me.ep.Addr(), 1, CallOptions{}, payload) }, k.Interrupt)
			err := k.Wait(t.Context())
			k.Free()
			check(t, interrupted, err)
		}
	})
	t.Run("call over a network", func(t *testing.T) {
		n := natest.New(natest.Config{})
		origin, target := open(t, n, Config{}), open(t, n, Config{Dispatch: handler(echo)})
		for _, size := range []int{10, 100 << 10} { // the longer one is pulled
			payload := make([]byte, size)
			for range 100 {
				k := origin.NewCall()
				interrupted := during(func() { k.Start(origin.at(t, target.ep), 1, CallOptions{}, payload) }, k.Interrupt)
				err := k.Wait(t.Context())
				k.Free()
				check(t, interrupted, err)
			}
		}
	})
	t.Run("transfer", func(t *testing.T) {
		d := expose(t, me, na.ReadOnly, make([]byte, 10)).Desc()
		local := make([][]byte, 1<<16) // which Start counts
		local[0] = make([]byte, 10)
		for range 50 {
			x := me.NewTransfer()
			interrupted := during(func() { x.Start(Pull, me.ep.Addr(), d, 0, local, 10) }, x.Interrupt)
			_, err := x.Wait(t.Context())
			x.Free()
			check(t, interrupted, err)
		}
	})
}
