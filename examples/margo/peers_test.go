package margo_test

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"cinnabar"
	"cinnabar/codes"
	"cinnabar/examples/margo"
)

// theirs returns the path of one of the programs that come with Margo.
func theirs(t *testing.T, program string) string {
	t.Helper()
	dir := os.Getenv("CINNABAR_MARGO_EXAMPLES")
	if dir == "" {
		t.Skip("CINNABAR_MARGO_EXAMPLES does not name the folder with the example and test programs of Margo")
	}
	return filepath.Join(dir, program)
}

// freeAddress is an address for a C server, which prints it too late for others to read.
func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, err)
	defer func() { _ = l.Close() }()
	return "ofi+tcp://" + l.Addr().String()
}

// serveTheirs starts a C server and waits until it answers at addr.
func serveTheirs(t *testing.T, addr, program string, args ...string) *serverProcess {
	t.Helper()
	s := launch(t, theirs(t, program), args...)
	s.addr = addr
	e, err := cinnabar.Open(t.Context(), loopback, &cinnabar.Config{DialRetry: processLimit})
	check(t, err)
	defer func() { check(t, e.Close()) }()
	ep, err := e.Lookup(addr)
	check(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), processLimit)
	defer cancel()
	_, err = cinnabar.NewRPC[margo.None, margo.None]("is_anybody_there").Call(ctx, ep, margo.None{})
	if !errors.Is(err, codes.NoEntry) {
		t.Fatalf("%s: %v\n%s", program, err, s.Stderr)
	}
	return s
}

// containing returns the lines that have the text.
func containing(lines []string, text string) []string {
	return slices.DeleteFunc(slices.Clone(lines), func(l string) bool { return !strings.Contains(l, text) })
}

// wantCount wants a number of lines with the text.
func wantCount(t *testing.T, who string, lines []string, text string, want int) {
	t.Helper()
	t.Logf("%s says\n%s", who, strings.Join(lines, "\n"))
	if got := len(containing(lines, text)); got != want {
		t.Errorf("%s says %q %d times; want %d", who, text, got, want)
	}
}

// What Margo's programs say.
const (
	theirCall    = "Got RPC request with input_val"
	theirResult  = "Got response ret: 0"
	theirTimeout = "returned HG_TIMEOUT"
)

// TestServerOfMargo has the clients here call Margo's servers.
// parity(peer): G07 G95
func TestServerOfMargo(t *testing.T) {
	theirs(t, "") // skips here, not in each part
	t.Run("example", func(t *testing.T) {
		addr := freeAddress(t)
		s := serveTheirs(t, addr, "margo-example-server", addr)
		wantLines(t, "client", runClient(t, "client", addr), fourResults...)
		lines := s.end()
		wantCount(t, "margo-example-server", lines, theirCall, 4)
		wantCount(t, "margo-example-server", lines, "state dumped to", 1)
	})
	for _, kind := range []string{"fifo_wait", "prio_wait", "earliest_first"} {
		t.Run("basic/"+kind, func(t *testing.T) {
			addr := freeAddress(t)
			s := serveTheirs(t, addr, "margo-test-server", "-a", addr, "-s", "-f", "address", "-p", kind)
			wantLines(t, "client", runClient(t, "client", "-remote", addr), fourResults...)
			wantCount(t, "margo-test-server", s.end(), theirCall, 4)
		})
	}
	t.Run("timeout", func(t *testing.T) {
		addr := freeAddress(t)
		serveTheirs(t, addr, "margo-test-server", "-a", addr, "-s", "-f", "address") // it will not end: its caller has gone
		wantLines(t, "client", runClient(t, "client", "-timeout", "50ms", addr), fourTimeouts...)
	})
	t.Run("multiplex", func(t *testing.T) {
		addr := freeAddress(t)
		s := serveTheirs(t, addr, "margo-example-mp-server", addr)
		wantLines(t, "client", runClient(t, "multiplex/client", addr), things...)
		_ = s.Wait() // it ends in an assertion of Argobots, whoever its client is
	})
}

