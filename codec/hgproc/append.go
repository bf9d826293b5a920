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

// AppendValue appends v, which is addressable, to b and returns the extended buffer.
func (n *node) AppendValue(c codec.Codec, b []byte, v reflect.Value) ([]byte, error) {
	return n.append(c, slices.Grow(b, n.min), v)
}

// append appends v, which is addressable. Custom types get c.
func (n *node) append(c codec.Codec, b []byte, v reflect.Value) ([]byte, error) {
	switch n.op {
	case opString:
		return appendString(b, v.String(), false)
	case opConst:
		return appendString(b, v.String(), true)
	case opNullable:
		return n.appendNullable(c, b, v)
	case opByteArray, opByteSlice:
		return append(b, v.Bytes()...), nil
	case opArray, opSlice:
		return n.appendElems(c, b, v)
	case opStruct:
		return n.appendFields(c, b, v)
	case opPad:
		return append(b, make([]byte, n.min)...), nil
	case opCustom:
		return codecplan.Append(c, b, v.Addr().Interface())
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

func (n *node) appendFields(c codec.Codec, b []byte, v reflect.Value) ([]byte, error) {
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
			b, err = f.append(c, b, fv)
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

func (n *node) appendElems(c codec.Codec, b []byte, v reflect.Value) ([]byte, error) {
	if n.elem.fixed && n.elem.min == 0 {
		return b, nil
	}
	start := len(b)
	for i := range v.Len() {
		var err error
		if b, err = n.elem.append(c, b, v.Index(i)); err != nil {
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

func (n *node) appendNullable(c codec.Codec, b []byte, v reflect.Value) ([]byte, error) {
	if v.IsNil() {
		return binary.LittleEndian.AppendUint64(b, 0), nil
	}
	return n.elem.append(c, b, v.Elem())
}
