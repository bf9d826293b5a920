package cereal_test

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"

	"cinnabar/codec"
	"cinnabar/codec/cereal"
	"cinnabar/internal/cerealtest"
	"cinnabar/internal/codectest"
)

func TestAppendRefuses(t *testing.T) {
	type custom struct{ A [1]codectest.Misbehaved }
	nothing := codectest.Misbehaved{OnAppend: func(b []byte) ([]byte, error) { return b, nil }}
	circle := &chain{}
	circle.Next = circle
	for _, tt := range []struct {
		name string
		v    any
		want string
		is   error
	}{
		{
			"no alternative", &cerealtest.NumberOrText{},
			"cereal: append cerealtest.NumberOrText: no alternative of the variant cerealtest.NumberOrText is set; set one", nil,
		},
		{
			"two alternatives", &cerealtest.NumberOrText{Number: new(int32(1)), Text: new("")},
			"cereal: append cerealtest.NumberOrText: both Number and Text of the variant are set; set one alternative", nil,
		},
		{
			"two versions", &[]cerealtest.Versioned{{Version: 1}, {Version: 2}},
			"cereal: append []cerealtest.Versioned: [1].Version: the version is 2, that of an earlier cerealtest.Versioned in the message 1; " +
				"give all values of a class one version", nil,
		},
		{
			"elements without bytes", &[]codectest.Misbehaved{nothing, nothing},
			"cereal: append []codectest.Misbehaved: 2 elements took only 0 bytes; write at least a byte for each element of a container", nil,
		},
		{
			"own error", &custom{[1]codectest.Misbehaved{{OnAppend: func([]byte) ([]byte, error) { return nil, codectest.ErrOwn }}}},
			"cereal: append cereal_test.custom: A[0]: no bytes today", codectest.ErrOwn,
		},
		{
			"own error in a map", &map[string][1]codectest.Misbehaved{"key": {{OnAppend: func([]byte) ([]byte, error) { return nil, codectest.ErrOwn }}}},
			`cereal: append map[string][1]codectest.Misbehaved: ["key"][0]: no bytes today`, codectest.ErrOwn,
		},
		{
			"buffer cut", &codectest.Misbehaved{OnAppend: func(b []byte) ([]byte, error) { return b[:0], nil }},
			"cereal: append codectest.Misbehaved: AppendProc of *codectest.Misbehaved returned 0 bytes, fewer than the 1 it was given; " +
				"append to the buffer and return it", nil,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b, err := planOf(t, tt.v).Append([]byte("x"), tt.v)
			checkError(t, err, tt.want, tt.is)
			if string(b) != "x" {
				t.Errorf("buffer is %q", b)
			}
		})
	}
	_, err := planFor[chain](t).Append(nil, circle)
	if err == nil || !strings.Contains(err.Error(), "the value is more than 10000 slices, maps and pointers deep") || len(err.Error()) > 500 {
		t.Errorf("a value without end: %v", err)
	}
}

