package hgproc

import (
	"fmt"
	"reflect"
	"slices"

	"cinnabar/codec"
	"cinnabar/internal/codecplan"
)

var (
	idType    = reflect.TypeFor[ID]()
	constType = reflect.TypeFor[ConstString]()
)

// builder makes nodes from types. The zero value is ready for use.
type builder struct {
	open []reflect.Type // structs being examined, outermost first
}

// remedies names the replacements for kinds that hg_proc has no routine for.
var remedies = map[reflect.Kind]string{
	reflect.Int:           "use int32 for C's int, int64 for its long",
	reflect.Uint:          "use uint32 for C's unsigned int, uint64 for hg_size_t",
	reflect.Uintptr:       "use uint64",
	reflect.UnsafePointer: "expose the memory and send a bulk handle",
	reflect.Complex64:     "use two float32 fields",
	reflect.Complex128:    "use two float64 fields",
	reflect.Map:           "send keys and values as two counted slices, or implement codec.Appender and codec.Decoder",
	reflect.Interface:     "use a concrete type",
	reflect.Chan:          `leave it out with the tag proc:"-"`,
	reflect.Func:          `leave it out with the tag proc:"-"`,
	reflect.Pointer:       "use the value itself (only a pointer to a string has a null form), or implement codec.Appender and codec.Decoder",
	reflect.Slice:         `make it a field with the tag proc:"counted=uint64", or proc:"count=N" where N is an earlier integer field, or use an array`,
}

// node returns the plan for t.
func (bld *builder) node(t reflect.Type) (*node, error) {
	if custom, err := codecplan.IsCustom(t); err != nil {
		return nil, err
	} else if custom {
		return &node{op: opCustom, typ: t}, nil
	}
	if t == idType {
		return &node{op: opID, typ: t, min: 4, fixed: true}, nil
	}
	if op, size, ok := codecplan.Scalar(t.Kind()); ok && op <= codecplan.OpFloat64 { // hg_proc has no complex numbers
		return &node{op: op, typ: t, min: size, fixed: true}, nil
	}
	switch t.Kind() {
	case reflect.String:
		return stringNode(t), nil
	case reflect.Pointer:
		return nullableNode(t)
	case reflect.Array:
		return bld.array(t)
	case reflect.Struct:
		return bld.structure(t)
	default:
		return nil, refuse(t)
	}
}

// refuse returns the error for t, which has no encoding, with the type to use in its place.
func refuse(t reflect.Type) error {
	return &codec.Error{Problem: fmt.Sprintf("hg_proc has no encoding for Go type %v", t), Remedy: remedies[t.Kind()]}
}

func stringNode(t reflect.Type) *node {
	n := &node{op: opString, typ: t, min: stringLenSize} // a null string is a length alone
	if t == constType {
		n.op = opConst
	}
	return n
}

// nullableNode returns the plan for a pointer to a string, nil being C's null string.
func nullableNode(t reflect.Type) (*node, error) {
	if t.Elem().Kind() != reflect.String {
		return nil, refuse(t)
	}
	if custom, err := codecplan.IsCustom(t.Elem()); custom || err != nil {
		return nil, refuse(t)
	}
	return &node{op: opNullable, typ: t, min: stringLenSize, elem: stringNode(t.Elem())}, nil
}

func (bld *builder) array(t reflect.Type) (*node, error) {
	elem, err := bld.node(t.Elem())
	if err != nil {
		return nil, codecplan.Under(err, "[]")
	}
	// A null pointer to a string takes more bytes than in memory where pointers have 4, but never more than twice.
	if size := uint64(t.Len()) * uint64(elem.min); size > codecplan.MaxMin {
		return nil, codecplan.TooLarge("%v takes at least %d bytes", t, size)
	}
	n := &node{op: opArray, typ: t, min: t.Len() * elem.min, fixed: elem.fixed || t.Len() == 0, count: t.Len(), elem: elem}
	if elem.op == codecplan.OpUint8 {
		n.op = opByteArray
	}
	return n, nil
}

// slice returns the plan for a slice with its length in another field.
func (bld *builder) slice(t reflect.Type) (*node, error) {
	elem, err := bld.node(t.Elem())
	if err != nil {
		return nil, codecplan.Under(err, "[]")
	}
	// A count of elements without bytes could not be checked against the message.
	if elem.fixed && elem.min == 0 {
		return nil, &codec.Error{Problem: fmt.Sprintf("elements of %v take no bytes", t), Remedy: "send the count alone"}
	}
	n := &node{op: opSlice, typ: t, elem: elem}
	if elem.op == codecplan.OpUint8 {
		n.op = opByteSlice
	}
	return n, nil
}

func (bld *builder) structure(t reflect.Type) (*node, error) {
	if slices.Contains(bld.open, t) {
		return nil, &codec.Error{Problem: fmt.Sprintf("%v contains itself", t), Remedy: "implement codec.Appender and codec.Decoder on it"}
	}
	bld.open = append(bld.open, t)
	defer func() { bld.open = bld.open[:len(bld.open)-1] }()

	n := &node{op: opStruct, typ: t, fixed: true}
	for i := range t.NumField() {
		f, err := bld.field(n, t.Field(i))
		if err != nil {
			return nil, codecplan.Under(err, t.Field(i).Name)
		}
		if f == nil {
			continue
		}
		n.fields = append(n.fields, *f)
		if f.when != nil {
			n.fixed = false
			continue
		}
		if n.min += f.min; n.min > codecplan.MaxMin {
			return nil, codecplan.Under(codecplan.TooLarge("the struct takes at least %d bytes up to here", n.min), f.name)
		}
		n.fixed = n.fixed && f.fixed
	}
	return n, nil
}
