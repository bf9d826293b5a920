package verbstest

import (
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"cinnabar/verbs"
)

// testManyGoroutines posts and polls the same queues from many goroutines: no
// request gets lost or comes back twice.
func testManyGoroutines(t *testing.T, dev *verbs.Device) {
	const posters, pollers = 4, 4
	each := sized(250, 50)
	p := NewPair(t, dev, PairConfig{})
	var mu sync.Mutex
	seen := make(map[uint64]int)
	var left atomic.Int64
	left.Store(posters * int64(each))
	var wg sync.WaitGroup
	for g := range posters {
		wg.Go(func() {
			for i := range each {
				wr := p.Active.RDMA(uint64(g*each+i), verbs.OpRead, g*64, 64, p.Passive)
				if err := p.Active.postWhenRoom(wr, &left); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	for range pollers {
		wg.Go(func() {
			var wc [8]verbs.WC
			for left.Load() > 0 && p.Ctx.Err() == nil && !t.Failed() {
				n, err := p.Active.CQ.Poll(wc[:])
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				for _, w := range wc[:n] {
					seen[w.ID]++
					if w.Status != verbs.StatusSuccess {
						t.Errorf("request %d: %v", w.ID, w.Status)
					}
				}
				mu.Unlock()
				left.Add(-int64(n))
				if n == 0 {
					runtime.Gosched() // or the pollers would keep the others from the processors
				}
			}
		})
	}
	wg.Wait()
	if len(seen) != posters*each {
		t.Errorf("%d different requests completed, want %d", len(seen), posters*each)
	}
	for id, n := range seen {
		if n != 1 {
			t.Errorf("request %d completed %d times", id, n)
		}
	}
}

// postWhenRoom posts as soon as the queue has room, which others make by polling.
func (s *Side) postWhenRoom(wr verbs.SendWR, left *atomic.Int64) error {
	for {
		n, err := s.QP.PostSend([]verbs.SendWR{wr})
		switch {
		case n == 1:
			return nil
		case !errors.Is(err, verbs.ErrQueueFull):
			return err
		case s.ctx.Err() != nil || left.Load() <= 0:
			return errors.New("the queue stayed full")
		}
		runtime.Gosched()
	}
}

// testQPCloseInTraffic destroys a queue pair while both sides send, and frees the
// memory at once, as Close allows.
func testQPCloseInTraffic(t *testing.T, dev *verbs.Device) {
	for i := range sized(20, 5) {
		p := NewPair(t, dev, PairConfig{Memory: 1 << 20})
		var wg sync.WaitGroup
		for _, s := range []*Side{p.Active, p.Passive} {
			peer := p.Passive
			if s == peer {
				peer = p.Active
			}
			remote := peer.MR.Remote()
			started := make(chan struct{})
			wg.Go(func() { s.flood(remote, started) })
			<-started
		}
		closed, other := p.Active, p.Passive
		if i%2 == 1 {
			closed, other = other, closed
		}
		closeAll(t, "queue pair", closed.QP.Close)
		other.AwaitEnd()
		wg.Wait()
		closeAll(t, "the rest", closed.MR.Close, other.QP.Close, other.MR.Close)
	}
}

// flood writes until the connection is over. started is closed after the first post.
func (s *Side) flood(to verbs.RemoteAddr, started chan struct{}) {
	wr := s.Send(1, 0, 256<<10)
	wr.Op, wr.Remote = verbs.OpWrite, to
	first := sync.OnceFunc(func() { close(started) })
	defer first()
	var wc [8]verbs.WC
	for s.ctx.Err() == nil {
		_, err := s.QP.PostSend([]verbs.SendWR{wr})
		first()
		if err != nil && !errors.Is(err, verbs.ErrQueueFull) {
			return
		}
		n, err := s.CQ.Poll(wc[:])
		if err != nil {
			return
		}
		for i := range n {
			if wc[i].Status != verbs.StatusSuccess {
				return
			}
		}
	}
}

// testManyWaiters parks many goroutines on one completion queue: each completion
// wakes one, and none stays asleep while there are completions.
func testManyWaiters(t *testing.T, dev *verbs.Device) {
	const waiters, each = 8, 25
	p := NewPair(t, dev, PairConfig{})
	p.Active.CQ.SetSpin(0)
	errs := make([]error, waiters)
	var wg sync.WaitGroup
	for i := range waiters {
		wg.Go(func() {
			var wc [1]verbs.WC
			for range each {
				if _, err := p.Active.CQ.Wait(p.Ctx, wc[:]); err != nil {
					errs[i] = err
					return
				}
			}
		})
	}
	var left atomic.Int64
	left.Store(1)
	for i := range uint64(waiters * each) {
		if err := p.Active.postWhenRoom(p.Active.RDMA(i, verbs.OpRead, 0, 8, p.Passive), &left); err != nil {
			t.Fatal(err)
		}
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Error(err)
	}
	p.Active.Quiet()
}

// testChurn connects, talks and closes many times; the leak check of every test
// covers them.
func testChurn(t *testing.T, dev *verbs.Device) {
	l := listen(t, dev, loopback)
	for range sized(100, 10) {
		p := &Pair{Ctx: testContext(t), Dev: dev}
		p.Active, p.Passive = newSide(t, p.Ctx, dev, PairConfig{}, false), newSide(t, p.Ctx, dev, PairConfig{}, false)
		if err := p.connect(l, PairConfig{}); err != nil {
			t.Fatal(err)
		}
		p.Passive.PostRecv(1, 0, 64)
		p.Active.PostSend(p.Active.Send(2, 0, 64))
		p.Passive.Expect(1, verbs.StatusSuccess, verbs.WCRecv)
		for _, s := range []*Side{p.Active, p.Passive} {
			closeAll(t, "side", s.QP.Close, s.MR.Close, s.CQ.Close, s.PD.Close)
		}
	}
}