func TestDecodeRefuses(t *testing.T) {
	for _, tt := range []struct {
		name string
		v    any
		hex  string
		want string
		is   error
	}{
		{"empty", new(int32), "", "cereal: decode int32: int32 takes at least 4 bytes, 0 remain", codec.ErrOverflow},
		{"long string", new(string), "0400000000000000616263", "cereal: decode string: 4 elements of at least 1 bytes exceed the 3 bytes that remain", codec.ErrOverflow},
		{"huge string", new(string), "ffffffffffffffff616263", "cereal: decode string: 18446744073709551615 elements of at least 1 bytes exceed the 3 bytes that remain", codec.ErrOverflow},
		{"long vector", new([]int64), "0200000000000000" + strings.Repeat("00", 15), "cereal: decode []int64: 2 elements of at least 8 bytes exceed the 15 bytes that remain", codec.ErrOverflow},
		{"wrapping vector", new([]int64), "0000000000000020" + strings.Repeat("00", 15), "cereal: decode []int64: 2305843009213693952 elements of at least 8 bytes exceed the 15 bytes that remain", codec.ErrOverflow},
		{"long map", new(map[string]int8), "0200000000000000" + strings.Repeat("00", 17), "cereal: decode map[string]int8: 2 elements of at least 9 bytes exceed the 17 bytes that remain", codec.ErrOverflow},
		{"key twice", new(map[int8]int8), "020000000000000005010502", "cereal: decode map[int8]int8: key [5] comes twice; a multimap is a slice of structs with key and element", nil},
		{"short struct", new(cerealtest.Point), "00", "cereal: decode cerealtest.Point: X: float64 takes at least 8 bytes, 1 remain", codec.ErrOverflow},
		{"short array", new([3]int16), "0100020003", "cereal: decode [3]int16: [2]: int16 takes at least 2 bytes, 1 remain", codec.ErrOverflow},
		{"pointer to nothing", new(cerealtest.Strings), "010000000000000001000000", "cereal: decode cerealtest.Strings: All[0]: shared pointer 0x1 follows 0 objects", nil},
		{"pointer out of order", new(cerealtest.Common[int8]), "02000080", "cereal: decode cerealtest.Common[int8]: To: shared pointer 0x80000002 follows 0 objects", nil},
		{"object twice", new(cerealtest.Strings), "0200000000000000" + "010000800000000000000000" + "01000080", "cereal: decode cerealtest.Strings: All[1]: shared pointer 0x80000001 follows 1 objects", nil},
		{
			"pointer to another type", new(struct {
				A *int8  `cereal:"shared"`
				B *uint8 `cereal:"shared"`
			}), "010000800701000000",
			`cereal: decode struct { A *int8 "cereal:\"shared\""; B *uint8 "cereal:\"shared\"" }: B: shared pointer 1 leads to a int8, not a uint8`, nil,
		},
		{"alternative too high", new(cerealtest.MaybeByte), "02000000", "cereal: decode cerealtest.MaybeByte: alternative 2 of the variant cerealtest.MaybeByte, which has 2", nil},
		{"alternative below zero", new(cerealtest.MaybeByte), "ffffffff", "cereal: decode cerealtest.MaybeByte: alternative -1 of the variant cerealtest.MaybeByte, which has 2", nil},
		{"short version", new(cerealtest.Versioned), "0300", "cereal: decode cerealtest.Versioned: Version: the class version takes 4 bytes, 2 remain", codec.ErrOverflow},
		{"own error", &codectest.Misbehaved{OnDecode: func([]byte) (int, error) { return 0, codectest.ErrOwn }}, "00", "cereal: decode codectest.Misbehaved: no bytes today", codectest.ErrOwn},
		{"too much taken", &codectest.Misbehaved{OnDecode: func([]byte) (int, error) { return 2, nil }}, "00", "cereal: decode codectest.Misbehaved: DecodeProc of *codectest.Misbehaved took 2 bytes of 1; return how many bytes were read", nil},
		{"less than nothing taken", &codectest.Misbehaved{OnDecode: func([]byte) (int, error) { return -1, nil }}, "00", "cereal: decode codectest.Misbehaved: DecodeProc of *codectest.Misbehaved took -1 bytes of 1; return how many bytes were read", nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n, err := planOf(t, tt.v).Decode(codectest.Hex(t, tt.hex), tt.v)
			checkError(t, err, tt.want, tt.is)
			if n != 0 {
				t.Errorf("took %d bytes", n)
			}
		})
	}
}

func TestWrongValue(t *testing.T) {
	type four struct{ A int32 }
	p := planFor[four](t)
	for _, tt := range []struct {
		v    any
		want string
	}{
		{nil, "given a <nil>; pass a *cereal_test.four"},
		{four{}, "given a cereal_test.four; pass a *cereal_test.four"},
		{(*four)(nil), "given a nil pointer; pass a pointer to a value"},
	} {
		_, err := p.Append(nil, tt.v)
		checkError(t, err, "cereal: append cereal_test.four: "+tt.want, nil)
		_, err = p.Decode(make([]byte, 4), tt.v)
		checkError(t, err, "cereal: decode cereal_test.four: "+tt.want, nil)
	}
}

