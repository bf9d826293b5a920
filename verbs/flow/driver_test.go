package flow

import (
	"context"
	"errors"
	"io"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"cinnabar/verbs"
	"cinnabar/verbs/verbstest/memdev"
)

// inBubble runs test in a bubble of testing/synctest, with two ends that are connected over a device without sockets.
func inBubble(t *testing.T, test func(t *testing.T, a, p *Conn)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		over(t, verbs.NewDevice(memdev.Open(memdev.Config{})), Config{}, func(a, p *Conn) { test(t, a, p) })
	})
}

// received is the result of a Recv in a goroutine of its own.
type received struct {
	data string
	err  error
}

// startRecv starts a goroutine that calls Recv, and returns when that goroutine waits.
func startRecv(ctx context.Context, c *Conn) <-chan received {
	got := make(chan received, 1)
	go func() {
		rec, err := c.Recv(ctx)
		r := received{string(rec.Bytes()), err}
		if err == nil {
			r.err = rec.Release()
		}
		got <- r
	}()
	synctest.Wait()
	return got
}

// wantDriver checks which goroutine drives c when all goroutines wait.
func wantDriver(t *testing.T, c *Conn, want driverBy) {
	t.Helper()
	synctest.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.driver.by != want {
		t.Errorf("state %d drives, want %d", c.driver.by, want)
	}
}

// exchange sends a record from a, and checks that the Recv of got returns it.
func exchange(t *testing.T, a *Conn, got <-chan received, data string) {
	t.Helper()
	must(t, a.Send(t.Context(), []byte(data)))
	if r := <-got; r.err != nil || r.data != data {
		t.Errorf("received %q, %v; want %q", r.data, r.err, data)
	}
}

// callersDrive brings p from state byBackground to byNone, by a record from a that a waiting caller receives.
func callersDrive(t *testing.T, a, p *Conn) {
	t.Helper()
	exchange(t, a, startRecv(t.Context(), p), "first")
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.driver.by != byNone {
		t.Fatalf("state %d after a caller has been served", p.driver.by)
	}
}

// The goroutine of run leaves the driving to callers when it has served one, and drives again when they have stopped.
func TestCallersDrive(t *testing.T) {
	inBubble(t, func(t *testing.T, a, p *Conn) {
		wantDriver(t, p, byBackground)
		callersDrive(t, a, p)
		for range 5 {
			got := startRecv(t.Context(), p)
			wantDriver(t, p, byCaller)
			exchange(t, a, got, "more")
			wantDriver(t, p, byNone)
		}
		elapse(3 * returnInterval)
		wantDriver(t, p, byBackground)
	})
}

// While a caller drives for longer than returnInterval, the goroutine of run has no timer. It drives again after the caller.
func TestCallerDrivesLong(t *testing.T) {
	inBubble(t, func(t *testing.T, a, p *Conn) {
		callersDrive(t, a, p)
		got := startRecv(t.Context(), p)
		elapse(3 * returnInterval)
		p.mu.Lock()
		asleep := p.driver.asleep
		p.mu.Unlock()
		if !asleep {
			t.Error("the goroutine of run has a timer")
		}
		exchange(t, a, got, "late")
		elapse(3 * returnInterval)
		wantDriver(t, p, byBackground)
	})
}

// A caller that waits beside one that drives is served. If the one that drives returns first, the goroutine of run serves the other.
func TestCallersBesideDriver(t *testing.T) {
	inBubble(t, func(t *testing.T, a, p *Conn) {
		callersDrive(t, a, p)
		first := startRecv(t.Context(), p)
		second, third := startRecv(t.Context(), p), startRecv(t.Context(), p)
		wantDriver(t, p, byCaller)
		exchange(t, a, first, "1")
		wantDriver(t, p, byBackground)
		exchange(t, a, second, "2")
		exchange(t, a, third, "3")
		wantDriver(t, p, byNone)
	})
}

// A caller that drives returns when its context ends. The goroutine of run then serves the callers that still wait.
func TestDriverGivesUp(t *testing.T) {
	inBubble(t, func(t *testing.T, a, p *Conn) {
		callersDrive(t, a, p)
		cause := errors.New("patience")
		ctx, cancel := context.WithCancelCause(t.Context())
		first, second := startRecv(ctx, p), startRecv(t.Context(), p)
		wantDriver(t, p, byCaller)
		cancel(cause)
		if r := <-first; !errors.Is(r.err, cause) {
			t.Errorf("the caller returned %v, want its cause", r.err)
		}
		exchange(t, a, second, "after")
		if p.Err() != nil {
			t.Error(p.Err())
		}
	})
}

// The end of the connection ends a caller that drives, whichever side causes it, and whether or not the caller has a context that can end.
func TestEndOfDrivenConnection(t *testing.T) {
	reason := errors.New("enough")
	for name, c := range map[string]struct {
		end  func(a, p *Conn) error
		want error
	}{
		"abort":      {func(_, p *Conn) error { p.Abort(reason); return nil }, reason},
		"close":      {func(_, p *Conn) error { return p.Close() }, ErrClosed},
		"half close": {func(a, _ *Conn) error { return a.CloseWrite() }, io.EOF},
		"peer":       {func(a, _ *Conn) error { return a.Close() }, io.EOF},
	} {
		for _, own := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				inBubble(t, func(t *testing.T, a, p *Conn) {
					callersDrive(t, a, p)
					ctx := context.Background()
					if own {
						ctx = t.Context()
					}
					got := startRecv(ctx, p)
					wantDriver(t, p, byCaller)
					must(t, c.end(a, p))
					if r := <-got; !errors.Is(r.err, c.want) {
						t.Errorf("the caller returned %v, want %v", r.err, c.want)
					}
				})
			})
		}
	}
}

// Callers that wait for the device or for room in the copy buffer, while no goroutine drives, are served.
func TestDriverForSenders(t *testing.T) {
	inBubble(t, func(t *testing.T, a, p *Conn) {
		callersDrive(t, a, p)
		callersDrive(t, p, a)
		mr, err := a.PD().RegMR(make([]byte, 100), verbs.LocalWrite)
		must(t, err)
		const rounds = 40
		var reader sync.WaitGroup
		reader.Go(func() {
			for range 2 * rounds {
				rec, err := p.Recv(t.Context())
				if err != nil {
					t.Error(err)
					return
				}
				if err := rec.Release(); err != nil {
					t.Error(err)
				}
			}
		})
		long := make([]byte, a.MaxRecord()*2/3)
		for range rounds {
			must(t, a.SendFrom(t.Context(), []verbs.SGE{mr.SGE(0, 100)}))
			must(t, a.Send(t.Context(), long))
			must(t, a.Do(t.Context(), verbs.SendWR{Op: verbs.OpRead, SGL: []verbs.SGE{a.Discard()}, Remote: a.remote}))
		}
		reader.Wait()
		must(t, mr.Close())
	})
}

// Without a caller that drives, the goroutine of run notices the end of the connection.
func TestEndWithoutDriver(t *testing.T) {
	inBubble(t, func(t *testing.T, a, p *Conn) {
		callersDrive(t, a, p)
		must(t, a.Close())
		start := time.Now()
		<-p.Done()
		if took := time.Since(start); took > 3*returnInterval || !errors.Is(p.Err(), io.EOF) {
			t.Errorf("%v after %v", p.Err(), took)
		}
	})
}
