package cli

import (
	"context"
	"fmt"
	"net"
	"os"
	"strings"
	"testing"

	"cinnabar"
	"cinnabar/codes"
)

func TestExitCodeOfSignal(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(SignalError{os.Interrupt})
	if got := ExitCode(ctx, context.Cause(ctx)); got != 130 {
		t.Errorf("exit code %d after an interrupt, want 130", got)
	}
	if got := ExitCode(ctx, nil); got != 0 {
		t.Errorf("exit code %d for a command that succeeded all the same, want 0", got)
	}
}

// TestExitCodeOfAddress gives engines wrong addresses, which are mistakes of the command line, and calls an address where nothing listens,
// which is a failure.
func TestExitCodeOfAddress(t *testing.T) {
	e, err := cinnabar.Open(t.Context(), "ofi+tcp", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	}()
	_, unknown := cinnabar.Open(t.Context(), "foo", nil)
	_, malformed := e.Lookup("ofi+tcp://127.0.0.1")
	for _, err := range []error{unknown, malformed} {
		if got := ExitCode(t.Context(), err); got != ExitUsage || advice("call", err) != "" {
			t.Errorf("exit code %d and advice %q for %v, want %d and none", got, advice("call", err), err, ExitUsage)
		}
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	free := l.Addr().String()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	ep, err := e.Lookup("ofi+tcp://" + free)
	if err != nil {
		t.Fatal(err)
	}
	_, err = cinnabar.NewRPC[struct{}, struct{}]("nothing").Call(t.Context(), ep, struct{}{})
	if got := ExitCode(t.Context(), err); got != ExitFailure || !strings.Contains(advice("call", err), "see whether the server runs there") {
		t.Errorf("exit code %d and advice %q for %v, want %d and a remedy", got, advice("call", err), err, ExitFailure)
	}
}

// TestAdviceOfAddress wants a form of the address that is right after one without a protocol, and none that a command cannot use.
func TestAdviceOfAddress(t *testing.T) {
	for address, want := range map[string]string{
		"127.0.0.1:7779": "write ofi+tcp://127.0.0.1:7779", "localhost:1": "write ofi+tcp://localhost:1", "[::1]:1": "write ofi+tcp://[::1]:1",
		"ofi+tcps://127.0.0.1:0": "", "tcps": "", "foo": "", "ucx://a:1": "", "ucx:x": "",
	} {
		_, err := cinnabar.Open(t.Context(), address, nil)
		if got := advice("call", err); ExitCode(t.Context(), err) != ExitUsage || !strings.Contains(got, want) || (want == "") != (got == "") {
			t.Errorf("%s: advice %q for %v, want %q", address, got, err, want)
		}
	}
}

// TestAdviceOfSilence wants the command ping named after a call that got no answer in time, unless ping itself has made the call.
func TestAdviceOfSilence(t *testing.T) {
	err := fmt.Errorf("first call: %w", &cinnabar.Error{Op: "call", Code: codes.Timeout, Err: context.DeadlineExceeded})
	if got := advice("query", err); !strings.Contains(got, "see with cinnabar ping") {
		t.Errorf("advice %q for %v", got, err)
	}
	if got := advice("ping", err); got != "" {
		t.Errorf("advice %q of ping for %v", got, err)
	}
	if got := advice("call", &cinnabar.Error{Op: "call", Code: codes.Timeout, Remote: true}); got != "" {
		t.Errorf("advice %q for the code of a peer", got)
	}
}
