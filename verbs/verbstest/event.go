package verbstest

import (
	"context"
	"errors"
	"sync"
	"testing"

	"cinnabar/verbs"
)

// noEvent checks that no asynchronous event waits. An ended context does not
// keep a waiting event from being returned.
func noEvent(t *testing.T, dev *verbs.Device) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if ev, err := dev.NextEvent(ctx); err == nil {
		t.Fatalf("event = %+v (%v), want none", ev, ev.Type)
	} else if !errors.Is(err, context.Canceled) {
		t.Fatalf("NextEvent: %v, want context.Canceled", err)
	}
}

// testEventWait ends waiting calls by their context and by Close.
// parity: V41
func testEventWait(t *testing.T, dev *verbs.Device) {
	noEvent(t, dev)
	ctx, cancel := context.WithCancel(testContext(t))
	var wg sync.WaitGroup
	errs := make([]error, 3)
	for i := range errs {
		wg.Go(func() { _, errs[i] = dev.NextEvent(ctx) })
	}
	cancel()
	wg.Wait()
	for _, err := range errs {
		if !errors.Is(err, context.Canceled) {
			t.Errorf("NextEvent: %v, want context.Canceled", err)
		}
	}
	ended := make(chan error, 1)
	go func() {
		for _, err := range dev.Events(context.Background()) {
			if err != nil {
				ended <- err
				return
			}
		}
		ended <- nil
	}()
	closeAll(t, "device", dev.Close)
	if err := <-ended; err != nil {
		t.Errorf("Events ended with %v, want no error after Close", err)
	}
	if _, err := dev.NextEvent(testContext(t)); !errors.Is(err, verbs.ErrClosed) {
		t.Errorf("NextEvent after Close: %v, want ErrClosed", err)
	}
}

// testViolationReported writes where it may not, on a device as it comes. Either
// the completion reports it, or, where writes complete before the peer has them, the
// queue pair's fatal event does. It must not pass in silence.
// parity: V41
func testViolationReported(t *testing.T, dev *verbs.Device) {
	p := NewPair(t, dev, PairConfig{})
	wr := p.Active.RDMA(1, verbs.OpWrite, 0, 8, p.Passive)
	wr.Remote.RKey ^= 1
	p.Active.PostSend(wr)
	if wc := p.Active.Take(1)[0]; wc.Status == verbs.StatusRemAccessErr {
		return
	} else if wc.Status != verbs.StatusSuccess {
		t.Fatalf("status = %v, want success or remote access error", wc.Status)
	}
	if attr(t, dev).Caps.Has(verbs.CapExactStatus) {
		t.Error("the device promises exact statuses and reported a success")
	}
	for ev, err := range dev.Events(p.Ctx) {
		if err != nil {
			t.Fatal(err)
		}
		if ev.Type == verbs.EventQPFatal && ev.QP == p.Active.QP {
			if ev.Err == nil {
				t.Error("the event has no cause")
			}
			break
		}
	}
	if p.Ctx.Err() != nil {
		t.Fatal("no event reported the violation")
	}
	p.Active.AwaitEnd()
	if err := p.Active.Conn.Err(); err == nil || errors.Is(err, verbs.ErrDisconnected) {
		t.Errorf("cause of the end = %v, want the violation", err)
	}
}

// testPeerReported looks at the side that was reached for: an event, too, since no
// request of its own is there to report it.
// parity: V41
func testPeerReported(t *testing.T, dev *verbs.Device) {
	p := NewPair(t, dev, PairConfig{})
	wr := p.Active.RDMA(1, verbs.OpRead, 0, 8, p.Passive)
	wr.Remote.RKey ^= 1
	p.Active.PostSend(wr)
	p.Active.Expect(1, verbs.StatusRemAccessErr, 0)
	for ev, err := range dev.Events(p.Ctx) {
		if err != nil {
			t.Fatal(err)
		}
		if ev.QP == p.Passive.QP && (ev.Type == verbs.EventQPAccessErr || ev.Type == verbs.EventQPFatal) {
			break
		}
	}
	if p.Ctx.Err() != nil {
		t.Fatal("the side that was reached for got no event")
	}
	p.Passive.AwaitEnd()
}
