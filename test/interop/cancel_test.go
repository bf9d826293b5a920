//go:build linux

package interop

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"cinnabar"
	"cinnabar/codes"
)

// TestCancelAtC gives up transfers of 256 MiB, or of 64 MiB over an RDMA device, with a C process, earlier and later: each ends at once, its memory is
// another's afterwards although the rest may still be on its way, and a transfer that is left alone is right.
//
// All of them happen within one call of the C process, which frees its memory when it has the answer.
// parity(peer): H86
func TestCancelAtC(t *testing.T) {
	size := 256 << 20
	if os.Getenv(verbsEnv) != "" {
		size >>= 2 // because an emulated processor takes more than the 20 s of the peer's limit for the larger size
	}
	hgPeer.executable(t) // before so much memory is made
	mine := bytes.Repeat([]byte{0xEE}, size)
	for _, kind := range []string{"pull", "push"} {
		t.Run(kind, func(t *testing.T) {
			s := listen(t, mercury, nil)
			mode, transfer, rpc, whole := cinnabar.WriteOnly, cinnabar.RemoteBulk.Pull, s.rpc.pull, s.pull
			if kind == "push" {
				mode, transfer, rpc, whole = cinnabar.ReadOnly, cinnabar.RemoteBulk.Push, s.rpc.push, s.push
			}
			local, err := s.Alloc(mode, int64(size))
			must(t, err)
			must(t, rpc.Remove(s.Engine), rpc.Handle(s.Engine, func(ctx context.Context, in moveIn) (moveOut, error) {
				remote := in.Bulk.On(cinnabar.InfoFrom(ctx).Peer)
				given := 0
				for _, after := range []time.Duration{0, time.Millisecond, 5 * time.Millisecond, 20 * time.Millisecond, 60 * time.Millisecond} {
					limited, cancel := context.WithTimeout(ctx, after)
					n, err := transfer(remote, limited, local)
					late := tardiness(limited)
					cancel()
					switch codes.Of(err) {
					case codes.Timeout:
						given++
					case codes.Code(0): // it was faster
					default:
						t.Errorf("a %s that is given up after %v: %d, %v", kind, after, n, err)
					}
					if late > soon {
						t.Errorf("a %s that is given up after %v takes %v more", kind, after, late)
					}
					copy(local.Bytes(), mine)
				}
				if given == 0 {
					t.Errorf("no %s was given up", kind)
				}
				return whole(ctx, in)
			}))
			q := startPeer(t, hgPeer)
			q.aim(s.Addr())
			q.check(fmt.Sprintf("%s total=%d", kind, size), fmt.Sprintf("ret=0 moved=0 count=%d ok=1", size))
			if !slices.Equal(local.Bytes(), mine) {
				t.Error("memory of a transfer that was given up was written afterwards")
			}
			must(t, local.Close())
			q.stop()
		})
	}
}

// tardiness is for how long a context has ended.
func tardiness(ctx context.Context) time.Duration {
	deadline, _ := ctx.Deadline()
	return time.Since(deadline)
}
