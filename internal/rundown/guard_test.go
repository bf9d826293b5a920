package rundown

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"

	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"cinnabar/internal/invariants"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// over returns a context that has ended.
func over(t testing.TB) context.Context {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	return ctx
}

func TestGuard(t *testing.T) {
	var g Guard
	for range 2 {
		if !g.Acquire() {
			t.Fatal("an open guard refuses a user")
		}
	}
	if g.Users() != 2 || g.Closed() {
		t.Fatal("an open guard does not count its users, or is closed")
	}
	if first, second := g.Close(), g.Close(); !first || second || !g.Closed() {
		t.Error("Close does not say which call is the first")
	}
	if g.Acquire() || g.Users() != 2 {
		t.Error("a closed guard has a new user")
	}
	g.Release()
	if err := g.Wait(over(t)); !errors.Is(err, context.Canceled) {
		t.Errorf("with a user left: %v", err)
	}
	idle := g.Idle()
	select {
	case <-idle:
		t.Error("idle with a user left")
	default:
	}
	g.Release()
	<-idle
	<-g.Idle() // and again
	if err := g.Wait(over(t)); err != nil {
		t.Errorf("without users: %v", err)
	}
}

// TestJoin adds users to a closed Guard while it has one.
func TestJoin(t *testing.T) {
	var g Guard
	if g.Join() {
		t.Error("a guard without users is joined")
	}
	g.Acquire()
	g.Close()
	if !g.Join() || g.Users() != 2 || !g.Closed() {
		t.Errorf("a closed guard with a user is not joined, or open: %d users", g.Users())
	}
	g.Release()
	idle := g.Idle()
	g.Release()
	<-idle
	if g.Join() || g.Users() != 0 {
		t.Error("a guard whose users have gone is joined")
	}
}

func TestWaitOfOpenGuard(t *testing.T) {
	var g Guard
	if err := g.Wait(over(t)); err != nil {
		t.Errorf("of a guard without users: %v", err)
	}
	g.Acquire()
	done := make(chan error)
	go func() { done <- g.Wait(context.Background()) }()
	g.Release()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if !g.Acquire() {
		t.Error("Wait has closed the guard")
	}
}

func TestCloseIdle(t *testing.T) {
	var g Guard
	g.Acquire()
	if g.CloseIdle() || g.Closed() {
		t.Error("a guard in use is closed as idle")
	}
	g.Release()
	if first, second := g.CloseIdle(), g.CloseIdle(); !first || second || g.Acquire() {
		t.Error("an idle guard is not closed, or twice")
	}
	g.Reopen()
	if !g.Acquire() {
		t.Error("a guard that is opened again refuses users")
	}
	if !g.Close() {
		t.Error("a guard that is opened again cannot be closed")
	}
	g.Release()
	<-g.Idle()
}

func TestReleaseWithoutAcquire(t *testing.T) {
	if !invariants.Enabled {
		t.Skip("only a build with the tag invariants checks for a user too many; step race has the tag")
	}
	for _, end := range []bool{false, true} {
		var g Guard
		if end {
			g.Close()
		}
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("closed %v: a user too many is released", end)
				}
			}()
			g.Release()
		}()
	}
}

// Random histories of one goroutine agree with a number and a flag.
func TestModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var g Guard
		users, end := 0, false
		var idle []<-chan struct{} // of users that were there
		t.Repeat(map[string]func(*rapid.T){
			"acquire": func(t *rapid.T) {
				if got := g.Acquire(); got == end {
					t.Fatalf("Acquire is %v of a guard with closed %v", got, end)
				}
				if !end {
					users++
				}
			},
			"release": func(t *rapid.T) {
				if users == 0 {
					t.Skip("Release needs a user: rapid takes another action")
				}
				g.Release()
				if users--; users == 0 {
					for _, c := range idle {
						<-c
					}
					idle = nil
				}
			},
			"close": func(t *rapid.T) {
				if got := g.Close(); got == end {
					t.Fatalf("Close is %v of a guard with closed %v", got, end)
				}
				end = true
			},
			"closeIdle": func(t *rapid.T) {
				want := users == 0 && !end
				if got := g.CloseIdle(); got != want {
					t.Fatalf("CloseIdle is %v, want %v", got, want)
				}
				end = end || want
			},
			"reopen": func(t *rapid.T) { g.Reopen(); end = false },
			"idle": func(*rapid.T) {
				if c := g.Idle(); users > 0 {
					idle = append(idle, c)
				} else {
					<-c
				}
			},
			"": func(t *rapid.T) {
				if g.Users() != int64(users) || g.Closed() != end {
					t.Fatalf("%d users, closed %v; want %d, %v", g.Users(), g.Closed(), users, end)
				}
				for _, c := range idle {
					select {
					case <-c:
						t.Fatalf("idle with %d users", users)
					default:
					}
				}
			},
		})
	})
}

