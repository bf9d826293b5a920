package cereal

import (
	"fmt"
	"reflect"

	"cinnabar/codec"
	"cinnabar/internal/codecplan"
)

// builder makes nodes from types.
type builder struct {
	made map[request]*node // containers, pointers and structs, also those that are not complete yet
}

// request identifies a node: its type, and the form of the pointers in it that have no tag of their own.
type request struct {
	typ  reflect.Type
	form form
}

// remedies names the replacements for kinds that C++ programs cannot be sure to read alike.
var remedies = map[reflect.Kind]string{
	reflect.Int:           "use int32 for C++'s int, int64 for its long and ptrdiff_t",
	reflect.Uint:          "use uint32 for C++'s unsigned int, uint64 for size_t",
	reflect.Uintptr:       "use uint64",
	reflect.UnsafePointer: "expose the memory and send a bulk handle",
	reflect.Interface:     "use a concrete type, or a struct with cereal.Variant",
	reflect.Chan:          `leave it out with the tag cereal:"-"`,
	reflect.Func:          `leave it out with the tag cereal:"-"`,
	reflect.Pointer: `tag the field with its C++ type: cereal:"optional", cereal:"unique" for a unique_ptr or ` +
		`cereal:"shared" for a shared_ptr`,
}

// node returns the plan for t. Pointers in t have the form f, as far as the next struct.
func (bld *builder) node(t reflect.Type, f form) (*node, error) {
	if custom, err := codecplan.IsCustom(t); err != nil {
		return nil, err
	} else if custom {
		return &node{op: opCustom, typ: t}, nil
	}
	if op, size, ok := codecplan.Scalar(t.Kind()); ok {
		return &node{op: op, typ: t, min: size, fixed: true}, nil
	}
	if t.Kind() == reflect.String {
		return &node{op: opString, typ: t, min: sizeTag}, nil
	}
	if t.Kind() == reflect.Struct {
		f = ""
	}
	key := request{t, f}
	if n := bld.made[key]; n != nil {
		return n, nil
	}
	n := &node{typ: t, open: true}
	bld.made[key] = n
	if err := bld.compose(n, f); err != nil {
		return nil, err
	}
	n.open = false
	return n, nil
}

// compose completes the node of a type that holds others. It sets the least size of a slice, a map or a pointer before it
// plans the elements, because in a cycle of types an element asks for that size.
func (bld *builder) compose(n *node, f form) error {
	switch n.typ.Kind() {
	case reflect.Pointer:
		return bld.pointer(n, f)
	case reflect.Array:
		return bld.array(n, f)
	case reflect.Slice:
		return bld.slice(n, f)
	case reflect.Map:
		return bld.mapping(n, f)
	case reflect.Struct:
		return bld.structure(n)
	default:
		return refuse(n.typ)
	}
}

// refuse returns the error for t, which has no encoding, with the type to use in its place.
func refuse(t reflect.Type) error {
	var problem string
	switch t.Kind() {
	case reflect.Int, reflect.Uint, reflect.Uintptr:
		problem = fmt.Sprintf("Go type %v has a size of its own on each platform", t)
	case reflect.Pointer:
		problem = fmt.Sprintf("Go type %v can be three things in C++", t)
	default:
		problem = fmt.Sprintf("cereal has no encoding for Go type %v", t)
	}
	return &codec.Error{Problem: problem, Remedy: remedies[t.Kind()]}
}

func (bld *builder) pointer(n *node, f form) (err error) {
	switch f {
	case optional:
		n.op, n.min = opOptional, presence
	case unique:
		n.op, n.min = opUnique, presence
	case shared:
		n.op, n.min = opShared, sharedID
	default:
		return refuse(n.typ)
	}
	n.elem, err = bld.node(n.typ.Elem(), f)
	return err
}

func (bld *builder) array(n *node, f form) error {
	elem, err := bld.node(n.typ.Elem(), f)
	if err != nil {
		return codecplan.Under(err, "[]")
	}
	// Where pointers have 4 bytes, nothing takes more than twice as many on the wire as it does in memory.
	if size := uint64(n.typ.Len()) * uint64(elem.min); size > codecplan.MaxMin {
		return codecplan.TooLarge("%v takes at least %d bytes", n.typ, size)
	}
	n.op, n.elem, n.count = opArray, elem, n.typ.Len()
	n.min, n.fixed = n.count*elem.min, elem.fixed || n.count == 0
	if elem.op == codecplan.OpUint8 {
		n.op = opByteArray
	}
	return nil
}

func (bld *builder) slice(n *node, f form) (err error) {
	n.op, n.min = opSlice, sizeTag
	if n.elem, err = bld.node(n.typ.Elem(), f); err != nil {
		return codecplan.Under(err, "[]")
	}
	switch {
	case n.elem.op == codecplan.OpUint8:
		n.op = opByteSlice
	case n.elem.isEmpty(): // a count of them could not be checked against the message
		return &codec.Error{Problem: fmt.Sprintf("elements of %v take no bytes", n.typ), Remedy: "send the count alone, as a uint64"}
	}
	return nil
}

func (bld *builder) mapping(n *node, f form) (err error) {
	n.op, n.min = opMap, sizeTag
	if n.key, err = bld.node(n.typ.Key(), f); err != nil {
		return codecplan.Under(err, "[key]")
	}
	if err := n.key.ordered(); err != nil {
		return codecplan.Under(err, "[key]")
	}
	if n.key.isEmpty() {
		return &codec.Error{Problem: fmt.Sprintf("keys of %v take no bytes", n.typ), Remedy: "send the element alone"}
	}
	if n.elem, err = bld.node(n.typ.Elem(), f); err != nil {
		return codecplan.Under(err, "[]")
	}
	return nil
}
