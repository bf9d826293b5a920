package cereal

import (
	"encoding/binary"
	"math"
	"reflect"
)

// float32Bits returns the bits of v, a float32. Going through float64, as reflect does, would change those of a
// signalling NaN, which C++ copies as they are.
func float32Bits(v reflect.Value) uint32 {
	if x := v.Float(); !math.IsNaN(x) {
		return math.Float32bits(float32(x))
	}
	return math.Float32bits(*v.Addr().Convert(reflect.TypeFor[*float32]()).Interface().(*float32))
}

// setFloat32Bits is the inverse of float32Bits.
func setFloat32Bits(v reflect.Value, bits uint32) {
	if x := float64(math.Float32frombits(bits)); !math.IsNaN(x) {
		v.SetFloat(x)
		return
	}
	*v.Addr().Convert(reflect.TypeFor[*float32]()).Interface().(*float32) = math.Float32frombits(bits)
}

// appendComplex64 appends v, a complex64, with the bits of its two halves as they are.
func appendComplex64(b []byte, v reflect.Value) []byte {
	x := *v.Addr().Convert(reflect.TypeFor[*complex64]()).Interface().(*complex64)
	b = binary.LittleEndian.AppendUint32(b, math.Float32bits(real(x)))
	return binary.LittleEndian.AppendUint32(b, math.Float32bits(imag(x)))
}

// setComplex64 is the inverse of appendComplex64.
func setComplex64(v reflect.Value, b []byte) {
	re, im := binary.LittleEndian.Uint32(b), binary.LittleEndian.Uint32(b[4:])
	*v.Addr().Convert(reflect.TypeFor[*complex64]()).Interface().(*complex64) =
		complex(math.Float32frombits(re), math.Float32frombits(im))
}
