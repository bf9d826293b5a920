package sockio

import (
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"testing"
)

// TestCloseEndsWaiters: Close ends both waiters, whenever it comes.
func TestCloseEndsWaiters(t *testing.T) {
	eachPair(t, func(t *testing.T, a, b stream) {
		var wg, waiting sync.WaitGroup
		waiting.Add(2)
		park := func(name string, wait func(func() bool) error, first func()) {
			wg.Go(func() {
				calls := 0
				err := wait(func() bool {
					first()
					if calls++; calls == 1 {
						waiting.Done()
					}
					return false
				})
				if !errors.Is(err, net.ErrClosed) {
					t.Errorf("%s: %v, want net.ErrClosed", name, err)
				}
			})
		}
		park("waitRead", a.waitRead, func() {})
		park("waitWrite", a.waitWrite, func() { _ = fill(a) })
		waiting.Wait()
		if err := a.close(); err != nil {
			t.Errorf("close: %v", err)
		}
		wg.Wait()
		checkClosed(t, a)
	})
}

// checkClosed checks what every call on a closed stream returns.
func checkClosed(t *testing.T, s stream) {
	t.Helper()
	never := func() bool { t.Error("ready called after close"); return true }
	one := [][]byte{make([]byte, 1)}
	_, readErr := s.tryReadv(one)
	_, writeErr := s.tryWritev(one)
	for name, err := range map[string]error{
		"tryReadv":   readErr,
		"tryWritev":  writeErr,
		"waitRead":   s.waitRead(never),
		"waitWrite":  s.waitWrite(never),
		"closeWrite": s.closeWrite(),
		"close":      s.close(),
	} {
		if !errors.Is(err, net.ErrClosed) {
			t.Errorf("%s after close: %v, want net.ErrClosed", name, err)
		}
	}
	s.wakeRead() // no effect, no harm
	s.wakeWrite()
}

// TestCloseInsideReady: a ready function may close its own connection, as a
// device does that finds its peer at fault.
func TestCloseInsideReady(t *testing.T) {
	eachPair(t, func(t *testing.T, a, b stream) {
		for _, result := range []bool{false, true} {
			var err error
			if result {
				err = b.waitWrite(func() bool { _ = b.close(); return result })
			} else {
				err = a.waitRead(func() bool { _ = a.close(); return result })
			}
			if !errors.Is(err, net.ErrClosed) {
				t.Errorf("wait with close inside and ready = %v: %v, want net.ErrClosed", result, err)
			}
		}
		checkClosed(t, a)
		checkClosed(t, b)
	})
}

// TestCloseRaces closes at arbitrary moments while waiters come and go.
func TestCloseRaces(t *testing.T) {
	for range 50 {
		eachPair(t, func(t *testing.T, a, b stream) {
			var wg sync.WaitGroup
			for _, wait := range []func(func() bool) error{a.waitRead, a.waitWrite} {
				wg.Go(func() {
					for i := 0; ; i++ {
						err := wait(func() bool { return i%2 == 0 })
						if errors.Is(err, net.ErrClosed) {
							return
						}
						if err != nil {
							t.Errorf("wait: %v", err)
							return
						}
					}
				})
			}
			wg.Go(func() {
				for range 20 {
					a.wakeRead()
					a.wakeWrite()
				}
				_ = a.close()
			})
			wg.Wait()
		})
	}
}

// TestWakeIsNeverLost: whatever was true before a wake is seen by a call of
// ready after it, however the wake falls between two calls.
func TestWakeIsNeverLost(t *testing.T) {
	eachPair(t, func(t *testing.T, a, b stream) {
		for name, d := range map[string]struct {
			wait func(func() bool) error
			wake func()
		}{
			"read":  {a.waitRead, a.wakeRead},
			"write": {a.waitWrite, a.wakeWrite},
		} {
			for range 2000 {
				var flag atomic.Bool
				var wg sync.WaitGroup
				wg.Go(func() {
					flag.Store(true)
					d.wake()
				})
				if err := d.wait(flag.Load); err != nil {
					t.Fatalf("%s: %v", name, err)
				}
				wg.Wait()
			}
		}
	})
}

// TestWakeBeforeWait: wakes with nobody waiting leave nothing behind that would
// hinder later transfers.
func TestWakeBeforeWait(t *testing.T) {
	eachPair(t, func(t *testing.T, a, b stream) {
		for range 3 {
			a.wakeWrite()
			b.wakeRead()
			b.wakeRead()
			var wg sync.WaitGroup
			wg.Go(func() {
				if err := readFull(b, make([]byte, 8)); err != nil {
					t.Errorf("read: %v", err)
				}
			})
			if err := writeAll(a, []byte("12345678")); err != nil {
				t.Errorf("write: %v", err)
			}
			wg.Wait()
		}
	})
}

// TestTryBesideWaiter: try calls of another goroutine go on while one is parked.
func TestTryBesideWaiter(t *testing.T) {
	eachPair(t, func(t *testing.T, a, b stream) {
		const rounds = 300
		var wg sync.WaitGroup
		wg.Go(func() {
			err := b.waitRead(func() bool { return false }) // guards, reads nothing
			if !errors.Is(err, net.ErrClosed) {
				t.Errorf("waitRead: %v", err)
			}
		})
		wg.Go(func() {
			for range rounds {
				if err := writeAll(a, []byte("12345678")); err != nil {
					t.Errorf("write: %v", err)
				}
			}
		})
		buf := [][]byte{make([]byte, 8*rounds)}
		for got := 0; got < 8*rounds; {
			n, err := b.tryReadv(buf)
			if err != nil && !errors.Is(err, ErrWouldBlock) {
				t.Fatalf("tryReadv after %d bytes: %v", got, err)
			}
			got += n
		}
		if err := b.close(); err != nil {
			t.Error(err)
		}
		wg.Wait()
	})
}

// TestWaiterSeesData: data that arrives while the waiter is parked wakes it.
func TestWaiterSeesData(t *testing.T) {
	eachPair(t, func(t *testing.T, a, b stream) {
		parked := make(chan struct{})
		var wg sync.WaitGroup
		wg.Go(func() {
			<-parked
			if err := writeAll(a, []byte("x")); err != nil {
				t.Errorf("write: %v", err)
			}
		})
		first, buf := true, make([]byte, 1)
		err := b.waitRead(func() bool {
			n, err := b.tryReadv([][]byte{buf})
			if first {
				first = false
				close(parked)
			}
			return n == 1 || !errors.Is(err, ErrWouldBlock)
		})
		if err != nil || buf[0] != 'x' {
			t.Errorf("waitRead: %v, byte %q", err, buf[0])
		}
		wg.Wait()
	})
}
