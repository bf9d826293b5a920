package link

import (
	"strings"
	"testing"

	"cinnabar/cmd/cinnabar/internal/clitest"
)

func TestExchangeIsBounded(t *testing.T) {
	a, b := clitest.TCPPair(t)
	x := NewExchange(b)
	go func() {
		_, _ = a.Write([]byte(`"` + strings.Repeat("x", 2*ExchangeLimit))) // the other end may hang up
		a.Close()
	}()
	var got string
	clitest.WantError(t, x.Receive(t.Context(), &got), "out-of-band exchange")
	if n := x.Bytes.Load(); n != ExchangeLimit {
		t.Errorf("%d bytes were read, the limit is %d", n, ExchangeLimit)
	}
}
