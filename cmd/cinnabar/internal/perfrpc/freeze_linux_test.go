package perfrpc

import (
	"strings"
	"testing"

	"cinnabar/cmd/cinnabar/internal/clitest"
)

// patient is a --timeout that a busy machine does not exceed with what goes well.
const patient = "2s"

// A client does not wait for ever for a server that is frozen, whether that happens in a measurement or before it.
// parity: H121
func TestServerFrozen(t *testing.T) {
	t.Parallel()
	for _, args := range []string{"rate --clients 2 --inflight 4", "bw-write --size 1MiB"} {
		t.Run(args, func(t *testing.T) {
			t.Parallel() // most of the time they wait
			server, address, _ := startServe(t)
			client, seen, o := clitest.Start(t, append(strings.Fields("perf "+args), address, "--duration", "1h", "--timeout", patient)...)
			clitest.WaitLine(t, seen, `^ +bytes`)
			clitest.Freeze(t, server)
			wantTimeout(t, clitest.ExitOf(t, client), o, address)
		})
	}
	t.Run("before", func(t *testing.T) {
		t.Parallel()
		server, address, _ := startServe(t)
		clitest.Freeze(t, server)
		code, o := clitest.RunProcess(t, "perf", "rate", address, "--timeout", "100ms")
		wantTimeout(t, code, o, address)
	})
}

func wantTimeout(t *testing.T, code int, o *clitest.Output, address string) {
	t.Helper()
	if text := o.Err.String(); code != 1 || !strings.Contains(text, "HG_TIMEOUT") || !strings.Contains(text, address) {
		t.Errorf("exit code %d, stderr %q; want 1, HG_TIMEOUT and %s", code, text, address)
	}
}

// A server's transfers to and from a client that is frozen end: the server can end itself in time.
// parity: H121
func TestClientFrozen(t *testing.T) {
	t.Parallel()
	for _, op := range []string{"bw-read", "bw-write"} {
		t.Run(op, func(t *testing.T) {
			t.Parallel()
			server, address, o := startServe(t, "--once", "--timeout", patient)
			frozen, seen, _ := clitest.Start(t, "perf", op, address, "--size", "64KiB,16MiB", "--transfers", "4", "--count", "1000000")
			t.Cleanup(func() {
				_ = frozen.Process.Kill() // it has not ended
				_ = frozen.Wait()
			})
			clitest.WaitLine(t, seen, `^ +bytes`)
			clitest.Freeze(t, frozen)
			runLines(t, "rate", address, "--size", "64", "--count", "5")
			clitest.WantOK(t, server, o)
		})
	}
}
