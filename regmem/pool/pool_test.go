package pool

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"
)

// A Get of a pool without free buffers waits for a Release.
// parity: G67
func TestGetWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d device
		p := newTestPool(t, 2, d.makeReused)
		if p.Count() != 2 {
			t.Errorf("%d buffers", p.Count())
		}
		first, second := take(t, p), take(t, p)
		if first == second || first.plain == second.plain {
			t.Error("one buffer for two")
		}
		_, err := p.TryGet()
		want(t, err, ErrEmpty)
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		_, err = p.Get(ended)
		want(t, err, context.Canceled)
		timeout, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err = p.Get(timeout)
		want(t, err, context.DeadlineExceeded)

		var got [3]*reused // by users that come one after the other
		for i := range got {
			go func() {
				b, err := p.Get(t.Context())
				if err != nil {
					t.Error(err)
				}
				got[i] = b
			}()
			synctest.Wait()
		}
		must(t, p.Release(first))
		synctest.Wait()
		if got[0] == nil || got[0].plain != first.plain || got[0] == first || got[1] != nil {
			t.Error("the first user that waits has not got the buffer that was released")
		}
		must(t, p.Release(second))
		must(t, p.Release(got[0]))
		synctest.Wait()
		if got[1] == nil || got[2] == nil {
			t.Error("a user still waits")
		}
		must(t, p.Release(got[1]))
		if b, err := p.Get(ended); err != nil || b == nil { // a Get that need not wait
			t.Errorf("a free buffer and an ended context: %v", err)
		}
	})
}

// parity: G67
func TestRelease(t *testing.T) {
	var d device
	t.Run("recycled", func(t *testing.T) { testRelease(t, d.makeReused) })
	t.Run("plain", func(t *testing.T) { testRelease(t, d.make) })
	d.wantOpen(t, 0)
}

func testRelease[B Buffer](t *testing.T, maker func() (B, error)) {
	p, other := newTestPool(t, 2, maker), newTestPool(t, 1, maker)
	b, none := take(t, p), *new(B)
	want(t, p.Release(none), ErrReleased)
	want(t, other.Release(b), ErrReleased)
	must(t, p.Release(b))
	want(t, p.Release(b), ErrReleased)
	_, _ = take(t, p), take(t, p)
	_, err := p.TryGet()
	want(t, err, ErrEmpty) // the second Release has freed no buffer
}

// A buffer of the previous user is not one of the pool.
func TestReleaseOfOldBuffer(t *testing.T) {
	var d device
	p := newTestPool(t, 1, d.makeReused)
	old := take(t, p)
	must(t, p.Release(old))
	now := take(t, p)
	want(t, p.Release(old), ErrReleased)
	_, err := p.TryGet()
	want(t, err, ErrEmpty)
	must(t, p.Release(now))
}

// A buffer that its user has closed, or that cannot be recycled for another reason, is replaced.
func TestLostBuffer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d device
		p := newTestPool(t, 1, d.makeReused)
		b := take(t, p)
		must(t, b.Close())
		d.wantOpen(t, 0)
		waiting := make(chan *reused)
		go func() {
			b, err := p.Get(t.Context())
			if err != nil {
				t.Error(err)
			}
			waiting <- b
		}()
		synctest.Wait()
		err := p.Release(b)
		want(t, err, errRecycled)
		b = <-waiting
		d.wantOpen(t, 1)

		d.failReuse = true
		want(t, p.Release(b), errRecycled)
		d.wantOpen(t, 0) // the pool has closed it
		d.failReuse = false

		d.failMake.Store(true) // every Get fails, and none waits
		for range 2 {
			_, err = p.Get(t.Context())
			want(t, err, errMade)
			_, err = p.TryGet()
			want(t, err, errMade)
		}
		d.failMake.Store(false)
		must(t, p.Release(take(t, p)))
		if p.Count() != 1 {
			t.Errorf("%d buffers", p.Count())
		}
		d.wantOpen(t, 1)
	})
}

// All users that wait learn that no buffer can be made.
func TestLostBufferFailsAllWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d device
		p := newTestPool(t, 1, d.makeReused)
		b := take(t, p)
		var got results
		for range 5 {
			go func() {
				_, err := p.Get(t.Context())
				got.add(err)
			}()
		}
		synctest.Wait()
		d.failMake.Store(true)
		must(t, b.Close())
		want(t, p.Release(b), errRecycled)
		synctest.Wait()
		if n := len(got.all()); n != 5 {
			t.Errorf("%d of 5 users have returned", n)
		}
		for _, err := range got.all() {
			want(t, err, errMade)
		}
	})
}

