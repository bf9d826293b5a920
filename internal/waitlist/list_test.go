package waitlist

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// store is a resource of which n are left.
type store struct {
	mu   sync.Mutex
	n    int
	list List[int, int]
}

func (s *store) take(n int) (int, bool) {
	if n > s.n {
		return 0, false
	}
	s.n -= n
	return n, true
}

func (s *store) give(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.n += n
	s.list.Serve(s.take)
}

// wait starts a waiter and returns where its end is told, "" if it got what it wanted.
func (s *store) wait(ctx context.Context, n int) chan error {
	done := make(chan error, 1)
	go func() {
		got, err := s.list.Wait(ctx, &s.mu, n, s.take)
		if err == nil && got != n {
			err = errors.New("another amount")
		}
		done <- err
	}()
	synctest.Wait()
	return done
}

func pending(t *testing.T, what string, c chan error) {
	t.Helper()
	synctest.Wait()
	select {
	case err := <-c:
		t.Errorf("%s is over: %v", what, err)
	default:
	}
}

func TestOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &store{}
		big, small := s.wait(t.Context(), 5), s.wait(t.Context(), 1)
		s.give(4)
		pending(t, "the first", big)
		pending(t, "the second, who came later", small)
		s.give(1)
		if err := <-big; err != nil {
			t.Error(err)
		}
		pending(t, "the second", small)
		s.give(1)
		if err := <-small; err != nil || s.n != 0 || s.list.Waiting() {
			t.Error(err, s.n)
		}
	})
}

func TestAbandon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, cause := &store{}, errors.New("patience")
		ctx, cancel := context.WithCancelCause(t.Context())
		big, small := s.wait(ctx, 5), s.wait(t.Context(), 1)
		s.give(1)
		pending(t, "the second", small)
		cancel(cause)
		if err := <-big; !errors.Is(err, cause) {
			t.Error(err)
		}
		if err := <-small; err != nil { // who wants less is served when the first is gone
			t.Error(err)
		}
		if err := <-s.wait(ctx, 1); !errors.Is(err, cause) || s.list.Len() != 0 {
			t.Error(err)
		}
		s.give(1)
		if err := <-s.wait(ctx, 1); err != nil {
			t.Errorf("need not wait, and the context has ended: %v", err)
		}
	})
}

func TestEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &store{}
		a, b := s.wait(t.Context(), 1), s.wait(t.Context(), 1)
		s.mu.Lock()
		s.list.End()
		s.mu.Unlock()
		for _, c := range []chan error{a, b, s.wait(t.Context(), 1)} {
			if err := <-c; !errors.Is(err, ErrEnded) {
				t.Error(err)
			}
		}
	})
}

// TestWanted tells who gives back without the lock whether somebody waits, and who waits finds what was given back before.
// parity: S17
func TestWanted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &store{}
		want := func(wanted bool) {
			t.Helper()
			if s.list.Wanted() != wanted {
				t.Errorf("wanted: %v", !wanted)
			}
		}
		want(false)
		ctx, cancel := context.WithCancel(t.Context())
		first, second := s.wait(t.Context(), 1), s.wait(ctx, 1)
		want(true)
		s.give(1)
		if err := <-first; err != nil {
			t.Error(err)
		}
		want(true)
		cancel()
		if err := <-second; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		want(false)
	})
}

// TestConcurrent has many wait, be served and give up at once, with waiters that are used again.
// parity: S17
func TestConcurrent(t *testing.T) {
	s := &store{n: 3}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for i := range 500 {
				ctx, cancel := context.WithCancel(t.Context())
				if i%3 == 0 {
					cancel()
				}
				got, err := s.list.Wait(ctx, &s.mu, 1+i%3, s.take)
				if err == nil {
					s.give(got)
				} else if i%3 != 0 || got != 0 {
					t.Error(got, err)
				}
				cancel()
			}
		})
	}
	wg.Wait()
	if s.n != 3 || s.list.Waiting() || s.list.Wanted() {
		t.Error(s.n)
	}
}

