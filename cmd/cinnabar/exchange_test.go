package main

import (
	"strings"
	"testing"

	"cinnabar/cmd/cinnabar/internal/clitest"
)

func TestExchangeIsBounded(t *testing.T) {
	a, b := clitest.TCPPair(t)
	x := newExchange(b)
	go func() {
		_, _ = a.Write([]byte(`"` + strings.Repeat("x", 2*exchangeLimit))) // the other end may hang up
		a.Close()
	}()
	var got string
	clitest.WantError(t, x.receive(t.Context(), &got), "out-of-band exchange")
	if n := x.bytes.Load(); n != exchangeLimit {
		t.Errorf("%d bytes were read, the limit is %d", n, exchangeLimit)
	}
}
