package iwarp_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"cinnabar/verbs"
	"cinnabar/verbs/iwarp"
)

// TestTargetTakesNoPart writes to, reads from and counts up memory of a side whose
// program does nothing, and that finds nothing of it in its completion queue.
func TestTargetTakesNoPart(t *testing.T) {
	const size, total = 1 << 20, 64 << 20
	a, b := newPair(t, iwarp.Config{}, iwarp.Config{})
	src, dst, back := a.region(t, size), b.region(t, total), a.region(t, size)
	fill(src.Bytes(), 6)
	for off := 0; off < total; off += size {
		a.send(t, verbs.SendWR{ID: 1, Op: verbs.OpWrite, Flags: verbs.Signaled, SGL: []verbs.SGE{src.SGE(0, size)}, Remote: dst.RemoteAt(off)})
		a.want(t, 1, verbs.WCWrite, verbs.StatusSuccess)
	}
	a.send(t, verbs.SendWR{ID: 2, Op: verbs.OpRead, Flags: verbs.Signaled, SGL: []verbs.SGE{back.SGE(0, size)}, Remote: dst.RemoteAt(total - size)})
	a.want(t, 2, verbs.WCRead, verbs.StatusSuccess)
	for off := 0; off < total; off += size {
		if !bytes.Equal(dst.Bytes()[off:off+size], src.Bytes()) {
			t.Fatalf("the write at %d differs", off)
		}
	}
	if !bytes.Equal(back.Bytes(), src.Bytes()) {
		t.Error("data read differs")
	}
	a.send(t, verbs.SendWR{ID: 3, Op: verbs.OpFetchAdd, Flags: verbs.Signaled, SGL: []verbs.SGE{back.SGE(0, 8)}, Remote: dst.Remote(), CompareAdd: 5})
	a.want(t, 3, verbs.WCFetchAdd, verbs.StatusSuccess)
	if old := binary.NativeEndian.Uint64(src.Bytes()); binary.NativeEndian.Uint64(dst.Bytes()) != old+5 {
		t.Error("the addition has not happened")
	}
	var wc [1]verbs.WC
	if n, err := b.cq.Poll(wc[:]); n != 0 || err != nil {
		t.Errorf("target: completion %+v, error %v", wc[0], err)
	}
}

// TestPollingStops: a program that polled and stops without arming leaves the
// connection to the background reader and writer.
func TestPollingStops(t *testing.T) {
	const size = 4 << 20
	a, b := newPair(t, iwarp.Config{}, iwarp.Config{})
	src, dst := a.region(t, size), b.region(t, size)
	var wc [1]verbs.WC
	for round := range uint64(20) {
		fill(src.Bytes()[:4096], round)
		for range 10 { // b claims the connection, and never comes back in this round
			if n, err := b.cq.Poll(wc[:]); n != 0 || err != nil {
				t.Fatalf("%d completions, error %v", n, err)
			}
		}
		a.send(t, verbs.SendWR{ID: round, Op: verbs.OpWrite, SGL: []verbs.SGE{src.SGE(0, size)}, Remote: dst.Remote()},
			verbs.SendWR{ID: round, Op: verbs.OpRead, Flags: verbs.Signaled, SGL: []verbs.SGE{src.SGE(0, size)}, Remote: dst.Remote()})
		a.want(t, round, verbs.WCRead, verbs.StatusSuccess)
	}
}

