package native_test

import (
	"context"
	"strings"
	"testing"

	"cinnabar/codes"
	"cinnabar/native"
)

// TestHealth checks and watches the state of services.
// parity: A06
func TestHealth(t *testing.T) {
	server, ep := pair(t, tcp, nil, nil)
	ctx, cancel := context.WithCancel(patient(t))
	defer cancel()
	_, err := native.CheckHealth(ctx, ep, "")
	wantError(t, err, codes.NoEntry)
	var h native.Health
	must(t, h.Handle(server))
	check := func(service string, want native.Serving) {
		t.Helper()
		if got, err := native.CheckHealth(ctx, ep, service); got != want || err != nil {
			t.Errorf("%q is %v, %v, want %v", service, got, err, want)
		}
	}
	check("", native.ServingYes)
	check("store", native.ServingUnknown)
	_, err = native.CheckHealth(ctx, ep, strings.Repeat("s", 2000))
	wantError(t, err, codes.InvalidArg, "at most 1024 bytes")

	watch, err := native.WatchHealth(ctx, ep, "store")
	must(t, err)
	next := func(want native.Serving) {
		t.Helper()
		for got, err := range watch.Receive(ctx) {
			if got != want || err != nil {
				t.Errorf("watched %v, %v, want %v", got, err, want)
			}
			return
		}
	}
	next(native.ServingUnknown)
	h.Set("store", native.ServingYes)
	next(native.ServingYes)
	check("store", native.ServingYes)
	h.Set("store", native.ServingYes) // no change
	h.Set("other", native.ServingNo)
	h.Set("store", native.ServingNo)
	next(native.ServingNo)
	h.Set("", native.ServingNo)
	check("", native.ServingNo)
	watch.Cancel(nil)
	wantError(t, watch.Wait(ctx), codes.Canceled)
	waitUntil(t, "no request is left", func() bool { return server.Stats().RequestsActive == 0 })

	silent, err := native.NewStream[string, native.Serving]("__native_health_watch__").Open(ctx, ep)
	must(t, err)
	must(t, silent.CloseSend())
	wantError(t, silent.Wait(ctx), codes.InvalidArg, "named no service")
}
