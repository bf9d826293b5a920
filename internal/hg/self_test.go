package hg

import (
	"bytes"
	"context"
	"testing"
	"testing/synctest"
	"time"

	"cinnabar/codes"
	"cinnabar/internal/na"
	"cinnabar/internal/na/natest"
)

// parity: H53
func TestSelfCall(t *testing.T) {
	n := natest.New(natest.Config{})
	var me *node
	oneWay := make(chan int, 1)
	mem := pattern(1 << 21)
	me = open(t, n, Config{Dispatch: handler(func(r *Request) {
		switch {
		case !r.From().Equal(me.ep.Addr()):
			t.Errorf("request comes from %v", r.From())
		case r.OneWay():
			oneWay <- len(r.Input())
			return
		case r.ID() == 2:
			_ = r.Fail(codes.Busy)
			return
		case r.ID() == 3: // pull from the caller
			d, _, err := DecodeProc(r.Input(), OverNetwork)
			if err != nil {
				t.Error(err)
			}
			got := make([]byte, d.Len())
			if _, err := transfer(t, me, Pull, r.From(), d, 0, [][]byte{got}); err != nil || !bytes.Equal(got, mem) {
				t.Errorf("pull from itself: %v", err)
			}
		}
		echo(r)
	})})
	self := me.ep.Addr()
	for _, size := range []int{0, 10, 4064, 5000, 1 << 20} {
		in := pattern(size)
		if out, err := call(t, me, self, 1, in); err != nil || !bytes.Equal(out, in) {
			t.Errorf("size %d: %d bytes, %v", size, len(out), err)
		}
	}
	if _, err := call(t, me, self, 2, nil); codeFrom(t, err) != codes.Busy {
		t.Errorf("fail: %v", err)
	}
	if _, err := call(t, me, self, 3, expose(t, me, na.ReadOnly, mem).Desc().AppendProc(nil, 0, OverNetwork)); err != nil {
		t.Error(err)
	}
	k := me.NewCall()
	k.Start(self, 1, CallOptions{OneWay: true}, make([]byte, 5000))
	if err := k.Wait(t.Context()); err != nil {
		t.Error(err)
	}
	k.Free()
	if got := <-oneWay; got != 5000 {
		t.Errorf("one-way: %d bytes", got)
	}
	if got := n.Steps(); got != 0 {
		t.Errorf("%d steps on the network, want none", got)
	}
	me.selfCalls.mu.Lock()
	if got := len(me.selfCalls.active); got != 0 {
		t.Errorf("%d calls are remembered after their end", got)
	}
	me.selfCalls.mu.Unlock()
	if got := me.Stats().SelfCalls; got != 8 {
		t.Errorf("counted %d calls to itself, want 8", got)
	}
}

// parity: H53
func TestSelfCallRefused(t *testing.T) {
	n := natest.New(natest.Config{})
	me := open(t, n, Config{NoLoopback: true, Dispatch: handler(echo)})
	if _, err := call(t, me, me.ep.Addr(), 1, nil); codeFrom(t, err) != codes.OpNotSupported {
		t.Error(err)
	}
	nobody := open(t, n, Config{})
	if _, err := call(t, nobody, nobody.ep.Addr(), 1, nil); codeFrom(t, err) != codes.NoEntry {
		t.Errorf("without a dispatcher: %v", err)
	}
}

// TestSelfCallCanceled: the handler goes on and answers nobody, also when the Call is in use again.
func TestSelfCallCanceled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := natest.New(natest.Config{})
		proceed := make(chan struct{})
		me := open(t, n, Config{Dispatch: handler(func(r *Request) {
			if r.ID() == 1 {
				<-proceed
			}
			echo(r)
		})})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		k := me.NewCall()
		k.Start(me.ep.Addr(), 1, CallOptions{}, append(k.Input(), "late"...))
		start := time.Now()
		if err := k.Wait(ctx); codeFrom(t, err) != codes.Timeout || time.Since(start) != time.Second {
			t.Errorf("%v after %v", err, time.Since(start))
		}
		k.recycle() // as Free and NewCall do, if the pool gives the same one
		k.state.prepare()
		k.Start(me.ep.Addr(), 1, CallOptions{}, append(k.Input(), "next"...))
		proceed <- struct{}{} // the first one answers
		synctest.Wait()
		if k.done.IsSet() {
			t.Error("the late answer meets the next call")
		}
		proceed <- struct{}{}
		if err := k.Wait(t.Context()); err != nil || string(k.Output()) != "next" {
			t.Errorf("%q, %v", k.Output(), err)
		}
		k.Free()
	})
}

func TestSelfCallClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := natest.New(natest.Config{})
		proceed := make(chan struct{})
		me := open(t, n, Config{Dispatch: handler(func(r *Request) { <-proceed })})
		k := me.NewCall()
		k.Start(me.ep.Addr(), 1, CallOptions{}, nil)
		time.AfterFunc(time.Second, func() { close(proceed) }) // the handler ends after Close has begun
		if err := me.Close(t.Context()); err != nil {
			t.Error(err)
		}
		if err := k.Wait(t.Context()); codeFrom(t, err) != codes.Canceled {
			t.Error(err)
		}
		k.Free()
	})
}