// TestPollingStopsFull: the same with a socket that is full: what a poller has left
// unsent is sent in the background.
func TestPollingStopsFull(t *testing.T) {
	const size = 32 << 20
	a, b := newPair(t, iwarp.Config{NoCRC: true}, iwarp.Config{NoCRC: true})
	src, dst := a.region(t, size), b.region(t, size)
	fill(src.Bytes(), 7)
	a.send(t, verbs.SendWR{ID: 1, Op: verbs.OpWrite, SGL: []verbs.SGE{src.SGE(0, size)}, Remote: dst.Remote()}, verbs.SendWR{ID: 2, Op: verbs.OpSend})
	var wc [1]verbs.WC
	for range 3 {
		if n, err := a.cq.Poll(wc[:]); n != 0 || err != nil {
			t.Fatalf("%d completions, error %v", n, err)
		}
	}
	b.recv(t, verbs.RecvWR{ID: 3})
	b.want(t, 3, verbs.WCRecv, verbs.StatusSuccess)
	if !bytes.Equal(dst.Bytes(), src.Bytes()) {
		t.Error("data differs")
	}
}

// TestWaitNeverSleepsIn sends bursts of small messages to a receiver that arms, looks
// once more, and parks, again and again: it is woken for every one, also for those
// that came together with one it has taken.
func TestWaitNeverSleepsIn(t *testing.T) {
	const size, rounds = 32, 1500
	a, b := newPair(t, iwarp.Config{}, iwarp.Config{})
	b.cq.SetSpin(0)
	src, dst := a.region(t, size), b.region(t, size)
	r := rand.New(rand.NewPCG(1, 2))
	ctx := testContext(t)
	var wc [3]verbs.WC
	for range rounds {
		burst := 1 + r.IntN(12)
		for id := range burst {
			b.recv(t, verbs.RecvWR{ID: uint64(id), SGL: []verbs.SGE{dst.SGE(0, size)}})
		}
		got := make(chan error, 1)
		go func() {
			for n := 0; n < burst; {
				k, err := b.cq.Wait(ctx, wc[:1+n%3])
				if err != nil {
					got <- err
					return
				}
				n += k
			}
			got <- nil
		}()
		for id := range burst {
			a.send(t, verbs.SendWR{ID: uint64(id), Op: verbs.OpSend, Flags: verbs.Signaled, SGL: []verbs.SGE{src.SGE(0, 1+(size-1)*r.IntN(2))}})
			if r.IntN(3) == 0 {
				runtime.Gosched()
			}
		}
		if err := <-got; err != nil {
			t.Fatalf("burst of %d: %v", burst, err)
		}
		for range burst {
			a.wait(t)
		}
	}
}

// TestStatsHinderNothing: whoever reads the counters all the time takes no turn away
// from those who send and receive.
func TestStatsHinderNothing(t *testing.T) {
	a, b := newPair(t, iwarp.Config{}, iwarp.Config{})
	a.cq.SetSpin(0)
	src := a.region(t, 64)
	dst := b.region(t, 64)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for _, s := range []*side{a, b} {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					s.dev.Stats()
				}
			}
		})
	}
	for id := range uint64(1000) {
		a.send(t, verbs.SendWR{ID: id, Op: verbs.OpRead, Flags: verbs.Signaled, SGL: []verbs.SGE{src.SGE(0, 64)}, Remote: dst.Remote()})
		a.want(t, id, verbs.WCRead, verbs.StatusSuccess)
	}
	close(stop)
	wg.Wait()
}

// TestTwoPollers has two goroutines poll one queue: each completion goes to one of them.
func TestTwoPollers(t *testing.T) {
	const messages = 3000
	a, b := newPair(t, iwarp.Config{}, iwarp.Config{})
	src, dst := a.region(t, 64), b.region(t, 64)
	var seen [messages]atomic.Int32
	var left atomic.Int64
	left.Store(messages)
	ctx := testContext(t)
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			var wc [4]verbs.WC
			for left.Load() > 0 && ctx.Err() == nil {
				n, err := b.cq.Poll(wc[:])
				if err != nil {
					t.Error(err)
					return
				}
				for _, c := range wc[:n] {
					seen[c.ID].Add(1)
				}
				left.Add(-int64(n))
				runtime.Gosched()
			}
		})
	}
	for id := range uint64(messages) {
		eventually(t, "room in the receive queue", func() bool {
			_, err := b.qp.PostRecv([]verbs.RecvWR{{ID: id, SGL: []verbs.SGE{dst.SGE(0, 64)}}})
			return err == nil
		})
		a.send(t, verbs.SendWR{ID: id, Op: verbs.OpSend, Flags: verbs.Signaled, SGL: []verbs.SGE{src.SGE(0, 64)}})
		a.wait(t)
	}
	wg.Wait()
	for id := range seen {
		if n := seen[id].Load(); n != 1 {
			t.Fatalf("completion of message %d was seen %d times", id, n)
		}
	}
}

