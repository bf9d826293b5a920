package hgproc_test

import (
	"bytes"
	"math"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"

	"cinnabar/codec"
	"cinnabar/codec/hgproc"
	"cinnabar/internal/codectest"
)

// parity: H103
func TestAppendRefuses(t *testing.T) {
	type counts struct {
		N    int32
		Data []byte `proc:"count=N"`
	}
	type list struct {
		N int8
		S []string `proc:"count=N"`
	}
	type nothings struct {
		N uint8
		A []codectest.Misbehaved `proc:"count=N"`
	}
	type custom struct{ A [1]codectest.Misbehaved }
	nothing := codectest.Misbehaved{OnAppend: func(b []byte) ([]byte, error) { return b, nil }}
	for _, tt := range []struct {
		name string
		v    any
		want string
		is   error
	}{
		{"NUL", new("a\x00b"), "hgproc: append string: the string of 3 bytes has a NUL at 1, where C would end it; send it as a counted slice of bytes", nil},
		{"NUL below", &list{2, []string{"", "\x00"}}, "hgproc: append hgproc_test.list: S[1]: the string of 1 bytes has a NUL at 0, where C would end it; send it as a counted slice of bytes", nil},
		{"count too small", &counts{1, []byte{1, 2}}, "hgproc: append hgproc_test.counts: Data: the slice has 2 elements, its count N says 1; set the count to the length of the slice", nil},
		{"count negative", &counts{-2, []byte{1, 2}}, "hgproc: append hgproc_test.counts: Data: the slice has 2 elements, its count N says -2; set the count to the length of the slice", nil},
		{"elements without bytes", &nothings{2, []codectest.Misbehaved{nothing, nothing}}, "hgproc: append hgproc_test.nothings: A: 2 elements took only 0 bytes; write at least a byte for each element of a counted slice", nil},
		{
			"own error", &custom{[1]codectest.Misbehaved{{OnAppend: func([]byte) ([]byte, error) { return nil, codectest.ErrOwn }}}},
			"hgproc: append hgproc_test.custom: A[0]: no bytes today", codectest.ErrOwn,
		},
		{
			"own string", &custom{[1]codectest.Misbehaved{{OnAppend: func(b []byte) ([]byte, error) { return hgproc.AppendString(b, "\x00") }}}},
			"hgproc: append hgproc_test.custom: A[0]: the string of 1 bytes has a NUL at 0, where C would end it; send it as a counted slice of bytes", nil,
		},
		{
			"lost bytes", &struct {
				B uint8
				A codectest.Misbehaved
			}{A: codectest.Misbehaved{OnAppend: func([]byte) ([]byte, error) { return nil, nil }}},
			"A: AppendProc of *codectest.Misbehaved returned 0 bytes, fewer than the 5 it was given; append to the buffer and return it", nil,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			buf := []byte("kept")
			b, err := planOf(t, tt.v).Append(buf, tt.v)
			codectest.CheckError(t, err, tt.want, tt.is)
			if string(b) != "kept" {
				t.Errorf("buffer is %q", b)
			}
		})
	}
}

