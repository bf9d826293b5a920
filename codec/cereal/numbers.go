package cereal

import (
	"encoding/binary"
	"math"
)

// appendNumbers appends the elements of the slice that p points to, if it is of one of the types that most vectors of
// numbers have. Looking at each element by reflection takes several times as long.
func appendNumbers(b []byte, p any) ([]byte, bool) {
	le := binary.LittleEndian
	switch s := p.(type) {
	case *[]int32:
		for _, x := range *s {
			b = le.AppendUint32(b, uint32(x))
		}
	case *[]uint32:
		for _, x := range *s {
			b = le.AppendUint32(b, x)
		}
	case *[]int64:
		for _, x := range *s {
			b = le.AppendUint64(b, uint64(x))
		}
	case *[]uint64:
		for _, x := range *s {
			b = le.AppendUint64(b, x)
		}
	case *[]float32:
		for _, x := range *s {
			b = le.AppendUint32(b, math.Float32bits(x))
		}
	case *[]float64:
		for _, x := range *s {
			b = le.AppendUint64(b, math.Float64bits(x))
		}
	default:
		return b, false
	}
	return b, true
}

// setNumbers is the inverse: it sets the elements that the slice has already.
func setNumbers(p any, b []byte) bool {
	le := binary.LittleEndian
	switch s := p.(type) {
	case *[]int32:
		for i := range *s {
			(*s)[i] = int32(le.Uint32(b[4*i:]))
		}
	case *[]uint32:
		for i := range *s {
			(*s)[i] = le.Uint32(b[4*i:])
		}
	case *[]int64:
		for i := range *s {
			(*s)[i] = int64(le.Uint64(b[8*i:]))
		}
	case *[]uint64:
		for i := range *s {
			(*s)[i] = le.Uint64(b[8*i:])
		}
	case *[]float32:
		for i := range *s {
			(*s)[i] = math.Float32frombits(le.Uint32(b[4*i:]))
		}
	case *[]float64:
		for i := range *s {
			(*s)[i] = math.Float64frombits(le.Uint64(b[8*i:]))
		}
	default:
		return false
	}
	return true
}
