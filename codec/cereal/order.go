package cereal

import (
	"cmp"
	"fmt"
	"reflect"

	"cinnabar/codec"
	"cinnabar/internal/codecplan"
)

// ordered returns an error if values of n cannot be the keys of a map. All others have the order that std::less gives the
// C++ types, so that maps are written as a std::map is: ascending.
func (n *node) ordered() error {
	switch {
	case n.open: // it contains this map, which has no order
	case n.op == opByteArray, n.op == opArray:
		return n.elem.ordered()
	case n.op == opStruct:
		if len(n.fields) < n.typ.NumField() {
			return &codec.Error{
				Problem: fmt.Sprintf("%v has fields that do not travel, so that different keys could have the same bytes", n.typ),
				Remedy:  "use keys that travel as a whole",
			}
		}
		for i := range n.fields {
			if n.fields[i].when != nil {
				return codecplan.Under(&codec.Error{Problem: "the field of a key does not always travel", Remedy: "use keys that travel as a whole"}, n.fields[i].name)
			}
			if err := n.fields[i].ordered(); err != nil {
				return codecplan.Under(err, n.fields[i].name)
			}
		}
		return nil
	case n.isScalar(), n.op == opString:
		return nil
	}
	return &codec.Error{
		Problem: fmt.Sprintf("%v has no order that C++ is sure to have too", n.typ),
		Remedy:  "use keys of numbers, strings, arrays and structs of them, or a slice of structs with key and element",
	}
}

// compare orders two keys: numbers by value, strings by their bytes, arrays and structs element by element, as
// std::pair, std::tuple and std::array do.
func (n *node) compare(a, b reflect.Value) int {
	switch {
	case n.op == opByteArray || n.op == opArray:
		for i := range n.count {
			if c := n.elem.compare(a.Index(i), b.Index(i)); c != 0 {
				return c
			}
		}
		return 0
	case n.op == opStruct:
		for i := range n.fields {
			f := &n.fields[i]
			if c := f.compare(a.Field(f.index), b.Field(f.index)); c != 0 {
				return c
			}
		}
		return 0
	case n.op == opString:
		return cmp.Compare(a.String(), b.String())
	case n.op == codecplan.OpBool:
		return boolToInt(a.Bool()) - boolToInt(b.Bool())
	case n.op == codecplan.OpComplex64 || n.op == codecplan.OpComplex128: // for unordered maps, so that equal ones have equal bytes
		x, y := a.Complex(), b.Complex()
		return cmp.Or(cmp.Compare(real(x), real(y)), cmp.Compare(imag(x), imag(y)))
	case a.CanFloat():
		return cmp.Compare(a.Float(), b.Float())
	case a.CanUint():
		return cmp.Compare(a.Uint(), b.Uint())
	}
	return cmp.Compare(a.Int(), b.Int())
}

func boolToInt(x bool) int {
	if x {
		return 1
	}
	return 0
}
