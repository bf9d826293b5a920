package hg

import (
	"errors"
	"fmt"
	"testing"

	"cinnabar/internal/na"
)

// parity: H05
func TestCodeNames(t *testing.T) {
	for _, tc := range []struct {
		n       uint8
		release string
		want    string
	}{
		{0, "", "HG_SUCCESS"}, {2, "2.3.1", "HG_NOENTRY"}, {21, "2.4.0", "HG_CANCELED"}, {26, "", "HG_OTHER_ERROR"},
		{22, "2.4.1", "HG_IO_ERROR"}, {23, "2.4.1", "HG_HOSTFIREWALL"}, {24, "2.4.1", "HG_CHECKSUM_ERROR"},
		{22, "2.4.0", "HG_IO_ERROR"}, {23, "2.4.0", "HG_CHECKSUM_ERROR"}, {24, "2.4.0", "HG_NA_ERROR"}, {25, "2.4.0", "HG_OTHER_ERROR"},
		{22, "2.3.0", "HG_CHECKSUM_ERROR"}, {23, "2.3.1", "HG_NA_ERROR"}, {24, "2.1", "HG_OTHER_ERROR"}, {22, "1.0.1", "HG_CHECKSUM_ERROR"},
		{25, "2.3.1", "HG_RETURN_25"}, {26, "2.4.0", "HG_RETURN_26"}, {27, "2.4.1", "HG_RETURN_27"}, {255, "2.3.1", "HG_RETURN_255"},
		{23, "2.5.0", "HG_HOSTFIREWALL"}, {23, "newest", "HG_HOSTFIREWALL"},
	} {
		if got := CodeName(tc.n, tc.release); got != tc.want {
			t.Errorf("CodeName(%d, %q) = %s, want %s", tc.n, tc.release, got, tc.want)
		}
	}
	if got := Code(200).String(); got != "HG_RETURN_200" {
		t.Errorf("Code(200) is %s", got)
	}
}

// parity: H05
func TestCodeOfTransport(t *testing.T) {
	for kind, want := range map[na.Kind]Code{
		na.Unreachable: HostUnreach, na.Canceled: Canceled, na.Closed: Canceled, na.Truncated: MsgSize, na.Protocol: ProtocolError,
		na.Denied: Permission, na.Invalid: InvalidArg, na.Firewalled: HostFirewall, na.Unsupported: ProtoNoSupport,
		na.InUse: AddrInUse, na.NotAvailable: AddrNotAvail,
	} {
		if got := codeOf(fmt.Errorf("wrapped: %w", &na.Error{Kind: kind})); got != want {
			t.Errorf("%v becomes %v, want %v", kind, got, want)
		}
	}
	if got := codeOf(errors.New("something")); got != NAError {
		t.Errorf("an unknown error becomes %v", got)
	}
}

func TestErrorText(t *testing.T) {
	e := &Error{Op: "call", Addr: "ofi+tcp://127.0.0.1:1", Code: NoEntry, Remote: true}
	if got, want := e.Error(), "hg: call ofi+tcp://127.0.0.1:1: peer answers HG_NOENTRY"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	cause := errors.New("why")
	e = &Error{Op: "expose", Code: InvalidArg, Err: cause}
	if got, want := e.Error(), "hg: expose: HG_INVALID_ARG: why"; got != want || !errors.Is(e, cause) {
		t.Errorf("got %q, want %q", got, want)
	}
}
