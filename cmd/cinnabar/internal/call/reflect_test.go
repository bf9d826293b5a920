package call

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"cinnabar"
	"cinnabar/cmd/cinnabar/internal/cli"
	"cinnabar/cmd/cinnabar/internal/clitest"
	"cinnabar/codec"
	"cinnabar/codec/hgproc"
	"cinnabar/codes"
	"cinnabar/native"
)

type (
	flat struct {
		Timed bool
		Key   string
		Sizes []uint16 `proc:"counted=uint32"`
		At    place
		_     [3]byte
		TTL   uint32 `proc:"when=Timed"`
	}
	place struct {
		Row, Column int32
		Names       [2]string
	}
	treeIn struct {
		Root *treeIn `cereal:"optional"`
	}
	mapIn struct {
		Ages map[string]int32
		Note *string `cereal:"optional"`
	}
	copyIn struct{ Pair bulks }
)

// TestReflect calls RPCs with the types that the server describes.
// parity: A06 P01 Y13
func TestReflect(t *testing.T) {
	e := clitest.Engine(t, nil)
	p, err := e.NewProvider(3, "puts")
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(err)
	must(native.New[flat, flat]("put").Handle(p, func(_ context.Context, in flat) (flat, error) {
		if in.Key == "" {
			return in, codes.NoEntry
		}
		in.At.Row++
		return in, nil
	}))
	must(cinnabar.NewRPC[mapIn, mapIn]("ages", cinnabar.WithFlavor(cinnabar.Thallium)).Handle(e, func(_ context.Context, in mapIn) (mapIn, error) { return in, nil }))
	must(cinnabar.NewRPC[int32, int64]("double", cinnabar.WithFlavor(cinnabar.Mercury)).Handle(e, func(_ context.Context, n int32) (int64, error) { return 2 * int64(n), nil }))
	must(cinnabar.NewRPC[int32, int64]("double").Handle(e, func(_ context.Context, n int32) (int64, error) { return 20 * int64(n), nil }))
	must(cinnabar.NewOneWay[treeIn]("grow", cinnabar.WithFlavor(cinnabar.Thallium)).Handle(e, func(context.Context, treeIn) error { return nil }))
	must(native.NewStream[string, string]("talk").Handle(e, func(context.Context, *native.ServerStream[string, string]) error { return nil }))
	must(cinnabar.NewRPC[copyIn, int64]("copy").Handle(e, func(ctx context.Context, in copyIn) (int64, error) {
		local, err := e.Alloc(cinnabar.ReadWrite, in.Pair.From.Len())
		if err != nil {
			return 0, err
		}
		defer cli.Shut(local)
		peer := cinnabar.InfoFrom(ctx).Peer
		if _, err := in.Pair.From.On(peer).Pull(ctx, local); err != nil {
			return 0, err
		}
		return in.Pair.To.On(peer).Push(ctx, local)
	}))
	run := func(exit int, args []string, want ...string) {
		t.Helper()
		clitest.WantRun(t, exit, append([]string{"call", e.Addr()}, args...), want...)
	}
	run(cli.ExitFailure, []string{"put", "--reflect"}, "describes no RPCs", "native.HandleReflection")
	must(native.HandleReflection(e))

	o := clitest.WantRun(t, 0, []string{"call", e.Addr(), "--reflect"})
	for _, line := range []string{
		"put@3 (native) call.flat{Timed bool, Key string, Sizes []uint16, At call.place{Row int32, Column int32, Names [2]string}, _ [3]uint8, TTL uint32} -> ",
		"ages@0 (thallium) call.mapIn{Ages map[string]int32, Note *string} -> ",
		"grow@0 (thallium, one-way) call.treeIn{Root *call.treeIn}\n",
		"double (mercury) int32 -> int64\n",
		"talk (stream) string -> string\n",
		"copy (margo) call.copyIn{Pair call.bulks{From bulk, To bulk}} -> int64\n",
	} {
		if !strings.Contains(o.Out.String(), line) {
			t.Errorf("the list lacks %q:\n%s", line, &o.Out)
		}
	}
	run(0, []string{"put", "--reflect", "--args", `{"Key":"a","Sizes":[1,2],"At":{"Column":-5,"Names":["x","y"]},"Timed":true,"TTL":9}`},
		`"Row": 1,`, `"Column": -5`, `"TTL": 9`)
	run(0, []string{"put", "--reflect", "--args", `[false,"a",[],{},0]`}, `"Row": 1,`)
	run(cli.ExitFailure, []string{"put", "--reflect", "--args", `{}`}, "HG_NOENTRY")
	run(cli.ExitUsage, []string{"put", "--reflect", "--args", `{"key":"a"}`}, `no field "key"`, "Sizes []uint16")
	run(cli.ExitUsage, []string{"put", "--reflect", "--args", `[1]`}, "1 values instead of 5")
	run(0, []string{"ages", "--reflect", "--args", `{"Ages":{"b":2,"a":1},"Note":"n"}`}, `"a": 1`, `"Note": "n"`)
	run(0, []string{"ages", "--reflect", "--args", `[{},null]`}, `"Note": null`)
	run(cli.ExitFailure, []string{"double", "--reflect", "--args", "[4]"}, "choose one by --provider or --flavor")
	run(0, []string{"double", "--reflect", "--args", "[4]", "-f", "mercury"}, "8\n")
	run(0, []string{"double", "--reflect", "--args", "[4]", "-f", "margo"}, "80\n")
	run(cli.ExitFailure, []string{"grow", "--reflect"}, "call.treeIn contains itself")
	run(cli.ExitFailure, []string{"talk", "--reflect"}, "is a stream")
	run(cli.ExitFailure, []string{"none", "--reflect"}, "describes no RPC \"none\"")
	run(cli.ExitUsage, []string{"put", "--reflect", "--in", "int32"}, "the process describes the types")
	run(cli.ExitUsage, nil, "no NAME was given")

	data := bytes.Repeat([]byte("01234"), 1000)
	from, to := clitest.WriteTemp(t, "from", data), filepath.Join(t.TempDir(), "to")
	run(0, []string{"copy", "--reflect", "--args", `{}`, "--bulk-in", from, "--bulk-out", to + ":5000"}, "5000\n")
	if got, err := os.ReadFile(to); err != nil || !bytes.Equal(got, data) {
		t.Errorf("copied %d bytes, %v", len(got), err)
	}
	run(cli.ExitUsage, []string{"copy", "--reflect", "--args", `{}`, "--bulk-in", from}, "have 2 memories")
}