// A panic in the program's functions loses no slot.
func TestPanics(t *testing.T) {
	var d device
	broken := false
	p := newTestPool(t, 1, func() (*panicking, error) {
		if broken {
			panic("make")
		}
		b, err := d.make()
		return &panicking{b}, err
	})
	caught := func(f func()) {
		t.Helper()
		defer func() {
			if recover() == nil {
				t.Error("no panic")
			}
		}()
		f()
	}
	b := take(t, p)
	caught(func() { _ = p.Release(b) })
	broken = true
	caught(func() { _, _ = p.TryGet() })
	broken = false
	_ = take(t, p)
	must(t, b.Close()) // of which the pool no longer knows
	must(t, p.Close())
	d.wantOpen(t, 0)
}

// panicking is a buffer with a faulty Recycle.
type panicking struct{ *plain }

func (*panicking) Recycle() (*panicking, error) { panic("recycle") }

// Buffers that make or Recycle return twice have one user each.
func TestSameBufferTwice(t *testing.T) {
	var d device
	same, _ := d.make()
	if p, err := New(2, func() (*plain, error) { return same, nil }); err == nil || p != nil {
		t.Error("a pool with one buffer for two")
	}
	d.wantOpen(t, 0)
	shared := &twice{}
	p := newTestPool(t, 2, func() (*twice, error) { return &twice{next: shared}, nil })
	must(t, p.Release(take(t, p))) // its slot is now behind that of the other
	if err := p.Release(take(t, p)); err == nil {
		t.Error("a second buffer is recycled into the first")
	}
	if first, second := take(t, p), take(t, p); first != shared || second == shared {
		t.Error("one buffer for two")
	}
}

// twice is a buffer that is recycled into next.
type twice struct{ next *twice }

func (b *twice) Recycle() (*twice, error) { return b.next, nil }
func (*twice) Close() error               { return nil }

// parity: G67
func TestClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d device
		p, err := New(3, d.makeReused)
		must(t, err)
		b, _ := take(t, p), take(t, p) // the third is free
		var got results
		for range 3 {
			go func() {
				b, err := p.Get(t.Context())
				if err == nil { // one of them
					<-p.done
					err = errors.Join(p.Release(b), ErrClosed)
				}
				got.add(err)
			}()
		}
		synctest.Wait()
		for range 2 {
			must(t, p.Close())
		}
		synctest.Wait()
		if n := len(got.all()); n != 3 {
			t.Errorf("%d of 3 users have returned", n)
		}
		for _, err := range got.all() {
			want(t, err, ErrClosed)
		}
		_, err = p.TryGet()
		want(t, err, ErrClosed)
		want(t, p.Release(b), ErrReleased)
		d.wantOpen(t, 0)
	})
}

// Close closes all buffers at the same time, because each may wait for a peer, and waits for Recycle and make under way, whose buffers
// it closes too.
func TestCloseWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := device{slowClose: time.Second}
		p, err := New(8, d.makeReused)
		must(t, err)
		began := time.Now()
		must(t, p.Close())
		if took := time.Since(began); took != time.Second {
			t.Errorf("Close of 8 buffers takes %v", took)
		}
		s, err := NewSet(4, []int64{1, 2}, func(int64) (*reused, error) { return d.makeReused() })
		must(t, err)
		began = time.Now()
		must(t, s.Close())
		if took := time.Since(began); took != time.Second {
			t.Errorf("Close of a set takes %v", took)
		}

		d.slowClose, d.slowReuse = 0, time.Minute
		slow := make(chan struct{})
		p, err = New(2, func() (*reused, error) {
			if d.made.Load() > 17 { // after New
				<-slow
			}
			return d.makeReused()
		})
		must(t, err)
		b, lost := take(t, p), take(t, p)
		must(t, lost.Close())
		want(t, p.Release(lost), errRecycled)
		var released, got results
		go func() { released.add(p.Release(b)) }()
		go func() {
			_, err := p.Get(t.Context())
			got.add(err)
		}()
		synctest.Wait()
		began = time.Now()
		go func() {
			time.Sleep(time.Hour) //nolint:forbidigo // simulated time
			close(slow)
		}()
		must(t, p.Close())
		if took := time.Since(began); took != time.Hour {
			t.Errorf("Close takes %v", took)
		}
		d.wantOpen(t, 0)
		synctest.Wait()
		must(t, errors.Join(released.all()...))
		want(t, errors.Join(got.all()...), ErrClosed)
	})
}

