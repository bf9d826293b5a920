package hgproc_test

import (
	"math"
	"reflect"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"cinnabar/codec/hgproc"
	"cinnabar/internal/codectest"
)

// everything has every kind of field that there is.
type everything struct {
	Ints   goldenInts
	OK     bool
	Floats goldenFloats
	Raw    goldenRaw
	Nested goldenNested
	Text   string
	Const  hgproc.ConstString
	Null   *string
	Names  [2]*hgproc.ConstString
	Bulk   blob
	N      int16
	Data   []byte       `proc:"count=N"`
	Items  []everyItem  `proc:"count=N"`
	Lists  []IntList    `proc:"count=N"`
	Nums   []float32    `proc:"count=N"`
	Local  chan float64 `proc:"-"`
}

type everyItem struct {
	goldenPoint
	Name string
	M    uint8
	IDs  []hgproc.ID `proc:"count=M"`
}

// exact has no two encodings of any value.
type exact struct {
	Ints   goldenInts
	Floats goldenFloats
	ID     hgproc.ID
	N      uint8
	Nums   []int16 `proc:"count=N"`
	Data   []byte  `proc:"count=N"`
	Bulk   blob
	List   IntList
}

// parity: H108
func FuzzDecode(f *testing.F) {
	for _, b := range readGoldens(f) {
		f.Add(b)
	}
	f.Add(codectest.MustAppend(f, planFor[exact](f), &exact{N: 1, Nums: []int16{1}, Data: []byte{2}, Bulk: blob{3}}))
	f.Add(codectest.MustAppend(f, planFor[everything](f), &everything{
		N: 1, Data: []byte{1}, Items: []everyItem{{M: 1, IDs: []hgproc.ID{1}}}, Lists: make([]IntList, 1), Nums: []float32{1},
	}))
	every, strict := planFor[everything](f), planFor[exact](f)
	f.Fuzz(func(t *testing.T, b []byte) {
		codectest.CheckRecode[exact, everything](t, strict, every, b)
		checkKept[everything](t, every, b)
	})
}

func TestRandomValues(t *testing.T) {
	p := planFor[everything](t)
	rapid.Check(t, func(t *rapid.T) {
		in := drawEverything(t)
		out := codectest.Back(t, p, in)
		if diff := cmp.Diff(in, out, bitwise, blankFields, exportAll); diff != "" {
			t.Fatalf("value changed (-in +out):\n%s", diff)
		}
	})
}

var exportAll = cmp.Exporter(func(reflect.Type) bool { return true })

// cText draws what a C string can hold.
var cText = rapid.StringMatching(`[^\x00]{0,20}`)

func drawEverything(t *rapid.T) everything {
	n := rapid.IntRange(0, 5).Draw(t, "n")
	v := everything{
		Ints:   rapid.Make[goldenInts]().Draw(t, "ints"),
		OK:     rapid.Bool().Draw(t, "ok"),
		Floats: drawFloats(t),
		Nested: goldenNested{From: rapid.Make[goldenPoint]().Draw(t, "from"), ID: drawID(t), Name: cText.Draw(t, "name")},
		Text:   cText.Draw(t, "text"),
		Const:  hgproc.ConstString(cText.Draw(t, "const")),
		Null:   rapid.Ptr(cText, true).Draw(t, "null"),
		Bulk:   notEmpty(rapid.SliceOf(rapid.Byte()).Draw(t, "bulk")),
		N:      int16(n),
		Data:   notEmpty(rapid.SliceOfN(rapid.Byte(), n, n).Draw(t, "data")),
		Items:  notEmpty(rapid.SliceOfN(rapid.Custom(drawItem), n, n).Draw(t, "items")),
		Lists:  notEmpty(rapid.SliceOfN(rapid.Custom(drawList), n, n).Draw(t, "lists")),
		Nums:   notEmpty(rapid.SliceOfN(rapid.Float32(), n, n).Draw(t, "nums")),
	}
	v.Raw.Raw.B = rapid.Uint32().Draw(t, "raw")
	return v
}

func drawItem(t *rapid.T) everyItem {
	ids := rapid.SliceOfN(rapid.Custom(drawID), 0, 4).Draw(t, "ids")
	return everyItem{
		goldenPoint: rapid.Make[goldenPoint]().Draw(t, "point"),
		Name:        cText.Draw(t, "name"),
		M:           uint8(len(ids)),
		IDs:         notEmpty(ids),
	}
}

// drawFloats draws bit patterns, among them every kind of NaN.
func drawFloats(t *rapid.T) goldenFloats {
	var f goldenFloats
	for i := range f.F {
		f.F[i] = math.Float32frombits(rapid.Uint32().Draw(t, "float32"))
	}
	for i := range f.D {
		f.D[i] = math.Float64frombits(rapid.Uint64().Draw(t, "float64"))
	}
	return f
}

func drawID(t *rapid.T) hgproc.ID { return hgproc.ID(rapid.Uint32().Draw(t, "id")) }

func drawList(t *rapid.T) IntList {
	var l IntList
	for _, x := range rapid.SliceOfN(rapid.Int32(), 0, 4).Draw(t, "values") {
		l.First = &IntNode{x, l.First}
	}
	return l
}

// notEmpty returns s, or nil if it has no elements, which is how Decode returns such slices.
func notEmpty[T any](s []T) []T {
	if len(s) == 0 {
		return nil
	}
	return s
}
