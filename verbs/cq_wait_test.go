package verbs_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"cinnabar/verbs"
	"cinnabar/verbs/internal/rig"
)

// newFakeCQ makes a completion queue whose completions the test makes. Spinning
// is off: parking is what is tested.
func newFakeCQ(t *testing.T) (*verbs.CQ, *rig.FakeCQ) {
	t.Helper()
	dev, f := rig.NewFake(t)
	cq := rig.Must(dev.CreateCQ(1 << 10))(t)
	cq.SetSpin(0)
	return cq, f.CQs[0]
}

func TestCreateCQLimits(t *testing.T) {
	dev, _ := rig.NewFake(t)
	for depth, want := range map[int]string{0: "the depth is 0, the least is 1", 1<<16 + 1: "over the device's limit of 65536 (DeviceAttr.MaxCQE)"} {
		_, err := dev.CreateCQ(depth)
		rig.WantErr(t, err, verbs.ErrInvalid, want)
	}
	cq := rig.Must(dev.CreateCQ(7))(t)
	rig.WantErr(t, cq.Resize(0), verbs.ErrInvalid)
	if err := cq.Resize(9); err != nil || cq.Depth() != 9 {
		t.Errorf("Resize: %v, depth %d", err, cq.Depth())
	}
}

func TestWaitOnEmptySlice(t *testing.T) {
	cq, _ := newFakeCQ(t)
	_, err := cq.Wait(t.Context(), nil)
	rig.WantErr(t, err, verbs.ErrInvalid, "wc is empty")
}

// Completions that are there are returned whatever the context says.
func TestWaitWithCancelledContext(t *testing.T) {
	cq, f := newFakeCQ(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	f.Add(verbs.WC{ID: 1})
	wc := make([]verbs.WC, 2)
	if n, err := cq.Wait(ctx, wc); n != 1 || err != nil || wc[0].ID != 1 {
		t.Errorf("got %d, %v", n, err)
	}
	if n, err := cq.Wait(ctx, wc); n != 0 || !errors.Is(err, context.Canceled) {
		t.Errorf("got %d, %v, want context.Canceled", n, err)
	}
}

// A completion that comes while Wait is about to park is found, on either side
// of the moment from which events are raised.
func TestWaitRacesWithArm(t *testing.T) {
	for name, set := range map[string]func(*rig.FakeCQ, func()){
		"before arming": func(f *rig.FakeCQ, add func()) { f.OnArm = add },
		"after arming":  func(f *rig.FakeCQ, add func()) { f.AfterArm = add },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cq, f := newFakeCQ(t)
				set(f, sync.OnceFunc(func() { f.Add(verbs.WC{ID: 5}) }))
				wc := make([]verbs.WC, 1)
				if n, err := cq.Wait(t.Context(), wc); n != 1 || err != nil || wc[0].ID != 5 {
					t.Errorf("got %d, %v", n, err)
				}
			})
		})
	}
}

// An event without a completion does not end the wait.
func TestWaitToleratesEmptyEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cq, f := newFakeCQ(t)
		got := goWait(t.Context(), cq)
		for range 3 {
			synctest.Wait()
			f.Notify()
		}
		synctest.Wait()
		f.Add(verbs.WC{ID: 9})
		if r := <-got; r.err != nil || r.wc.ID != 9 {
			t.Errorf("got %+v", r)
		}
	})
}

// waited is the result of a Wait in a goroutine of its own.
type waited struct {
	wc  verbs.WC
	err error
}

func goWait(ctx context.Context, cq *verbs.CQ) <-chan waited {
	c := make(chan waited, 1)
	go func() {
		wc := make([]verbs.WC, 1)
		_, err := cq.Wait(ctx, wc)
		c <- waited{wc[0], err}
	}()
	return c
}

// Several goroutines park on one queue; every completion frees one of them, though
// the queue remembers one event and one arming only.
// parity: V22 D45
func TestWaitStrandsNobody(t *testing.T) {
	for _, batch := range []int{1, 2, 5} { // completions that come at once
		synctest.Test(t, func(t *testing.T) {
			cq, f := newFakeCQ(t)
			const waiters = 10
			got := make(chan waited, waiters)
			for range waiters {
				go func() { got <- <-goWait(t.Context(), cq) }()
			}
			for range waiters / batch {
				synctest.Wait()
				for range batch {
					f.Add(verbs.WC{})
				}
			}
			for range waiters {
				if r := <-got; r.err != nil {
					t.Error(r.err)
				}
			}
		})
	}
}

// The waiter that leads gives up; the others are served all the same.
func TestWaitLeaderGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cq, f := newFakeCQ(t)
		ctx, cancel := context.WithCancel(t.Context())
		leader := goWait(ctx, cq)
		synctest.Wait()
		follower := goWait(t.Context(), cq)
		impatient := goWait(ctx, cq)
		synctest.Wait()
		cancel()
		for _, c := range []<-chan waited{leader, impatient} {
			if r := <-c; !errors.Is(r.err, context.Canceled) {
				t.Errorf("got %v, want context.Canceled", r.err)
			}
		}
		f.Add(verbs.WC{ID: 3})
		if r := <-follower; r.err != nil || r.wc.ID != 3 {
			t.Errorf("got %+v", r)
		}
	})
}