// TestManyConnections polls one completion queue of 64 connections, many more than
// one poll reads.
func TestManyConnections(t *testing.T) {
	const conns, messages = 64, 10
	a, b := newSide(t, iwarp.Config{}, nil), newSide(t, iwarp.Config{}, nil)
	const size = 64
	src, dst := a.region(t, size), b.region(t, conns*messages*size) // each receive has memory of its own
	var from []*verbs.QP
	for n := range conns {
		for _, s := range []*side{a, b} {
			var err error
			if s.qp, err = s.pd.CreateQP(verbs.QPConfig{SendCQ: s.cq, RecvCQ: s.cq, MaxSendWR: messages, MaxRecvWR: messages}); err != nil {
				t.Fatal(err)
			}
			closeAtEnd(t, s.qp.Close)
		}
		connect(t, a, b, verbs.ConnParam{}, verbs.ConnParam{})
		for id := range uint64(messages) {
			b.recv(t, verbs.RecvWR{ID: id, SGL: []verbs.SGE{dst.SGE((n*messages+int(id))*size, size)}})
		}
		from = append(from, a.qp)
	}
	for id := range uint64(messages) {
		for _, qp := range from {
			if _, err := qp.PostSend([]verbs.SendWR{{ID: id, Op: verbs.OpSend, SGL: []verbs.SGE{src.SGE(0, size)}}}); err != nil {
				t.Fatal(err)
			}
		}
	}
	next := make(map[uint32]uint64)
	var wc [16]verbs.WC
	got := 0
	eventually(t, "all messages received", func() bool {
		n, err := b.cq.Poll(wc[:])
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range wc[:n] {
			if c.Status != verbs.StatusSuccess || c.ID != next[c.QPNum] {
				t.Fatalf("queue pair %d: message %d, status %v, want message %d", c.QPNum, c.ID, c.Status, next[c.QPNum])
			}
			next[c.QPNum]++
		}
		got += n
		return got == conns*messages
	})
}

// TestPollerLeavesReaderAsleep: messages that a poller takes wake no background
// reader. A poller that the system keeps from running for a millisecond is one
// that has stopped, and the reader may then win some races for what comes next: a
// part of the messages is tolerated.
func TestPollerLeavesReaderAsleep(t *testing.T) {
	const messages = 10000
	a, b := newPair(t, iwarp.Config{}, iwarp.Config{})
	src, dst := a.region(t, 64), b.region(t, 64)
	wc := make([]verbs.WC, 1)
	round := func(id uint64) {
		b.recv(t, verbs.RecvWR{ID: id, SGL: []verbs.SGE{dst.SGE(0, 64)}})
		a.send(t, verbs.SendWR{ID: id, Op: verbs.OpSend, Flags: verbs.Signaled, SGL: []verbs.SGE{src.SGE(0, 64)}})
		spinQuietly(t, wc, b)
		spinQuietly(t, wc, a)
	}
	for id := range uint64(100) {
		round(id)
	}
	before := b.dev.Stats()["rx_wakeups"]
	for id := range uint64(messages) {
		round(id)
	}
	if woken := b.dev.Stats()["rx_wakeups"] - before; woken > messages/5 {
		t.Errorf("%d messages woke the background reader %d times", messages, woken)
	}
}

