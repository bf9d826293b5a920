package cerealtest

import (
	"bytes"

	"cinnabar/codec/cereal"
)

// The types of test/interop/cpp/values.hpp, in Go.
type (
	// Point is class point, written by its serialize method.
	Point struct{ X, Y, Z float64 }

	// Saved is class saved. Its save method does not follow the order of its members.
	Saved struct {
		Number int32 // save writes it first
		Name   string
	}

	// Around has an empty class between two numbers.
	Around struct {
		Before  int32
		Nothing struct{}
		After   int32
	}

	// Derived is a class with a base.
	Derived struct {
		Point
		Name string
	}

	// Versioned is a class with CEREAL_CLASS_VERSION.
	Versioned struct {
		Version cereal.ClassVersion
		Value   int16
	}

	// Raw has a C array and a struct that is sent as it lies in memory.
	Raw struct {
		Numbers [3]uint16
		Pair    struct{ A, B uint8 }
	}

	// Tree is a binary tree of unique pointers.
	Tree struct {
		Value       int32
		Left, Right *Tree `cereal:"unique"`
	}

	// Ring is a node of a ring of shared pointers.
	Ring struct {
		Name string
		Next *Ring `cereal:"shared"`
	}

	// Parent has children that know it.
	Parent struct {
		Children []*Child `cereal:"shared"`
	}
	// Child has a weak pointer to its parent.
	Child struct {
		Age int8
		Of  *Parent `cereal:"shared"`
	}

	// Pair is std::pair.
	Pair[A, B any] struct {
		First  A
		Second B
	}

	// Keyed is std::pair<int32_t, std::string>, also as an entry of a multimap.
	Keyed struct {
		Number int32
		Text   string
	}

	// NumberOrText is std::variant<int32_t, std::string>.
	NumberOrText struct {
		cereal.Variant
		Number *int32
		Text   *string
	}

	// MaybeByte is std::variant<std::monostate, uint8_t>.
	MaybeByte struct {
		cereal.Variant
		None *struct{}
		Byte *uint8
	}

	// Maybe is std::optional.
	Maybe[T any] struct {
		Value *T `cereal:"optional"`
	}

	// Sole is std::unique_ptr.
	Sole[T any] struct {
		To *T `cereal:"unique"`
	}

	// Common is std::shared_ptr.
	Common[T any] struct {
		To *T `cereal:"shared"`
	}

	// Bitset10 is std::bitset<10>.
	Bitset10 struct {
		Form uint8 // 3: bits, the first in the highest place
		Bits [2]uint8
	}

	// PlainEnum is an enum on type int.
	PlainEnum int32
	// SmallEnum is an enum class of uint8_t.
	SmallEnum uint8
)

// Blob is a u64 length and as many bytes, the outline of a bulk handle; the null handle is length 0.
type Blob []byte

// AppendProc appends the length and the bytes.
func (x Blob) AppendProc(b []byte) ([]byte, error) {
	return append(cereal.AppendSize(b, len(x)), x...), nil
}

// DecodeProc reads the bytes of AppendProc.
func (x *Blob) DecodeProc(b []byte) (int, error) {
	size, n, err := cereal.DecodeSize(b, 1)
	if err != nil {
		return 0, err
	}
	*x = nil
	if size > 0 {
		*x = bytes.Clone(b[n : n+size])
	}
	return n + size, nil
}

// Strings is a vector of shared pointers.
type Strings struct {
	All []*string `cereal:"shared"`
}

// StringAndMap is a pair of which both halves may lead to the same strings.
type StringAndMap struct {
	One  *string          `cereal:"shared"`
	Many map[int8]*string `cereal:"shared"`
}