// TestRundown closes a guard while many users acquire and release it. After Wait there is no user, and Acquire refuses. Their state
// has no other synchronization, so the race detector reports a user that is left.
func TestRundown(t *testing.T) {
	rounds := 200
	if testing.Short() {
		rounds = 50
	}
	for range rounds {
		var g Guard
		var inside atomic.Int64
		state := make([]int, 4) // user i writes state[i]; the owner writes all after the end
		var wg sync.WaitGroup
		for i := range state {
			wg.Go(func() {
				for g.Acquire() {
					inside.Add(1)
					state[i]++
					inside.Add(-1)
					g.Release()
				}
			})
		}
		for range 2 { // several owners may wait
			wg.Go(func() { <-g.Idle() })
		}
		wg.Go(func() {
			g.Close()
			if err := g.Wait(context.Background()); err != nil {
				t.Error(err)
			}
			if n := inside.Load(); n != 0 {
				t.Errorf("%d users are left", n)
			}
			clear(state)
		})
		wg.Wait()
	}
}

// A waiter that comes at the same moment as the last Release leaves is woken.
func TestWaitMeetsRelease(t *testing.T) {
	rounds := 3000
	if testing.Short() {
		rounds = 300
	}
	for i := range rounds {
		var g Guard
		g.Acquire()
		if i%2 == 0 {
			g.Close()
		}
		var wg sync.WaitGroup
		wg.Go(g.Release)
		for range 2 {
			wg.Go(func() { <-g.Idle() })
		}
		if err := g.Wait(context.Background()); err != nil {
			t.Fatal(err)
		}
		wg.Wait()
	}
}

// A Release that has made an open guard idle, and has not yet woken waiters, does not wake those of a user that came after it.
func TestLateWake(t *testing.T) {
	var g Guard
	g.Acquire()
	g.n.Add(-1) // the first half of a Release
	g.Acquire()
	g.Close()
	idle := g.Idle()
	g.wake() // the second half
	select {
	case <-idle:
		t.Error("a closed guard is idle with a user left")
	default:
	}
	g.Release()
	<-idle
}

// TestIdleAfterClose closes a guard while users come and go, and waits only once: no user is left. The state that the users write is
// not synchronized in any other way.
func TestIdleAfterClose(t *testing.T) {
	rounds := 500
	if testing.Short() {
		rounds = 50
	}
	for range rounds {
		var g Guard
		state := make([]int, 4)
		var wg sync.WaitGroup
		for i := range state {
			wg.Go(func() {
				for g.Acquire() {
					state[i]++
					g.Release()
				}
			})
		}
		g.Close()
		<-g.Idle()
		clear(state)
		wg.Wait()
	}
}

func TestAllocs(t *testing.T) {
	var g Guard
	if n := testing.AllocsPerRun(100, func() {
		g.Acquire()
		g.Release()
		if err := g.Wait(context.Background()); err != nil {
			t.Error(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkGuard(b *testing.B) {
	var g Guard
	for b.Loop() {
		if !g.Acquire() {
			b.Fatal("closed")
		}
		g.Release()
	}
}

// BenchmarkMutex is a count under a mutex.
func BenchmarkMutex(b *testing.B) {
	var mu sync.Mutex
	n, end := 0, false
	for b.Loop() {
		mu.Lock()
		if end {
			b.Fatal("closed")
		}
		n++
		mu.Unlock()
		mu.Lock()
		n--
		mu.Unlock()
	}
}
