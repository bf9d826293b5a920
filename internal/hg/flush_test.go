package hg

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"cinnabar/internal/na/natest"
)

// TestFlush waits for responses that the network does not take: several waiters, one of which gives up.
func TestFlush(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := natest.New(natest.Config{})
		server := open(t, n, Config{Dispatch: handler(echo)})
		client := open(t, n, Config{})
		if err := server.Flush(t.Context()); err != nil {
			t.Errorf("nothing to send: %v", err)
		}
		n.Hold(server.ep)
		var calls []*Call
		for range 3 {
			k := client.NewCall()
			k.Start(client.at(t, server.ep), 1, CallOptions{}, k.Input())
			calls = append(calls, k)
		}
		synctest.Wait()
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := server.Flush(short); !errors.Is(err, context.DeadlineExceeded) || server.Unsent() == 0 {
			t.Errorf("Flush = %v with %d unsent", err, server.Unsent())
		}
		flushed := make(chan error, 2)
		for range cap(flushed) {
			go func() { flushed <- server.Flush(t.Context()) }()
		}
		synctest.Wait()
		if len(flushed) != 0 {
			t.Error("Flush does not wait")
		}
		n.Release(server.ep)
		for range cap(flushed) {
			if err := <-flushed; err != nil || server.Unsent() != 0 {
				t.Errorf("Flush = %v with %d unsent", err, server.Unsent())
			}
		}
		for _, k := range calls {
			if err := k.Wait(t.Context()); err != nil {
				t.Error(err)
			}
			k.Free()
		}
	})
}
