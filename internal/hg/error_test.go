package hg

import (
	"errors"
	"fmt"
	"testing"

	"cinnabar/codes"
	"cinnabar/internal/na"
)

// parity: H05
func TestCodeOfTransport(t *testing.T) {
	for kind, want := range map[na.Kind]codes.Code{
		na.Unreachable: codes.HostUnreach, na.Canceled: codes.Canceled, na.Closed: codes.Canceled, na.Truncated: codes.MsgSize, na.Protocol: codes.ProtocolError,
		na.Denied: codes.Permission, na.Invalid: codes.InvalidArg, na.Firewalled: codes.HostFirewall, na.Unsupported: codes.ProtoNoSupport,
		na.InUse: codes.AddrInUse, na.NotAvailable: codes.AddrNotAvail,
	} {
		if got := codeOf(fmt.Errorf("wrapped: %w", &na.Error{Kind: kind})); got != want {
			t.Errorf("%v becomes %v, want %v", kind, got, want)
		}
	}
	if got := codeOf(errors.New("something")); got != codes.NAError {
		t.Errorf("an unknown error becomes %v", got)
	}
}

func TestErrorText(t *testing.T) {
	e := &Error{Op: "call", Addr: "ofi+tcp://127.0.0.1:1", Code: codes.NoEntry, Remote: true}
	if got, want := e.Error(), "hg: call ofi+tcp://127.0.0.1:1: peer answers HG_NOENTRY"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	cause := errors.New("why")
	e = &Error{Op: "expose", Code: codes.InvalidArg, Err: cause}
	if got, want := e.Error(), "hg: expose: HG_INVALID_ARG: why"; got != want || !errors.Is(e, cause) {
		t.Errorf("got %q, want %q", got, want)
	}
}
