package cinnabar

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"cinnabar/codes"
	"cinnabar/internal/na"
)

// TestCompletedOrder starts calls that end in another order than they begin.
// parity: G32 T26
func TestCompletedOrder(t *testing.T) {
	server, ep := pair(t, nil)
	gates := make([]chan struct{}, 8)
	for i := range gates {
		gates[i] = make(chan struct{})
	}
	wait := NewRPC[int32, int32]("wait")
	must(t, wait.Handle(server, func(_ context.Context, i int32) (int32, error) {
		<-gates[i]
		return i * 10, nil
	}))
	var ps []*Pending[int32]
	for i := range gates {
		ps = append(ps, wait.Start(patient(t), ep, int32(i)))
	}
	order := []int{5, 2, 7, 0, 1, 6, 3, 4}
	close(gates[order[0]])
	var got []int
	for i, p := range Completed(patient(t), ps...) {
		if v, err := p.Wait(); err != nil || v != int32(i)*10 {
			t.Errorf("call %d = %d, %v", i, v, err)
		}
		got = append(got, i)
		if len(got) < len(order) {
			close(gates[order[len(got)]])
		}
	}
	if !slices.Equal(got, order) {
		t.Errorf("order %v, want %v", got, order)
	}
}

// fake is an operation that ends when the test says so.
type fake struct {
	Pending[int]
	aborts atomic.Int32
	n      int
	fail   error
	group  na.GroupDriver
}

func newFake() *fake {
	f := new(fake)
	f.op = f
	return f
}

func (f *fake) abort()               { f.aborts.Add(1) }
func (f *fake) result() (int, error) { return f.n, f.fail }

func (f *fake) driven() (na.GroupDriver, na.Addr) { return f.group, nil }

func (f *fake) finish(n int, err error) {
	f.n, f.fail = n, err
	f.end()
}

// parity: G32 T46
func TestPending(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newFake()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		p.watch(ctx)
		elapse(2 * time.Second)
		if over, _ := p.state(); over {
			t.Fatal("over before the end")
		}
		p.cancel()
		if n := p.aborts.Load(); n != 2 {
			t.Errorf("cancelled %d times, want by the context and by Cancel", n)
		}
		p.finish(7, context.Canceled)
		for range 2 {
			if v, err := p.Wait(); v != 7 || !errors.Is(err, context.Canceled) {
				t.Errorf("Wait = %d, %v", v, err)
			}
		}
		p.watch(ctx) // too late, and without effect
		<-p.Done()
	})
}

// fakeGroup is a network that counts the calls of its methods.
type fakeGroup struct {
	drives   []*na.Event
	undriven int
	finish   func() // called by DriveGroup
}

func (g *fakeGroup) DriveGroup(_ na.Addr, ev *na.Event) {
	g.drives = append(g.drives, ev)
	g.finish()
}

func (g *fakeGroup) Undriven(na.Addr) { g.undriven++ }

func (g *fakeGroup) DrivesTransfers(na.Addr) bool { return true }

// TestPendingDrives checks that Wait receives the messages of an operation by DriveGroup, and that Done and Completed leave them to the network
// by Undriven. For an operation that is over, none of the three calls a method of the network.
func TestPendingDrives(t *testing.T) {
	begin := func() (*fake, *fakeGroup) {
		p, g := newFake(), &fakeGroup{}
		p.group, g.finish = g, func() { p.finish(7, nil) }
		return p, g
	}
	check := func(g *fakeGroup, by string, drives, undriven int) {
		t.Helper()
		if len(g.drives) != drives || g.undriven != undriven {
			t.Errorf("%s: %d calls of DriveGroup and %d of Undriven, want %d and %d", by, len(g.drives), g.undriven, drives, undriven)
		}
	}
	p, g := begin()
	for range 2 {
		if n, err := p.Wait(); n != 7 || err != nil {
			t.Fatal(n, err)
		}
		check(g, "Wait", 1, 0)
	}
	if !g.drives[0].IsSet() {
		t.Error("the event of DriveGroup is not that of the operation")
	}
	<-p.Done()
	for range Completed(t.Context(), &p.Pending) {
	}
	check(g, "an operation that is over", 1, 0)

	p, g = begin()
	done := p.Done()
	check(g, "Done", 0, 1)
	g.finish()
	<-done

	p, g = begin()
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for range Completed(ended, &p.Pending) {
		t.Error("Completed yields an operation that is not over")
	}
	check(g, "Completed", 0, 1)

	p, g = begin() // DriveGroup may return before the end
	end := g.finish
	g.finish = func() { go end() }
	if n, err := p.Wait(); n != 7 || err != nil {
		t.Error(n, err)
	}
	check(g, "Wait behind DriveGroup", 1, 0)
}

// TestPendingStops checks that a context that outlives the operation is not watched any more.
func TestPendingStops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		p := newFake()
		p.watch(ctx)
		p.finish(1, nil)
		cancel()
		synctest.Wait()
		if p.aborts.Load() != 0 {
			t.Error("cancelled after the end")
		}
	})
}

func TestCompletedEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fakes := []*fake{newFake(), newFake(), newFake()}
		var ps []*Pending[int]
		for _, f := range fakes {
			ps = append(ps, &f.Pending)
		}
		fakes[1].finish(1, nil)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		var got []int
		for i := range Completed(ctx, ps...) {
			got = append(got, i)
		}
		if !slices.Equal(got, []int{1}) || ctx.Err() == nil {
			t.Errorf("yielded %v", got)
		}
		fakes[0].finish(0, nil)
		fakes[2].finish(2, nil)
		for i := range Completed(t.Context(), ps...) {
			got = append(got, i)
			if len(got) == 3 {
				break
			}
		}
		if !slices.Equal(got, []int{1, 0, 1}) {
			t.Errorf("yielded %v", got)
		}
	})
}

// TestStartCanceled cancels started calls by context and by Cancel.
func TestStartCanceled(t *testing.T) {
	server, ep := pair(t, nil)
	must(t, block.Handle(server, handleBlock))
	ctx, cancel := context.WithCancel(context.Background())
	byContext := block.Start(ctx, ep, struct{}{})
	byHand := block.Start(context.Background(), ep, struct{}{})
	byTime, stop := context.WithTimeout(context.Background(), 10*time.Millisecond)
	defer stop()
	timed := block.Start(byTime, ep, struct{}{})
	cancel()
	byHand.cancel()
	_, err := byContext.Wait()
	wantCode(t, err, codes.Canceled, "block", ep.String())
	_, err = byHand.Wait()
	wantCode(t, err, codes.Canceled, "block", ep.String())
	byHand.cancel()
	_, err = timed.Wait()
	wantCode(t, err, codes.Timeout, "block", ep.String())
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v does not match DeadlineExceeded", err)
	}
	_, err = block.Start(ctx, ep, struct{}{}).Wait()
	wantCode(t, err, codes.Canceled)
}
