// Package enginetest has the engine of tests that call an example's server themselves.
package enginetest

import (
	"testing"

	"cinnabar"
)

// Dial opens an engine, which the end of the test closes, and returns it with the endpoint of the server at addr.
func Dial(t *testing.T, addr string) (*cinnabar.Engine, *cinnabar.Endpoint) {
	t.Helper()
	e, err := cinnabar.Open(t.Context(), "ofi+tcp://127.0.0.1", nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	ep, err := e.Lookup(addr)
	if err != nil {
		t.Fatal(err)
	}
	return e, ep
}
