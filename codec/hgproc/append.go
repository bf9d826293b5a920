package hgproc

import (
	"encoding/binary"
	"fmt"
	"reflect"
	"slices"
	"strconv"

	"cinnabar/codec"
	"cinnabar/internal/codecplan"
)

// encoding is the state of encoding one message.
type encoding struct {
	c     codec.Codec // for custom types
	least int         // the fewest bytes of a []byte that is left out; 0: none is
	at    int         // where the one that is left out belongs
	lent  []byte      // its contents; nil: none is left out so far
}

// AppendValue appends v, which is addressable, to b and returns the extended buffer.
func (n *node) AppendValue(c codec.Codec, b []byte, v reflect.Value) ([]byte, error) {
	return n.append(&encoding{c: c}, slices.Grow(b, n.min), v)
}

// AppendAround implements [codecplan.Lender].
func (n *node) AppendAround(c codec.Codec, b []byte, v reflect.Value, least int) (out []byte, at int, lent []byte, err error) {
	e := encoding{c: c, least: least}
	out, err = n.append(&e, slices.Grow(b, n.min), v)
	return out, e.at, e.lent, err
}

// Lends implements [codecplan.Lender].
func (n *node) Lends(v reflect.Value, least int) bool {
	for i := range n.fields {
		f := &n.fields[i]
		if f.op != opStruct && f.op != opByteSlice || f.when != nil && !f.when.Holds(v) {
			continue
		}
		fv := v.Field(f.index)
		if f.op == opByteSlice && fv.Len() >= least || f.op == opStruct && f.Lends(fv, least) {
			return true
		}
	}
	return false
}

// append appends v, which is addressable.
func (n *node) append(e *encoding, b []byte, v reflect.Value) ([]byte, error) {
	switch n.op {
	case opString:
		return appendString(b, v.String(), false)
	case opConst:
		return appendString(b, v.String(), true)
	case opNullable:
		return n.appendNullable(e, b, v)
	case opByteSlice:
		if e.least > 0 && e.lent == nil && v.Len() >= e.least {
			e.at, e.lent = len(b), v.Bytes()
			return b, nil
		}
		return append(b, v.Bytes()...), nil
	case opByteArray:
		return append(b, v.Bytes()...), nil
	case opArray, opSlice:
		return n.appendElems(e, b, v)
	case opStruct:
		return n.appendFields(e, b, v)
	case opPad:
		return append(b, make([]byte, n.min)...), nil
	case opCustom:
		return codecplan.Append(e.c, b, v.Addr().Interface())
	default:
		return n.appendScalar(b, v), nil
	}
}

// appendScalar appends v, which is addressable and of a scalar type.
func (n *node) appendScalar(b []byte, v reflect.Value) []byte {
	if n.op == opID {
		return binary.LittleEndian.AppendUint32(b, uint32(v.Uint()))
	}
	return n.op.AppendScalar(b, v)
}

func (n *node) appendFields(e *encoding, b []byte, v reflect.Value) ([]byte, error) {
	var err error
	for i := range n.fields {
		f := &n.fields[i]
		fv := v.Field(f.index)
		if f.when != nil && !f.when.Holds(v) {
			if err := f.when.CheckUnsent(v, fv); err != nil {
				return nil, codecplan.Under(err, f.name)
			}
			continue
		}
		if f.isScalar() {
			b = f.appendScalar(b, fv)
			continue
		}
		switch {
		case f.own != nil:
			b, err = f.appendCount(b, fv.Len())
		case f.isSlice():
			err = f.checkLen(v, fv.Len())
		}
		if err == nil {
			b, err = f.append(e, b, fv)
		}
		if err != nil {
			return nil, codecplan.Under(err, f.name)
		}
	}
	return b, nil
}

// checkLen refuses a slice of n elements if the struct s announces another number, because the receiver would read the
// following fields at the wrong place.
func (f *field) checkLen(s reflect.Value, n int) error {
	if want, ok := lengthIn(s.Field(f.count)); !ok || want != uint64(n) {
		return &codec.Error{
			Problem: fmt.Sprintf("the slice has %d elements, its count %s says %v", n, s.Type().Field(f.count).Name, s.Field(f.count)),
			Remedy:  "set the count to the length of the slice",
		}
	}
	return nil
}

// appendCount appends the number of elements of a slice in the integer that the field's tag names.
func (f *field) appendCount(b []byte, n int) ([]byte, error) {
	var most uint64
	switch f.own.op {
	case codecplan.OpInt8, codecplan.OpInt16, codecplan.OpInt32, codecplan.OpInt64:
		most = 1<<(8*f.own.min-1) - 1
	default:
		most = 1<<(8*f.own.min) - 1 // for 8 bytes the shift gives 0, and this all ones
	}
	if uint64(n) > most {
		return nil, &codec.Error{
			Problem: fmt.Sprintf("the slice has %d elements, and its count of type %v reaches %d", n, f.own.typ, most),
			Remedy:  "send fewer, or expose the memory and send a bulk handle",
		}
	}
	var count [8]byte
	binary.LittleEndian.PutUint64(count[:], uint64(n))
	return append(b, count[:f.own.min]...), nil
}

func (n *node) appendElems(e *encoding, b []byte, v reflect.Value) ([]byte, error) {
	if n.elem.fixed && n.elem.min == 0 {
		return b, nil
	}
	start, inside := len(b), encoding{c: e.c} // nothing is left out, because the elements are counted by their bytes
	for i := range v.Len() {
		var err error
		if b, err = n.elem.append(&inside, b, v.Index(i)); err != nil {
			return nil, codecplan.Under(err, "["+strconv.Itoa(i)+"]")
		}
	}
	if n.op == opSlice && len(b)-start < v.Len() { // decodeSlice refuses such a count as a hostile one
		return nil, &codec.Error{
			Problem: fmt.Sprintf("%d elements took only %d bytes", v.Len(), len(b)-start),
			Remedy:  "write at least a byte for each element of a counted slice",
		}
	}
	return b, nil
}

func (n *node) appendNullable(e *encoding, b []byte, v reflect.Value) ([]byte, error) {
	if v.IsNil() {
		return binary.LittleEndian.AppendUint64(b, 0), nil
	}
	return n.elem.append(e, b, v.Elem())
}
