package codes

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"testing"
)

func TestOf(t *testing.T) {
	for _, test := range []struct {
		err  error
		want Code
	}{
		{nil, 0},
		{Busy, Busy},
		{fmt.Errorf("store: %w", NoEntry), NoEntry},
		{errors.Join(errors.New("x"), Again, Busy), Again},
		{fmt.Errorf("%w: %w", Fault, context.Canceled), Fault},
		{context.DeadlineExceeded, Timeout},
		{os.ErrDeadlineExceeded, Timeout},
		{fmt.Errorf("read: %w", context.Canceled), Canceled},
		{net.ErrClosed, Permission},
		{errors.New("x"), OtherError},
		{Code(99), 99},
	} {
		if got := Of(test.err); got != test.want {
			t.Errorf("Of(%v) = %v, want %v", test.err, got, test.want)
		}
	}
}

func TestIs(t *testing.T) {
	all := []error{context.DeadlineExceeded, os.ErrDeadlineExceeded, context.Canceled, Timeout, Canceled, NoEntry}
	for _, test := range []struct {
		code Code
		want []bool
	}{
		{Timeout, []bool{true, true, false, true, false, false}},
		{Canceled, []bool{false, false, true, false, true, false}},
		{NoEntry, []bool{false, false, false, false, false, true}},
	} {
		for i, target := range all {
			if got := errors.Is(test.code, target); got != test.want[i] {
				t.Errorf("errors.Is(%v, %v) = %v, want %v", test.code, target, got, test.want[i])
			}
		}
	}
}

func TestError(t *testing.T) {
	for code, want := range map[Code]string{0: "HG_SUCCESS", NoEntry: "HG_NOENTRY", OtherError: "HG_OTHER_ERROR", Draining: "DRAINING", 27: "HG return code 27", 1<<32 - 1: "HG return code 4294967295"} {
		if got := code.Error(); got != want {
			t.Errorf("Code(%d).Error() = %q, want %q", uint32(code), got, want)
		}
	}
}
