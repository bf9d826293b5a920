package cereal

import (
	"encoding/binary"

	"cinnabar/internal/codecplan"
)

// AppendSize appends the number of elements of a container, for types that write their own bytes (cereal::SizeTag).
func AppendSize(b []byte, n int) []byte { return binary.LittleEndian.AppendUint64(b, uint64(n)) }

// DecodeSize reads a number of elements that take at least that many bytes each from the start of b, and returns how
// many bytes it took itself. A number that the rest of b cannot hold is refused with an error that is
// [cinnabar/codec.ErrOverflow]; least below 1 counts as 1.
func DecodeSize(b []byte, least int) (n, took int, err error) {
	if len(b) < sizeTag {
		return 0, 0, codecplan.Overflow("a size takes %d bytes, %d remain", sizeTag, len(b))
	}
	d := decoder{b: b}
	if n, err = d.size(max(1, least)); err != nil {
		return 0, 0, err
	}
	return n, sizeTag, nil
}

// AppendString appends s as a std::string, for types that write their own bytes:
//
//	 0            8
//	+------------+------------+
//	| u64 length | text       |
//	+------------+------------+
func AppendString(b []byte, s string) []byte { return append(AppendSize(b, len(s)), s...) }

// DecodeString reads a string of [AppendString] from the start of b, and returns a copy of the text and the number of
// bytes that it took.
func DecodeString(b []byte) (s string, n int, err error) {
	size, n, err := DecodeSize(b, 1)
	if err != nil {
		return "", 0, err
	}
	return string(b[n : n+size]), n + size, nil
}
