package hgproc_test

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"math"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"cinnabar/codec"
	"cinnabar/codec/hgproc"
	"cinnabar/internal/codectest"
)

type goldenInts struct {
	A int8
	B uint8
	C int16
	D uint16
	E int32
	F uint32
	G int64
	H uint64
}

type goldenMixed struct {
	A    int8
	B    uint16
	C    uint32
	D    uint64
	Size uint64
	OK   bool
	S    string
	CS   hgproc.ConstString
	Null *string
}

type goldenPoint struct{ X, Y int32 }

type goldenNested struct {
	Tag      uint8
	From, To goldenPoint
	ID       hgproc.ID
	Name     string
}

type goldenSumIn struct {
	N    int32
	Bulk blob
}

type goldenCounted struct {
	N uint32
	V []int32 `proc:"count=N"`
	W []byte  `proc:"count=N"`
}

type goldenFloats struct {
	F [4]float32
	D [3]float64
}

type goldenRaw struct {
	Before uint8
	Raw    struct {
		A uint8
		_ [3]byte
		B uint32
		C uint16
		_ [2]byte
	}
	After uint8
}

type goldenNote struct {
	Seq  int32
	Text string
}

// blob is a u64 length and as many bytes, the outline of a bulk handle; the null handle is length 0.
type blob []byte

func (x blob) AppendProc(b []byte) ([]byte, error) {
	return append(binary.LittleEndian.AppendUint64(b, uint64(len(x))), x...), nil
}

func (x *blob) DecodeProc(b []byte) (int, error) {
	if len(b) < 8 || binary.LittleEndian.Uint64(b) > uint64(len(b)-8) {
		return 0, codec.ErrOverflow
	}
	n := 8 + int(binary.LittleEndian.Uint64(b))
	*x = nil
	if n > 8 {
		*x = bytes.Clone(b[8:n])
	}
	return n, nil
}

// goldens are pointers to the values whose bytes are in testdata/mercury.hex.
var goldens = map[string]any{
	"ints/low": &goldenInts{A: math.MinInt8, C: math.MinInt16, E: math.MinInt32, G: math.MinInt64},
	"ints/high": &goldenInts{
		A: math.MaxInt8, B: math.MaxUint8, C: math.MaxInt16, D: math.MaxUint16,
		E: math.MaxInt32, F: math.MaxUint32, G: math.MaxInt64, H: math.MaxUint64,
	},
	"mixed": &goldenMixed{
		A: -2, B: 0x1122, C: 0x33445566, D: 0x1122334455667788, Size: 99, OK: true, S: "hello", CS: "const",
	},
	"string/empty": new(""),
	"string/one":   new("a"),
	"string/null":  new(*string),
	"string/utf8":  new("grün"),
	"const/empty":  new(hgproc.ConstString("")),
	"const/one":    new(hgproc.ConstString("a")),
	"const/null":   new(*hgproc.ConstString),
	"id":           new(hgproc.ID(0x123456789abcdef0)),
	"nested": &goldenNested{
		Tag: 7, From: goldenPoint{1, -1}, To: goldenPoint{math.MaxInt32, math.MinInt32}, ID: 0x788dd3200000ffff, Name: "n",
	},
	"sum_in/null":  &goldenSumIn{N: 10},
	"counted":      &goldenCounted{N: 3, V: []int32{1, -2, 3}, W: []byte{0xa, 0xb, 0xc}},
	"counted/none": &goldenCounted{},
	"floats": &goldenFloats{
		F: [4]float32{1.5, float32(math.Copysign(0, -1)), math.MaxFloat32, math.Float32frombits(0x7fa00001)}, // signalling NaN
		D: [3]float64{-2.25, 0x1p-1022, math.Float64frombits(0xfff4000000000001)},
	},
	"rawstruct": rawStruct(),
	"list/3":    &IntList{&IntNode{1, &IntNode{2, &IntNode{-7, nil}}}},
	"list/0":    &IntList{},
	"all/0": &codectest.All[blob]{
		I8: -2, U8: 0xa5, I16: -300, U16: 0x1122, I32: -70000, U32: 0x33445566, I64: -5000000000, U64: 0x1122334455667788,
		Flag: true, Size: 99, Ptr: 0x7ffd12345678, ID: 0x0b88ab9a, F32: 1.5, F64: -2.25, Raw: [5]byte{1, 2, 3, 4, 5},
		Text: "hello", Fixed: "const",
	},
	"all/1": &codectest.All[blob]{
		I8: math.MinInt8, I16: math.MinInt16, I32: math.MinInt32, I64: math.MinInt64,
		F32: float32(math.Copysign(0, -1)), F64: math.SmallestNonzeroFloat64, Fixed: "const",
	},
	"all/2": &codectest.All[blob]{
		I8: math.MaxInt8, U8: math.MaxUint8, I16: math.MaxInt16, U16: math.MaxUint16,
		I32: math.MaxInt32, U32: math.MaxUint32, I64: math.MaxInt64, U64: math.MaxUint64,
		Flag: true, Size: math.MaxUint64, Ptr: math.MaxUint64, ID: math.MaxUint32, F32: math.MaxFloat32, F64: math.MaxFloat64,
		Raw: [5]byte{255, 255, 255, 255, 255}, Text: "grüß 日本", Fixed: "const",
	},
	"blob": new(blob{
		0x01, 0x20, 0x3f, 0x5e, 0x7d, 0x9c, 0xbb, 0xda, 0xf9, 0x18, 0x37, 0x56, 0x75, 0x94, 0xb3, 0xd2, 0xf1, 0x10, 0x2f, 0x4e,
	}),
	"note": &goldenNote{3, "bob"},
}

