package admission

import (
	"context"
	"errors"
	"net/netip"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"

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
