package xfer

import (
	"context"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"cinnabar/verbs"
	"cinnabar/verbs/fault"
	"cinnabar/verbs/verbstest/memdev"
)

// slowToHear is a device that tells of a connection's end a second late, as the kernel does under load: what was posted comes back before.
type slowToHear struct{ verbs.DeviceDriver }

type lateConn struct {
	verbs.ConnDriver
	done chan struct{}
}

func (d slowToHear) Dial(ctx context.Context, qp verbs.QPDriver, addr netip.AddrPort, p verbs.ConnParam) (verbs.ConnDriver, error) {
	c, err := d.DeviceDriver.Dial(ctx, qp, addr, p)
	if err != nil {
		return nil, err
	}
	late := &lateConn{c, make(chan struct{})}
	go func() {
		<-c.Done()
		<-time.NewTimer(time.Second).C
		close(late.done)
	}()
	return late, nil
}

func (c *lateConn) Done() <-chan struct{} { return c.done }

// sendFlushed sends a file whose first chunk is flushed, on a device that tells of the end a second later. It returns what Send
// did, and after how long.
func sendFlushed(ctx context.Context, t *testing.T) (time.Duration, error) {
	t.Helper()
	flushed := fault.Rule{Match: fault.Match{At: fault.AtSend, Queue: 1, Nth: 2}, Do: fault.Status(verbs.StatusWRFlushErr)}
	dev := fault.Wrap(verbs.NewDevice(slowToHear{memdev.Open(memdev.Config{})}), fault.Plan{Rules: []fault.Rule{flushed}})
	l := must(verbs.Listen(dev, loopback))(t)
	received := make(chan error, 1)
	go func() {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		r := Receiver{Open: func(context.Context, netip.AddrPort, string, Meta, int64) (File, error) {
			return &memFile{disk: instant}, nil
		}}
		_, err := r.ServeOne(ctx, l)
		received <- err
	}()
	begin := time.Now()
	_, err := (&Sender{Protocol: Basic}).Send(ctx, dev, l.Addr(), sourceOf("f", noise(minChunk)))
	took := time.Since(begin)
	if <-received == nil {
		t.Error("the receiver is content")
	}
	for _, c := range []interface{ Close() error }{l, dev} {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
	return took, err
}

// A request that was flushed says nothing; what the connection says of its end is told, even if it comes later.
// parity: B46
func TestReasonOfConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, err := sendFlushed(t.Context(), t)
		wantCode(t, err, CodeLost, false, "ended")
		if strings.Contains(err.Error(), "lush") {
			t.Errorf("got %v", err)
		}
	})
}

// Who gives up while the reason is waited for does not have to wait for it.
func TestReasonNotAwaited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		defer cancel()
		if took, err := sendFlushed(ctx, t); err == nil || took >= time.Second {
			t.Errorf("%v after %v", err, took)
		}
	})
}