// parity: H108
func TestDecodeRefuses(t *testing.T) {
	type in struct {
		N     int64
		Items []struct {
			Name string
			X    uint16
		} `proc:"count=N"`
	}
	type custom struct{ A codectest.Misbehaved }
	item := "0200000000000000" + "6100" + "0000" + "0500" // {"a", 5}
	over := codec.ErrOverflow
	for _, tt := range []struct {
		name string
		v    any
		hex  string
		want string
		is   error
	}{
		{"length 2^63", new(string), "0000000000000080" + "00", "hgproc: decode string: string length 9223372036854775808 and 2 flag bytes exceed the 1 bytes that remain", over},
		{"length 2^64-1", new(string), "ffffffffffffffff" + "0000000000", "string length 18446744073709551615 and 2 flag bytes exceed the 5 bytes that remain", over},
		{"flags missing", new(string), "0200000000000000" + "6100" + "00", "string length 2 and 2 flag bytes exceed the 3 bytes that remain", over},
		{"length missing", new(string), "020000", "string takes 8 bytes, 3 remain", over},
		{"no NUL", new(string), "0200000000000000" + "6162" + "0000", "the string of length 2 does not end in NUL", nil},
		{"NUL inside", new(*string), "0300000000000000" + "610000" + "0000", "the string of length 3 has a NUL at 1", nil},
		{"count 2^62", new(in), "0000000000000040" + item, "Items: 4611686018427387904 elements of at least 10 bytes exceed the 14 bytes that remain", over},
		{"count negative", new(in), "ffffffffffffffff" + item, "hgproc: decode hgproc_test.in: Items: its count N is -1", nil},
		{"second element", new(in), "0200000000000000" + item + "0900000000000000" + "61626300", "Items[1].Name: string length 9 and 2 flag bytes exceed the 4 bytes that remain", over},
		{"end of an element", new(in), "0100000000000000" + item[:26], "Items[0].X: uint16 takes 2 bytes, 1 remain", over},
		{"array", new([2]uint32), "0000000000", "hgproc: decode [2]uint32: [1]: uint32 takes 4 bytes, 1 remain", over},
		{"byte array", new(struct{ A [4]byte }), "0000", "A: [4]uint8 takes 4 bytes, 2 remain", over},
		{"padding", new(struct {
			A uint8
			_ [3]byte
		}), "0000", "_: [3]uint8 takes 3 bytes, 1 remain", over},
		{"own error", &custom{codectest.Misbehaved{OnDecode: func([]byte) (int, error) { return 0, codectest.ErrOwn }}}, "", "hgproc: decode hgproc_test.custom: A: no bytes today", codectest.ErrOwn},
		{
			"own string", &custom{codectest.Misbehaved{OnDecode: func(b []byte) (int, error) { _, n, err := hgproc.DecodeString(b); return n, err }}}, "02",
			"hgproc: decode hgproc_test.custom: A: a string length takes 8 bytes, 1 remain", over,
		},
		{"too much taken", &custom{codectest.Misbehaved{OnDecode: func([]byte) (int, error) { return 2, nil }}}, "00", "A: DecodeProc of *codectest.Misbehaved took 2 bytes of 1; return how many bytes were read", nil},
		{"less than nothing taken", &codectest.Misbehaved{OnDecode: func([]byte) (int, error) { return -1, nil }}, "00", "DecodeProc of *codectest.Misbehaved took -1 bytes of 1; return how many bytes were read", nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n, err := planOf(t, tt.v).Decode(codectest.Hex(t, tt.hex), tt.v)
			codectest.CheckError(t, err, tt.want, tt.is)
			if n != 0 {
				t.Errorf("took %d bytes", n)
			}
		})
	}
}

func TestWrongValue(t *testing.T) {
	p := planFor[four](t)
	for _, tt := range []struct {
		v    any
		want string
	}{
		{nil, "given a <nil>; pass a *hgproc_test.four"},
		{four{}, "given a hgproc_test.four; pass a *hgproc_test.four"},
		{new(fourByHand), "given a *hgproc_test.fourByHand; pass a *hgproc_test.four"},
		{(*four)(nil), "given a nil pointer; pass a pointer to a value"},
	} {
		_, err := p.Append(nil, tt.v)
		codectest.CheckError(t, err, "hgproc: append hgproc_test.four: "+tt.want, nil)
		_, err = p.Decode(make([]byte, fourSize), tt.v)
		codectest.CheckError(t, err, "hgproc: decode hgproc_test.four: "+tt.want, nil)
	}
}

// C receivers look at none of what is tolerated here.
func TestDecodeTolerates(t *testing.T) {
	type in struct {
		OK   bool
		Name string
		_    [2]byte
	}
	for name, b := range map[string]string{
		"as C writes it": "\x01\x02\x00\x00\x00\x00\x00\x00\x00a\x00\x00\x00\x00\x00",
		"true above 1":   "\x80\x02\x00\x00\x00\x00\x00\x00\x00a\x00\x00\x00\x00\x00",
		"const, owned":   "\x01\x02\x00\x00\x00\x00\x00\x00\x00a\x00\x01\x01\x00\x00",
		"dirty padding":  "\x01\x02\x00\x00\x00\x00\x00\x00\x00a\x00\x00\x00\xde\xad",
	} {
		var got in
		codectest.MustDecode(t, planFor[in](t), []byte(b), &got)
		if want := (in{OK: true, Name: "a"}); got != want {
			t.Errorf("%s: got %+v, want %+v", name, got, want)
		}
	}
	got := in{Name: "old"}
	codectest.MustDecode(t, planFor[in](t), make([]byte, 11), &got) // a null string
	if got != (in{}) {
		t.Errorf("null string: got %+v", got)
	}
}

func TestTrailingBytes(t *testing.T) {
	var v four
	n, err := planFor[four](t).Decode(make([]byte, fourSize+5), &v)
	if n != fourSize || err != nil {
		t.Errorf("Decode = %d, %v, want %d", n, err, fourSize)
	}
}

// Lengths are unsigned in C; a million bytes are nothing special.
// parity: H103
func TestLongString(t *testing.T) {
	for _, size := range []int{0, 1, 1 << 20} {
		want := strings.Repeat("x", size)
		p := planFor[string](t)
		b := codectest.MustAppend(t, p, &want)
		if got := len(b); got != 8+size+3 {
			t.Errorf("%d bytes of text take %d", size, got)
		}
		var got string
		codectest.MustDecode(t, p, b, &got)
		if got != want {
			t.Errorf("text of %d bytes differs", size)
		}
	}
}

