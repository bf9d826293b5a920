package cereal_test

import (
	"errors"
	"reflect"
	"testing"
	"time"

	"cinnabar/codec"
	"cinnabar/codec/cereal"
	"cinnabar/internal/cerealtest"
	"cinnabar/internal/codectest"
)

// planFor returns the plan for T.
func planFor[T any](t testing.TB) codec.Plan {
	return codectest.PlanOf(t, cereal.Codec{}, reflect.TypeFor[T]())
}

// planOf returns the plan for the variable that v points to.
func planOf(t testing.TB, v any) codec.Plan {
	return codectest.PlanOf(t, cereal.Codec{}, codectest.TypeOf(v))
}

type (
	// half can only write itself.
	half struct{}
	// lender lends its methods to whoever embeds it.
	lender struct{ X int32 }
)

func (half) AppendProc(b []byte) ([]byte, error)    { return b, nil }
func (lender) AppendProc(b []byte) ([]byte, error)  { return b, nil }
func (*lender) DecodeProc([]byte) (int, error)      { return 0, nil }
func (*otherHalf) DecodeProc(b []byte) (int, error) { return len(b), nil }

type otherHalf struct{}

// What C++ could read as something else, or not at all, has no plan, and the error says what to use in its place.
// parity: T61
func TestPlanRefuses(t *testing.T) {
	type inner struct{ N int }
	for _, tt := range []struct {
		v    any
		want string
	}{
		{new(int), "cereal: plan int: Go type int has a size of its own on each platform; use int32 for C++'s int, int64 for its long and ptrdiff_t"},
		{new(uint), "cereal: plan uint: Go type uint has a size of its own on each platform; use uint32 for C++'s unsigned int, uint64 for size_t"},
		{new(uintptr), "cereal: plan uintptr: Go type uintptr has a size of its own on each platform; use uint64"},
		{new(any), "cereal: plan interface {}: cereal has no encoding for Go type interface {}; use a concrete type, or a struct with cereal.Variant"},
		{new(chan int8), `cereal: plan chan int8: cereal has no encoding for Go type chan int8; leave it out with the tag cereal:"-"`},
		{new(func()), `cereal: plan func(): cereal has no encoding for Go type func(); leave it out with the tag cereal:"-"`},
		{new(struct{ A []inner }), "cereal: plan struct { A []cereal_test.inner }: A[].N: Go type int has a size of its own on each platform; use int32 for C++'s int, int64 for its long and ptrdiff_t"},
		{new(map[string][]int), "cereal: plan map[string][]int: [][]: Go type int has a size of its own on each platform; use int32 for C++'s int, int64 for its long and ptrdiff_t"},
		{new(struct{ P *int32 }), `cereal: plan struct { P *int32 }: P: Go type *int32 can be three things in C++; tag the field with its C++ type: cereal:"optional", cereal:"unique" for a unique_ptr or cereal:"shared" for a shared_ptr`},
		{new(struct {
			P *inner `cereal:"weak"`
		}), `cereal: plan struct { P *cereal_test.inner "cereal:\"weak\"" }: P: unknown tag cereal:"weak"; tags are "-", "optional", "unique", "shared", and "when=F", "when=!F" or "when=F:1|2"`},
		{new(struct {
			P inner `cereal:"shared"`
		}), `cereal: plan struct { P cereal_test.inner "cereal:\"shared\"" }: P: cereal_test.inner has no pointer that could be shared; drop the tag`},
		{new(struct{ hidden int32 }), `cereal: plan struct { hidden int32 }: hidden: the field is not exported; export it, or leave it out with the tag cereal:"-"`},
		{new(struct{ T time.Time }), `cereal: plan struct { T time.Time }: T.wall: the field is not exported; export it, or leave it out with the tag cereal:"-"`},
		{new([]struct{}), "cereal: plan []struct {}: elements of []struct {} take no bytes; send the count alone, as a uint64"},
		{new(map[struct{}]int8), "cereal: plan map[struct {}]int8: keys of map[struct {}]int8 take no bytes; send the element alone"},
		{new(map[cerealtest.MaybeByte]int8), "cereal: plan map[cerealtest.MaybeByte]int8: [key]: cerealtest.MaybeByte has no order that C++ is sure to have too; use keys of numbers, strings, arrays and structs of them, or a slice of structs with key and element"},
		{new(map[[1]cerealtest.Versioned]int8), "cereal: plan map[[1]cerealtest.Versioned]int8: [key].Version: cerealtest.Versioned has no order that C++ is sure to have too; use keys of numbers, strings, arrays and structs of them, or a slice of structs with key and element"},
		{new(half), "cereal: plan cereal_test.half: cereal_test.half has AppendProc but no DecodeProc; implement both codec.Appender and codec.Decoder"},
		{new(otherHalf), "cereal: plan cereal_test.otherHalf: cereal_test.otherHalf has DecodeProc but no AppendProc; implement both codec.Appender and codec.Decoder"},
		{new(struct {
			lender
			Y int32
		}), "cereal: plan struct { cereal_test.lender; Y int32 }: struct { cereal_test.lender; Y int32 } would be written as its embedded field lender alone; give that field a name"},
		{new(struct {
			X int8
			V cereal.ClassVersion
		}), "cereal: plan struct { X int8; V cereal.ClassVersion }: V: the class version is not the first field; make it the first, with a name, or use a uint32"},
		{new(cereal.Variant), "cereal: plan cereal.Variant: cereal.Variant is not a value; embed it as a struct's first field"},
		{new(struct{ cereal.Variant }), "cereal: plan struct { cereal.Variant }: struct { cereal.Variant } has no alternatives; declare a pointer for each"},
		{new(struct {
			cereal.Variant
			N int32
		}), "cereal: plan struct { cereal.Variant; N int32 }: N: an alternative of a variant is no plain, exported pointer; declare a pointer to the alternative's type, without a tag"},
		{new(struct {
			cereal.Variant
			N *int
		}), "cereal: plan struct { cereal.Variant; N *int }: N: Go type int has a size of its own on each platform; use int32 for C++'s int, int64 for its long and ptrdiff_t"},
		{(*[1 << 31]int8)(nil), "cereal: plan [2147483648]int8: [2147483648]int8 takes at least 2147483648 bytes, more than the 1073741824 that a message can have; expose the memory and send a bulk handle"},
		{(*struct{ A, B [1 << 30]int8 })(nil), "cereal: plan struct { A [1073741824]int8; B [1073741824]int8 }: B: the struct takes at least 2147483648 bytes up to here, more than the 1073741824 that a message can have; expose the memory and send a bulk handle"},
	} {
		_, err := cereal.Codec{}.Plan(reflect.TypeOf(tt.v).Elem())
		checkError(t, err, tt.want, nil)
	}
	_, err := cereal.Codec{}.Plan(nil)
	checkError(t, err, "cereal: plan nil: no type given; pass the type of a value", nil)
	if got := (cereal.Codec{}).Name(); got != "cereal" {
		t.Errorf("the codec's name is %q", got)
	}
}

