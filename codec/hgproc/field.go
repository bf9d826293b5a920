package hgproc

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	"cinnabar/codec"
)

// tagKey is the struct tag that this package reads:
//
//	proc:"-"        the field does not travel
//	proc:"count=N"  the field is a slice of as many elements as the earlier integer field N says
const tagKey = "proc"

// field returns the plan for sf, a field of the struct that parent describes so far; nil if it does not travel.
func (bld *builder) field(parent *node, sf reflect.StructField) (*field, error) {
	tag := sf.Tag.Get(tagKey)
	countName, counted := strings.CutPrefix(tag, "count=")
	switch {
	case tag == "-":
		return nil, nil
	case tag != "" && !counted:
		return nil, &codec.Error{Problem: fmt.Sprintf("unknown tag %s:%q", tagKey, tag), Remedy: `tags are "-" and "count=N"`}
	case sf.Name == "_":
		return bld.padding(sf)
	case !sf.IsExported() && !(sf.Anonymous && sf.Type.Kind() == reflect.Struct):
		return nil, &codec.Error{Problem: "the field is not exported", Remedy: `export it, or leave it out with the tag proc:"-"`}
	case counted:
		return bld.counted(parent, sf, countName)
	}
	n, err := bld.node(sf.Type)
	if err != nil {
		return nil, err
	}
	if n.op == opCustom && !sf.IsExported() {
		return nil, &codec.Error{Problem: "the embedded type is not exported and cannot be asked for its bytes", Remedy: "export it, or give the field a name"}
	}
	return &field{node: n, name: sf.Name, index: sf.Index[0]}, nil
}

// padding returns the plan for a blank field, which stands for the gaps in a C struct that is sent as it lies in
// memory.
func (bld *builder) padding(sf reflect.StructField) (*field, error) {
	n, err := bld.node(sf.Type)
	if err != nil {
		return nil, err
	}
	if !n.fixed {
		return nil, &codec.Error{Problem: fmt.Sprintf("a blank field of type %v has no fixed size", sf.Type), Remedy: "use an array of bytes"}
	}
	return &field{node: &node{op: opPad, typ: sf.Type, min: n.min, fixed: true}, name: sf.Name, index: sf.Index[0]}, nil
}

// counted returns the plan for a slice whose length is in the field called countName.
func (bld *builder) counted(parent *node, sf reflect.StructField, countName string) (*field, error) {
	if sf.Type.Kind() != reflect.Slice {
		return nil, &codec.Error{Problem: fmt.Sprintf("%v takes no count", sf.Type), Remedy: "counts are for slices"}
	}
	i := slices.IndexFunc(parent.fields, func(f field) bool { return f.name == countName })
	if i < 0 || !parent.fields[i].isInteger() {
		return nil, &codec.Error{
			Problem: fmt.Sprintf("no integer field %q before it holds its count", countName),
			Remedy:  "declare one before the slice, since the receiver needs it first",
		}
	}
	n, err := bld.slice(sf.Type)
	if err != nil {
		return nil, err
	}
	return &field{node: n, name: sf.Name, index: sf.Index[0], count: parent.fields[i].index}, nil
}

// isInteger reports whether the node is an integer that travels whole.
func (n *node) isInteger() bool { return n.op <= opUint64 }

// isScalar reports whether the node always takes min bytes and holds no other node.
func (n *node) isScalar() bool { return n.op <= opID }

// isSlice reports whether the node is a slice.
func (n *node) isSlice() bool { return n.op == opByteSlice || n.op == opSlice }

// length returns the number of elements of slice field f that the struct s announces, or false if that is negative.
func (f *field) length(s reflect.Value) (uint64, bool) {
	v := s.Field(f.count)
	if v.CanUint() {
		return v.Uint(), true
	}
	return uint64(v.Int()), v.Int() >= 0
}
