package codec_test

import (
	"reflect"
	"testing"

	"cinnabar/codec"
	"cinnabar/codec/cereal"
	"cinnabar/codec/hgproc"
	"cinnabar/internal/codecplan"
)

// routed writes a byte that shows which codec it gets: 1 over shared memory, 0 otherwise.
type routed struct{ Shared bool }

func (r *routed) AppendProcWith(c codec.Codec, b []byte) ([]byte, error) {
	if codecplan.IsOverSharedMemory(c) {
		return append(b, 1), nil
	}
	return append(b, 0), nil
}

func (r *routed) DecodeProcWith(c codec.Codec, b []byte) (int, error) {
	if len(b) == 0 {
		return 0, codec.ErrOverflow
	}
	r.Shared = codecplan.IsOverSharedMemory(c)
	return 1, nil
}

// nested writes its parts with the codec that it gets.
type nested struct{ Parts [2]routed }

func (n *nested) AppendProcWith(c codec.Codec, b []byte) ([]byte, error) {
	return codec.Append(c, b, &n.Parts)
}

func (n *nested) DecodeProcWith(c codec.Codec, b []byte) (int, error) {
	return codec.Decode(c, b, &n.Parts)
}

// TestOverSharedMemory checks that custom types at every place in a value learn whether the message travels over shared memory, also parts
// that other custom types write.
func TestOverSharedMemory(t *testing.T) {
	type value struct {
		One    routed
		Array  [2]routed
		Slice  []routed `proc:"counted=uint8"`
		Nested nested
	}
	type list struct {
		One    routed
		Array  [2]routed
		Slice  []routed
		Nested nested
	}
	for _, tc := range []struct {
		c codec.Codec
		v any
	}{
		{hgproc.Codec{}, &value{Slice: make([]routed, 2)}},
		{cereal.Codec{}, &list{Slice: make([]routed, 2)}},
	} {
		plan, err := tc.c.Plan(reflect.TypeOf(tc.v).Elem())
		if err != nil {
			t.Fatal(err)
		}
		for shared, p := range map[bool]codec.Plan{false: plan, true: codecplan.OverSharedMemory(plan)} {
			b, err := p.Append(nil, tc.v)
			if err != nil {
				t.Fatal(err)
			}
			ones := 0
			for _, x := range b {
				if x == 1 {
					ones++
				}
			}
			if want := map[bool]int{true: 7}[shared]; ones != want {
				t.Errorf("%s, shared memory %v: %d values are written for shared memory, want %d: % x", tc.c.Name(), shared, ones, want, b)
			}
			got := reflect.New(reflect.TypeOf(tc.v).Elem())
			if n, err := p.Decode(b, got.Interface()); err != nil || n != len(b) {
				t.Fatalf("%s: %d bytes of %d, %v", tc.c.Name(), n, len(b), err)
			}
			v := got.Elem()
			if one := v.FieldByName("One").Interface().(routed); one.Shared != shared {
				t.Errorf("%s: decoded as shared memory %v, want %v", tc.c.Name(), one.Shared, shared)
			}
			if part := v.FieldByName("Nested").Interface().(nested).Parts[1]; part.Shared != shared {
				t.Errorf("%s: a part is decoded as shared memory %v, want %v", tc.c.Name(), part.Shared, shared)
			}
		}
	}
}

// TestOverSharedMemoryOfOtherPlan checks that the plan of a program's own codec stays as it is.
func TestOverSharedMemoryOfOtherPlan(t *testing.T) {
	p := ownPlan{}
	if got := codecplan.OverSharedMemory(p); got != codec.Plan(p) {
		t.Errorf("the plan becomes %v", got)
	}
}

type ownPlan struct{}

func (ownPlan) Append(b []byte, _ any) ([]byte, error) { return b, nil }
func (ownPlan) Decode([]byte, any) (int, error)        { return 0, nil }
