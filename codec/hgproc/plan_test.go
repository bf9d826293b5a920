package hgproc_test

import (
	"errors"
	"reflect"
	"testing"

	"cinnabar/codec"
	"cinnabar/codec/hgproc"
	"cinnabar/internal/codectest"
)

// Types that write their own bytes in ways that a plan must not trust.
type (
	onlyAppends struct{}
	onlyDecodes struct{}
	recursive   struct{ Next []recursive }
	recursive2  struct {
		N    uint8
		Next []recursive2 `proc:"count=N"`
	}
	embedsCustom struct {
		IntList
		N int32
	}
	hiddenCustom struct{ X int32 }
	hidden       struct{ X int32 }
	customText   string
)

func (onlyAppends) AppendProc(b []byte) ([]byte, error)   { return b, nil }
func (*onlyDecodes) DecodeProc([]byte) (int, error)       { return 0, nil }
func (*hiddenCustom) AppendProc(b []byte) ([]byte, error) { return b, nil }
func (*hiddenCustom) DecodeProc([]byte) (int, error)      { return 0, nil }
func (*customText) AppendProc(b []byte) ([]byte, error)   { return b, nil }
func (*customText) DecodeProc([]byte) (int, error)        { return 0, nil }

// parity: H101
func TestPlanRefuses(t *testing.T) {
	const none = "hg_proc has no encoding for Go type "
	for _, tt := range []struct {
		name                  string
		typ                   reflect.Type
		path, problem, remedy string
	}{
		{"no type", nil, "", "no type given", "pass the type of a value"},
		{"int", reflect.TypeFor[struct{ A int }](), "A", none + "int", "use int32 for C's int, int64 for its long"},
		{"uint", reflect.TypeFor[struct{ A uint }](), "A", none + "uint", "use uint32 for C's unsigned int, uint64 for hg_size_t"},
		{"uintptr", reflect.TypeFor[struct{ A uintptr }](), "A", none + "uintptr", "use uint64"},
		{"unsafe pointer", reflect.TypeOf(reflect.Value.UnsafePointer).Out(0), "", none + "unsafe.Pointer", "expose the memory and send a bulk handle"},
		{"complex", reflect.TypeFor[complex64](), "", none + "complex64", "use two float32 fields"},
		{"map", reflect.TypeFor[struct{ A map[string]int32 }](), "A", none + "map[string]int32", "send keys and values as two counted slices, or implement codec.Appender and codec.Decoder"},
		{"chan", reflect.TypeFor[struct{ A chan int32 }](), "A", none + "chan int32", `leave it out with the tag proc:"-"`},
		{"func", reflect.TypeFor[struct{ A func() }](), "A", none + "func()", `leave it out with the tag proc:"-"`},
		{"interface", reflect.TypeFor[struct{ A any }](), "A", none + "interface {}", "use a concrete type"},
		{"interface of a custom type", reflect.TypeFor[struct{ A codec.Appender }](), "A", none + "codec.Appender", "use a concrete type"},
		{"pointer", reflect.TypeFor[struct{ A *int32 }](), "A", none + "*int32", "use the value itself (only a pointer to a string has a null form), or implement codec.Appender and codec.Decoder"},
		{"pointer to a custom type", reflect.TypeFor[struct{ A *IntList }](), "A", none + "*hgproc_test.IntList", "use the value itself (only a pointer to a string has a null form), or implement codec.Appender and codec.Decoder"},
		{"pointer to a custom string", reflect.TypeFor[*customText](), "", none + "*hgproc_test.customText", "use the value itself (only a pointer to a string has a null form), or implement codec.Appender and codec.Decoder"},
		{"slice", reflect.TypeFor[struct{ A []byte }](), "A", none + "[]uint8", `make it a field with the tag proc:"counted=uint64", or proc:"count=N" where N is an earlier integer field, or use an array`},
		{"recursive, through a slice", reflect.TypeFor[recursive](), "Next", none + "[]hgproc_test.recursive", `make it a field with the tag proc:"counted=uint64", or proc:"count=N" where N is an earlier integer field, or use an array`},
		{"recursive", reflect.TypeFor[recursive2](), "Next[]", "hgproc_test.recursive2 contains itself", "implement codec.Appender and codec.Decoder on it"},
		{"unexported", reflect.TypeFor[struct{ a int32 }](), "a", "the field is not exported", `export it, or leave it out with the tag proc:"-"`},
		{"deep", reflect.TypeFor[struct {
			A [2]struct{ B struct{ C int } }
		}](), "A[].B.C", none + "int", "use int32 for C's int, int64 for its long"},
		{"unknown tag", reflect.TypeFor[struct {
			A int32 `proc:"omitempty"`
		}](), "A", `unknown tag proc:"omitempty"`, `tags are "-", "count=N" or "counted=T", and "when=F", "when=!F" or "when=F:1|2"`},
		{"count of no slice", reflect.TypeFor[struct {
			N int32
			A int32 `proc:"count=N"`
		}](), "A", "int32 takes no count", "counts are for slices"},
		{"count missing", reflect.TypeFor[struct {
			A []int32 `proc:"count=N"`
		}](), "A", `no integer field "N" before it holds its count`, "declare one before the slice, since the receiver needs it first"},
		{"count later", reflect.TypeFor[struct {
			A []int32 `proc:"count=N"`
			N int32
		}](), "A", `no integer field "N" before it holds its count`, "declare one before the slice, since the receiver needs it first"},
		{"count left out", reflect.TypeFor[struct {
			N int32   `proc:"-"`
			A []int32 `proc:"count=N"`
		}](), "A", `no integer field "N" before it holds its count`, "declare one before the slice, since the receiver needs it first"},
		{"count is no integer", reflect.TypeFor[struct {
			N float32
			A []int32 `proc:"count=N"`
		}](), "A", `no integer field "N" before it holds its count`, "declare one before the slice, since the receiver needs it first"},
		{"count does not travel whole", reflect.TypeFor[struct {
			N hgproc.ID
			A []int32 `proc:"count=N"`
		}](), "A", `no integer field "N" before it holds its count`, "declare one before the slice, since the receiver needs it first"},
		{"elements without bytes", reflect.TypeFor[struct {
			N int32
			A []struct{} `proc:"count=N"`
		}](), "A", "elements of []struct {} take no bytes", "send the count alone"},
		{"elements of a refused type", reflect.TypeFor[struct {
			N int32
			A []int `proc:"count=N"`
		}](), "A[]", none + "int", "use int32 for C's int, int64 for its long"},
		{"array of 2 GiB", reflect.TypeFor[struct {
			A [1 << 10][1 << 18]*string
		}](), "A", "[1024][262144]*string takes at least 2147483648 bytes, more than the 1073741824 that a message can have", "expose the memory and send a bulk handle"},
		{"struct of 1 GiB", reflect.TypeFor[struct {
			A [1 << 30]byte
			B byte
		}](), "B", "the struct takes at least 1073741825 bytes up to here, more than the 1073741824 that a message can have", "expose the memory and send a bulk handle"},
		{"padding without size", reflect.TypeFor[struct{ _ string }](), "_", "a blank field of type string has no fixed size", "use an array of bytes"},
		{"padding of a refused type", reflect.TypeFor[struct{ _ int }](), "_", none + "int", "use int32 for C's int, int64 for its long"},
		{"writes only", reflect.TypeFor[struct{ A onlyAppends }](), "A", "hgproc_test.onlyAppends has AppendProc but no DecodeProc", "implement both codec.Appender and codec.Decoder"},
		{"reads only", reflect.TypeFor[struct{ A onlyDecodes }](), "A", "hgproc_test.onlyDecodes has DecodeProc but no AppendProc", "implement both codec.Appender and codec.Decoder"},
		{"methods by accident", reflect.TypeFor[embedsCustom](), "", "hgproc_test.embedsCustom would be written as its embedded field IntList alone", "give that field a name"},
		{"methods out of reach", reflect.TypeFor[struct {
			hiddenCustom
			hidden
			AppendProc, DecodeProc int32 // keep the methods from being promoted
		}](), "hiddenCustom", "the embedded type is not exported and cannot be asked for its bytes", "export it, or give the field a name"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := hgproc.Codec{}.Plan(tt.typ)
			got, ok := errors.AsType[*codec.Error](err)
			if !ok {
				t.Fatalf("got %v, want a *codec.Error", err)
			}
			want := codec.Error{Codec: "hgproc", Op: codec.OpPlan, Type: tt.typ, Path: tt.path, Problem: tt.problem, Remedy: tt.remedy}
			if *got != want {
				t.Errorf("\ngot  %v\nwant %v", got, &want)
			}
		})
	}
}

