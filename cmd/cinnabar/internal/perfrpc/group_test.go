package perfrpc

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"cinnabar/cmd/cinnabar/internal/clitest"
	"cinnabar/codes"
)

// Clients pass the line together, and not at all if one of them fails before.
func TestBarrier(t *testing.T) {
	b := newBarrier(3)
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			if err := b.wait(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	select {
	case <-b.open:
		t.Error("the line is open for two of three")
	default:
	}
	if err := b.wait(t.Context()); err != nil {
		t.Error(err)
	}
	wg.Wait()

	ctx, fail := context.WithCancelCause(t.Context())
	b = newBarrier(2)
	ended := make(chan error, 1)
	go func() { ended <- b.wait(ctx) }()
	failure := errors.New("the other has failed")
	fail(failure)
	if err := <-ended; !errors.Is(err, failure) {
		t.Errorf("%v, want %v", err, failure)
	}
}

// ticks is a clock that a test moves.
type ticks chan time.Time

func (c ticks) tick(n int) {
	for range n {
		c <- time.Time{}
	}
}

// A client gives up when no call ends for as many ticks as make up the time, and not while it has nothing under way.
func TestWatchStalls(t *testing.T) {
	var w watch
	clock, stop, result := make(ticks), make(chan struct{}), make(chan bool, 1)
	go func() { result <- w.stalls(clock, stop) }()
	clock.tick(watchTicks - 1)
	w.called()
	clock.tick(1) // sees the call, unless the one before has seen it
	clock.tick(watchTicks - 2)
	w.rest(func() { clock.tick(2 * watchTicks) })
	select {
	case <-result:
		t.Fatal("given up too early")
	default:
	}
	for n := 0; ; n++ {
		select {
		case clock <- time.Time{}:
			continue
		case got := <-result:
			if !got || n > watchTicks+1 { // the first may still have seen the rest
				t.Errorf("%v after %d ticks", got, n)
			}
		}
		break
	}

	go func() { result <- w.stalls(clock, stop) }()
	close(stop)
	if <-result {
		t.Error("given up at the end")
	}
}

// What a call says that was ended for want of answers is replaced by the reason.
func TestBlame(t *testing.T) {
	p := newPair(t, serveOptions{}, options{sizes: []int64{64}})
	never := make(chan struct{})
	defer close(never)
	if err := errors.Join(rateRPC.Remove(p.server.engine), rateRPC.Handle(p.server.engine, func(context.Context, count) (none, error) {
		<-never
		return none{}, nil
	})); err != nil {
		t.Fatal(err)
	}
	c := p.prepare(t, prepareRate)
	p.run.o.timeout, p.run.o.count = 20*time.Millisecond, 1
	_, err := p.run.measure(t.Context(), t.Context(), c, 64, newCallTimes(), newBarrier(1))
	if !errors.Is(err, codes.Timeout) {
		t.Errorf("%v, want TIMEOUT", err)
	}
	clitest.WantError(t, err, "no answer from "+p.server.engine.Addr()+" for 20ms", "--timeout")
}
