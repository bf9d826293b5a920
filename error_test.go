package cinnabar

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"testing"

	"cinnabar/codec"
	"cinnabar/codes"
	"cinnabar/internal/hg"
	"cinnabar/internal/na"
)

func TestCodeOf(t *testing.T) {
	for _, test := range []struct {
		err  error
		want codes.Code
	}{
		{nil, 0},
		{codes.Busy, codes.Busy},
		{fmt.Errorf("x: %w", &Error{Code: codes.Fault}), codes.Fault},
		{&hg.Error{Code: codes.Overflow}, codes.Overflow},
		{&na.Error{Kind: na.Firewalled}, codes.HostFirewall},
		{&na.Error{Kind: na.InUse}, codes.AddrInUse},
		{context.DeadlineExceeded, codes.Timeout},
		{context.Canceled, codes.Canceled},
		{ErrClosed, codes.Permission},
		{fmt.Errorf("file of the handler: %w", os.ErrClosed), codes.OtherError},
		{fmt.Errorf("socket of the handler: %w", net.ErrClosed), codes.OtherError},
		{errPeerGone, codes.HostUnreach},
		{&codec.Error{Err: codec.ErrOverflow}, codes.Overflow},
		{errors.New("x"), codes.OtherError},
	} {
		if got := codeOf(test.err); got != test.want {
			t.Errorf("codeOf(%v) = %v, want %v", test.err, got, test.want)
		}
	}
}

func TestErrorText(t *testing.T) {
	for _, test := range []struct {
		err  *Error
		want string
	}{
		{&Error{Op: "call", RPC: "sum@42", Addr: "ofi+tcp://h:1", Code: codes.NoEntry, Remote: true},
			"call sum@42 at ofi+tcp://h:1: peer answers HG_NOENTRY"},
		{&Error{Op: "pull", Addr: "ofi+tcp://h:1", Code: codes.Timeout, Err: context.DeadlineExceeded},
			"pull at ofi+tcp://h:1: HG_TIMEOUT: context deadline exceeded"},
		{&Error{Op: "expose", Code: 99}, "expose: HG return code 99"},
	} {
		if got := test.err.Error(); got != test.want {
			t.Errorf("text %q, want %q", got, test.want)
		}
	}
}

func TestErrorMatches(t *testing.T) {
	for _, test := range []struct {
		err    error
		target error
		want   bool
	}{
		{&Error{Code: codes.Timeout}, context.DeadlineExceeded, true},
		{&Error{Code: codes.Timeout}, os.ErrDeadlineExceeded, true},
		{&Error{Code: codes.Timeout}, context.Canceled, false},
		{&Error{Code: codes.Canceled}, context.Canceled, true},
		{&Error{Code: codes.Busy}, context.Canceled, false},
		{&Error{Code: codes.Busy, Err: ErrClosed}, net.ErrClosed, true},
		{&Error{Code: codes.Busy}, codes.Busy, true},
		{&Error{Code: codes.Busy}, codes.Again, false},
	} {
		if got := errors.Is(test.err, test.target); got != test.want {
			t.Errorf("errors.Is(%v, %v) = %v", test.err, test.target, got)
		}
	}
}

// TestErrorFrom checks what the layers below say on its way up.
func TestErrorFrom(t *testing.T) {
	if errorFrom("call", "x", "y", nil) != nil {
		t.Error("nothing is an error")
	}
	err := errorFrom("call", "x", "y", &hg.Error{Op: "call", Code: codes.Again, Remote: true})
	e, _ := errors.AsType[*Error](err)
	if e.Code != codes.Again || !e.Remote || e.Err != nil || e.Op != "call" || e.RPC != "x" || e.Addr != "y" {
		t.Errorf("%+v", e)
	}
	closed := errorFrom("call", "", "", &hg.Error{Code: codes.Canceled, Err: &na.Error{Kind: na.Closed}})
	if !errors.Is(closed, ErrClosed) {
		t.Errorf("%v is not ErrClosed", closed)
	}
	if again, _ := errors.AsType[*Error](errorFrom("other", "", "", e)); again != e {
		t.Errorf("an error that is complete is changed: %v", again)
	}
}

// TestErrorSaysThingsOnce wants the operation and the address once in a line, whatever layer has found them out.
func TestErrorSaysThingsOnce(t *testing.T) {
	e, err := Open(t.Context(), "ofi+tcp://127.0.0.1", nil)
	opened(t, e, err)
	_, err = e.Lookup("na+sm://1-0")
	if got, want := fmt.Sprint(err), `look up at na+sm://1-0: HG_INVALID_ARG: "na+sm://1-0" is not an address of this network`; !strings.HasPrefix(got, want) {
		t.Errorf("got %q, want %q first", got, want)
	}
	cause := errors.New("the cause")
	for _, tt := range []struct {
		n    *na.Error
		want string
	}{
		{&na.Error{Kind: na.Unreachable, Op: "connect", Addr: "there", Err: cause}, "call x at there: HG_HOSTUNREACH: the cause"},
		{&na.Error{Kind: na.Unreachable, Op: "connect", Addr: "there"}, "call x at there: HG_HOSTUNREACH: connect there: unreachable"},
		{&na.Error{Kind: na.Unreachable, Op: "connect", Addr: "elsewhere", Err: cause}, "call x at there: HG_HOSTUNREACH: connect elsewhere: unreachable: the cause"},
	} {
		err := errorFrom("call", "x", "there", tt.n)
		if err.Error() != tt.want || !errors.Is(err, codes.HostUnreach) || errors.Is(err, cause) != (tt.n.Err != nil) {
			t.Errorf("got %q, want %q", err, tt.want)
		}
	}
	inner := &Error{Code: codes.Busy, Remote: true}
	if got, want := inner.Error(), "peer answers HG_BUSY"; got != want {
		t.Errorf("an error without an operation: got %q, want %q", got, want)
	}
}