// The context ends in the same moment as a completion comes whose event another
// reader has swallowed: the completion wins.
func TestWaitLooksOnceMoreAtTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cq, f := newFakeCQ(t)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		got := goWait(ctx, cq)
		synctest.Wait()
		f.AddUnseen(verbs.WC{ID: 4})
		if r := <-got; r.err != nil || r.wc.ID != 4 {
			t.Errorf("got %+v", r)
		}
	})
}

func TestWaitEndsWithClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cq, _ := newFakeCQ(t)
		a, b := goWait(t.Context(), cq), goWait(t.Context(), cq)
		synctest.Wait()
		if err := cq.Close(); err != nil {
			t.Fatal(err)
		}
		for _, c := range []<-chan waited{a, b} {
			rig.WantErr(t, (<-c).err, verbs.ErrClosed)
		}
	})
}

// Everyone who waits learns of an overrun, after the intact completions.
func TestWaitReportsOverrun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cq, f := newFakeCQ(t)
		a, b := goWait(t.Context(), cq), goWait(t.Context(), cq)
		synctest.Wait()
		f.Overrun()
		f.Add(verbs.WC{ID: 1})
		ra, rb := <-a, <-b
		if ra.err != nil {
			ra, rb = rb, ra
		}
		if ra.err != nil || ra.wc.ID != 1 || !errors.Is(rb.err, verbs.ErrCQOverrun) {
			t.Errorf("got %+v and %+v, want one completion and one overrun", ra, rb)
		}
	})
}

// The spin ends although the clock of a bubble stands still while it spins.
func TestWaitSpinIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cq, f := newFakeCQ(t)
		cq.SetSpin(time.Millisecond)
		got := goWait(t.Context(), cq)
		synctest.Wait()
		f.Add(verbs.WC{ID: 2})
		if r := <-got; r.err != nil || r.wc.ID != 2 {
			t.Errorf("got %+v", r)
		}
	})
}

// Waiters and pollers together take each of many completions exactly once, with
// spinning and without.
func TestWaitStress(t *testing.T) {
	for _, spin := range []time.Duration{0, 50 * time.Microsecond} {
		cq, f := newFakeCQ(t)
		cq.SetSpin(spin)
		const waiters, total = 8, 4000
		ctx, cancel := context.WithCancel(rig.Context(t))
		seen := make(chan uint64, total)
		var wg sync.WaitGroup
		for i := range waiters {
			wg.Go(func() {
				wc := make([]verbs.WC, 1+i%3)
				for {
					n, err := cq.Wait(ctx, wc)
					if err != nil {
						return
					}
					for _, c := range wc[:n] {
						seen <- c.ID
					}
				}
			})
		}
		wg.Go(func() {
			for id := range uint64(total) {
				f.Add(verbs.WC{ID: id})
				if id%97 == 0 {
					f.Notify()
				}
			}
		})
		got := map[uint64]bool{}
		for range total {
			got[<-seen] = true // hangs, and fails by the time limit, if one is lost
		}
		cancel()
		wg.Wait()
		if len(got) != total {
			t.Errorf("spin %v: %d different completions, want %d", spin, len(got), total)
		}
	}
}

func TestAll(t *testing.T) {
	cq, f := newFakeCQ(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for id := range uint64(4) {
		f.Add(verbs.WC{ID: id})
	}
	for wc, err := range cq.All(ctx) {
		if err != nil || wc.ID == 1 {
			break
		}
	}
	var rest []uint64 // leaving the loop has lost none
	for wc, err := range cq.All(ctx) {
		if err != nil {
			t.Fatal(err)
		}
		if rest = append(rest, wc.ID); len(rest) == 2 {
			cancel() // ends the loop without an error
		}
	}
	if len(rest) != 2 || rest[0] != 2 || rest[1] != 3 {
		t.Errorf("got %v, want [2 3]", rest)
	}
	f.Overrun()
	n := 0
	for _, err := range cq.All(t.Context()) {
		rig.WantErr(t, err, verbs.ErrCQOverrun)
		n++
	}
	if n != 1 {
		t.Errorf("the overrun was yielded %d times, want once", n)
	}
}

// The completion channel by hand: arm, poll once more, wait, poll; and an event that
// was left over from an earlier arming is harmless.
func TestCompletionChannel(t *testing.T) {
	dev := rig.MemDevice(t)
	a, b := rig.NewSide(t, dev), rig.NewSide(t, dev)
	ac, _ := rig.Connect(t, dev, a.QP, b.QP, verbs.ConnParam{}, verbs.ConnParam{})
	wc := make([]verbs.WC, 4)
	for range 3 {
		if err := b.CQ.Arm(false); err != nil {
			t.Fatal(err)
		}
		if n, err := b.CQ.Poll(wc); n != 0 || err != nil {
			t.Fatalf("got %d, %v, want nothing yet", n, err)
		}
		if _, err := b.QP.PostRecv([]verbs.RecvWR{{}}); err != nil {
			t.Fatal(err)
		}
		if _, err := a.QP.PostSend([]verbs.SendWR{{Op: verbs.OpSend}}); err != nil {
			t.Fatal(err)
		}
		<-b.CQ.Event()
		if n, err := b.CQ.Poll(wc); n != 1 || err != nil || wc[0].Op != verbs.WCRecv {
			t.Fatalf("got %d, %v, %+v", n, err, wc[0])
		}
	}
	if err := ac.Disconnect(rig.Context(t)); err != nil {
		t.Error(err)
	}
}