func TestArrayOfNothing(t *testing.T) {
	type in struct {
		A [1 << 30]struct{} // too many to visit
		B uint8
	}
	p, v := planFor[in](t), &in{B: 7}
	b := codectest.MustAppend(t, p, v)
	if !bytes.Equal(b, []byte{7}) {
		t.Errorf("got %x", b)
	}
	codectest.MustDecode(t, p, b, v)
}

// What an earlier call returned belongs to the program.
func TestDecodeIntoFreshMemory(t *testing.T) {
	p := planFor[counted](t)
	text := "old"
	v := counted{N: 2, Nums: []int32{1, 2}, Data: []byte{3, 4}, Name: "name", Null: &text}
	b := codectest.MustAppend(t, p, &v)
	old := v
	codectest.MustDecode(t, p, codectest.MustAppend(t, p, &counted{N: 2, Nums: []int32{8, 8}, Data: []byte{8, 8}, Null: new("new")}), &v)
	if got := codectest.MustAppend(t, p, &old); !bytes.Equal(got, b) {
		t.Errorf("the earlier value changed to %+v", old)
	}

	codectest.MustDecode(t, p, b, &v)
	clear(b)
	if !slices.Equal(v.Data, []byte{3, 4}) || v.Name != "name" || *v.Null != "old" {
		t.Errorf("the value changed with the buffer: %+v", v)
	}
}

// Fields that do not travel are left as they are.
func TestDecodeLeavesOut(t *testing.T) {
	type in struct {
		A uint8
		B string `proc:"-"`
	}
	v := in{B: "kept"}
	codectest.MustDecode(t, planFor[in](t), []byte{1}, &v)
	if v != (in{1, "kept"}) {
		t.Errorf("got %+v", v)
	}
}

// wide is large in memory and small in a message.
type wide struct {
	Tag  uint8
	Room [1 << 10]byte `proc:"-"`
}

// A message can announce many elements that are larger in memory than in the message, or a string of any length.
// parity: H108
func TestHostileLengthsAllocateLittle(t *testing.T) {
	type wides struct {
		N uint32
		A []struct {
			W wide
			S string
		} `proc:"count=N"`
	}
	const size = 1 << 20
	codectest.CheckHostile(t, hgproc.Codec{}, 2, []codectest.Hostile{
		{Name: "string", Value: new(string), Bytes: append([]byte{0, 0, 0, 0, 0, 0, 0, 0x80}, 1, 2, 3)},
		{Name: "bytes", Value: new(byteVector), Bytes: []byte{0xff, 0xff, 0xff, 0xff, 1, 2, 3}},
		// The announced elements would have their bytes, but the first has none.
		{Name: "elements", Value: new(wides), Bytes: append([]byte{0, 0, 1, 0, 1}, bytes.Repeat([]byte{0xff}, size)...)},
	})
}

// An id above 2^32 loses its upper half, as in C, and nothing else of the message moves.
// parity: H104
func TestIDTruncates(t *testing.T) {
	type in struct {
		ID    hgproc.ID
		After uint8
	}
	p := planFor[in](t)
	b := codectest.MustAppend(t, p, &in{math.MaxUint64 - 1, 5})
	if want := []byte{0xfe, 0xff, 0xff, 0xff, 5}; !bytes.Equal(b, want) {
		t.Errorf("got %x, want %x", b, want)
	}
	got := in{ID: math.MaxUint64}
	codectest.MustDecode(t, p, b, &got)
	if want := (in{math.MaxUint32 - 1, 5}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestStringsByHand(t *testing.T) {
	b, err := hgproc.AppendString([]byte("x"), "text")
	if err != nil {
		t.Fatal(err)
	}
	s, n, err := hgproc.DecodeString(append(b, 9)[1:])
	if s != "text" || n != len(b)-1 || err != nil {
		t.Errorf("DecodeString = %q, %d, %v", s, n, err)
	}
	if s, n, err := hgproc.DecodeString(make([]byte, 8)); s != "" || n != 8 || err != nil {
		t.Errorf("null: %q, %d, %v", s, n, err)
	}
	b, err = hgproc.AppendString([]byte("x"), "\x00")
	codectest.CheckError(t, err, "the string of 1 bytes has a NUL at 0, where C would end it; send it as a counted slice of bytes", nil)
	if string(b) != "x" {
		t.Errorf("buffer is %q", b)
	}
}

func TestPlanIsSafeForConcurrentUse(t *testing.T) {
	p := planFor[counted](t)
	var wg sync.WaitGroup
	for i := range int32(8) {
		wg.Go(func() {
			in := counted{N: 1, Nums: []int32{i}, Data: []byte{byte(i)}, Name: strings.Repeat("n", int(i))}
			for range 100 {
				b, err := p.Append(nil, &in)
				var out counted
				if err == nil {
					_, err = p.Decode(b, &out)
				}
				if err != nil || !reflect.DeepEqual(in, out) {
					t.Errorf("got %+v, %v, want %+v", out, err, in)
				}
			}
		})
	}
	wg.Wait()
}
