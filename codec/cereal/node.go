package cereal

import (
	"reflect"

	"cinnabar/internal/codecplan"
)

// The ops that cereal has besides the scalars.
const (
	opString    = codecplan.FirstOwnOp + iota // std::string: u64 length, text
	opByteArray                               // [n]byte
	opArray                                   // [n]elem
	opByteSlice                               // []byte: u64 count, bytes
	opSlice                                   // []elem: u64 count, elements
	opMap                                     // map[key]elem: u64 count, key and element each
	opOptional                                // *elem: u8 1, or u8 0 and the element
	opUnique                                  // *elem: u8 0, or u8 1 and the element
	opShared                                  // *elem: u32 id, and at the first mention the element
	opStruct                                  // its fields
	opVariant                                 // i32 index, the field
	opVersion                                 // ClassVersion: u32 at the first value of the class, nothing later
	opCustom                                  // codec.Appender and codec.Decoder
)

// node is the plan of one type. Nodes do not change once the whole plan is made. Those of recursive types form cycles,
// each of which passes a slice, a map or a pointer.
type node struct {
	op     codecplan.Op
	typ    reflect.Type
	open   bool    // not complete: the builder is at its elements
	min    int     // fewest bytes on the wire, at most codecplan.MaxMin
	fixed  bool    // always takes min bytes
	count  int     // array: number of elements
	key    *node   // map
	elem   *node   // array, slice, map, pointers: the plan of the elements or the target
	fields []field // struct, variant: in order of declaration, without those tagged "-"
}

// field is one field of a struct.
type field struct {
	*node
	name  string
	index int                  // in the Go struct
	when  *codecplan.Condition // nil: the field always travels
}

const (
	// maxDepth bounds how deep slices, maps and pointers lie in each other, in both directions: a value that contains
	// itself has no end, and a message must not choose how much stack it takes. encoding/json has the same limit.
	maxDepth = 10_000
)

// The sizes of the prefixes of containers and pointers, in bytes.
const (
	sizeTag  = 8 // containers and strings: u64 (cereal::size_type)
	sharedID = 4 // std::shared_ptr: u32
	presence = 1 // std::optional, std::unique_ptr: u8
	altIndex = 4 // std::variant: i32
)

// isNew is the bit of a shared pointer's id that says that the object follows (cereal::detail::msb_32bit).
const isNew = 1 << 31

// isScalar reports whether the node always takes min bytes and holds no other node.
func (n *node) isScalar() bool { return n.op < codecplan.FirstOwnOp }

// isEmpty reports whether no value of the node takes any bytes. It is not known before the node is complete.
func (n *node) isEmpty() bool { return n.fixed && n.min == 0 }