// TestWaiterLeaves: a goroutine that is parked in Wait returns when its context ends, and when the connection does; and the background
// reader takes the reading over from it.
func TestWaiterLeaves(t *testing.T) {
	a, b := newPair(t, iwarp.Config{}, iwarp.Config{})
	b.cq.SetSpin(0)
	src, dst := a.region(t, 64), b.region(t, 64)
	wait := func(ctx context.Context) <-chan error {
		got := make(chan error, 1)
		go func() {
			var wc [1]verbs.WC
			_, err := b.cq.Wait(ctx, wc[:])
			if err == nil {
				err = wc[0].Err()
			}
			got <- err
		}()
		eventually(t, "a waiter that reads the connection", func() bool { return iwarp.Seated(b.dev) })
		return got
	}
	for id := range uint64(5) {
		ctx, cancel := context.WithCancel(testContext(t))
		got := wait(ctx)
		cancel()
		if err := <-got; !errors.Is(err, context.Canceled) {
			t.Fatalf("the wait returned %v, want context.Canceled", err)
		}
		a.send(t, verbs.SendWR{ID: id, Op: verbs.OpRead, Flags: verbs.Signaled, SGL: []verbs.SGE{src.SGE(0, 64)}, Remote: dst.Remote()})
		a.want(t, id, verbs.WCRead, verbs.StatusSuccess) // answered by the background reader
	}
	b.recv(t, verbs.RecvWR{ID: 9, SGL: []verbs.SGE{dst.SGE(0, 64)}})
	got := wait(testContext(t))
	a.modify(t, verbs.StateErr)
	if err := <-got; err == nil {
		t.Error("the receive of an ended connection completed with success")
	}
}

// spinQuietly polls s until a completion comes, and lets other sides make progress
// meanwhile. It allocates nothing.
func spinQuietly(t testing.TB, wc []verbs.WC, s *side, others ...*side) {
	for end := time.Now().Add(patience); ; {
		n, err := s.cq.Poll(wc[:1])
		if err != nil || n == 1 && wc[0].Status != verbs.StatusSuccess {
			t.Fatalf("completion %+v, error %v", wc[0], err)
		}
		if n == 1 {
			return
		}
		for _, o := range others {
			if n, err := o.cq.Poll(wc[:1]); n != 0 || err != nil {
				t.Fatalf("the other side has completion %+v, error %v", wc[0], err)
			}
		}
		if time.Now().After(end) {
			t.Fatal("no completion")
		}
	}
}

// TestGoroutines: a connection has two goroutines on each side, a device whose
// programs poll one more for as long as they do, and nothing stays.
func TestGoroutines(t *testing.T) {
	const pairs = 5
	base := runtime.NumGoroutine()
	t.Run("open", func(t *testing.T) {
		a, b := newSide(t, iwarp.Config{}, nil), newSide(t, iwarp.Config{}, nil)
		for range pairs {
			for _, s := range []*side{a, b} {
				var err error
				if s.qp, err = s.pd.CreateQP(verbs.QPConfig{SendCQ: s.cq, RecvCQ: s.cq}); err != nil {
					t.Fatal(err)
				}
				closeAtEnd(t, s.qp.Close)
			}
			connect(t, a, b, verbs.ConnParam{}, verbs.ConnParam{})
		}
		here := base + 1 // this test's own
		eventually(t, "two goroutines for each end of a connection", func() bool { return runtime.NumGoroutine() <= here+4*pairs })
		var wc [1]verbs.WC
		for range 100 {
			_, _ = a.cq.Poll(wc[:])
			_, _ = b.cq.Poll(wc[:])
		}
		if n := runtime.NumGoroutine(); n > here+4*pairs+2 {
			t.Errorf("%d goroutines while polling, want %d at most", n, here+4*pairs+2)
		}
		eventually(t, "no more than before once the polling has stopped", func() bool { return runtime.NumGoroutine() <= here+4*pairs })
	})
	eventually(t, "nothing left", func() bool { return runtime.NumGoroutine() <= base })
}
