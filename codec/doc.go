// Package codec is the seam between Go values and the bytes that a family of RPC programs puts into its messages.
//
// Mercury and Thallium frame a call in the same way but write its arguments differently: Mercury's C routines
// (hg_proc) count the NUL of a string and add two flag bytes, Thallium's archive (cereal) does neither. So the
// encoding is a property of the RPC, and each family is a package below this one that implements [Codec]:
//
//	codec/hgproc   Mercury's and Margo's hg_proc routines, the default
//	codec/cereal   Thallium's archive of the C++ library cereal
//
// # Nouns
//
// A [Codec] looks at a Go type once and makes a [Plan], or says by field name why it cannot. A plan appends values of
// that type to a buffer and decodes them. A type that writes its own bytes is an [Appender] and a [Decoder]; every
// codec asks it first. One with parts of other types, which the codec in use is to write, is an [AppenderWith] and a
// [DecoderWith], and writes the parts with [Append] and [Decode]. A [Result] is a value or an error text. An [Error] names the value, the field and the remedy.
//
// # Usage
//
// Programs rarely call this package: an RPC descriptor takes a codec as an option and does the rest. By hand:
//
//	type SumIn struct{ X, Y int32 }
//
//	plan, err := hgproc.Codec{}.Plan(reflect.TypeFor[SumIn]())
//	if err != nil {
//		return err // SumIn holds something that hg_proc has no bytes for
//	}
//	in := &SumIn{X: 1, Y: 2}
//	buf, err := plan.Append(nil, in) // 01000000 02000000
//	if err != nil {
//		return err
//	}
//	out := new(SumIn)
//	n, err := plan.Decode(buf, out) // n == 8
//
// # Concurrency and allocation
//
// Codecs and plans never change after they are made and are safe for concurrent use. Values go in and out through a
// pointer in an interface, so the compiler must assume that the pointer is kept: a local variable moves to the heap when its
// address is passed, which is that call's one allocation. Callers on a hot path keep their values in an object
// that they reuse; then appending to a buffer with room, and decoding a type without strings or slices, allocate
// nothing.
package codec