func rawStruct() *goldenRaw {
	r := &goldenRaw{Before: 0xb, After: 0xa}
	r.Raw.A, r.Raw.B, r.Raw.C = 1, 2, 3
	return r
}

// truncatedIDs are the goldens whose value does not survive the wire.
var truncatedIDs = map[string]any{
	"id": new(hgproc.ID(0x9abcdef0)),
	"nested": &goldenNested{
		Tag: 7, From: goldenPoint{1, -1}, To: goldenPoint{math.MaxInt32, math.MinInt32}, ID: 0x0000ffff, Name: "n",
	},
}

// readGoldens returns the lines of the golden file by name.
func readGoldens(t testing.TB) map[string][]byte {
	t.Helper()
	data, err := os.ReadFile("testdata/mercury.hex")
	if err != nil {
		t.Fatal(err)
	}
	found := map[string][]byte{}
	for line := range strings.Lines(string(data)) {
		name, digits, ok := strings.Cut(strings.TrimSpace(line), " ")
		if name == "#" || !ok {
			continue
		}
		if found[name], err = hex.DecodeString(strings.TrimSpace(digits)); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
	return found
}

// parity(recorded): H100 H101 H102 H103 H104
func TestGolden(t *testing.T) {
	files := readGoldens(t)
	if len(files) != len(goldens) {
		t.Errorf("%d lines in the file, %d values", len(files), len(goldens))
	}
	for name, v := range goldens {
		t.Run(name, func(t *testing.T) {
			p := planOf(t, v)
			if got, want := codectest.MustAppend(t, p, v), files[name]; !bytes.Equal(got, want) {
				t.Fatalf("got  %x\nwant %x", got, want)
			}
			checkDecode(t, p, name, files[name])
			codectest.CheckTruncations(t, p, files[name], v)
		})
	}
}

// planFor returns the plan for T.
func planFor[T any](t testing.TB) codec.Plan {
	return codectest.PlanOf(t, hgproc.Codec{}, reflect.TypeFor[T]())
}

// planOf returns the plan for the variable that v points to.
func planOf(t testing.TB, v any) codec.Plan {
	return codectest.PlanOf(t, hgproc.Codec{}, codectest.TypeOf(v))
}

func checkDecode(t *testing.T, p codec.Plan, name string, b []byte) {
	t.Helper()
	want, ok := truncatedIDs[name]
	if !ok {
		want = goldens[name]
	}
	got := reflect.New(reflect.TypeOf(want).Elem()).Interface()
	codectest.MustDecode(t, p, b, got)
	if diff := cmp.Diff(want, got, bitwise, blankFields); diff != "" {
		t.Errorf("decoded value (-want +got):\n%s", diff)
	}
}

// bitwise compares floats as C copies them, so that a NaN is equal to itself and -0 differs from 0.
var bitwise = cmp.Options{
	cmp.Comparer(func(a, b float32) bool { return math.Float32bits(a) == math.Float32bits(b) }),
	cmp.Comparer(func(a, b float64) bool { return math.Float64bits(a) == math.Float64bits(b) }),
}

// blankFields leaves padding out of comparisons.
var blankFields = cmp.FilterPath(func(p cmp.Path) bool {
	f, ok := p.Last().(cmp.StructField)
	return ok && f.Name() == "_"
}, cmp.Ignore())