func structOf(elems ...uint32) native.Type {
	s := native.Type{Kind: "struct"}
	for i, e := range elems {
		s.Fields = append(s.Fields, native.Field{Name: string(rune('A' + i)), Type: e})
	}
	return s
}

// TestHostileTypes builds types that would take much memory or time, or that package reflect refuses with a panic.
func TestHostileTypes(t *testing.T) {
	chain := func(link func(next uint32) native.Type) (types []native.Type) {
		for i := range uint32(200) {
			types = append(types, link(i+1))
		}
		return append(types, native.Type{Kind: "uint8"})
	}
	for want, types := range map[string][]native.Type{
		"too large":        chain(func(n uint32) native.Type { return structOf(n, n) }),
		"an array of 2 el": chain(func(n uint32) native.Type { return native.Type{Kind: "array", Len: 2, Elem: n} }),
		"its text may have": chain(func(n uint32) native.Type {
			if n%2 == 0 {
				return native.Type{Kind: "slice", Elem: n}
			}
			return structOf(n, n)
		}),
		"an array of 1844674": {{Kind: "array", Len: 1<<64 - 1, Elem: 1}, {Kind: "uint8"}},
		"cannot be compared":  {{Kind: "map", Elem: 1, Key: 2}, {Kind: "uint8"}, {Kind: "slice", Elem: 1}},
		"contains itself":     {{Kind: "ptr", Elem: 0}},
		"writes its own":      {{Kind: "custom", Name: "x.Y"}},
		"is a chan":           {{Kind: "chan"}},
		"no name of a field":  {{Kind: "struct", Fields: []native.Field{{Name: "a", Type: 1}}}, {Kind: "bool"}},
		"has come before":     {{Kind: "struct", Fields: []native.Field{{Name: "A", Type: 1}, {Name: "A", Type: 1}}}, {Kind: "bool"}},
		"there is no type 7":  {{Kind: "slice", Elem: 7}},
		"at most 32 times": {
			{Kind: "slice", Elem: 1}, {Kind: "struct", Fields: []native.Field{{Name: "B", Type: 2}, {Name: "A", Type: 3, Tag: "when=B"}}},
			{Kind: "bool"}, {Kind: "array", Len: 1 << 20, Elem: 4}, {Kind: "uint8"},
		},
		"takes 1048576 bytes": {
			{Kind: "ptr", Elem: 1}, {Kind: "struct", Fields: []native.Field{{Name: "A", Type: 2, Tag: "-"}}}, {Kind: "array", Len: 1 << 20, Elem: 3}, {Kind: "uint8"},
		},
	} {
		d := &native.Description{Name: "x", Codec: "cereal", Types: types}
		if _, err := newShape(d); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
		if want != "there is no type 7" {
			if n := len(typeText(d, 0)); n > 1<<20 {
				t.Errorf("%s: the text has %d bytes", want, n)
			}
		}
	}
}