// The errors of the buffers are those of New, Release and Close.
func TestErrors(t *testing.T) {
	d := device{failClose: true}
	p, err := New(2, d.make)
	must(t, err)
	for range 2 {
		want(t, p.Close(), errClosing)
	}
	n := 0
	_, err = New(3, func() (*plain, error) {
		if n++; n == 3 {
			return nil, errMade
		}
		return d.make()
	})
	want(t, err, errMade)
	want(t, err, errClosing)
	d.wantOpen(t, 0)
	for _, n := range []int{0, -1} {
		if _, err := New(n, d.make); err == nil {
			t.Errorf("a pool of %d buffers", n)
		}
	}
	if _, err := New[*plain](1, nil); err == nil {
		t.Error("a pool without a function")
	}
}

// The end of the buffers' device ends the pool's use, also for users that wait.
func TestEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := device{ended: make(chan struct{})}
		p := newTestPool(t, 1, d.makeEnding)
		b := take(t, p)
		var got results
		for range 2 {
			go func() {
				_, err := p.Get(t.Context())
				got.add(err)
			}()
		}
		synctest.Wait()
		close(d.ended)
		synctest.Wait()
		if n := len(got.all()); n != 2 {
			t.Errorf("%d of 2 users have returned", n)
		}
		for _, err := range got.all() {
			want(t, err, ErrClosed)
		}
		must(t, p.Release(b))
		_, err := p.TryGet()
		want(t, err, ErrClosed)
		_, err = p.Get(t.Context())
		want(t, err, ErrClosed)
		must(t, p.Close())
		d.wantOpen(t, 0)
	})
}

// parity: G68
func TestSet(t *testing.T) {
	var d device
	sized := map[*plain]int64{}
	s, err := NewSet(1, []int64{10, 100, 1000}, func(size int64) (*plain, error) {
		b, err := d.make()
		sized[b] = size
		return b, err
	})
	must(t, err)
	if s.MaxSize() != 1000 {
		t.Errorf("the largest have %d bytes", s.MaxSize())
	}
	for _, c := range []struct{ ask, want int64 }{{0, 10}, {1, 10}, {10, 10}, {11, 100}, {100, 100}, {101, 1000}, {1000, 1000}} {
		b, err := s.Get(t.Context(), c.ask)
		if err != nil || sized[b] != c.want {
			t.Fatalf("asked for %d bytes: %d, %v", c.ask, sized[b], err)
		}
		must(t, s.Release(b))
		want(t, s.Release(b), ErrReleased)
	}
	for ask, text := range map[int64]string{
		1001: "pool: get buffer of 1001 bytes: larger than the allocator's memory: the buffers of this set have up to 1000",
		-1:   "pool: get buffer of -1 bytes: the size is negative",
	} {
		for _, get := range []func() (*plain, error){
			func() (*plain, error) { return s.Get(t.Context(), ask) },
			func() (*plain, error) { return s.TryGet(ask, true) },
		} {
			if _, err := get(); err == nil || err.Error() != text {
				t.Errorf("error %v, want %s", err, text)
			}
		}
	}
	small, err := s.TryGet(5, false)
	must(t, err)
	_, err = s.TryGet(5, false)
	want(t, err, ErrEmpty)
	for _, size := range []int64{100, 1000} {
		b, err := s.TryGet(5, true)
		if err != nil || sized[b] != size {
			t.Errorf("a larger one has %d bytes, want %d: %v", sized[b], size, err)
		}
	}
	_, err = s.TryGet(5, true)
	want(t, err, ErrEmpty)
	must(t, s.Release(small))
	must(t, s.Close())
	_, err = s.TryGet(5, true)
	want(t, err, ErrClosed)
	_, err = s.Get(t.Context(), 5)
	want(t, err, ErrClosed)
	want(t, s.Release(small), ErrReleased)
	d.wantOpen(t, 0)
}

func TestSetRefused(t *testing.T) {
	var d device
	maker := func(int64) (*plain, error) { return d.make() }
	for _, sizes := range [][]int64{nil, {0}, {-1, 1}, {10, 20, 20}, {10, 5}} {
		if _, err := NewSet(1, sizes, maker); err == nil {
			t.Errorf("a set of sizes %v", sizes)
		}
	}
	if _, err := NewSet(0, []int64{1}, maker); err == nil {
		t.Error("a set of 0 buffers")
	}
	if _, err := NewSet[*plain](1, []int64{1}, nil); err == nil {
		t.Error("a set without a function")
	}
	_, err := NewSet(1, []int64{1, 2}, func(size int64) (*plain, error) {
		if size == 2 {
			return nil, errMade
		}
		return d.make()
	})
	want(t, err, errMade)
	d.wantOpen(t, 0)
}

