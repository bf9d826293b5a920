package cereal_test

import (
	"reflect"
	"testing"

	"go.uber.org/goleak"

	"cinnabar/codec"
	"cinnabar/codec/cereal"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// planFor returns the plan for T.
func planFor[T any](t testing.TB) codec.Plan {
	t.Helper()
	return planOf(t, reflect.TypeFor[T]())
}

func planOf(t testing.TB, typ reflect.Type) codec.Plan {
	t.Helper()
	p, err := cereal.Codec{}.Plan(typ)
	if err != nil {
		t.Fatalf("Plan: %v", err)
	}
	return p
}

// mustAppend returns the bytes of what v points to.
func mustAppend(t testing.TB, p codec.Plan, v any) []byte {
	t.Helper()
	b, err := p.Append(nil, v)
	if err != nil {
		t.Fatalf("Append(%+v): %v", v, err)
	}
	return b
}

// mustDecode reads what v points to from b and checks that nothing of b is left.
func mustDecode(t testing.TB, p codec.Plan, b []byte, v any) {
	t.Helper()
	n, err := p.Decode(b, v)
	if err != nil {
		t.Fatalf("Decode(%x): %v", b, err)
	}
	if n != len(b) {
		t.Fatalf("Decode(%x) took %d bytes, want %d", b, n, len(b))
	}
}

// typeOf returns the type that v points to.
func typeOf(v any) reflect.Type { return reflect.TypeOf(v).Elem() }
