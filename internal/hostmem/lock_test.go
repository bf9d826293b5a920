package hostmem

import (
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func TestUnlockOfUnlocked(t *testing.T) {
	if err := Unlock(make([]byte, 8)); !errors.Is(err, errNotLocked) {
		t.Errorf("error %v, want %v", err, errNotLocked)
	}
}

func TestLockOfNothing(t *testing.T) {
	if err := Lock(nil); err != nil {
		t.Errorf("Lock: %v", err)
	}
	if err := Unlock([]byte{}); err != nil {
		t.Errorf("Unlock: %v", err)
	}
}

func TestLockErrorText(t *testing.T) {
	err := lockError(4096, errors.ErrUnsupported)
	if !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("%v does not wrap errors.ErrUnsupported", err)
	}
	err = lockError(4096, syscall.ENOMEM)
	if !errors.Is(err, syscall.ENOMEM) {
		t.Errorf("%v does not wrap ENOMEM", err)
	}
	cur, _, ok := LockLimit()
	if ok && cur != Unlimited && !strings.Contains(err.Error(), fmt.Sprint(cur)) {
		t.Errorf("%q does not tell the limit of %d bytes", err, cur)
	}
}

func TestSubtract(t *testing.T) {
	for _, tc := range []struct {
		name string
		cut  span
		want []span
	}{
		{"apart before", span{0, 10}, []span{{10, 20}}},
		{"apart behind", span{20, 30}, []span{{10, 20}}},
		{"all", span{10, 20}, nil},
		{"more than all", span{5, 25}, nil},
		{"head", span{5, 15}, []span{{15, 20}}},
		{"tail", span{15, 25}, []span{{10, 15}}},
		{"middle", span{12, 18}, []span{{10, 12}, {18, 20}}},
	} {
		got := subtract([]span{{10, 20}}, tc.cut)
		if diff := cmp.Diff(tc.want, got, cmp.AllowUnexported(span{})); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tc.name, diff)
		}
	}
}

// TestSubtractAgainstSets: any sequence of cuts leaves exactly the points that
// none of them holds, in disjoint non-empty spans.
func TestSubtractAgainstSets(t *testing.T) {
	spans := rapid.Custom(func(t *rapid.T) span {
		start := rapid.Uint64Range(0, 30).Draw(t, "start")
		return span{start, start + rapid.Uint64Range(1, 10).Draw(t, "size")}
	})
	rapid.Check(t, func(t *rapid.T) {
		whole := spans.Draw(t, "whole")
		cuts := rapid.SliceOfN(spans, 0, 6).Draw(t, "cuts")
		rest := []span{whole}
		for _, c := range cuts {
			rest = subtract(rest, c)
		}
		for x := range uint64(45) {
			want := 0
			if inside(whole, x) && countHolding(cuts, x) == 0 {
				want = 1
			}
			if got := countHolding(rest, x); got != want {
				t.Fatalf("%v minus %v = %v: %d lies in %d spans, want %d", whole, cuts, rest, x, got, want)
			}
		}
		for _, s := range rest {
			if s.start >= s.end {
				t.Fatalf("empty span %v in %v", s, rest)
			}
		}
	})
}

func inside(s span, x uint64) bool { return s.start <= x && x < s.end }

func countHolding(spans []span, x uint64) int {
	n := 0
	for _, s := range spans {
		if inside(s, x) {
			n++
		}
	}
	return n
}
