package xfer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"cinnabar/verbs"
	"cinnabar/verbs/fault"
	"cinnabar/verbs/iwarp"
	"cinnabar/verbs/verbstest/memdev"
)

// faults is what can go wrong with one work request, and whether the
// protocols promise to notice.
var faults = map[string]struct {
	do     fault.Action
	at     fault.Point
	unseen bool // the basic protocol, which has no checksums, cannot notice
}{
	"status":      {do: fault.Status(verbs.StatusRemAccessErr), at: fault.AtSend},
	"lie":         {do: fault.Status(verbs.StatusSuccess), at: fault.AtSend, unseen: true},
	"drop":        {do: fault.Drop(), at: fault.AtSend},
	"partial":     {do: fault.Partial(10, verbs.StatusRetryExcErr), at: fault.AtSend},
	"disconnect":  {do: fault.Disconnect(), at: fault.AtSend},
	"delay":       {do: fault.Delay(30), at: fault.AtSend},
	"not ready":   {do: fault.NotReady(30), at: fault.AtSend},
	"no retries":  {do: fault.NotReady(-1), at: fault.AtSend},
	"duplicate":   {do: fault.Duplicate(), at: fault.AtSend, unseen: true},
	"overrun":     {do: fault.Overrun(), at: fault.AtSend},
	"recv status": {do: fault.Status(verbs.StatusLocLenErr), at: fault.AtRecv},
	"recv drop":   {do: fault.Drop(), at: fault.AtRecv},
	"recv delay":  {do: fault.Delay(30), at: fault.AtRecv},
}

// A fault on either side, at any work request, in either protocol, ends in a
// whole file or in none, never in a hang; a sender that reports success is right,
// and the next transfer works.
func TestFaults(t *testing.T) {
	for name, f := range faults {
		for nth := 1; nth <= 12; nth++ {
			for _, p := range []Protocol{Basic, Fast} {
				for side := range 2 { // the sender's queue pair is made first
					rule := fault.Rule{Match: fault.Match{At: f.at, Nth: nth, Queue: 1 + side}, Do: f.do}
					t.Run(fmt.Sprintf("%s %d %v side %d", name, nth, p, side), func(t *testing.T) {
						synctest.Test(t, func(t *testing.T) { underFault(t, rule, p, f.unseen && p == Basic) })
					})
				}
			}
		}
	}
}

func underFault(t *testing.T, rule fault.Rule, p Protocol, unseen bool) {
	t.Helper()
	dev := fault.Wrap(verbs.NewDevice(memdev.Open(memdev.Config{})), fault.Plan{Rules: []fault.Rule{rule}})
	l := must(verbs.Listen(dev, loopback))(t)
	var files []*memFile
	r := Receiver{Timeout: 10 * time.Second, Open: func(context.Context, netip.AddrPort, string, Meta, int64) (File, error) {
		files = append(files, &memFile{disk: instant})
		return files[len(files)-1], nil
	}}
	data := noise(5*minChunk + 1)
	s := Sender{Protocol: p, Chunk: minChunk, Window: 2, Timeout: 10 * time.Second}
	for i := range 2 {
		start := time.Now()
		received := make(chan error, 1)
		go func() {
			_, err := r.ServeOne(t.Context(), l)
			received <- err
		}()
		_, err := s.Send(t.Context(), dev, l.Addr(), sourceOf("f", data))
		serr := <-received
		for _, err := range []error{err, serr} {
			if e, ok := errors.AsType[*Error](err); err != nil && (!ok || e.Code == CodeOther || i > 0) {
				t.Errorf("transfer %d: %v", i, err)
			}
		}
		if took := time.Since(start); took > 30*time.Second {
			t.Errorf("transfer %d took %v", i, took)
		}
		var f *memFile
		if len(files) > 0 {
			f = files[len(files)-1]
		}
		switch {
		case f == nil || !f.committed:
			if err == nil || serr == nil {
				t.Errorf("sender: %v, receiver: %v, but there is no file", err, serr)
			}
		case !unseen && !bytes.Equal(f.data, data):
			t.Errorf("sender: %v, receiver: %v, but the file of %d bytes is not the one sent", err, serr, len(f.data))
		}
		if f != nil && f.committed == f.discarded {
			t.Errorf("file committed %v, discarded %v", f.committed, f.discarded)
		}
	}
	if err := errors.Join(l.Close(), dev.Close()); err != nil {
		t.Error(err)
	}
}

