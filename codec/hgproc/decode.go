package hgproc

import (
	"encoding/binary"
	"reflect"
	"strconv"

	"cinnabar/codec"
	"cinnabar/internal/codecplan"
)

// decoding is the state of decoding one message.
type decoding struct {
	c     codec.Codec // for custom types
	least int         // the fewest bytes of a []byte that refers to the message in place of a copy; 0: all are copied
	kept  bool        // a []byte refers to the message
}

// DecodeValue reads v, which can be set, from the start of b and returns the rest of b.
func (n *node) DecodeValue(c codec.Codec, b []byte, v reflect.Value) ([]byte, error) {
	return n.decode(&decoding{c: c}, b, v)
}

// DecodeKept implements [codecplan.Keeper]. A []byte of at least half of the message refers to it.
func (n *node) DecodeKept(c codec.Codec, b []byte, v reflect.Value) ([]byte, bool, error) {
	d := decoding{c: c, least: max(1, len(b)-len(b)/2)}
	rest, err := n.decode(&d, b, v)
	return rest, d.kept, err
}

// Keeps implements [codecplan.Keeper].
func (n *node) Keeps() bool {
	if n.op == opByteSlice {
		return true
	}
	for i := range n.fields {
		if n.fields[i].Keeps() {
			return true
		}
	}
	return (n.op == opArray || n.op == opSlice) && n.elem.Keeps()
}

// decode reads v, which can be set, from the start of b and returns the rest of b.
func (n *node) decode(d *decoding, b []byte, v reflect.Value) ([]byte, error) {
	if len(b) < n.min {
		return nil, n.short(d, b, v)
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
		return n.decodeNullable(d, b, v)
	case opArray:
		return n.decodeArray(d, b, v)
	case opStruct:
		return n.decodeFields(d, b, v)
	case opCustom:
		return codecplan.Decode(d.c, b, v.Addr().Interface())
	default: // a scalar; slices are read by decodeFields, which knows their length
		n.op.SetScalar(v, b)
	}
	return b[n.min:], nil
}

// short says where b, which has fewer bytes than n needs, ends. It descends to the field that cannot be read.
func (n *node) short(d *decoding, b []byte, v reflect.Value) error {
	var err error
	switch n.op {
	case opArray:
		_, err = n.decodeArray(d, b, v)
	case opStruct:
		_, err = n.decodeFields(d, b, v)
	default: // nothing below
		err = codecplan.Overflow("%v takes %d bytes, %d remain", n.typ, n.min, len(b))
	}
	return err
}

func (n *node) decodeFields(d *decoding, b []byte, v reflect.Value) ([]byte, error) {
	var err error
	for i := range n.fields {
		f := &n.fields[i]
		fv := v.Field(f.index)
		switch {
		case f.when != nil && !f.when.Holds(v):
			fv.SetZero()
		case f.isSlice():
			b, err = f.decodeSlice(d, b, v, fv)
		default:
			b, err = f.decode(d, b, fv)
		}
		if err != nil {
			return nil, codecplan.Under(err, f.name)
		}
	}
	return b, nil
}

func (n *node) decodeArray(d *decoding, b []byte, v reflect.Value) ([]byte, error) {
	if n.fixed && n.min == 0 {
		return b, nil
	}
	for i := range n.count {
		var err error
		if b, err = n.elem.decode(d, b, v.Index(i)); err != nil {
			return nil, codecplan.Under(err, "["+strconv.Itoa(i)+"]")
		}
	}
	return b, nil
}

// decodeSlice reads slice field v of struct s. The announced length is checked against the rest of the message before anything
// is allocated.
func (f *field) decodeSlice(d *decoding, b []byte, s, v reflect.Value) ([]byte, error) {
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
		switch {
		case n == 0:
		case d.least > 0 && n >= d.least:
			v.SetBytes(b[:n:n])
			d.kept = true
		default:
			v.SetBytes(append([]byte(nil), b[:n]...)) // unlike Grow, append clears no memory
		}
		return b[n:], nil
	}
	return f.decodeElems(d, b, v, n)
}

// decodeElems reads count elements into v, an empty slice. Elements can be larger in memory than in the message, so
// the first allocation is no larger than the rest of the message and later ones follow the elements that were really read.
func (f *field) decodeElems(d *decoding, b []byte, v reflect.Value, count int) ([]byte, error) {
	size := max(1, int(f.elem.typ.Size()))
	v.Grow(min(count, 1+len(b)/size))
	for i := range count {
		if i == v.Cap() {
			v.Grow(1)
		}
		v.SetLen(i + 1)
		var err error
		if b, err = f.elem.decode(d, b, v.Index(i)); err != nil {
			return nil, codecplan.Under(err, "["+strconv.Itoa(i)+"]")
		}
	}
	return b, nil
}

// decodeNullable reads a string through a pointer, which is nil for C's null string.
func (n *node) decodeNullable(d *decoding, b []byte, v reflect.Value) ([]byte, error) {
	if binary.LittleEndian.Uint64(b) == 0 {
		v.SetZero()
		return b[stringLenSize:], nil
	}
	v.Set(reflect.New(n.elem.typ))
	return n.elem.decode(d, b, v.Elem())
}
