package cinnabar

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"cinnabar/codes"
)

// TestCallTimeout checks that a call ends with its context, that the late answer hurts nobody, and that the handler is
// not told.
// parity: G31 D02
func TestCallTimeout(t *testing.T) {
	server, ep := pair(t, nil)
	goOn, ctxErr := make(chan struct{}), make(chan error, 1)
	slow := NewRPC[addIn, addOut]("slow")
	must(t, add.Handle(server, handleAdd))
	must(t, slow.Handle(server, func(ctx context.Context, in addIn) (addOut, error) {
		<-goOn
		ctxErr <- ctx.Err()
		return addOut{Sum: in.X}, nil
	}))
	callAdd(t, ep) // connects, which may take longer than limit on a busy machine
	const limit = 100 * time.Millisecond
	start := time.Now()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	_, err := slow.Call(ctx, ep, addIn{X: 1})
	took := time.Since(start)
	wantCode(t, err, codes.Timeout, "slow", ep.String())
	if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("%v does not match", err)
	}
	if timeout, ok := errors.AsType[net.Error](err); !ok || !timeout.Timeout() {
		t.Errorf("%v is no time-out", err)
	}
	if took < limit || took > limit+testLimit/2 { // TestDeadlineExact is exact; this machine may be busy
		t.Errorf("took %v", took)
	}
	callAdd(t, ep)
	close(goOn)
	if err := soon(t, "handler", ctxErr); err != nil {
		t.Errorf("the handler's context has ended: %v", err)
	}
	for range 100 { // the late answer arrives among these
		callAdd(t, ep)
	}
}

// TestCancelRandom cancels calls at random times: each returns soon, right or wrong, and nothing is left of it.
// parity: H52 G37 Y01 D04
func TestCancelRandom(t *testing.T) {
	server, ep := pair(t, nil)
	must(t, add.Handle(server, handleAdd))
	must(t, block.Handle(server, handleBlock))
	runs := 10000
	if brief() {
		runs = 1000
	}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range runs / 8 {
				cancelAtRandom(t, ep)
			}
		})
	}
	wg.Wait()
	callAdd(t, ep)
	must(t, ep.e.Close()) // so that the blocked handlers' contexts end
	waitFor(t, func() bool { s := server.Stats(); return s.Handlers.Running == 0 && s.RequestsActive == 0 })
	if s := ep.e.Stats(); s.CallsActive != 0 {
		t.Errorf("%d calls are left", s.CallsActive)
	}
}

func cancelAtRandom(t *testing.T, ep *Endpoint) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(rand.N(200))*time.Microsecond)
	defer cancel()
	start := time.Now()
	var err error
	switch rand.N(20) {
	case 0:
		_, err = block.Call(ctx, ep, struct{}{})
	case 1:
		p := block.Start(ctx, ep, struct{}{})
		p.cancel()
		_, err = p.Wait()
	default:
		x, y := rand.Int32N(1000), rand.Int32N(1000)
		var out addOut
		if out, err = add.Call(ctx, ep, addIn{X: x, Y: y}); err == nil && out.Sum != x+y {
			t.Errorf("wrong answer %d to %d+%d", out.Sum, x, y)
		}
	}
	if code := codes.Of(err); code != codes.Code(0) && code != codes.Timeout && code != codes.Canceled {
		t.Errorf("error %v", err)
	}
	if took := time.Since(start); took > time.Minute { // TestCancelOnTime is exact; this machine may be busy
		t.Errorf("took %v", took)
	}
}

// TestUnreachable checks calls to where nobody is.
// parity: G41 D35
func TestUnreachable(t *testing.T) {
	client := calling(t, nil)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	addr := "ofi+tcp://" + l.Addr().String()
	must(t, l.Close())
	ep := find(t, client, addr)
	for range 2 {
		_, err = add.Call(patient(t), ep, addIn{})
		wantCode(t, err, codes.HostUnreach, "add", addr, "refused")
	}
	wantCode(t, NewOneWay[addIn]("note").Send(patient(t), ep, addIn{}), codes.HostUnreach, "note", addr)
	_, err = add.Start(patient(t), ep, addIn{}).Wait()
	wantCode(t, err, codes.HostUnreach, "add", addr)
}