// chainOf returns the bytes of a chain of so many links, and the last that leads nowhere.
func chainOf(links int) []byte { return append(bytes.Repeat([]byte{1}, links), 0) }

// How deep a message is, is for the message to say; how deep it may be, is not.
// parity: T60
func TestDepth(t *testing.T) {
	const most = 10_000
	p := planFor[chain](t)
	var c chain
	codectest.MustDecode(t, p, chainOf(most), &c)
	if got := codectest.MustAppend(t, p, &c); !bytes.Equal(got, chainOf(most)) {
		t.Errorf("%d links become %d bytes", most, len(got))
	}
	deeper := &chain{&c}
	for _, links := range []int{most + 1, 1 << 20} {
		_, err := p.Decode(chainOf(links), new(chain))
		if err == nil || !strings.Contains(err.Error(), "more than 10000 slices, maps and pointers deep") || len(err.Error()) > 500 {
			t.Errorf("%d links: %.1000v", links, err)
		}
	}
	if _, err := p.Append(nil, deeper); err == nil {
		t.Error("a chain that nobody could read is written")
	}
	one := []byte{1, 0, 0, 0, 0, 0, 0, 0}
	if _, err := planFor[forest](t).Decode(bytes.Repeat(one, most+1), new(forest)); err == nil || errors.Is(err, codec.ErrOverflow) {
		t.Errorf("slices in slices: %.1000v", err)
	}
}

// C++ receivers look at none of what is tolerated here.
func TestDecodeTolerates(t *testing.T) {
	var ok bool
	codectest.MustDecode(t, planFor[bool](t), []byte{0x80}, &ok)
	var sole cerealtest.Sole[int8]
	codectest.MustDecode(t, planFor[cerealtest.Sole[int8]](t), []byte{2, 7}, &sole)
	var maybe cerealtest.Maybe[int8]
	codectest.MustDecode(t, planFor[cerealtest.Maybe[int8]](t), []byte{2}, &maybe)
	if !ok || sole.To == nil || *sole.To != 7 || maybe.Value != nil {
		t.Errorf("got %v, %v, %v", ok, sole.To, maybe.Value)
	}
	var m map[int8]int8
	codectest.MustDecode(t, planFor[map[int8]int8](t), []byte{2, 0, 0, 0, 0, 0, 0, 0, 9, 1, -3 & 0xff, 2}, &m)
	if !maps.Equal(m, map[int8]int8{9: 1, -3: 2}) {
		t.Errorf("an unordered map becomes %v", m)
	}
	var v [1]int8
	if n, err := planFor[[1]int8](t).Decode([]byte{1, 2, 3}, &v); n != 1 || err != nil {
		t.Errorf("with bytes that follow: %d, %v", n, err)
	}
}

// Keys of every kind come in the order that std::less gives them.
// parity: T52
func TestMapOrder(t *testing.T) {
	type key struct {
		A int8
		B [2]string
	}
	ascending[int64](t, math.MinInt64, -1, 0, 1, math.MaxInt64)
	ascending[uint16](t, 0, 1, 255, 256, 65535)
	ascending(t, "", "A", "Aa", "a", "\x7f", "\x80", "ü", "\xff")
	ascending(t, math.Inf(-1), -1.5, 0, math.SmallestNonzeroFloat64, math.Inf(1))
	ascending[float32](t, -1, 2)
	ascending(t, false, true)
	ascending(t, [2]int8{-1, 5}, [2]int8{0, -1}, [2]int8{0, 0})
	ascending(t, key{-1, [2]string{"z", "z"}}, key{0, [2]string{"", "b"}}, key{0, [2]string{"a", ""}})
	ascending(t, 1-2i, 1+1i, 2-5i)
	ascending[complex64](t, 1, 1+1i, 2)
}