// checkError wants err to have the text, and to be is if that is given.
func checkError(t *testing.T, err error, want string, is error) {
	t.Helper()
	if err == nil || err.Error() != want || is != nil && !errors.Is(err, is) {
		t.Errorf("got  %v\nwant %s", err, want)
	}
	if e, ok := errors.AsType[*codec.Error](err); !ok || e.Codec != "cereal" {
		t.Errorf("%v is no finished codec.Error", err)
	}
}

type (
	forest []forest
	index  map[string]index
	chain  struct {
		Next *chain `cereal:"unique"`
	}
	endless *endless
)

// Types that contain themselves have plans; how deep their values go is known only when they are there.
func TestRecursiveTypes(t *testing.T) {
	for _, tt := range []struct {
		v    any
		size int
	}{
		{&forest{{}, {{}}}, 8 * 4},
		{&index{"a": {"b": nil}}, 8 + 9 + 8 + 9 + 8},
		{&chain{&chain{&chain{}}}, 3},
		{&struct {
			E endless `cereal:"optional"`
		}{new(endless)}, 2},
	} {
		p := planOf(t, tt.v)
		b := codectest.MustAppend(t, p, tt.v)
		if len(b) != tt.size {
			t.Errorf("%+v takes %d bytes, want %d: %x", tt.v, len(b), tt.size, b)
		}
		again := reflect.New(reflect.TypeOf(tt.v).Elem()).Interface()
		codectest.MustDecode(t, p, b, again)
		if got := codectest.MustAppend(t, p, again); string(got) != string(b) {
			t.Errorf("%+v has bytes %x, then %x", tt.v, b, got)
		}
	}
}