// TestClientOfMargo has Margo's clients call the servers here.
// parity(peer): G07 G95
func TestClientOfMargo(t *testing.T) {
	theirs(t, "") // skips here, not in each part
	t.Run("example", func(t *testing.T) {
		client := theirs(t, "margo-example-client")
		s := serve(t, "server", loopback)
		wantCount(t, "margo-example-client", runClient(t, client, s.addr), theirResult, 4)
		wantLines(t, "server", s.end(), dumped...)
	})
	t.Run("basic", func(t *testing.T) {
		client := theirs(t, "margo-test-client")
		s := serve(t, "server", "-p", "prio_wait", loopback)
		wantCount(t, "margo-test-client", runClient(t, client, s.addr), theirResult, 4)
		wantLines(t, "server", s.end(), fourCalls...)
	})
	t.Run("timeout", func(t *testing.T) {
		client := theirs(t, "margo-test-client-timeout")
		s := serve(t, "server", "-hang", "1h", loopback)
		wantCount(t, "margo-test-client-timeout", runClient(t, client, s.addr), theirTimeout, 4)
		wantLines(t, "server", s.end(), fourHanging...)
	})
	t.Run("multiplex", func(t *testing.T) {
		client := theirs(t, "margo-example-mp-client")
		s := serve(t, "multiplex/server", loopback)
		wantLines(t, "margo-example-mp-client", runClient(t, client, s.addr), "") // it says nothing
		wantLines(t, "server", s.end(), things...)
	})
}

// TestCompositionOfMargo has any one of the three processes of the composition example be Margo's. (All three of them
// together do not work: Margo's programs do not agree about the id of the provider.)
// parity(peer): G12
func TestCompositionOfMargo(t *testing.T) {
	theirs(t, "") // skips here, not in each part
	t.Run("benchmark", func(t *testing.T) {
		benchmark := theirs(t, "composed-benchmark")
		data, delegator := serve(t, "composition/daemon", loopback, "data-xfer"), serve(t, "composition/daemon", loopback, "delegator")
		lines := runClient(t, benchmark, delegator.addr, data.addr, "3")
		wantCount(t, "composed-benchmark", lines, "direct\t", 1)
		wantCount(t, "composed-benchmark", lines, "composed\t", 1)
		wantLines(t, "daemon", append(data.end(), delegator.end()...), "", "")
	})
	t.Run("benchmark/one", func(t *testing.T) {
		benchmark := theirs(t, "composed-benchmark")
		both := serve(t, "composition/daemon", loopback, "data-xfer,delegator")
		wantCount(t, "composed-benchmark", runClient(t, benchmark, both.addr, both.addr, "3"), "composed\t", 1)
		wantLines(t, "daemon", both.end(), "")
	})
	t.Run("data-xfer", func(t *testing.T) {
		addr := freeAddress(t)
		data := serveTheirs(t, addr, "composed-svc-daemon", addr, "data-xfer")
		delegator := serve(t, "composition/daemon", loopback, "delegator")
		lines := runClient(t, "composition/benchmark", "-address", loopback, delegator.addr, addr, "3")
		wantLines(t, "benchmark", lines, measured...)
		wantLines(t, "daemon", delegator.end(), "")
		data.end()
	})
	t.Run("delegator", func(t *testing.T) {
		addr := freeAddress(t)
		delegator := serveTheirs(t, addr, "composed-svc-daemon", addr, "delegator")
		data := serve(t, "composition/daemon", loopback, "data-xfer")
		lines := runClient(t, "composition/benchmark", "-address", loopback, addr, data.addr, "3")
		wantLines(t, "benchmark", lines, measured...)
		wantLines(t, "daemon", data.end(), "")
		delegator.end()
	})
}