// What the golden bytes do not show: named types, embedding, and what is left out.
// parity: H101
func TestPlanAccepts(t *testing.T) {
	type color uint16
	type text string
	type octet byte
	type Base struct{ A, B uint8 }
	for _, tt := range []struct {
		name string
		v    any
		want string
	}{
		{"void", &struct{}{}, ""},
		{"number alone", new(uint32(7)), "\x07\x00\x00\x00"},
		{"named types", &struct {
			C color
			T text
			O [2]octet
		}{0x0102, "t", [2]octet{3, 4}}, "\x02\x01" + "\x02\x00\x00\x00\x00\x00\x00\x00t\x00\x00\x00" + "\x03\x04"},
		{"embedded", &struct {
			Base
			hidden
			C uint8
		}{Base{1, 2}, hidden{3}, 4}, "\x01\x02" + "\x03\x00\x00\x00" + "\x04"},
		{"left out", &struct {
			A uint8
			B map[string]int `proc:"-"`
			c uint8          `proc:"-"`
		}{1, nil, 0}, "\x01"},
		{"null or not", &struct {
			A *string
			B *hgproc.ConstString
		}{nil, new(hgproc.ConstString("c"))}, "\x00\x00\x00\x00\x00\x00\x00\x00" + "\x02\x00\x00\x00\x00\x00\x00\x00c\x00\x01\x00"},
		{"arrays of nothing", &struct {
			A [0]string
			B [3]struct{}
			C [2]bool
		}{C: [2]bool{false, true}}, "\x00\x01"},
		{"one count, two slices", &struct {
			N int8
			A []string            `proc:"count=N"`
			B []struct{ X uint8 } `proc:"count=N"`
		}{1, []string{""}, []struct{ X uint8 }{{5}}}, "\x01" + "\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00" + "\x05"},
		{"slices in slices", &struct {
			N uint8
			A []goldenCounted `proc:"count=N"`
		}{2, []goldenCounted{{}, {N: 1, V: []int32{2}, W: []byte{3}}}}, "\x02" + "\x00\x00\x00\x00" + "\x01\x00\x00\x00\x02\x00\x00\x00\x03"},
		{"slices of custom types", &struct {
			N uint8
			A []blob  `proc:"count=N"`
			B [1]blob // and arrays
		}{1, []blob{{9}}, [1]blob{}}, "\x01" + "\x01\x00\x00\x00\x00\x00\x00\x00\x09" + "\x00\x00\x00\x00\x00\x00\x00\x00"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := planOf(t, tt.v)
			b := codectest.MustAppend(t, p, tt.v)
			if string(b) != tt.want {
				t.Fatalf("Append: got %x, want %x", b, tt.want)
			}
			got := reflect.New(reflect.TypeOf(tt.v).Elem()).Interface()
			codectest.MustDecode(t, p, b, got)
			if !reflect.DeepEqual(got, tt.v) {
				t.Errorf("Decode: got %+v, want %+v", got, tt.v)
			}
			codectest.CheckTruncations(t, p, b, tt.v)
		})
	}
}

func TestName(t *testing.T) {
	if got := (hgproc.Codec{}).Name(); got != "hgproc" {
		t.Errorf("Name() = %q", got)
	}
}
