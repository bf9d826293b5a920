package codec

import (
	"errors"
	"reflect"
	"testing"
)

func TestErrorText(t *testing.T) {
	for _, tt := range []struct {
		err  Error
		want string
	}{
		{Error{Codec: "c", Op: OpPlan, Type: reflect.TypeFor[int](), Problem: "wrong"}, "c: plan int: wrong"},
		{Error{Codec: "c", Op: OpPlan, Problem: "no type given"}, "c: plan nil: no type given"},
		{
			Error{Codec: "c", Op: OpDecode, Type: reflect.TypeFor[int](), Path: "A[1].B", Problem: "wrong", Remedy: "do right"},
			"c: decode int: A[1].B: wrong; do right",
		},
		{Error{Problem: "wrong"}, "wrong"}, // of a part of a value
	} {
		if got := tt.err.Error(); got != tt.want {
			t.Errorf("got %q, want %q", got, tt.want)
		}
	}
}

func TestErrorUnwraps(t *testing.T) {
	if err := (&Error{Err: ErrOverflow}); !errors.Is(err, ErrOverflow) {
		t.Errorf("%v is not ErrOverflow", err)
	}
	if err := (&Error{}); errors.Is(err, ErrOverflow) {
		t.Errorf("%v is ErrOverflow", err)
	}
}