func ascending[K comparable](t *testing.T, keys ...K) {
	t.Helper()
	m := map[K]struct{}{}
	for _, k := range keys {
		m[k] = struct{}{}
	}
	got := codectest.MustAppend(t, planFor[map[K]struct{}](t), &m)
	if want := codectest.MustAppend(t, planFor[[]K](t), &keys); !bytes.Equal(got, want) {
		t.Errorf("keys %v:\ngot  %x\nwant %x", keys, got, want)
	}
}

// What an earlier call returned belongs to the program.
func TestDecodeIntoFreshMemory(t *testing.T) {
	type value struct {
		Bytes   []byte
		Numbers []int32
		Map     map[string][]int8
		Pointer *[]int8 `cereal:"unique"`
		Which   cerealtest.NumberOrText
	}
	p := planFor[value](t)
	v := value{[]byte{1, 2}, []int32{3}, map[string][]int8{"a": {4}}, &[]int8{5}, cerealtest.NumberOrText{Number: new(int32(6))}}
	b := codectest.MustAppend(t, p, &v)
	old := v
	codectest.MustDecode(t, p, codectest.MustAppend(t, p, &value{
		[]byte{8, 8}, []int32{8}, map[string][]int8{"a": {8}}, &[]int8{8}, cerealtest.NumberOrText{Text: new("8")},
	}), &v)
	if got := codectest.MustAppend(t, p, &old); !bytes.Equal(got, b) {
		t.Errorf("the earlier value changed to %+v", old)
	}
	if v.Which.Number != nil || *v.Which.Text != "8" {
		t.Errorf("the variant is %+v", v.Which)
	}
	codectest.MustDecode(t, p, b, &v)
	clear(b)
	if !slices.Equal(v.Bytes, []byte{1, 2}) || v.Map["a"][0] != 4 {
		t.Errorf("the value changed with the buffer: %+v", v)
	}
	codectest.MustDecode(t, p, codectest.MustAppend(t, p, &value{Which: cerealtest.NumberOrText{Number: new(int32)}}), &v)
	if v.Bytes != nil || v.Numbers != nil || v.Map == nil || len(v.Map) != 0 || v.Pointer != nil {
		t.Errorf("empty containers are %+v", v)
	}
}

// Fields that do not travel are left as they are.
func TestDecodeLeavesOut(t *testing.T) {
	type in struct {
		A     uint8
		B     string   `cereal:"-"`
		local chan int `cereal:"-"`
	}
	v := in{B: "kept", local: make(chan int)}
	codectest.MustDecode(t, planFor[in](t), []byte{1}, &v)
	if v.A != 1 || v.B != "kept" || v.local == nil {
		t.Errorf("got %+v", v)
	}
}

// The version of a class in a message is that of its first value.
func TestClassVersion(t *testing.T) {
	type in struct {
		First, Second cerealtest.Versioned
		Other         struct {
			Version cereal.ClassVersion
			Text    string
		}
	}
	v := in{First: cerealtest.Versioned{Version: 7, Value: 1}, Second: cerealtest.Versioned{Version: 7, Value: 2}}
	v.Other.Version = 9
	b := codectest.MustAppend(t, planFor[in](t), &v)
	if want := "07000000" + "0100" + "0200" + "09000000" + "0000000000000000"; hex.EncodeToString(b) != want {
		t.Errorf("got %x, want %s", b, want)
	}
	var got in
	codectest.MustDecode(t, planFor[in](t), b, &got)
	if got != v {
		t.Errorf("got %+v, want %+v", got, v)
	}
}

