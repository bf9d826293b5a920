//go:build unix

package cinnabar

import (
	"context"
	"errors"
	"testing"
	"time"

	"cinnabar/codes"
)

// TestRespondContext answers a client that stands still with a response that it has to fetch: the wait ends with the
// context, and the handler's goroutine goes on.
// parity: G36
func TestRespondContext(t *testing.T) {
	_, p, c := fetching(t)
	p.Suspend()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	answered := make(chan error, 1)
	go func() { answered <- c.Respond(ctx, largeOut{N: 1 << 20, Data: make([]byte, 1<<20)}) }()
	err := soon(t, "answer", answered)
	wantCode(t, err, codes.Timeout, "large")
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v is not the context's error", err)
	}
	wantCode(t, c.Respond(t.Context(), largeOut{}), codes.InvalidArg, "answered already")
	p.Resume()
	if got := p.Stdout.Line(); got != "1048576" { // the memory stays lent for a while
		t.Errorf("the client has fetched %s bytes", got)
	}
}

// TestRespondContextInTime answers within the limit, with short and long responses and to oneself.
// parity: G36
func TestRespondContextInTime(t *testing.T) {
	server, ep := pair(t, nil)
	size := uint32(0)
	must(t, large.HandleCall(server, func(c *Call[struct{}, largeOut]) {
		if err := c.Respond(c.Context(), largeOut{N: size, Data: make([]byte, size)}); err != nil {
			t.Error(err)
		}
	}))
	for _, size = range []uint32{0, 100, 1 << 20} {
		for _, to := range []*Endpoint{ep, server.Self()} {
			out, err := large.Call(patient(t), to, struct{}{})
			if err != nil || out.N != size || len(out.Data) != int(size) {
				t.Errorf("%d bytes to %v: %d bytes, %v", size, to, len(out.Data), err)
			}
		}
	}
}
