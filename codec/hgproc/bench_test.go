package hgproc_test

import (
	"encoding/binary"
	"math"
	"reflect"
	"strconv"
	"sync"
	"testing"

	"cinnabar/codec"
	"cinnabar/codec/hgproc"
	"cinnabar/internal/codectest"
)

// four is the struct that encoders are compared with.
type four struct {
	A int32
	B uint64
	C uint16
	D float64
}

const fourSize = 4 + 8 + 2 + 8

// fourByHand has the same bytes and writes them itself.
type fourByHand four

func (f *fourByHand) AppendProc(b []byte) ([]byte, error) {
	le := binary.LittleEndian
	b = le.AppendUint32(b, uint32(f.A))
	b = le.AppendUint64(b, f.B)
	b = le.AppendUint16(b, f.C)
	return le.AppendUint64(b, math.Float64bits(f.D)), nil
}

func (f *fourByHand) DecodeProc(b []byte) (int, error) {
	if len(b) < fourSize {
		return 0, codec.ErrOverflow
	}
	le := binary.LittleEndian
	f.A, f.B, f.C, f.D = int32(le.Uint32(b)), le.Uint64(b[4:]), le.Uint16(b[12:]), math.Float64frombits(le.Uint64(b[14:]))
	return fourSize, nil
}

// fixed has every type that takes a fixed number of bytes.
type fixed struct {
	I8   int8
	I16  int16
	I32  int32
	I64  int64
	U8   uint8
	U16  uint16
	U32  uint32
	U64  uint64
	OK   bool
	F32  float32
	F64  float64
	ID   hgproc.ID
	Raw  [5]byte
	_    [3]byte
	Nums [3]uint16
	In   struct{ X, Y int32 }
	Skip map[string]int `proc:"-"`
	Hand fourByHand
}

// counted has what varies in size.
type counted struct {
	N    uint32
	Nums []int32 `proc:"count=N"`
	Data []byte  `proc:"count=N"`
	Name string
	Null *string
}

func TestAppendDoesNotAllocate(t *testing.T) {
	text := "text"
	t.Run("fixed", func(t *testing.T) { appendAllocs(t, &fixed{I8: -1, ID: 7}) })
	t.Run("by hand", func(t *testing.T) { appendAllocs(t, &fourByHand{A: 1}) })
	t.Run("counted", func(t *testing.T) {
		appendAllocs(t, &counted{N: 2, Nums: []int32{1, 2}, Data: []byte{3, 4}, Name: "name", Null: &text})
	})
}

func appendAllocs[T any](t *testing.T, v *T) {
	t.Helper()
	p := planFor[T](t)
	buf := make([]byte, 0, 512)
	got := testing.AllocsPerRun(100, func() {
		if _, err := p.Append(buf, v); err != nil {
			t.Fatal(err)
		}
	})
	if got != 0 {
		t.Errorf("%v allocations", got)
	}
}

func TestDecodeAllocates(t *testing.T) {
	text := "text"
	t.Run("fixed", func(t *testing.T) { decodeAllocs(t, &fixed{I8: -1, ID: 7}, 0) })
	t.Run("by hand", func(t *testing.T) { decodeAllocs(t, &fourByHand{A: 1}, 0) })
	// Two slices, two strings, and the variable that holds the second.
	t.Run("counted", func(t *testing.T) {
		decodeAllocs(t, &counted{N: 2, Nums: []int32{1, 2}, Data: []byte{3, 4}, Name: "name", Null: &text}, 5)
	})
	t.Run("empty", func(t *testing.T) { decodeAllocs(t, new(counted), 0) })
}

func decodeAllocs[T any](t *testing.T, v *T, want float64) {
	t.Helper()
	p := planFor[T](t)
	buf := codectest.MustAppend(t, p, v)
	got := testing.AllocsPerRun(100, func() {
		if _, err := p.Decode(buf, v); err != nil {
			t.Fatal(err)
		}
	})
	if got != want {
		t.Errorf("%v allocations, want %v", got, want)
	}
}

func BenchmarkAppend(b *testing.B) {
	b.Run("four", func(b *testing.B) { benchAppend(b, &four{A: 1, B: 2, C: 3, D: 4}) })
	b.Run("four by hand", func(b *testing.B) { benchAppend(b, &fourByHand{A: 1, B: 2, C: 3, D: 4}) })
	b.Run("string", func(b *testing.B) { benchAppend(b, &struct{ S string }{"hello, world"}) })
	for _, n := range []int{16, 256, 4096} {
		b.Run("int32s/"+strconv.Itoa(n), func(b *testing.B) { benchAppend(b, int32s(n)) })
		b.Run("bytes/"+strconv.Itoa(n), func(b *testing.B) { benchAppend(b, byteSlice(n)) })
	}
}

func BenchmarkDecode(b *testing.B) {
	b.Run("four", func(b *testing.B) { benchDecode(b, &four{A: 1, B: 2, C: 3, D: 4}) })
	b.Run("four by hand", func(b *testing.B) { benchDecode(b, &fourByHand{A: 1, B: 2, C: 3, D: 4}) })
	b.Run("string", func(b *testing.B) { benchDecode(b, &struct{ S string }{"hello, world"}) })
	for _, n := range []int{16, 256, 4096} {
		b.Run("int32s/"+strconv.Itoa(n), func(b *testing.B) { benchDecode(b, int32s(n)) })
		b.Run("bytes/"+strconv.Itoa(n), func(b *testing.B) { benchDecode(b, byteSlice(n)) })
	}
}

// BenchmarkAppendCaller compares the places where a caller can keep the value.
func BenchmarkAppendCaller(b *testing.B) {
	p := planFor[four](b)
	buf := make([]byte, 0, 64)
	b.Run("local", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			v := four{A: 1}
			if _, err := p.Append(buf, &v); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("pooled", func(b *testing.B) {
		pool := sync.Pool{New: func() any { return new(four) }}
		b.ReportAllocs()
		for b.Loop() {
			v := pool.Get().(*four)
			*v = four{A: 1}
			if _, err := p.Append(buf, v); err != nil {
				b.Fatal(err)
			}
			pool.Put(v)
		}
	})
}

func BenchmarkPlan(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		if _, err := (hgproc.Codec{}).Plan(reflect.TypeFor[fixed]()); err != nil {
			b.Fatal(err)
		}
	}
}

type int32Vector struct {
	N uint32
	V []int32 `proc:"count=N"`
}

type byteVector struct {
	N uint32
	V []byte `proc:"count=N"`
}

func int32s(n int) *int32Vector   { return &int32Vector{N: uint32(n), V: make([]int32, n)} }
func byteSlice(n int) *byteVector { return &byteVector{N: uint32(n), V: make([]byte, n)} }

func benchAppend[T any](b *testing.B, v *T) {
	p := planFor[T](b)
	buf := codectest.MustAppend(b, p, v)
	b.SetBytes(int64(len(buf)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := p.Append(buf[:0], v); err != nil {
			b.Fatal(err)
		}
	}
}

func benchDecode[T any](b *testing.B, v *T) {
	p := planFor[T](b)
	buf := codectest.MustAppend(b, p, v)
	b.SetBytes(int64(len(buf)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := p.Decode(buf, v); err != nil {
			b.Fatal(err)
		}
	}
}
