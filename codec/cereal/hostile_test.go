package cereal_test

import (
	"encoding/binary"
	"errors"
	"reflect"
	"strings"
	"testing"
	"unicode/utf8"

	"cinnabar/codec"
	"cinnabar/codec/cereal"
	"cinnabar/internal/cerealtest"
	"cinnabar/internal/codectest"
)

// nestedClaims returns a message in which each container announces as many elements of that size as there could be, and
// begins with the next container. gap is what stands in front of that one.
func nestedClaims(size, least, gap int) []byte {
	b := make([]byte, size)
	for at := 0; at+8+gap <= size; at += 8 + gap {
		binary.LittleEndian.PutUint64(b[at:], uint64((size-at-8)/least))
	}
	return b
}

// Containers in containers can each announce all that remains, 10,000 deep: memory follows what is read all the same.
// parity: T60
func TestNestedClaimsAllocateLittle(t *testing.T) {
	const size = 200_000
	for _, tt := range []struct {
		name string
		v    any
		b    []byte
	}{
		{"slices", new(forest), nestedClaims(size, 8, 0)},
		{"maps", new(index), nestedClaims(size, 16, 8)},
		{"slices in slices", new([][][][][][][][]string), nestedClaims(size, 8, 0)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := planOf(t, tt.v)
			var err error
			got := codectest.Allocated(func() { _, err = p.Decode(tt.b, tt.v) })
			if err == nil {
				t.Error("no error")
			}
			if limit := uint64(30 * size); got > limit {
				t.Errorf("allocated %d bytes for %d, want at most %d", got, size, limit)
			}
		})
	}
}

// idle is a custom type that may take no bytes.
type idle struct{ X uint64 }

func (idle) AppendProc(b []byte) ([]byte, error) { return b, nil }
func (*idle) DecodeProc([]byte) (int, error)     { return 0, nil }

// Elements that take nothing could be announced by each of many containers anew.
func TestElementsWithoutBytes(t *testing.T) {
	type only struct{ Version cereal.ClassVersion }
	claim := []byte{16, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}
	for v, want := range map[any]string{
		new([]idle): "cereal: decode []cereal_test.idle: 16 elements took only 0 bytes; write at least a byte for each element of a container",
		new([]only): "cereal: decode []cereal_test.only: 16 elements took only 4 bytes; write at least a byte for each element of a container",
	} {
		_, err := planOf(t, v).Decode(claim, v)
		checkError(t, err, want, nil)
	}
	few := []only{{7}, {7}, {7}}
	p := planFor[[]only](t)
	var got []only
	codectest.MustDecode(t, p, codectest.MustAppend(t, p, &few), &got)
	if !reflect.DeepEqual(got, few) {
		t.Errorf("got %v, want %v", got, few)
	}
}

type (
	// selfKeyed are types whose keys contain the map.
	selfKeyed struct {
		M *map[selfKeyed]int8 `cereal:"optional"`
		X int8
	}
	selfKeyedArray [1]struct {
		M *map[selfKeyedArray]int8 `cereal:"optional"`
	}
	partKey struct {
		A     int8
		Local int `cereal:"-"`
	}
)

// Keys that have no order have no plan, however they come to have none.
// parity: T52
func TestKeysRefused(t *testing.T) {
	const order = " has no order that C++ is sure to have too; use keys of numbers, strings, arrays and structs of them, or a slice of structs with key and element"
	for _, tt := range []struct {
		v    any
		want string
	}{
		{new(selfKeyed), "cereal: plan cereal_test.selfKeyed: M[key]: cereal_test.selfKeyed" + order},
		{new(selfKeyedArray), "cereal: plan cereal_test.selfKeyedArray: [].M[key]: struct { M *map[cereal_test.selfKeyedArray]int8 \"cereal:\\\"optional\\\"\" }" + order},
		{new(map[selfKeyed]int8), "cereal: plan map[cereal_test.selfKeyed]int8: [key].M[key]: cereal_test.selfKeyed" + order},
		{new(map[partKey]int8), "cereal: plan map[cereal_test.partKey]int8: [key]: cereal_test.partKey has fields that do not travel, " +
			"so that different keys could have the same bytes; use keys that travel as a whole"},
	} {
		_, err := cereal.Codec{}.Plan(codectest.TypeOf(tt.v))
		checkError(t, err, tt.want, nil)
	}
}

// Behind what takes all that remains, nothing is ever read.
// parity: T58
func TestRestRefused(t *testing.T) {
	type chained struct {
		Next *chained `cereal:"unique"`
		Rest cereal.Rest
	}
	const why = "cereal.Rest takes all that remains, and more follows; make it the last field of the value"
	for _, tt := range []struct {
		v     any
		where string
	}{
		{new(struct {
			R cereal.Rest
			A int8
		}), "R"},
		{new([]cereal.Rest), "[]"},
		{new([2]cereal.Rest), "[]"},
		{new(map[string]cereal.Rest), "[]"},
		{new(struct {
			A struct{ R cereal.Rest }
			B []int8
		}), "A.R"},
		{new(struct {
			W struct {
				cereal.Variant
				N *int8
				R *cereal.Rest
			}
			B int8
		}), "W.R"},
		{new(chained), "Next.Rest"},
	} {
		_, err := cereal.Codec{}.Plan(codectest.TypeOf(tt.v))
		checkError(t, err, "cereal: plan "+codectest.TypeOf(tt.v).String()+": "+tt.where+": "+why, nil)
	}
	for _, v := range []any{
		new(cereal.Rest),
		new([1]cereal.Rest),
		new(struct {
			A []struct{ B int8 }
			C struct {
				D int8
				R *cereal.Rest `cereal:"optional"`
			}
		}),
		new(struct {
			cereal.Variant
			N *int8
			R *cereal.Rest
		}),
	} {
		planOf(t, v)
	}
}

// A key in an error's path is text, wherever it is cut.
func TestLongKeyInPath(t *testing.T) {
	m := map[string]cerealtest.NumberOrText{"é" + strings.Repeat("日", 10): {}}
	_, err := planFor[map[string]cerealtest.NumberOrText](t).Append(nil, &m)
	if e, ok := errors.AsType[*codec.Error](err); !ok || !utf8.ValidString(e.Path) || !strings.Contains(e.Path, "é日日日日日…") {
		t.Errorf("got %q", err)
	}
}
