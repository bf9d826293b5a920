package native_test

import (
	"context"
	"testing"

	"cinnabar"
	"cinnabar/codes"
	"cinnabar/native"
)

// TestDraining shuts a server down while a call, a stream and watches are under way. The call and the stream end normally, also by elements and
// a cancel that the client sends then, the watches end, and new calls are refused with a code of their own.
// parity: A06
func TestDraining(t *testing.T) {
	onNetworks(t, func(t *testing.T, network string) {
		server, ep := pair(t, network, nil, nil)
		ctx := patient(t)
		started, finish := make(chan struct{}, 3), make(chan struct{})
		wait := native.New[struct{}, uint32]("wait")
		must(t, wait.Handle(server, func(context.Context, struct{}) (uint32, error) {
			started <- struct{}{}
			<-finish
			return 7, nil
		}))
		endless := native.New[struct{}, uint32]("endless")
		must(t, endless.Handle(server, func(ctx context.Context, _ struct{}) (uint32, error) {
			started <- struct{}{}
			<-ctx.Done()
			return 0, ctx.Err()
		}))
		double := native.NewStream[uint32, uint32]("double")
		must(t, double.Handle(server, func(ctx context.Context, s *native.ServerStream[uint32, uint32]) error {
			started <- struct{}{}
			for n, err := range s.Receive(ctx) {
				if err != nil {
					return err
				}
				check(t, s.Send(ctx, 2*n))
			}
			return nil
		}))
		plain := cinnabar.NewRPC[struct{}, struct{}]("plain")
		must(t, plain.Handle(server, func(context.Context, struct{}) (struct{}, error) { return struct{}{}, nil }))
		var health native.Health
		must(t, health.Handle(server))

		result := make(chan error, 1)
		go func() {
			n, err := wait.Call(ctx, ep, struct{}{})
			if n != 7 {
				t.Errorf("the call has the result %d", n)
			}
			result <- err
		}()
		cancelled, cancel := context.WithCancel(ctx)
		defer cancel()
		abandoned := make(chan error, 1)
		go func() {
			_, err := endless.Call(cancelled, ep, struct{}{})
			abandoned <- err
		}()
		stream, err := double.Open(ctx, ep)
		must(t, err)
		for range 3 {
			soon(t, "a handler", started)
		}
		watch, err := native.WatchHealth(ctx, ep, "")
		must(t, err)
		for state, err := range watch.Receive(ctx) {
			if must(t, err); state != native.ServingYes {
				t.Errorf("the server is %v", state)
			}
			break
		}
		deaf, err := native.WatchHealth(ctx, ep, "") // which receives nothing
		must(t, err)
		waitUntil(t, "the second watch", func() bool { return server.Stats().RequestsActive >= 5 })

		down := make(chan error, 1)
		go func() { down <- server.Shutdown(ctx) }()
		wantError(t, watch.Wait(ctx), codes.Draining, "shutting down")
		wantError(t, deaf.Wait(ctx), codes.Draining)
		_, err = wait.Call(ctx, ep, struct{}{})
		wantError(t, err, codes.Draining, "has not begun the call")
		_, err = native.CheckHealth(ctx, ep, "")
		wantError(t, err, codes.Draining)
		late, err := double.Open(ctx, ep)
		if err == nil { // the refusal has not come yet
			if err := late.Send(ctx, 1); err != nil {
				wantError(t, err, codes.Draining)
			}
			err = late.Wait(ctx)
		}
		wantError(t, err, codes.Draining)
		_, err = plain.Call(ctx, ep, struct{}{})
		wantError(t, err, codes.Permission)

		must(t, stream.Send(ctx, 4)) // after the server has begun to shut down
		must(t, stream.CloseSend())
		var got []uint32
		for n, err := range stream.Receive(ctx) {
			must(t, err)
			got = append(got, n)
		}
		if len(got) != 1 || got[0] != 8 {
			t.Errorf("the stream has received %v", got)
		}
		cancel()
		wantError(t, soon(t, "the cancelled call", abandoned), codes.Canceled)
		close(finish)
		must(t, soon(t, "the call", result))
		must(t, soon(t, "Shutdown", down))
	})
}

// TestWatchLimit opens more watches than the server admits.
func TestWatchLimit(t *testing.T) {
	server, ep := pair(t, tcp, nil, nil)
	ctx := patient(t)
	health := native.Health{MaxWatches: 4}
	must(t, health.Handle(server))
	open := func() *native.ClientStream[string, native.Serving] {
		w, err := native.WatchHealth(ctx, ep, "")
		must(t, err)
		return w
	}
	receive := func(w *native.ClientStream[string, native.Serving]) (err error) {
		for _, err = range w.Receive(ctx) {
			break
		}
		return err
	}
	first := open()
	must(t, receive(first))
	second := open()
	must(t, receive(second))
	third, err := native.WatchHealth(ctx, ep, "")
	if err == nil { // the refusal has not come yet
		err = receive(third)
	}
	wantError(t, err, codes.Again, "2 clients of this host", "half of Health.MaxWatches")
	first.Cancel(nil)
	waitUntil(t, "the watch is over", func() bool {
		again, err := native.WatchHealth(ctx, ep, "")
		if err != nil {
			return false
		}
		defer again.Cancel(nil)
		return receive(again) == nil
	})
	second.Cancel(nil)
}
