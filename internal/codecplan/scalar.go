package codecplan

import (
	"encoding/binary"
	"math"
	"reflect"
)

// Op is the form in which the value of a node is written. The ops of scalars, which all codecs write alike, come first; a
// codec numbers its own ops from FirstOwnOp.
type Op uint8

// The ops of scalars: a fixed number of bytes, little-endian, and no other value inside.
const (
	OpInt8 Op = iota
	OpInt16
	OpInt32
	OpInt64
	OpUint8
	OpUint16
	OpUint32
	OpUint64
	OpBool
	OpFloat32
	OpFloat64
	OpComplex64  // float32 twice: real, imaginary
	OpComplex128 // float64 twice
	FirstOwnOp
)

// scalars maps the kinds of scalars to their ops and sizes in bytes.
var scalars = map[reflect.Kind]struct {
	op   Op
	size int
}{
	reflect.Int8:       {OpInt8, 1},
	reflect.Int16:      {OpInt16, 2},
	reflect.Int32:      {OpInt32, 4},
	reflect.Int64:      {OpInt64, 8},
	reflect.Uint8:      {OpUint8, 1},
	reflect.Uint16:     {OpUint16, 2},
	reflect.Uint32:     {OpUint32, 4},
	reflect.Uint64:     {OpUint64, 8},
	reflect.Bool:       {OpBool, 1},
	reflect.Float32:    {OpFloat32, 4},
	reflect.Float64:    {OpFloat64, 8},
	reflect.Complex64:  {OpComplex64, 8},
	reflect.Complex128: {OpComplex128, 16},
}

// Scalar returns the op of kind k and the number of bytes that its values take; ok is false if k is no scalar.
func Scalar(k reflect.Kind) (o Op, size int, ok bool) {
	s, ok := scalars[k]
	return s.op, s.size, ok
}

// AppendScalar appends v, which is addressable and of the scalar type that o stands for.
func (o Op) AppendScalar(b []byte, v reflect.Value) []byte {
	le := binary.LittleEndian
	switch o {
	case OpInt8:
		return append(b, byte(v.Int()))
	case OpInt16:
		return le.AppendUint16(b, uint16(v.Int()))
	case OpInt32:
		return le.AppendUint32(b, uint32(v.Int()))
	case OpInt64:
		return le.AppendUint64(b, uint64(v.Int()))
	case OpUint8:
		return append(b, byte(v.Uint()))
	case OpUint16:
		return le.AppendUint16(b, uint16(v.Uint()))
	case OpUint32:
		return le.AppendUint32(b, uint32(v.Uint()))
	case OpUint64:
		return le.AppendUint64(b, v.Uint())
	case OpBool:
		return AppendBool(b, v.Bool())
	case OpFloat32:
		return le.AppendUint32(b, float32Bits(v))
	case OpFloat64:
		return le.AppendUint64(b, math.Float64bits(v.Float()))
	case OpComplex64:
		x := *pointer[complex64](v)
		return le.AppendUint32(le.AppendUint32(b, math.Float32bits(real(x))), math.Float32bits(imag(x)))
	default: // OpComplex128
		x := v.Complex()
		return le.AppendUint64(le.AppendUint64(b, math.Float64bits(real(x))), math.Float64bits(imag(x)))
	}
}

// SetScalar sets v, of the scalar type that o stands for, to the value at the start of b, which has at least the bytes that
// Scalar reports for it. Every byte but 0 is read as true, as C and C++ read it.
func (o Op) SetScalar(v reflect.Value, b []byte) {
	le := binary.LittleEndian
	switch o {
	case OpInt8:
		v.SetInt(int64(int8(b[0])))
	case OpInt16:
		v.SetInt(int64(int16(le.Uint16(b))))
	case OpInt32:
		v.SetInt(int64(int32(le.Uint32(b))))
	case OpInt64:
		v.SetInt(int64(le.Uint64(b)))
	case OpUint8:
		v.SetUint(uint64(b[0]))
	case OpUint16:
		v.SetUint(uint64(le.Uint16(b)))
	case OpUint32:
		v.SetUint(uint64(le.Uint32(b)))
	case OpUint64:
		v.SetUint(le.Uint64(b))
	case OpBool:
		v.SetBool(b[0] != 0)
	case OpFloat32:
		setFloat32Bits(v, le.Uint32(b))
	case OpFloat64:
		v.SetFloat(math.Float64frombits(le.Uint64(b)))
	case OpComplex64:
		*pointer[complex64](v) = complex(math.Float32frombits(le.Uint32(b)), math.Float32frombits(le.Uint32(b[4:])))
	default: // OpComplex128
		v.SetComplex(complex(math.Float64frombits(le.Uint64(b)), math.Float64frombits(le.Uint64(b[8:]))))
	}
}

// AppendBool appends 1 for true and 0 for false.
func AppendBool(b []byte, x bool) []byte {
	if x {
		return append(b, 1)
	}
	return append(b, 0)
}

// float32Bits returns the bits of v, a float32. A signalling NaN is read through its address, because the conversion to
// float64 in reflect changes its bits, and C and C++ copy them as they are.
func float32Bits(v reflect.Value) uint32 {
	if x := v.Float(); !math.IsNaN(x) {
		return math.Float32bits(float32(x))
	}
	return math.Float32bits(*pointer[float32](v))
}

// setFloat32Bits sets v, a float32, to the value with these bits. It sets a NaN through its address, as float32Bits reads it.
func setFloat32Bits(v reflect.Value, bits uint32) {
	if x := float64(math.Float32frombits(bits)); !math.IsNaN(x) {
		v.SetFloat(x)
		return
	}
	*pointer[float32](v) = math.Float32frombits(bits)
}

// pointer returns the address of v, which is of type T or of a named type on it.
func pointer[T any](v reflect.Value) *T {
	return v.Addr().Convert(reflect.TypeFor[*T]()).Interface().(*T)
}
