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
}

func newFake() *fake {
	f := new(fake)
	f.op = f
	return f
}

func (f *fake) abort()               { f.aborts.Add(1) }
func (f *fake) result() (int, error) { return f.n, f.fail }

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