// TestEndWhileServing ends the list from within take, as a connection does on which what was waited for cannot be sent: who
// waits is told once, and nobody after finds a wake-up that was another's.
// parity: S17
func TestEndWhileServing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &store{}
		take := func(n int) (int, bool) {
			if got, ok := s.take(n); ok {
				s.list.End()
				return got, true
			}
			return 0, false
		}
		errs := make(chan error, 2)
		for range 2 {
			go func() {
				_, err := s.list.Wait(t.Context(), &s.mu, 1, take)
				errs <- err
			}()
		}
		synctest.Wait()
		s.mu.Lock()
		s.n = 2
		s.list.Serve(take)
		s.mu.Unlock()
		for range 2 {
			if err := <-errs; !errors.Is(err, ErrEnded) {
				t.Error(err)
			}
		}
		if s.n != 1 || s.list.Len() != 0 || s.list.Waiting() || s.list.Wanted() {
			t.Errorf("%d left, %d wait", s.n, s.list.Len())
		}
	})
}

// workingWait is store.wait with a goroutine that works while it waits.
func (s *store) workingWait(ctx context.Context, n int, work func(context.Context, Entry)) chan error {
	done := make(chan error, 1)
	go func() {
		got, err := s.list.WaitWorking(ctx, &s.mu, n, s.take, work)
		if err == nil && got != n {
			err = errors.New("another amount")
		}
		done <- err
	}()
	synctest.Wait()
	return done
}

// served returns Entry.Served, for which it takes the lock.
func (s *store) served(e Entry) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return e.Served()
}

// TestWaitWorking: the work begins in the queue and without the lock, may serve its own goroutine or others, and does not end the wait when
// it returns before.
func TestWaitWorking(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, calls := &store{}, 0
		if err := <-s.workingWait(t.Context(), 2, func(_ context.Context, e Entry) {
			calls++
			if s.served(e) || s.list.Len() != 1 {
				t.Errorf("the work begins with %d goroutines in the queue", s.list.Len())
			}
			s.give(1)
			if s.served(e) {
				t.Error("served with a part")
			}
			s.give(1)
			if !s.served(e) {
				t.Error("not served by the work")
			}
		}); err != nil || calls != 1 {
			t.Errorf("%d calls of the work, %v", calls, err)
		}
		early := s.workingWait(t.Context(), 2, func(context.Context, Entry) { s.give(1) })
		pending(t, "the wait of a goroutine whose work has ended", early)
		late := s.workingWait(t.Context(), 1, func(_ context.Context, e Entry) {
			s.give(1) // for the other one, which has come before
			if s.served(e) {
				t.Error("served before an earlier goroutine")
			}
		})
		if err := <-early; err != nil {
			t.Error(err)
		}
		pending(t, "the wait of the second", late)
		s.give(2)
		if err := <-late; err != nil || s.n != 1 {
			t.Error(err, s.n)
		}
		if err := <-s.workingWait(t.Context(), 1, func(context.Context, Entry) { t.Error("work for a goroutine that need not wait") }); err != nil {
			t.Error(err)
		}
	})
}

// TestWaitWorkingEnds: the end of the context reaches the work, and ends the wait after it. The end of the list during the work ends the
// wait as well.
func TestWaitWorkingEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, cause := &store{}, errors.New("patience")
		ctx, cancel := context.WithCancelCause(t.Context())
		working := s.workingWait(ctx, 1, func(ctx context.Context, _ Entry) { <-ctx.Done() })
		pending(t, "the wait", working)
		cancel(cause)
		if err := <-working; !errors.Is(err, cause) || s.list.Waiting() {
			t.Error(err)
		}
		if err := <-s.workingWait(t.Context(), 1, func(_ context.Context, e Entry) {
			s.mu.Lock()
			s.list.End()
			s.mu.Unlock()
			if !s.served(e) {
				t.Error("the work does not see the end of the list")
			}
		}); !errors.Is(err, ErrEnded) {
			t.Error(err)
		}
		if err := <-s.workingWait(t.Context(), 1, func(context.Context, Entry) { t.Error("work for a list that has ended") }); !errors.Is(err, ErrEnded) {
			t.Error(err)
		}
	})
}
