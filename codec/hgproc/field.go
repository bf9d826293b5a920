package hgproc

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	"cinnabar/codec"
	"cinnabar/internal/codecplan"
)

// tagKey is the struct tag that this package reads, options separated by commas:
//
//	proc:"-"           the field does not travel
//	proc:"count=N"     the field is a slice of as many elements as the earlier integer field N says
//	proc:"counted=T"   the field is a slice, and its number of elements travels before it as an integer of Go type T
//	proc:"when=F"      the field travels if the earlier bool F is true; when=!F: if it is false
//	proc:"when=F:1|2"  the field travels if the earlier integer F has one of the values
const tagKey = "proc"

// options are those of a tag.
type options struct {
	skip    bool
	count   string // the name of the field that counts
	counted string // the type of the count
	when    string // a condition
}

func parseTag(tag string) (o options, err error) {
	if tag == "" {
		return o, nil
	}
	for option := range strings.SplitSeq(tag, ",") {
		key, value, _ := strings.Cut(option, "=")
		switch {
		case option == "-" && tag == "-":
			o.skip = true
		case key == "count" && o.counted == "":
			o.count = value
		case key == "counted" && o.count == "":
			o.counted = value
		case key == "when":
			o.when = value
		default:
			return o, &codec.Error{
				Problem: fmt.Sprintf("unknown tag %s:%q", tagKey, tag),
				Remedy:  `tags are "-", "count=N" or "counted=T", and "when=F", "when=!F" or "when=F:1|2"`,
			}
		}
	}
	return o, nil
}

// field returns the plan for sf, a field of the struct that parent describes so far; nil if it does not travel.
func (bld *builder) field(parent *node, sf reflect.StructField) (*field, error) {
	o, err := parseTag(sf.Tag.Get(tagKey))
	switch {
	case err != nil:
		return nil, err
	case o.skip:
		return nil, nil
	case sf.Name == "_":
		return bld.padding(sf)
	case !sf.IsExported() && !(sf.Anonymous && sf.Type.Kind() == reflect.Struct):
		return nil, &codec.Error{Problem: "the field is not exported", Remedy: `export it, or leave it out with the tag proc:"-"`}
	}
	var f *field
	switch {
	case o.count != "":
		f, err = bld.countedBy(parent, sf, o.count)
	case o.counted != "":
		f, err = bld.counted(sf, o.counted)
	default:
		f, err = bld.plain(sf)
	}
	if err != nil || o.when == "" {
		return f, err
	}
	f.when, err = codecplan.ParseCondition(o.when, parent.typ, parent.always())
	return f, err
}

// always returns the indices of the fields so far that always travel.
func (n *node) always() []int {
	var list []int
	for i := range n.fields {
		if n.fields[i].when == nil {
			list = append(list, n.fields[i].index)
		}
	}
	return list
}

// plain returns the plan for a field that needs no tag.
func (bld *builder) plain(sf reflect.StructField) (*field, error) {
	n, err := bld.node(sf.Type)
	if err != nil {
		return nil, err
	}
	if n.op == opCustom && !sf.IsExported() {
		return nil, &codec.Error{Problem: "the embedded type is not exported and cannot be asked for its bytes", Remedy: "export it, or give the field a name"}
	}
	return &field{node: n, name: sf.Name, index: sf.Index[0]}, nil
}

// countTypes are the integers in which the number of elements can travel, by their name in a tag.
var countTypes = map[string]reflect.Type{
	"int8": reflect.TypeFor[int8](), "int16": reflect.TypeFor[int16](), "int32": reflect.TypeFor[int32](), "int64": reflect.TypeFor[int64](),
	"uint8": reflect.TypeFor[uint8](), "uint16": reflect.TypeFor[uint16](), "uint32": reflect.TypeFor[uint32](), "uint64": reflect.TypeFor[uint64](),
}

// counted returns the plan for a slice that travels behind its number of elements.
func (bld *builder) counted(sf reflect.StructField, countType string) (*field, error) {
	if sf.Type.Kind() != reflect.Slice {
		return nil, &codec.Error{Problem: fmt.Sprintf("%v takes no count", sf.Type), Remedy: "counts are for slices"}
	}
	t := countTypes[countType]
	if t == nil {
		return nil, &codec.Error{Problem: fmt.Sprintf("%q is no integer type that a count can have", countType), Remedy: "use uint64 for hg_size_t, uint32 for uint32_t, int32 for int"}
	}
	own, err := bld.node(t)
	if err != nil {
		return nil, err
	}
	n, err := bld.slice(sf.Type)
	if err != nil {
		return nil, err
	}
	n.min = own.min
	return &field{node: n, name: sf.Name, index: sf.Index[0], count: -1, own: own}, nil
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

// countedBy returns the plan for a slice with its length in the field called countName.
func (bld *builder) countedBy(parent *node, sf reflect.StructField, countName string) (*field, error) {
	if sf.Type.Kind() != reflect.Slice {
		return nil, &codec.Error{Problem: fmt.Sprintf("%v takes no count", sf.Type), Remedy: "counts are for slices"}
	}
	i := slices.IndexFunc(parent.fields, func(f field) bool { return f.name == countName })
	if i < 0 || !parent.fields[i].isInteger() || parent.fields[i].when != nil {
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
func (n *node) isInteger() bool { return n.op <= codecplan.OpUint64 }

// isScalar reports whether the node always takes min bytes and holds no other node.
func (n *node) isScalar() bool { return n.op <= opID }

// isSlice reports whether the node is a slice.
func (n *node) isSlice() bool { return n.op == opByteSlice || n.op == opSlice }

// length returns the number of elements of slice field f of struct s, and the rest of b behind the count if the count
// travels with it.
func (f *field) length(b []byte, s reflect.Value) (uint64, []byte, error) {
	if f.own != nil {
		if len(b) < f.own.min {
			return 0, nil, codecplan.Overflow("its count takes %d bytes, %d remain", f.own.min, len(b))
		}
		v := reflect.New(f.own.typ).Elem()
		rest, err := f.own.decode(nil, b, v) // an integer, which needs no codec
		if err != nil {
			return 0, nil, err
		}
		if n, ok := lengthIn(v); ok {
			return n, rest, nil
		}
		return 0, nil, &codec.Error{Problem: fmt.Sprintf("its count is %v", v)}
	}
	v := s.Field(f.count)
	if n, ok := lengthIn(v); ok {
		return n, b, nil
	}
	return 0, nil, &codec.Error{Problem: fmt.Sprintf("its count %s is %v", s.Type().Field(f.count).Name, v)}
}

// lengthIn returns the length that an integer says; false if it is negative.
func lengthIn(v reflect.Value) (uint64, bool) {
	if v.CanUint() {
		return v.Uint(), true
	}
	return uint64(v.Int()), v.Int() >= 0
}
