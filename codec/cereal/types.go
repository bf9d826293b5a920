package cereal

import "cinnabar/codec"

// ClassVersion is the version of a class that is declared with CEREAL_CLASS_VERSION: the first field of its struct.
// It travels in front of the first value of the class in a message and holds for all of them. Values that are sent
// together must have the same; in values that are read it is the sender's.
type ClassVersion uint32

// Variant makes the struct that it is embedded in, as the first field, a std::variant. The other fields are pointers,
// one for each alternative in the order of C++; exactly one of them is not nil. A std::monostate is a *struct{}.
//
//	// std::variant<std::monostate, int32_t, std::string>
//	type Value struct {
//		cereal.Variant
//		None   *struct{}
//		Number *int32
//		Text   *string
//	}
type Variant struct{}

// Rest is all that remains of a message: the last field of a type that reads only the first arguments and leaves the
// others undecoded, for a plan that is chosen later. Types in which something could follow it have no plan. The bytes
// are a copy. Shared pointers and class versions are counted anew by the later plan, so the others cannot refer to
// objects among the first.
type Rest []byte

// AppendProc appends r as it is.
func (r Rest) AppendProc(b []byte) ([]byte, error) { return append(b, r...), nil }

// DecodeProc takes all of b.
func (r *Rest) DecodeProc(b []byte) (int, error) {
	*r = append(Rest(nil), b...)
	return len(b), nil
}

var (
	_ codec.Appender = Rest(nil)
	_ codec.Decoder  = (*Rest)(nil)
)
