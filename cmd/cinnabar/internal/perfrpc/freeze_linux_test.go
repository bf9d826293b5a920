package perfrpc

import (
	"strings"
	"testing"

	"cinnabar/cmd/cinnabar/internal/clitest"
	"cinnabar/internal/testproc"
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
			server, address := startServe(t)
			client := clitest.Start(t, append(strings.Fields("perf "+args), address, "--duration", "1h", "--timeout", patient)...)
			client.Stdout.Expect(`^ +bytes`)
			server.Suspend()
			wantTimeout(t, client, address)
		})
	}
	t.Run("before", func(t *testing.T) {
		t.Parallel()
		server, address := startServe(t)
		server.Suspend()
		_, client := clitest.RunProcess(t, "perf", "rate", address, "--timeout", "100ms")
		wantTimeout(t, client, address)
	})
}

// wantTimeout waits for a client that must fail with HG_TIMEOUT at the address.
func wantTimeout(t *testing.T, client *testproc.Process, address string) {
	t.Helper()
	code := client.ExitCode()
	if text := client.Stderr.String(); code != 1 || !strings.Contains(text, "HG_TIMEOUT") || !strings.Contains(text, address) {
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
			server, address := startServe(t, "--once", "--timeout", patient)
			frozen := clitest.Start(t, "perf", op, address, "--size", "64KiB,16MiB", "--transfers", "4", "--count", "1000000")
			frozen.Stdout.Expect(`^ +bytes`)
			frozen.Suspend()
			runLines(t, "rate", address, "--size", "64", "--count", "5")
			clitest.WantOK(t, server)
		})
	}
}
