package hgproc

import (
	"encoding/binary"
	"reflect"
	"strconv"

	"cinnabar/codec"
	"cinnabar/internal/codecplan"
)

// DecodeValue reads v, which can be set, from the start of b and returns the rest of b.
func (n *node) DecodeValue(c codec.Codec, b []byte, v reflect.Value) ([]byte, error) {
	return n.decode(c, b, v)
}

// decode reads v, which can be set, from the start of b and returns the rest of b. Custom types get c.
func (n *node) decode(c codec.Codec, b []byte, v reflect.Value) ([]byte, error) {
	if len(b) < n.min {
		return nil, n.short(c, b, v)
	}
	switch n.op {
	case opID:
		v.SetUint(uint64(binary.LittleEndian.Uint32(b)))
	case opByteArray:
		copy(v.Bytes(), b)
	case opPad: // skipped, because a C compiler does not set it
	case opString, opConst:
		return decodeString(b, v)
	case opNullable:
		return n.decodeNullable(c, b, v)
	case opArray:
		return n.decodeArray(c, b, v)
	case opStruct:
		return n.decodeFields(c, b, v)
	case opCustom:
		return codecplan.Decode(c, b, v.Addr().Interface())
	default: // a scalar; slices are read by decodeFields, which knows their length
		n.op.SetScalar(v, b)
	}
	return b[n.min:], nil
}

// short says where b, which has fewer bytes than n needs, ends. It descends to the field that cannot be read.
func (n *node) short(c codec.Codec, b []byte, v reflect.Value) error {
	var err error
	switch n.op {
	case opArray:
		_, err = n.decodeArray(c, b, v)
	case opStruct:
		_, err = n.decodeFields(c, b, v)
	default: // nothing below
		err = codecplan.Overflow("%v takes %d bytes, %d remain", n.typ, n.min, len(b))
	}
	return err
}

func (n *node) decodeFields(c codec.Codec, b []byte, v reflect.Value) ([]byte, error) {
	var err error
	for i := range n.fields {
		f := &n.fields[i]
		fv := v.Field(f.index)
		switch {
		case f.when != nil && !f.when.Holds(v):
			fv.SetZero()
		case f.isSlice():
			b, err = f.decodeSlice(c, b, v, fv)
		default:
			b, err = f.decode(c, b, fv)
		}
		if err != nil {
			return nil, codecplan.Under(err, f.name)
		}
	}
	return b, nil
}

func (n *node) decodeArray(c codec.Codec, b []byte, v reflect.Value) ([]byte, error) {
	if n.fixed && n.min == 0 {
		return b, nil
	}
	for i := range n.count {
		var err error
		if b, err = n.elem.decode(c, b, v.Index(i)); err != nil {
			return nil, codecplan.Under(err, "["+strconv.Itoa(i)+"]")
		}
	}
	return b, nil
}

// decodeSlice reads slice field v of struct s. The announced length is checked against the rest of the message before anything
// is allocated.
func (f *field) decodeSlice(c codec.Codec, b []byte, s, v reflect.Value) ([]byte, error) {
	count, b, err := f.length(b, s)
	if err != nil {
		return nil, err
	}
	least := max(1, f.elem.min) // a custom type may say nothing; then each is taken to need a byte
	if count > uint64(len(b)/least) {
		return nil, codecplan.Overflow("%d elements of at least %d bytes exceed the %d bytes that remain", count, least, len(b))
	}
	v.SetZero() // never into memory that the program may still hold
	n := int(count)
	if f.op == opByteSlice {
		if n > 0 {
			v.SetBytes(append([]byte(nil), b[:n]...)) // unlike Grow, append clears no memory
		}
		return b[n:], nil
	}
	return f.decodeElems(c, b, v, n)
}

// decodeElems reads count elements into v, an empty slice. Elements can be larger in memory than in the message, so
// the first allocation is no larger than the rest of the message and later ones follow the elements that were really read.
func (f *field) decodeElems(c codec.Codec, b []byte, v reflect.Value, count int) ([]byte, error) {
	size := max(1, int(f.elem.typ.Size()))
	v.Grow(min(count, 1+len(b)/size))
	for i := range count {
		if i == v.Cap() {
			v.Grow(1)
		}
		v.SetLen(i + 1)
		var err error
		if b, err = f.elem.decode(c, b, v.Index(i)); err != nil {
			return nil, codecplan.Under(err, "["+strconv.Itoa(i)+"]")
		}
	}
	return b, nil
}

// decodeNullable reads a string through a pointer, which is nil for C's null string.
func (n *node) decodeNullable(c codec.Codec, b []byte, v reflect.Value) ([]byte, error) {
	if binary.LittleEndian.Uint64(b) == 0 {
		v.SetZero()
		return b[stringLenSize:], nil
	}
	v.Set(reflect.New(n.elem.typ))
	return n.elem.decode(c, b, v.Elem())
}
