package xfer

import (
	"context"
	"errors"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"cinnabar/verbs"
	"cinnabar/verbs/verbstest/memdev"
)

// firstOutcome is what ServeFirst has returned, and what Done was called with.
type firstOutcome struct {
	res    Result
	err    error
	others []error
}

// serveFirst starts ServeFirst and returns its outcome later.
func serveFirst(ctx context.Context, l *verbs.Listener, r Receiver) <-chan firstOutcome {
	var mu sync.Mutex
	var o firstOutcome
	r.Done = func(_ Result, err error) {
		mu.Lock()
		defer mu.Unlock()
		o.others = append(o.others, err)
	}
	ended := make(chan firstOutcome, 1)
	go func() {
		o.res, o.err = r.ServeFirst(ctx, l)
		ended <- o
	}()
	return ended
}

// TestServeFirstIsNotDelayed has senders that say nothing, and one whose name is refused, come before one that sends a file.
// The file comes at once, and not when the time of each silent one is over. The silent ones are then ended with a reason, and a
// sender that comes later is refused.
func TestServeFirstIsNotDelayed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dev := verbs.NewDevice(memdev.Open(memdev.Config{}))
		t.Cleanup(func() {
			if err := dev.Close(); err != nil {
				t.Error(err)
			}
		})
		l := must(verbs.Listen(dev, loopback))(t)
		file := &memFile{disk: instant}
		ended := serveFirst(t.Context(), l, Receiver{Open: func(ctx context.Context, from netip.AddrPort, name string, _ Meta, _ int64) (File, error) {
			if name == "refused" {
				return nil, failf(CodeName, "not this one")
			}
			return file, nil
		}})
		const strangers = 3
		for range strangers {
			p := newRawShared(t, dev)
			p.postReceives(false)
			p.conn = must(verbs.Dial(p.ctx, p.qp, l.Addr(), verbs.ConnParam{PrivateData: appendHello(nil, hello{fast: true, size: 10, buffers: 1, chunk: minChunk})}))(t)
		}
		begin := time.Now()
		var s Sender
		_, err := s.Send(t.Context(), dev, l.Addr(), sourceOf("refused", noise(10)))
		wantCode(t, err, CodeName, true)
		synctest.Wait() // until the receiver has reported it
		if _, err := s.Send(t.Context(), dev, l.Addr(), sourceOf("f", noise(10))); err != nil {
			t.Error(err)
		}
		if took := time.Since(begin); took >= openTimeout {
			t.Errorf("the transfer has waited for %v", took)
		}
		o := <-ended
		if o.err != nil || o.res.Name != "f" || o.res.Size != 10 {
			t.Errorf("the first transfer: %+v, %v", o.res, o.err)
		}
		if len(o.others) != strangers+1 {
			t.Fatalf("%d others are reported, want %d: %v", len(o.others), strangers+1, o.others)
		}
		wantCode(t, o.others[0], CodeName, false)
		for _, err := range o.others[1:] {
			wantCode(t, err, CodeBusy, false, "takes one file")
		}
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
}

// TestServeFirstTakesOne has several senders send at once: one of them succeeds, which is the one that is returned, and the
// others are refused.
func TestServeFirstTakesOne(t *testing.T) {
	dev := verbs.NewDevice(memdev.Open(memdev.Config{}))
	l := must(verbs.Listen(dev, loopback))(t)
	dir, _ := openDir(t, DirOptions{})
	ended := serveFirst(testContext(t), l, Receiver{Open: dir.Open})
	names := []string{"a", "b", "c", "d"}
	errs := make([]error, len(names))
	var wg sync.WaitGroup
	ctx, cancel := context.WithCancel(testContext(t))
	for i, name := range names {
		wg.Go(func() {
			var s Sender
			_, errs[i] = s.Send(ctx, dev, l.Addr(), sourceOf(name, noise(100)))
		})
	}
	o := <-ended
	if err := l.Close(); err != nil { // those that were not taken yet are refused
		t.Error(err)
	}
	cancel()
	wg.Wait()
	for i, name := range names {
		if (errs[i] == nil) != (name == o.res.Name) {
			t.Errorf("%q is returned, and the sender of %q says %v", o.res.Name, name, errs[i])
		}
	}
	if o.err != nil {
		t.Error(o.err)
	}
	if err := dev.Close(); err != nil {
		t.Error(err)
	}
}

// TestServeFirstEndsWithContext ends the context before a sender has come.
func TestServeFirstEndsWithContext(t *testing.T) {
	dev := verbs.NewDevice(memdev.Open(memdev.Config{}))
	l := must(verbs.Listen(dev, loopback))(t)
	dir, _ := openDir(t, DirOptions{})
	ctx, cancel := context.WithCancel(t.Context())
	ended := serveFirst(ctx, l, Receiver{Open: dir.Open})
	cancel()
	if o := <-ended; !errors.Is(o.err, CodeCanceled) || !errors.Is(o.err, context.Canceled) {
		t.Error(o.err)
	}
	if err := errors.Join(l.Close(), dev.Close()); err != nil {
		t.Error(err)
	}
}
