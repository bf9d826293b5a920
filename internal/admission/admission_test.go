package admission

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"cinnabar/identity"
	"cinnabar/internal/hostquota"
)

func hostNumber(n byte) hostquota.Host {
	return hostquota.HostOf(netip.AddrFrom4([4]byte{192, 0, 2, n}))
}

// TestAdmit checks the results of the function, and that a panic and a goroutine that ends are refusals.
func TestAdmit(t *testing.T) {
	var none *Gate
	if err := none.Admit(t.Context(), hostNumber(1), identity.Peer{}); err != nil || New(nil, nil) != nil || none.Wait(t.Context()) != nil {
		t.Errorf("without a function: %v", err)
	}
	panics := 0
	g := New(func(_ context.Context, p identity.Peer) error {
		switch p.UID {
		case 1:
			return errors.New("not today")
		case 2:
			panic("oops")
		case 3:
			runtime.Goexit()
		}
		return nil
	}, func(any, []byte) { panics++ })
	for uid, want := range []string{"", "not today", "it panicked", "it ended its goroutine"} {
		err := g.Admit(t.Context(), hostNumber(1), identity.Peer{UID: uint32(uid)})
		if want == "" && err != nil || want != "" && (!errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), want)) {
			t.Errorf("uid %d: %v, want %q", uid, err, want)
		}
	}
	if err := g.Wait(t.Context()); err != nil || panics != 1 {
		t.Errorf("%v, %d panics", err, panics)
	}
}

// TestBounds has one host hold all its places with calls that ignore their contexts. Its further peers are refused in time, and those of
// other hosts are asked about.
func TestBounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		var asked atomic.Int32
		g := New(func(_ context.Context, p identity.Peer) error {
			if p.UID == 1 {
				asked.Add(1)
				<-release
			}
			return nil
		}, nil)
		results := make(chan error, 2*maxOfHost)
		for range 2 * maxOfHost {
			go func() { results <- g.Admit(t.Context(), hostNumber(1), identity.Peer{UID: 1}) }()
		}
		synctest.Wait()
		g.mu.Lock()
		if g.running != maxOfHost {
			t.Errorf("%d calls of one host, want %d", g.running, maxOfHost)
		}
		g.mu.Unlock()
		if err := g.Admit(t.Context(), hostNumber(2), identity.Peer{}); err != nil {
			t.Errorf("another host: %v", err)
		}
		for range 2 * maxOfHost { // time passes
			if err := <-results; !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), "did not decide") {
				t.Errorf("%v", err)
			}
		}
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		if err := g.Wait(ended); err == nil || !strings.Contains(err.Error(), "16 calls") {
			t.Errorf("Wait with calls: %v", err)
		}
		close(release)
		if err := g.Wait(t.Context()); err != nil || asked.Load() != maxOfHost {
			t.Errorf("%v, asked %d times", err, asked.Load())
		}
	})
}

// TestClosed checks that the end of an endpoint ends a call and a wait for one.
func TestClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := New(func(ctx context.Context, _ identity.Peer) error { <-ctx.Done(); return context.Cause(ctx) }, nil)
		ctx, cancel := context.WithCancelCause(t.Context())
		closed := errors.New("closed")
		results := make(chan error)
		for n := range maxCalls + 1 {
			go func() { results <- g.Admit(ctx, hostNumber(byte(n)), identity.Peer{}) }()
		}
		synctest.Wait()
		cancel(closed)
		for range maxCalls + 1 {
			if err := <-results; !errors.Is(err, ErrRefused) || !errors.Is(err, closed) {
				t.Errorf("%v", err)
			}
		}
		if err := g.Wait(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// TestManyHostsLeavePlaces has ten hosts, each with more peers than it has places, hold as many places as they get. A peer of another host is asked about at once.
func TestManyHostsLeavePlaces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asked [12]atomic.Int32
		g := New(func(ctx context.Context, p identity.Peer) error {
			if asked[p.UID].Add(1); p.UID > 10 {
				return nil
			}
			<-ctx.Done()
			return context.Cause(ctx)
		}, nil)
		ctx, cancel := context.WithCancel(t.Context())
		var all sync.WaitGroup
		for host := range 10 {
			for range 2 * maxOfHost {
				all.Go(func() { _ = g.Admit(ctx, hostNumber(byte(host)), identity.Peer{UID: uint32(host)}) })
			}
		}
		synctest.Wait()
		for host := range 10 {
			if n := asked[host].Load(); n < 2 || n > maxOfHost {
				t.Errorf("host %d has %d places", host, n)
			}
		}
		began := time.Now()
		if err := g.Admit(t.Context(), hostNumber(11), identity.Peer{UID: 11}); err != nil || time.Since(began) > 0 {
			t.Errorf("another host, after %v: %v", time.Since(began), err)
		}
		cancel()
		all.Wait()
		if err := g.Wait(t.Context()); err != nil || len(g.lanes()) > 0 {
			t.Errorf("%v, lanes of %v are left", err, g.lanes())
		}
	})
}

// lanes returns the hosts that have lanes.
func (g *Gate) lanes() []hostquota.Host {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Collect(maps.Keys(g.hosts))
}

// TestTurns fills all places, and then has one host wait with many peers before another one waits with two. Each place that is given up goes to
// the hosts in turn.
func TestTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const greedy, modest = 100, 101
		release := make(chan struct{})
		var mu sync.Mutex
		var order []uint32
		g := New(func(_ context.Context, p identity.Peer) error {
			mu.Lock()
			order = append(order, p.UID)
			mu.Unlock()
			<-release
			return nil
		}, nil)
		var all sync.WaitGroup
		begin := func(host byte, n int) {
			for range n {
				all.Go(func() { _ = g.Admit(t.Context(), hostNumber(host), identity.Peer{UID: uint32(host)}) })
			}
			synctest.Wait()
		}
		for host := range byte(maxCalls) { // the last hosts find no place
			begin(host, 1)
		}
		begin(greedy, maxOfHost)
		begin(modest, 2)
		if len(order) != maxCalls {
			t.Fatalf("%d calls at once, want %d", len(order), maxCalls)
		}
		for range 6 {
			release <- struct{}{}
			synctest.Wait()
		}
		got := order[maxCalls:]
		if want := []uint32{greedy, modest, greedy, modest, greedy, greedy}; !slices.Equal(got[:2], want[:2]) && !slices.Equal(got[:2], []uint32{modest, greedy}) ||
			!slices.Contains(got[2:4], modest) {
			t.Errorf("calls begin for hosts %v, want %v", got, want)
		}
		close(release)
		all.Wait()
		if err := g.Wait(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// TestGivenUpWait ends a wait for a place. The place goes to a call that still waits.
func TestGivenUpWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		g := New(func(context.Context, identity.Peer) error { <-release; return nil }, nil)
		results := make(chan error, maxOfHost+1)
		for range maxOfHost {
			go func() { results <- g.Admit(t.Context(), hostNumber(1), identity.Peer{}) }()
		}
		synctest.Wait()
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- g.Admit(ctx, hostNumber(1), identity.Peer{}) }()
		synctest.Wait()
		go func() { results <- g.Admit(t.Context(), hostNumber(1), identity.Peer{}) }()
		synctest.Wait()
		cancel()
		if err := <-ended; !errors.Is(err, ErrRefused) || !errors.Is(err, context.Canceled) {
			t.Errorf("a wait that was given up: %v", err)
		}
		close(release)
		for range maxOfHost + 1 {
			if err := <-results; err != nil {
				t.Error(err)
			}
		}
	})
}
