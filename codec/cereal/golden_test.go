package cereal_test

import (
	"bytes"
	"maps"
	"math"
	"reflect"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"cinnabar/internal/cerealtest"
	"cinnabar/internal/codectest"
)

// readGoldens returns the bytes that C++ has for the values of cerealtest.
func readGoldens(t testing.TB) map[string][]byte {
	t.Helper()
	files, err := cerealtest.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// parity(recorded): T50 T51 T52 T53 T54 T55 T60
func TestGolden(t *testing.T) {
	files, goldens := readGoldens(t), cerealtest.Values()
	if diff := cmp.Diff(slices.Sorted(maps.Keys(files)), slices.Sorted(maps.Keys(goldens))); diff != "" {
		t.Errorf("-in the file +here:\n%s", diff)
	}
	for name, v := range goldens {
		t.Run(name, func(t *testing.T) {
			p := planOf(t, v)
			if got, want := codectest.MustAppend(t, p, v), files[name]; !bytes.Equal(got, want) {
				t.Fatalf("got  %x\nwant %x", got, want)
			}
			got := reflect.New(reflect.TypeOf(v).Elem()).Interface()
			codectest.MustDecode(t, p, files[name], got)
			if diff := cmp.Diff(v, got, bitwise, exportAll); diff != "" {
				t.Errorf("decoded value (-want +got):\n%s", diff)
			}
			codectest.CheckTruncations(t, p, files[name], v)
		})
	}
}

// bitwise compares floats as C++ copies them, so that a NaN is equal to itself and -0 differs from 0.
var bitwise = cmp.Options{
	cmp.Comparer(func(a, b float32) bool { return math.Float32bits(a) == math.Float32bits(b) }),
	cmp.Comparer(func(a, b float64) bool { return math.Float64bits(a) == math.Float64bits(b) }),
}

var exportAll = cmp.Exporter(func(reflect.Type) bool { return true })

// What is one object in C++ is one in Go: sharing and cycles survive.
// parity: T53
func TestSharedObjects(t *testing.T) {
	files := readGoldens(t)
	var v cerealtest.Strings
	codectest.MustDecode(t, planFor[cerealtest.Strings](t), files["vector<shared_ptr>"], &v)
	if v.All[0] != v.All[2] || v.All[1] != v.All[4] || v.All[0] == v.All[1] {
		t.Errorf("the pointers are %v", v.All)
	}
	var r cerealtest.Common[cerealtest.Ring]
	codectest.MustDecode(t, planFor[cerealtest.Common[cerealtest.Ring]](t), files["ring"], &r)
	if r.To.Next == r.To || r.To.Next.Next != r.To {
		t.Error("the ring is none")
	}
	var f cerealtest.Common[cerealtest.Parent]
	codectest.MustDecode(t, planFor[cerealtest.Common[cerealtest.Parent]](t), files["weak_ptr"], &f)
	for i, c := range f.To.Children {
		if c.Of != f.To {
			t.Errorf("child %d has another parent", i)
		}
	}
}