// A program may read the first arguments, and choose by them how to read the others.
// parity: T35 T58
func TestRest(t *testing.T) {
	type first struct {
		Kind uint8
		Rest cereal.Rest
	}
	var f first
	b := []byte{2, 1, 2, 3}
	codectest.MustDecode(t, planFor[first](t), b, &f)
	var rest [3]int8
	codectest.MustDecode(t, planFor[[3]int8](t), f.Rest, &rest)
	if f.Kind != 2 || rest != [3]int8{1, 2, 3} {
		t.Errorf("got %d, %v", f.Kind, rest)
	}
	if got := codectest.MustAppend(t, planFor[first](t), &f); !bytes.Equal(got, b) {
		t.Errorf("written again: %x", got)
	}
	b[1] = 9
	if f.Rest[0] != 1 {
		t.Error("the rest is not a copy")
	}
}

// wide is large in memory and small in a message.
type wide struct {
	Tag  uint8
	Room [1 << 10]byte `cereal:"-"`
}

// A message can announce many elements that are larger in memory than in the message.
// parity: T60
func TestHostileLengthsAllocateLittle(t *testing.T) {
	const size = 1 << 20
	million := []byte{0, 0, 16, 0, 0, 0, 0, 0}
	codectest.CheckHostile(t, cereal.Codec{}, 4, []codectest.Hostile{
		{Name: "string", Value: new(string), Bytes: append([]byte{0, 0, 0, 0, 0, 0, 0, 0x80}, 1, 2, 3)},
		{Name: "bytes", Value: new([]byte), Bytes: []byte{0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0, 1, 2, 3}},
		{Name: "map", Value: new(map[uint64]uint64), Bytes: []byte{0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0, 1, 2, 3}},
		// The announced elements would have their bytes, but the first has none.
		{Name: "elements", Value: new([]struct {
			W wide
			S string
		}), Bytes: append(append([]byte{0, 0, 1, 0, 0, 0, 0, 0}, 1), bytes.Repeat([]byte{0xff}, size)...)},
		{Name: "entries", Value: new(map[uint8]struct {
			W wide
			S string
		}), Bytes: append(append([]byte{0, 0, 1, 0, 0, 0, 0, 0}, 1, 1), bytes.Repeat([]byte{0xff}, size)...)},
		{Name: "pointers", Value: new(cerealtest.Strings), Bytes: append(million, bytes.Repeat([]byte{0, 0, 0, 0}, size-1)...)},
	})
}

// Sizes are no limit of the encoding.
// parity: T51 T60
func TestLarge(t *testing.T) {
	numbers := make([]int32, 1<<20)
	for i := range numbers {
		numbers[i] = int32(i * i)
	}
	p := planFor[[]int32](t)
	b := codectest.MustAppend(t, p, &numbers)
	var got []int32
	codectest.MustDecode(t, p, b, &got)
	if len(b) != 8+4<<20 || !slices.Equal(got, numbers) {
		t.Errorf("%d numbers take %d bytes and become %d", len(numbers), len(b), len(got))
	}
	text := strings.Repeat("x", 10<<20)
	b = codectest.MustAppend(t, planFor[string](t), &text)
	var back string
	codectest.MustDecode(t, planFor[string](t), b, &back)
	if len(b) != 8+10<<20 || back != text {
		t.Errorf("a string of %d bytes takes %d and becomes one of %d", len(text), len(b), len(back))
	}
}

// Vectors have the same bytes whether their type is one of the usual ones or a name for it.
func TestNumbers(t *testing.T) {
	type (
		i32 []int32
		u32 []uint32
		i64 []int64
		u64 []uint64
		f32 []float32
		f64 []float64
	)
	sameNumbers(t, &[]int32{math.MinInt32, -1, 0, 1}, &i32{math.MinInt32, -1, 0, 1})
	sameNumbers(t, &[]uint32{0, 1, math.MaxUint32}, &u32{0, 1, math.MaxUint32})
	sameNumbers(t, &[]int64{math.MinInt64, -1, 0, 1}, &i64{math.MinInt64, -1, 0, 1})
	sameNumbers(t, &[]uint64{0, 1, math.MaxUint64}, &u64{0, 1, math.MaxUint64})
	sameNumbers(t, &[]float32{-1.5, 0, math.MaxFloat32}, &f32{-1.5, 0, math.MaxFloat32})
	sameNumbers(t, &[]float64{-1.5, 0, math.MaxFloat64}, &f64{-1.5, 0, math.MaxFloat64})
}