// What cannot be created, on either side, is an error that says what.
func TestNoResources(t *testing.T) {
	ctx := testContext(t)
	broken := errors.New("no more of these")
	for _, at := range []fault.Point{fault.AtRegister, fault.AtCreateCQ, fault.AtCreateQP} {
		for _, skip := range []int{0, 1} { // the second registration is that of the data
			if skip > 0 && at != fault.AtRegister {
				continue
			}
			queue := 1 // the first protection domain
			if at == fault.AtCreateCQ {
				queue = 0
			}
			plan := fault.Plan{Rules: []fault.Rule{{Match: fault.Match{At: at, Queue: queue, Skip: skip, Limit: 1}, Do: fault.Fail(broken)}}}
			good := serve(t, device(t, iwarp.Config{}), Receiver{}, DirOptions{})
			bad := fault.Wrap(must(iwarp.Open(iwarp.Config{}))(t), plan)
			_, err := (&Sender{}).Send(ctx, bad, good.addr, sourceOf("f", nil))
			if !errors.Is(err, broken) {
				t.Errorf("%v, sender: got %v", at, err)
			}
			bad2 := fault.Wrap(must(iwarp.Open(iwarp.Config{}))(t), plan)
			srv := serve(t, bad2, Receiver{}, DirOptions{})
			dev := device(t, iwarp.Config{})
			_, err = (&Sender{}).Send(ctx, dev, srv.addr, sourceOf("f", nil))
			wantCode(t, err, CodeStorage, true, "no more of these")
			_, err = srv.outcome(ctx)
			wantCode(t, err, CodeStorage, false, "no more of these")
			if _, err := (&Sender{}).Send(ctx, dev, srv.addr, sourceOf("f", nil)); err != nil {
				t.Errorf("%v, the next transfer: %v", at, err)
			}
			srv.stop()
			if err := errors.Join(bad.Close(), bad2.Close()); err != nil {
				t.Error(err)
			}
		}
	}
}

// Connections that are not made: each with reason and address.
// parity: B47
func TestNoConnection(t *testing.T) {
	ctx := testContext(t)
	for name, c := range map[string]struct {
		do   fault.Action
		code Code
		want string
	}{
		"refused":               {fault.Refuse(), CodeLost, "connection refused"},
		"rejected in silence":   {fault.Reject(nil), CodeLost, "rejected by the peer"},
		"rejected by something": {fault.Reject([]byte("garbage")), CodeLost, "7 bytes of private data"},
		"not answered":          {fault.Ignore(), CodeTimeout, "within 100ms"},
		"no route":              {fault.Fail(errors.New("route error")), CodeLost, "route error"},
	} {
		dev := fault.Wrap(must(iwarp.Open(iwarp.Config{}))(t), fault.Plan{Rules: []fault.Rule{{Match: fault.Match{At: fault.AtDial}, Do: c.do}}})
		_, err := (&Sender{Timeout: 100 * time.Millisecond}).Send(ctx, dev, loopback, sourceOf("f", nil))
		wantCode(t, err, c.code, false, c.want, "127.0.0.1:0")
		if err := dev.Close(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	dev := device(t, iwarp.Config{})
	ended, cancel := context.WithCancel(ctx)
	cancel()
	_, err := (&Sender{}).Send(ended, dev, loopback, sourceOf("f", nil))
	wantCode(t, err, CodeCanceled, false)
	late, cancel := context.WithDeadline(ctx, time.Now().Add(-time.Second)) // the caller's, not the timeout
	defer cancel()
	_, err = (&Sender{}).Send(late, dev, loopback, sourceOf("f", nil))
	wantCode(t, err, CodeCanceled, false, "deadline exceeded")
}

// Requests that cannot be taken do not end the server.
func TestAcceptFails(t *testing.T) {
	ctx := testContext(t)
	var log logBuffer
	dev := fault.Wrap(must(iwarp.Open(iwarp.Config{}))(t), fault.Plan{Rules: []fault.Rule{
		{Match: fault.Match{At: fault.AtRequest, Limit: 2}, Do: fault.Fail(errors.New("too many open files"))}}})
	srv := serve(t, dev, Receiver{Logger: log.logger()}, DirOptions{})
	cl := device(t, iwarp.Config{})
	for i := range 3 {
		_, err := (&Sender{}).Send(ctx, cl, srv.addr, sourceOf("f", nil))
		if (err == nil) != (i == 2) {
			t.Errorf("sender %d: %v", i, err)
		}
	}
	wantText(t, log.String(), "too many open files")
	srv.stop()
	if err := dev.Close(); err != nil {
		t.Error(err)
	}
}

// The end of the program's context on either side is told to the other.
// parity: S17
func TestCancel(t *testing.T) {
	for _, p := range []Protocol{Basic, Fast} {
		for _, server := range []bool{false, true} {
			t.Run(fmt.Sprintf("%v server %v", p, server), func(t *testing.T) {
				ctx, cancel := context.WithCancel(testContext(t))
				defer cancel()
				reached := make(chan struct{})
				srv := serve(t, device(t, iwarp.Config{}), Receiver{}, DirOptions{})
				src := sourceOf("f", noise(4*lastPolls*minChunk)) // more than what may still come while a session stops
				src.Data = stopSource{src.Data, 2 * minChunk, reached, ctx.Done()}
				sent := make(chan error, 1)
				sendCtx := ctx
				if server {
					sendCtx = testContext(t)
				}
				dev := device(t, iwarp.Config{})
				go func() {
					_, err := (&Sender{Protocol: p, Chunk: minChunk, Window: 1}).Send(sendCtx, dev, srv.addr, src)
					sent <- err
				}()
				<-reached
				if server {
					srv.cancel() // before the source goes on
				}
				cancel()
				err := <-sent
				if server {
					wantCode(t, err, CodeCanceled, true, "context canceled")
				} else {
					wantCode(t, err, CodeCanceled, false, "context canceled")
				}
				if _, err := srv.outcome(testContext(t)); err == nil {
					t.Error("the server knows nothing of it")
				}
				if names := srv.names(); len(names) > 0 {
					t.Errorf("the directory has %q", names)
				}
			})
		}
	}
}
