package cinnabar

import (
	"context"
	"runtime"
	"testing"
	"time"

	"cinnabar/codes"
	"cinnabar/internal/na/natest"
)

// TestStalledTransfer has a peer stop serving its memory in the middle, for ever. A transfer without a deadline, which once
// waited for as long as the connection lived, fails and says why.
func TestStalledTransfer(t *testing.T) {
	const size = 100_000
	stop := func(s *natest.Step) natest.Action {
		if (s.Kind == natest.KindGet || s.Kind == natest.KindPut) && s.Offset >= 40_000 {
			return natest.Lose
		}
		return natest.Proceed
	}
	for _, limit := range []time.Duration{0, time.Minute} {
		simulate(t, natest.Config{Chunk: 10_000, Fault: stop}, &Config{TransferStall: limit}, func(t *testing.T, s *sim) {
			want := limit
			if want == 0 {
				want = 30 * time.Second
			}
			theirs := expose(t, s.server, ReadWrite, make([]byte, size))
			mine := expose(t, s.client, ReadWrite, make([]byte, size))
			r := RemoteBulk{ep: s.ep, h: theirs.Handle(), n: size}
			for name, transfer := range map[string]func() error{
				"pull":          func() error { _, err := r.Pull(context.Background(), mine); return err },
				"push":          func() error { _, err := r.Push(context.Background(), mine); return err },
				"read":          func() error { _, err := r.ReadAt(t.Context(), make([]byte, size), 0); return err },
				"chunks":        func() error { _, err := r.PullChunks(context.Background(), mine, 60_000, 2); return err },
				"in background": func() error { _, err := r.StartPull(context.Background(), mine).Wait(); return err },
			} {
				start := time.Now()
				err := transfer()
				took := time.Since(start)
				wantCode(t, err, codes.Timeout, "have moved, and none for", "Config.TransferStall", s.ep.String())
				if took < want || took > want+want/2 {
					t.Errorf("%s: ended after %v, want %v", name, took, want)
				}
			}
			ctx, cancel := context.WithTimeout(t.Context(), 3*want)
			defer cancel()
			start := time.Now()
			if _, err := r.Pull(ctx, mine); codes.Of(err) != codes.Timeout || time.Since(start) != 3*want {
				t.Errorf("with a deadline: %v after %v", err, time.Since(start))
			}
			if s.client.ops.watch.armed.Load() {
				elapse(time.Minute)
				if s.client.ops.watch.armed.Load() {
					t.Error("the timer runs while nothing is under way")
				}
			}
		})
	}
}

// TestSlowTransferIsNotStalled has transfers that take minutes, and one that waits behind another of the same peer.
func TestSlowTransferIsNotStalled(t *testing.T) {
	simulate(t, natest.Config{Chunk: 1000, Delay: 25 * time.Second}, nil, func(t *testing.T, s *sim) {
		theirs := expose(t, s.server, ReadWrite, make([]byte, 30_000))
		mine := expose(t, s.client, ReadWrite, make([]byte, 30_000))
		r := RemoteBulk{ep: s.ep, h: theirs.Handle(), n: 30_000}
		start := time.Now()
		if n, err := r.PullChunks(context.Background(), mine, 10_000, 3); n != 30_000 || err != nil {
			t.Errorf("%d bytes, %v", n, err)
		}
		if took := time.Since(start); took < time.Minute {
			t.Errorf("it took %v, which is no test", took)
		}
	})
}

// TestStallIsSwitchedOff checks that negative values switch the watching off.
func TestStallIsSwitchedOff(t *testing.T) {
	lose := func(s *natest.Step) natest.Action {
		if s.Kind == natest.KindGet {
			return natest.Lose
		}
		return natest.Proceed
	}
	simulate(t, natest.Config{Fault: lose}, &Config{TransferStall: -1, KeepAlive: -1}, func(t *testing.T, s *sim) {
		theirs := expose(t, s.server, ReadOnly, make([]byte, 100_000))
		mine := expose(t, s.client, WriteOnly, make([]byte, 100_000))
		p := (RemoteBulk{ep: s.ep, h: theirs.Handle(), n: 100_000}).StartPull(context.Background(), mine)
		elapse(time.Hour)
		select {
		case <-p.Done():
			t.Error("the transfer has ended")
		default:
		}
		if s.client.ops.watch.armed.Load() {
			t.Error("the timer runs")
		}
		p.cancel()
		_, err := p.Wait()
		wantCode(t, err, codes.Canceled)
	})
}

