package hgproc

import "reflect"

// op says how a node's value is written.
type op uint8

const (
	opInt8 op = iota
	opInt16
	opInt32
	opInt64
	opUint8
	opUint16
	opUint32
	opUint64
	opBool
	opFloat32
	opFloat64
	opID        // ID: the low 4 bytes of a uint64
	opString    // string: hg_string_t
	opConst     // ConstString: hg_const_string_t
	opNullable  // pointer to one of the two above
	opByteArray // [n]byte
	opArray     // [n]elem
	opByteSlice // []byte whose length is an earlier field
	opSlice     // []elem whose length is an earlier field
	opStruct
	opPad    // blank field: size zero bytes
	opCustom // codec.Appender and codec.Decoder
)

// node is the plan of one type. Nodes are immutable and form a tree: recursive types have no plan of their own.
type node struct {
	op     op
	typ    reflect.Type
	min    int     // fewest bytes on the wire, at most maxMin
	fixed  bool    // always takes min bytes
	count  int     // array: number of elements
	elem   *node   // array, slice, nullable: what is inside
	fields []field // struct: in order of declaration, without those tagged "-"
}

// maxMin bounds the bytes that every value of a type takes, so that sums of them are far from overflowing an int. No
// transport takes messages of this size.
const maxMin = 1 << 30

// field is one field of a struct.
type field struct {
	*node
	name  string
	index int // in the Go struct
	count int // slice: index of the field that holds the number of elements
}

// The bytes of a string besides its text.
const (
	stringLenSize = 8 // u64 length, which counts the NUL
	stringTail    = 3 // NUL, is_const, is_owned
)
