package hgproc

import (
	"reflect"

	"cinnabar/internal/codecplan"
)

// The ops that hg_proc has besides the scalars.
const (
	opID        = codecplan.FirstOwnOp + iota // ID: the low 4 bytes of a uint64
	opString                                  // string: hg_string_t
	opConst                                   // ConstString: hg_const_string_t
	opNullable                                // pointer to one of the two above
	opByteArray                               // [n]byte
	opArray                                   // [n]elem
	opByteSlice                               // []byte; its length is an earlier field, or travels before it
	opSlice                                   // []elem; its length is an earlier field, or travels before it
	opStruct                                  // its fields
	opPad                                     // blank field: as many zero bytes as it has
	opCustom                                  // codec.Appender and codec.Decoder
)

// node is the plan of one type. Nodes are immutable and form a tree: recursive types have no plan of their own.
type node struct {
	op     codecplan.Op
	typ    reflect.Type
	min    int     // fewest bytes on the wire, at most codecplan.MaxMin
	fixed  bool    // always takes min bytes
	count  int     // array: number of elements
	elem   *node   // array, slice, nullable: the plan of the elements or the target
	fields []field // struct: in order of declaration, without those tagged "-"
}

// field is one field of a struct.
type field struct {
	*node
	name  string
	index int                  // in the Go struct
	count int                  // slice: index of the field that holds the number of elements; -1 if the number travels with it
	own   *node                // slice: the integer in which its number of elements travels before them; nil if that is another field
	when  *codecplan.Condition // nil: the field always travels
}

// The bytes of a string besides its text.
const (
	stringLenSize = 8 // u64 length, which counts the NUL
	stringTail    = 3 // NUL, is_const, is_owned
)
