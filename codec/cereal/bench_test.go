package cereal_test

import (
	"testing"

	"cinnabar/codec"
	"cinnabar/internal/cerealtest"
	"cinnabar/internal/codectest"
)

// flat is what most arguments are: numbers, a text, a vector.
type flat struct {
	ID     uint64
	X, Y   float64
	Name   string
	Values []int32
}

func TestAppendAllocatesNothing(t *testing.T) {
	for _, v := range []any{
		&flat{1, 2, 3, "name", []int32{4, 5}},
		&[]cerealtest.Point{{X: 1}, {Y: 2}},
		&cerealtest.Sole[cerealtest.Tree]{To: &cerealtest.Tree{Left: &cerealtest.Tree{}}},
		&cerealtest.NumberOrText{Text: new("text")},
	} {
		p := planOf(t, v)
		b := make([]byte, 0, 1<<10)
		if n := testing.AllocsPerRun(100, func() {
			if _, err := p.Append(b, v); err != nil {
				t.Fatal(err)
			}
		}); n != 0 {
			t.Errorf("appending a %T allocates %v times", v, n)
		}
	}
}

func TestDecodeAllocatesWhatItReturns(t *testing.T) {
	p := planFor[flat](t)
	v := &flat{1, 2, 3, "name", []int32{4, 5}}
	b := codectest.MustAppend(t, p, v)
	if n := testing.AllocsPerRun(100, func() {
		if _, err := p.Decode(b, v); err != nil {
			t.Fatal(err)
		}
	}); n > 2 {
		t.Errorf("decoding a text and a vector allocates %v times", n)
	}
}

func BenchmarkAppend(b *testing.B) {
	benchmark(b, func(p codec.Plan, buf []byte, v any) { _, _ = p.Append(buf[:0], v) })
}

func BenchmarkDecode(b *testing.B) {
	benchmark(b, func(p codec.Plan, buf []byte, v any) { _, _ = p.Decode(buf, v) })
}

// benchmark measures f with the plan, the bytes and the address of each value.
func benchmark(b *testing.B, f func(p codec.Plan, buf []byte, v any)) {
	for name, v := range benchValues() {
		b.Run(name, func(b *testing.B) {
			p := planOf(b, v)
			buf := codectest.MustAppend(b, p, v)
			b.SetBytes(int64(len(buf)))
			b.ReportAllocs()
			for b.Loop() {
				f(p, buf, v)
			}
		})
	}
}

func benchValues() map[string]any {
	m := map[string]int32{}
	for i := range int32(100) {
		m[string('a'+i)] = i
	}
	return map[string]any{
		"flat":    &flat{1, 2, 3, "name", []int32{4, 5}},
		"int32s":  new(make([]int32, 1<<16)),
		"floats":  new(make([]float64, 1<<16)),
		"map":     &m,
		"structs": new(make([]cerealtest.Point, 1<<10)),
	}
}
