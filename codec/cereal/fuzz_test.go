package cereal_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"cinnabar/codec/cereal"
	"cinnabar/internal/cerealtest"
	"cinnabar/internal/codectest"
)

// everything has every kind of type that there is.
type everything struct {
	Version  cereal.ClassVersion
	Flag     bool
	Ints     [2]int32
	Floats   []float64
	Complex  complex64
	Text     string
	Bytes    []byte
	Texts    []string
	Map      map[string][]int16
	Set      map[uint8]struct{}
	Keyed    map[cerealtest.Keyed]bool
	Which    cerealtest.NumberOrText
	Optional *string           `cereal:"optional"`
	Tree     *cerealtest.Tree  `cereal:"unique"`
	Shared   []*string         `cereal:"shared"`
	Ring     *cerealtest.Ring  `cereal:"shared"`
	ByName   map[int8]*float64 `cereal:"shared"`
	Nothing  struct{}
	Blob     cerealtest.Blob
	Nested   []map[int16]cerealtest.Pair[string, []cerealtest.Maybe[int8]]
}

// exact has no two encodings of any value.
type exact struct {
	Version cereal.ClassVersion
	Ints    [2]int64
	Floats  []float32
	Texts   []string
	Which   cerealtest.NumberOrText
	Shared  []*string        `cereal:"shared"`
	Ring    *cerealtest.Ring `cereal:"shared"`
	Blob    cerealtest.Blob
}

// parity: T60
func FuzzDecode(f *testing.F) {
	for _, b := range readGoldens(f) {
		f.Add(b)
	}
	strict, every := planFor[exact](f), planFor[everything](f)
	number := cerealtest.NumberOrText{Number: new(int32(1))}
	ring := &cerealtest.Ring{Name: "r"}
	ring.Next = ring
	f.Add(codectest.MustAppend(f, strict, &exact{Which: number, Texts: []string{"a"}, Shared: []*string{new("b"), nil}, Ring: ring}))
	f.Add(codectest.MustAppend(f, every, &everything{Which: number, Map: map[string][]int16{"a": {1}}, Ring: ring, Tree: &cerealtest.Tree{Value: 1}}))
	f.Fuzz(func(t *testing.T, b []byte) {
		codectest.CheckRecode[exact, everything](t, strict, every, b)
	})
}

func TestRandomValues(t *testing.T) {
	p := planFor[everything](t)
	rapid.Check(t, func(t *rapid.T) {
		in := drawEverything(t)
		out := codectest.Back(t, p, in)
		if diff := cmp.Diff(in, out, cmpopts.EquateEmpty(), cmpopts.EquateNaNs()); diff != "" {
			t.Fatalf("value changed (-in +out):\n%s", diff)
		}
		for i, p := range in.Shared {
			for j, q := range in.Shared[:i] {
				if (p == q) != (out.Shared[i] == out.Shared[j]) {
					t.Fatalf("pointers %d and %d: equal %t before, %t after", i, j, p == q, !(p == q))
				}
			}
		}
	})
}

func drawEverything(t *rapid.T) everything {
	text := rapid.String()
	v := everything{
		Version:  cereal.ClassVersion(rapid.Uint32().Draw(t, "version")),
		Flag:     rapid.Bool().Draw(t, "flag"),
		Ints:     [2]int32{rapid.Int32().Draw(t, "int"), rapid.Int32().Draw(t, "int")},
		Floats:   rapid.SliceOf(rapid.Float64()).Draw(t, "floats"),
		Complex:  complex(rapid.Float32().Draw(t, "real"), rapid.Float32().Draw(t, "imaginary")),
		Text:     text.Draw(t, "text"),
		Bytes:    rapid.SliceOf(rapid.Byte()).Draw(t, "bytes"),
		Texts:    rapid.SliceOf(text).Draw(t, "texts"),
		Map:      rapid.MapOf(text, rapid.SliceOf(rapid.Int16())).Draw(t, "map"),
		Set:      rapid.MapOf(rapid.Byte(), rapid.Just(struct{}{})).Draw(t, "set"),
		Keyed:    rapid.MapOf(rapid.Make[cerealtest.Keyed](), rapid.Bool()).Draw(t, "keyed"),
		Optional: rapid.Ptr(text, true).Draw(t, "optional"),
		Tree:     drawTree(t, 3),
		Ring:     drawRing(t),
		ByName:   rapid.MapOf(rapid.Int8(), rapid.Ptr(rapid.Float64(), true)).Draw(t, "by name"),
		Blob:     rapid.SliceOf(rapid.Byte()).Draw(t, "blob"),
	}
	few := rapid.SliceOfN(rapid.Ptr(text, true), 1, 3).Draw(t, "few")
	v.Shared = rapid.SliceOf(rapid.SampledFrom(few)).Draw(t, "shared")
	if rapid.Bool().Draw(t, "which") {
		v.Which.Number = new(rapid.Int32().Draw(t, "number"))
	} else {
		v.Which.Text = new(text.Draw(t, "alternative"))
	}
	return v
}

func drawTree(t *rapid.T, height int) *cerealtest.Tree {
	if height == 0 || rapid.Bool().Draw(t, "leaf") {
		return nil
	}
	return &cerealtest.Tree{Value: rapid.Int32().Draw(t, "value"), Left: drawTree(t, height-1), Right: drawTree(t, height-1)}
}

// drawRing draws a chain whose last node may lead to its first.
func drawRing(t *rapid.T) *cerealtest.Ring {
	last := &cerealtest.Ring{Name: "last"}
	first := last
	for _, name := range rapid.SliceOfN(rapid.String(), 0, 3).Draw(t, "names") {
		first = &cerealtest.Ring{Name: name, Next: first}
	}
	if rapid.Bool().Draw(t, "closed") {
		last.Next = first
	}
	return first
}