// TestFinding has a hostile process describe many RPCs of one name. One description is kept.
func TestFinding(t *testing.T) {
	var f finding
	for i := range uint16(1000) {
		f.add(&native.Description{Name: "x", Provider: i})
	}
	if f.n != 1000 || f.first.Provider != 0 || f.second != "x@1 (margo)" {
		t.Errorf("%d, %s, %s", f.n, f.first.String(), f.second)
	}
	f.add(&native.Description{Name: "x", Native: true})
	f.add(&native.Description{Name: "x"})
	if f.n != 1 || !f.first.Native || f.second != "" {
		t.Errorf("%d, %s, %s", f.n, f.first.String(), f.second)
	}
}

// TestHiddenMemory has a hostile process describe memory in a field that package reflect does not set.
func TestHiddenMemory(t *testing.T) {
	x, err := newShape(&native.Description{Name: "x", Codec: "hgproc", Types: []native.Type{
		{Kind: "struct", Fields: []native.Field{{Name: "_", Type: 1}, {Name: "B", Type: 1}}}, {Kind: "custom", Name: "cinnabar.BulkHandle"},
	}})
	if err != nil {
		x = &shape{in: reflect.StructOf([]reflect.StructField{{Name: "_", PkgPath: "call", Type: bulkType}, {Name: "B", Type: bulkType}})}
	}
	places := bulkPlaces(nil, reflect.New(x.in).Elem())
	if len(places) != 1 || !places[0].CanSet() {
		t.Errorf("%d memories", len(places))
	}
}

// FuzzBuild builds the types of any description. A type that is built has a plan or an error, and a text.
func FuzzBuild(f *testing.F) {
	for _, c := range []string{"hgproc", "cereal"} {
		for _, types := range [][]native.Type{
			{structOf(1, 2), {Kind: "map", Elem: 2, Key: 3}, {Kind: "array", Len: 4, Elem: 3}, {Kind: "string"}},
			{structOf(1, 2), {Kind: "struct", Name: "cinnabar/codec/cereal.Variant"}, {Kind: "ptr", Elem: 0}},
			{structOf(1), {Kind: "custom", Name: "cinnabar.BulkHandle"}},
		} {
			b, err := codec.Append(hgproc.Codec{}, nil, &native.Description{Codec: c, Types: types, Out: 1})
			if err != nil {
				f.Fatal(err)
			}
			f.Add(b, `{"A":{"1":[2]}}`)
		}
	}
	f.Fuzz(func(t *testing.T, b []byte, args string) {
		var d native.Description
		if _, err := codec.Decode(hgproc.Codec{}, b, &d); err != nil || len(b) > 4<<10 || len(d.Types) > 256 {
			return // package reflect keeps the types that it makes, so they are small here
		}
		x, err := newShape(&d)
		if err != nil {
			return
		}
		in := reflect.New(x.in)
		if setArguments(in.Elem(), args) == nil {
			plain(in.Elem())
			if p, err := x.codec.Plan(x.in); err == nil {
				_, _ = p.Append(nil, in.Interface())
			}
		}
	})
}
