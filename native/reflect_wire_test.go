package native

import (
	"bytes"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"cinnabar/codec"
	"cinnabar/codec/hgproc"
	"cinnabar/codes"
	"cinnabar/internal/envelope"
)

// deep returns a type with that many types inside each other.
func deep(n int) reflect.Type {
	t := reflect.TypeFor[uint8]()
	for range n {
		t = reflect.PointerTo(t)
	}
	return t
}

// wide returns a struct with that many fields, of different types if many is true, and with names of that length.
func wide(n, length int, many bool) reflect.Type {
	var fields []reflect.StructField
	for i := range n {
		f := reflect.StructField{Name: fmt.Sprintf("F%0*d", length-1, i), Type: reflect.TypeFor[uint8]()}
		if many {
			f.Type = reflect.ArrayOf(i, f.Type)
		}
		fields = append(fields, f)
	}
	return reflect.StructOf(fields)
}

// TestDescribeLimits describes types at each limit, and beyond it.
func TestDescribeLimits(t *testing.T) {
	for _, c := range []struct {
		name    string
		fits    reflect.Type
		beyond  reflect.Type
		problem string
	}{
		{"types", wide(200, 10, true), wide(300, 10, true), "more than 256 types"},
		{"fields", wide(maxFields, 10, false), wide(maxFields+1, 10, false), "more than 1024 fields"},
		{"depth", deep(maxDepth - 1), deep(maxDepth), "more than 32 deep"},
		{"bytes", wide(100, 300, false), wide(100, 400, false), "more than 32768 bytes"},
	} {
		for _, typ := range []reflect.Type{c.fits, c.beyond} {
			d := describe(&envelope.Registration{Name: c.name, Types: envelope.Types{In: typ, Out: reflect.TypeFor[uint8](), Codec: "hgproc"}})
			if beyond := typ == c.beyond; strings.Contains(d.Problem, c.problem) != beyond || (len(d.Types) == 0) != beyond || (d.Problem == "") == beyond {
				t.Errorf("%s: problem %q and %d types, want %q: %v", c.name, d.Problem, len(d.Types), c.problem, beyond)
			}
			if err := d.check(); err != nil {
				t.Errorf("%s: a client refuses the description: %v", c.name, err)
			}
			if n := d.size(); n > fullPage*2 {
				t.Errorf("%s: %d bytes", c.name, n)
			}
		}
	}
	d := describe(&envelope.Registration{Name: strings.Repeat("n", maxRPCName+1), Types: envelope.Types{In: deep(0), Out: deep(0)}})
	if err := d.check(); err != nil || !strings.Contains(d.Problem, "more than 1024 bytes") {
		t.Errorf("a long name: %v, %q", err, d.Problem)
	}
}

// valid returns a description that is valid.
func valid() Description {
	return Description{Name: "a", ID: 7, Codec: "hgproc", In: 0, Out: 1, Types: []Type{
		{Kind: "struct", Fields: []Field{{Name: "X", Type: 1}}},
		{Kind: "map", Elem: 2, Key: 3}, {Kind: "array", Len: 4, Elem: 3}, {Kind: "string"},
	}}
}

// TestHostileDescription has one wrong field in each description.
func TestHostileDescription(t *testing.T) {
	whole := valid()
	if err := whole.check(); err != nil {
		t.Fatal(err)
	}
	for want, change := range map[string]func(d *Description){
		"is not printable, or longer": func(d *Description) { d.Name = "a\x1b[2J" },
		"flavour 9":                   func(d *Description) { d.Flavor = 9 },
		"a text of RPC":               func(d *Description) { d.Problem = "\n" },
		"257 types":                   func(d *Description) { d.Types = append(d.Types, make([]Type, 253)...) },
		"has no types":                func(d *Description) { d.Types, d.Out = nil, 0 },
		"types 0 and 4 of 4":          func(d *Description) { d.Out = 4 },
		"kind \"thing\"":              func(d *Description) { d.Types[3].Kind = "thing" },
		"name of type 3":              func(d *Description) { d.Types[3].Name = "\x00" },
		"a string, has wrong parts":   func(d *Description) { d.Types[3].Len = 1 },
		"a map, has wrong parts":      func(d *Description) { d.Types[1].Key = 4 },
		"field \"X\" of type 0":       func(d *Description) { d.Types[0].Fields[0].Type = 1 << 31 },
		"field \"\" of type 0":        func(d *Description) { d.Types[0].Fields[0].Name = "" },
		"have 1025 fields":            func(d *Description) { d.Types[0].Fields = slicesRepeat(Field{Name: "F"}, 1025) },
		"and 33007 bytes of names": func(d *Description) {
			d.Types[0].Fields = slicesRepeat(Field{Name: strings.Repeat("F", 33), Tag: "t"}, 1000)[:970]
			d.Types[3].Name = strings.Repeat("n", 21)
		},
	} {
		d := valid()
		change(&d)
		if err := d.check(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
}

func slicesRepeat[T any](v T, n int) (list []T) {
	for range n {
		list = append(list, v)
	}
	return list
}

// TestHostilePages answers a client with pages that do not follow each other.
func TestHostilePages(t *testing.T) {
	one := []Description{{Name: "a", ID: 7}}
	for _, c := range []struct {
		page pageBody
		in   reflectRequest
		want string
	}{
		{pageBody{RPCs: one}, reflectRequest{After: 7}, "describes RPC 0x7 after RPC 0x7"},
		{pageBody{RPCs: append(one, one...)}, reflectRequest{First: true}, "describes RPC 0x7 after RPC 0x7"},
		{pageBody{RPCs: one}, reflectRequest{Name: "b"}, `describes RPC "a" in place of "b"`},
		{pageBody{More: true}, reflectRequest{First: true}, "describes none"},
	} {
		err := (&reflectPage{c.page}).follows(c.in)
		if err == nil || !strings.Contains(err.Error(), c.want) || !errors.Is(err, codes.ProtocolError) {
			t.Errorf("error %v, want %q", err, c.want)
		}
	}
	var p reflectPage
	if _, err := p.DecodeProc(make([]byte, maxPage+1)); err == nil || !strings.Contains(err.Error(), "at most 262144") {
		t.Errorf("a long page: %v", err)
	}
	many, err := codec.Append(hgproc.Codec{}, nil, &pageBody{RPCs: slicesRepeat(valid(), maxPageRPCs+1)})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.DecodeProc(many); err == nil || !strings.Contains(err.Error(), "at most 256") {
		t.Errorf("a page of many RPCs: %v", err)
	}
}

// FuzzReflectPage reads pages. One that is accepted has the same bytes when it is written, except for bools, and is within the limits.
func FuzzReflectPage(f *testing.F) {
	for _, p := range []pageBody{{}, {RPCs: []Description{valid()}, More: true}, {RPCs: []Description{{Name: "x", Problem: "too many"}}}} {
		b, err := codec.Append(hgproc.Codec{}, nil, &p)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var p reflectPage
		if _, err := p.DecodeProc(b); err != nil {
			return
		}
		first, err := p.AppendProc(nil)
		if err != nil {
			t.Fatal(err)
		}
		if len(first) > maxPage {
			return // the null strings of C are shorter than empty ones
		}
		var again reflectPage
		if m, err := again.DecodeProc(first); err != nil || m != len(first) {
			t.Fatalf("%d bytes again: %v", m, err)
		}
		if second, err := again.AppendProc(nil); err != nil || !bytes.Equal(first, second) {
			t.Fatalf("other bytes: %v", err)
		}
		_ = again.follows(reflectRequest{First: true})
	})
}