func sameNumbers(t *testing.T, usual, named any) {
	t.Helper()
	b := codectest.MustAppend(t, planOf(t, usual), usual)
	if got := codectest.MustAppend(t, planOf(t, named), named); !bytes.Equal(got, b) {
		t.Errorf("%v: bytes %x, with a name %x", usual, b, got)
	}
	for _, like := range []any{usual, named} {
		v := reflect.New(codectest.TypeOf(like)).Interface()
		codectest.MustDecode(t, planOf(t, like), b, v)
		if !reflect.DeepEqual(v, like) {
			t.Errorf("%x becomes %v, want %v", b, v, like)
		}
	}
}

func TestPartsByHand(t *testing.T) {
	b := cereal.AppendString([]byte("x"), "text")
	s, n, err := cereal.DecodeString(append(b, 9)[1:])
	if s != "text" || n != len(b)-1 || err != nil {
		t.Errorf("DecodeString = %q, %d, %v", s, n, err)
	}
	b = cereal.AppendSize(nil, 2)
	if n, took, err := cereal.DecodeSize(append(b, 1, 2), 0); n != 2 || took != 8 || err != nil {
		t.Errorf("DecodeSize = %d, %d, %v", n, took, err)
	}
	for _, least := range []int{2, math.MaxInt} {
		if _, _, err := cereal.DecodeSize(append(b, 1, 2, 3), least); !errors.Is(err, codec.ErrOverflow) {
			t.Errorf("elements of %d bytes: %v", least, err)
		}
	}
	if _, _, err := cereal.DecodeSize(b[:7], 1); !errors.Is(err, codec.ErrOverflow) {
		t.Errorf("half a size: %v", err)
	}
	if _, _, err := cereal.DecodeString(b); !errors.Is(err, codec.ErrOverflow) {
		t.Errorf("half a string: %v", err)
	}
}

// An error of a part that was read by hand has the path that leads to it.
func TestErrorOfPart(t *testing.T) {
	type in struct{ A []codectest.Misbehaved }
	p := planFor[codectest.Misbehaved](t)
	v := codectest.Misbehaved{OnDecode: func(b []byte) (int, error) {
		_, n, err := cereal.DecodeString(b)
		return n, err
	}}
	_, err := p.Decode([]byte{9, 0, 0, 0, 0, 0, 0, 0, 1}, &v)
	checkError(t, err, "cereal: decode codectest.Misbehaved: 9 elements of at least 1 bytes exceed the 1 bytes that remain", codec.ErrOverflow)
	wrapped := codectest.Misbehaved{OnAppend: func([]byte) ([]byte, error) { return nil, fmt.Errorf("inside: %w", codectest.ErrOwn) }}
	_, err = planFor[in](t).Append(nil, &in{[]codectest.Misbehaved{wrapped}})
	checkError(t, err, "cereal: append cereal_test.in: A[0]: inside: no bytes today", codectest.ErrOwn)
}

func TestPlanIsSafeForConcurrentUse(t *testing.T) {
	p := planFor[cerealtest.Common[cerealtest.Parent]](t)
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			parent := &cerealtest.Parent{}
			for range i {
				parent.Children = append(parent.Children, &cerealtest.Child{Age: int8(i), Of: parent})
			}
			in := cerealtest.Common[cerealtest.Parent]{To: parent}
			for range 100 {
				b, err := p.Append(nil, &in)
				var out cerealtest.Common[cerealtest.Parent]
				if err == nil {
					_, err = p.Decode(b, &out)
				}
				if err != nil || len(out.To.Children) != i {
					t.Errorf("got %+v, %v, want %d children", out, err, i)
				}
			}
		})
	}
	wg.Wait()
}