// Random histories of one goroutine agree with lists of the buffers.
func TestModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var d device
		n := rapid.IntRange(1, 4).Draw(t, "n")
		p, err := New(n, d.makeReused)
		if err != nil {
			t.Fatal(err)
		}
		var users, old []*reused
		lost := map[*reused]bool{} // users' buffers that they have closed
		end := false
		pick := func(from []*reused) int {
			if len(from) == 0 {
				t.Skip("no buffer: rapid takes another action")
			}
			return rapid.IntRange(0, len(from)-1).Draw(t, "buffer")
		}
		check := func(err, target error) {
			if !errors.Is(err, target) {
				t.Fatalf("error %v, want %v", err, target)
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"get": func(t *rapid.T) {
				b, err := p.TryGet()
				switch {
				case end:
					check(err, ErrClosed)
				case len(users) == n:
					check(err, ErrEmpty)
				case err != nil || b.gone.Load() || b.users.Add(1) != 1:
					t.Fatalf("a buffer that is in use or closed: %v", err)
				default:
					users = append(users, b)
				}
			},
			"release": func(*rapid.T) {
				i := pick(users)
				b := users[i]
				users = append(users[:i:i], users[i+1:]...)
				old = append(old, b)
				b.users.Add(-1)
				switch err := p.Release(b); {
				case end:
					check(err, ErrReleased)
				case lost[b]:
					check(err, errRecycled)
				default:
					check(err, nil)
				}
			},
			"releaseOld": func(*rapid.T) { check(p.Release(old[pick(old)]), ErrReleased) },
			"closeBuffer": func(*rapid.T) {
				b := users[pick(users)]
				check(b.Close(), nil)
				lost[b] = true
			},
			"closePool": func(t *rapid.T) {
				if rapid.IntRange(0, 9).Draw(t, "rarely") == 0 {
					check(p.Close(), nil)
					end = true
				}
			},
			"": func(t *rapid.T) {
				if got := d.open.Load(); got > int64(n) || end && got != 0 {
					t.Fatalf("%d of %d buffers are open, pool closed %v", got, n, end)
				}
			},
		})
		check(p.Close(), nil)
		if d.open.Load() != 0 {
			t.Fatalf("%d buffers are open after Close", d.open.Load())
		}
	})
}

// Many users share few buffers, and some of them close theirs, until the pool is closed. No buffer has two users, and none is left
// open.
func TestManyUsers(t *testing.T) {
	rounds := 20
	if testing.Short() {
		rounds = 4
	}
	for round := range rounds {
		var d device
		p, err := New(3, d.makeReused)
		must(t, err)
		var wg sync.WaitGroup
		for user := range 8 {
			wg.Go(func() {
				for i := range 500 {
					b, err := p.Get(context.Background())
					if err != nil {
						want(t, err, ErrClosed)
						return
					}
					if b.users.Add(1) != 1 {
						t.Error("a buffer has two users")
					}
					b.users.Add(-1)
					var wanted error
					if (i+user)%50 == 0 {
						must(t, b.Close())
						wanted = errRecycled
					}
					if err := p.Release(b); !errors.Is(err, wanted) && !errors.Is(err, ErrReleased) {
						t.Error(err)
					}
				}
			})
		}
		if round%2 == 0 {
			wg.Go(func() { must(t, p.Close()) })
		}
		wg.Wait()
		must(t, p.Close())
		d.wantOpen(t, 0)
	}
}

// A buffer with a context of its own is a struct, and a struct is as good as a pointer.
func TestStructBuffer(t *testing.T) {
	p := newTestPool(t, 2, func() func() (named, error) {
		n := 0
		return func() (named, error) { n++; return named{fmt.Sprint(n)}, nil }
	}())
	b := take(t, p)
	must(t, p.Release(b))
	want(t, p.Release(b), ErrReleased)
}

type named struct{ name string }

func (named) Close() error { return nil }

func TestAllocs(t *testing.T) {
	var d device
	p := newTestPool(t, 4, d.make)
	ctx := t.Context()
	if n := testing.AllocsPerRun(1000, func() {
		b, err := p.Get(ctx)
		must(t, err)
		must(t, p.Release(b))
	}); n != 0 {
		t.Errorf("%v allocations for Get and Release", n)
	}
}

func BenchmarkGet(b *testing.B) {
	var d device
	for _, n := range []int{1, 16, 1024} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			p := newTestPool(b, n, d.make)
			b.ReportAllocs()
			for b.Loop() {
				buf, err := p.Get(b.Context())
				must(b, err)
				must(b, p.Release(buf))
			}
		})
	}
}