// TestFrozenPeerIsNoticed has a peer stop while calls without a deadline wait for it, which once waited for ever. A peer whose
// handler is slow, but which makes progress, is waited for.
func TestFrozenPeerIsNoticed(t *testing.T) {
	simulate(t, natest.Config{}, nil, func(t *testing.T, s *sim) {
		slow := NewRPC[int64, int64]("slow")
		must(t, slow.Handle(s.server, func(_ context.Context, minutes int64) (int64, error) {
			elapse(time.Duration(minutes) * time.Minute)
			return minutes, nil
		}))
		if out, err := slow.Call(context.Background(), s.ep, 30); out != 30 || err != nil {
			t.Errorf("a handler that takes half an hour: %d, %v", out, err)
		}
		s.net.Hold(s.serverEnd)
		start := time.Now()
		p := slow.Start(context.Background(), s.ep, 1)
		_, err := slow.Call(context.Background(), s.ep, 1)
		wantCode(t, err, codes.HostUnreach, "frozen, or makes no progress", "Config.KeepAlive")
		_, err = p.Wait()
		wantCode(t, err, codes.HostUnreach)
		if took := time.Since(start); took < 5*time.Minute || took > 6*time.Minute {
			t.Errorf("ended after %v, want some 5 minutes", took)
		}
		s.net.Release(s.serverEnd)
		if out, err := slow.Call(context.Background(), s.ep, 1); out != 1 || err != nil {
			t.Errorf("after it goes on: %d, %v", out, err)
		}
		elapse(time.Minute)
		if s.client.ops.watch.armed.Load() {
			t.Error("the timer runs while nothing is under way")
		}
	})
}

// TestStalledTransferOfHandler has a peer stop serving its memory while a handler fetches it with a deadline that is far
// away. The transfer fails as one without a deadline does, because the peer would hold the handler until then.
func TestStalledTransferOfHandler(t *testing.T) {
	const size = 100_000
	stop := func(s *natest.Step) natest.Action {
		if s.Kind == natest.KindGet && s.Offset >= 40_000 {
			return natest.Lose
		}
		return natest.Proceed
	}
	simulate(t, natest.Config{Chunk: 10_000, Fault: stop}, nil, func(t *testing.T, s *sim) {
		theirs := expose(t, s.client, ReadOnly, make([]byte, size))
		mine := expose(t, s.server, WriteOnly, make([]byte, size))
		fetch := NewRPC[string, int64]("fetch")
		must(t, fetch.Handle(s.server, func(ctx context.Context, _ string) (int64, error) {
			ctx, cancel := context.WithTimeout(ctx, time.Hour)
			defer cancel()
			start := time.Now()
			_, err := RemoteBulk{ep: InfoFrom(ctx).Peer, h: theirs.Handle(), n: size}.Pull(ctx, mine)
			wantCode(t, err, codes.Timeout, "have moved, and none for", "Config.TransferStall")
			return int64(time.Since(start)), nil
		}))
		took, err := fetch.Call(t.Context(), s.ep, "")
		must(t, err)
		if took := time.Duration(took); took < 30*time.Second || took > 45*time.Second {
			t.Errorf("ended after %v, want 30s", took)
		}
	})
}

// TestStallWatchMissesNoOperation has the timer find nothing while an operation is being recorded. The operation arms the
// timer afterwards, because nothing else would look at it.
//
// +checklocksignore: it does not follow locks in a loop.
func TestStallWatchMissesNoOperation(t *testing.T) {
	e := listening(t, nil)
	ds := &e.ops
	ds.watch.armed.Store(true) // the timer is about to look
	for i := range ds.shards {
		ds.shards[i].mu.Lock()
	}
	begun := make(chan *opRecord)
	go func() { begun <- ds.begin(&opRecord{op: "test"}) }()
	for range 1000 {
		runtime.Gosched() // begin comes to wait for a shard; the test finds less where it has not
	}
	ds.watch.armed.Store(false) // the timer has looked
	for i := range ds.shards {
		ds.shards[i].mu.Unlock()
	}
	defer (<-begun).end()
	if !ds.watch.armed.Load() {
		t.Error("nothing looks at the operation")
	}
}
