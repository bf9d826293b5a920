//go:build linux

package interop

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"cinnabar"
	"cinnabar/codes"
)

// TestCodesToC has handlers in Go fail in every way, and C clients, of Mercury and Margo, told the code.
// parity(peer): G38
func TestCodesToC(t *testing.T) {
	hgPeer.executable(t)
	failures := map[codes.Code]error{
		codes.Timeout:    context.DeadlineExceeded,
		codes.Canceled:   fmt.Errorf("wrapped: %w", context.Canceled),
		codes.OtherError: errors.New("something that has no code"),
		codes.NoDev:      &cinnabar.Error{Op: "test", Code: codes.NoDev},
	}
	for c := codes.Permission; c < codes.OtherError; c++ {
		if _, special := failures[c]; !special {
			failures[c] = c
		}
	}
	for _, side := range []struct {
		program *program
		rpc     *procedures
	}{{hgPeer, mercury}, {margoPeer, margo}} {
		t.Run(side.program.name, func(t *testing.T) {
			q := startPeer(t, side.program, "--client")
			e, err := cinnabar.Listen(t.Context(), "ofi+tcp://127.0.0.1", nil)
			must(t, err)
			t.Cleanup(func() { closeEngine(t, e) })
			answers := make(chan error, 1)
			must(t, side.rpc.void.Handle(e, func(context.Context, none) (none, error) {
				err := <-answers
				if err == nil {
					panic("a handler that panics")
				}
				return none{}, err
			}))
			q.aim(e.Addr())
			for code, failure := range failures {
				answers <- failure
				q.check("void", fmt.Sprintf("ret=%d", code))
			}
			answers <- nil
			q.check("void", fmt.Sprintf("ret=%d", codes.OtherError))
			q.stop()
		})
	}
}
