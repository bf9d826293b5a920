package progress

import (
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// side is one of two processes that call each other, in the time of a synctest bubble.
type side struct {
	proc   *process
	pol    *Policy
	src    Source
	driver bool
	wake   time.Duration // price of a wake-up

	full   atomic.Bool  // a message has come
	asleep atomic.Bool  // the side wants to be rung
	bell   chan int64   // time of the signal
	parks  int          // waits that have parked
	stall  atomic.Int64 // time for which the side is kept from its next step
	random *rand.Rand
	stalls atomic.Bool // other threads get the processor at times
}

const (
	lookTime = 100 * time.Nanosecond
	work     = 2 * time.Microsecond // of a side between two messages
	// Mean time between stalls, and the longest of them, in a process that always looks.
	stallEvery = 2 * time.Millisecond
	stallMost  = 100 * time.Microsecond
)

func newSide(driver bool, wake time.Duration, seed uint64) *side {
	s := &side{driver: driver, wake: wake, bell: make(chan int64, 1), random: rand.New(rand.NewPCG(seed, 1))}
	now := func() int64 { return time.Now().UnixNano() }
	s.proc = newProcess(2, twoThreads, now, func() { time.Sleep(250 * time.Nanosecond) }) //nolint:forbidigo // simulated time
	s.pol = &Policy{proc: s.proc}
	s.src.Init(s.pol, Memory)
	return s
}

// pass lets time pass in which the side has the processor, or is kept from it.
func (s *side) pass(d time.Duration) {
	if s.stalls.Load() && s.random.Float64() < float64(d)/float64(stallEvery) {
		d += time.Duration(s.random.Int64N(int64(stallMost)))
	}
	time.Sleep(d + time.Duration(s.stall.Swap(0))) //nolint:forbidigo // simulated time
}

func (s *side) send(to *side) {
	to.full.Store(true)
	if to.asleep.CompareAndSwap(true, false) {
		to.bell <- s.proc.now()
	}
}

// receive waits for a message as transports do. The server does not learn when it was rung.
func (s *side) receive() {
	spin := s.src.Spin(s.driver)
	defer spin.End()
	for {
		s.pass(lookTime)
		if s.full.CompareAndSwap(true, false) {
			spin.Found()
			s.src.Answered()
			return
		}
		if spin.Vain() {
			continue
		}
		spin.End()
		s.src.Park()
		s.asleep.Store(true)
		if s.full.Load() {
			s.asleep.Store(false)
			select {
			case <-s.bell:
			default:
			}
			continue
		}
		rang := <-s.bell
		s.parks++
		s.pass(s.wake)
		if !s.driver {
			rang = 0
		}
		s.pol.Woken(rang)
	}
}

// pair runs two sides in a bubble: calls calls, each after before(i). It returns the number of waits of both that parked in each call.
func pair(t *testing.T, wake time.Duration, calls int, before func(i int, client, server *side)) (parks []int) {
	t.Helper()
	synctest.Test(t, func(*testing.T) {
		client, server := newSide(true, wake, 1), newSide(false, wake, 2)
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			for range calls {
				server.receive()
				server.pass(work)
				server.send(client)
			}
		}()
		for i := range calls {
			before(i, client, server)
			sum := client.parks
			client.pass(work)
			client.send(server)
			client.receive()
			parks = append(parks, client.parks-sum)
		}
		<-ended
	})
	return parks
}

func sum(n []int) (s int) {
	for _, v := range n {
		s += v
	}
	return s
}

// Whatever a wake-up costs, two peers that call each other do not park once they have settled, although other threads take their
// processors at times.
func TestSettled(t *testing.T) {
	for _, wake := range []time.Duration{1, 20 * time.Microsecond, 100 * time.Microsecond, 300 * time.Microsecond} {
		const settling, calls = 100, 2000
		n := pair(t, wake, settling+calls, func(_ int, client, server *side) {
			client.stalls.Store(true)
			server.stalls.Store(true)
		})
		if parks := sum(n[settling:]); parks*100 > calls {
			t.Errorf("wake-ups of %v: %d of %d calls parked, want at most 1 %%", wake, parks, calls)
		}
	}
}

// After one of two peers was kept from its processor for 2 ms, in a wait or at work, few calls park.
func TestAfterStall(t *testing.T) {
	for _, wake := range []time.Duration{1, 20 * time.Microsecond, 100 * time.Microsecond, 300 * time.Microsecond} {
		for _, who := range []func(c, s *side) *side{
			func(c, _ *side) *side { return c },
			func(_, s *side) *side { return s },
		} {
			const at, calls = 100, 300
			n := pair(t, wake, calls, func(i int, client, server *side) {
				if i == at {
					who(client, server).stall.Store(int64(2 * time.Millisecond))
				}
			})
			if parks := sum(n[at:]); parks > 3 {
				t.Errorf("wake-ups of %v: %d calls parked after a stall, want at most 3: %v", wake, parks, n[at:at+20])
			}
		}
	}
}

// A peer that is slow for good costs few spins: a client whose calls take a hundred times as long as a spin parks for most of them.
func TestSlowPeer(t *testing.T) {
	const settling, calls = 100, 400
	n := pair(t, 20*time.Microsecond, settling+calls, func(_ int, _, server *side) { server.stall.Store(int64(5 * time.Millisecond)) })
	if parks := sum(n[settling:]); parks < calls*9/10 {
		t.Errorf("%d of %d long calls parked, want nearly all", parks, calls)
	}
}
