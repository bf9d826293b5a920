package cereal

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	"cinnabar/codec"
	"cinnabar/internal/codecplan"
)

// tagKey is the struct tag that this package reads:
//
//	cereal:"-"                           the field does not travel
//	cereal:"optional", "unique", "shared"  the C++ type of the pointers in the field's type
//	cereal:"when=F", "when=!F"           the field travels if the earlier bool F is true, or false
//	cereal:"when=F:1|2"                  the field travels if the earlier integer F has one of the values
//
// A pointer's form and a condition are separated by a comma.
const tagKey = "cereal"

// form is the C++ type of pointers, in the words of the tag; empty if there is no tag.
type form string

const (
	optional form = "optional" // std::optional
	unique   form = "unique"   // std::unique_ptr
	shared   form = "shared"   // std::shared_ptr, and std::weak_ptr, which is written as the pointer that it locks
)

var (
	versionType = reflect.TypeFor[ClassVersion]()
	variantType = reflect.TypeFor[Variant]()
)

// structure completes the node of a struct.
func (bld *builder) structure(n *node) error {
	if n.typ == variantType {
		return &codec.Error{Problem: "cereal.Variant is not a value", Remedy: "embed it as a struct's first field"}
	}
	if n.typ.NumField() > 0 && n.typ.Field(0).Anonymous && n.typ.Field(0).Type == variantType {
		return bld.variant(n)
	}
	n.op = opStruct
	fixed := true
	for i := range n.typ.NumField() {
		f, err := bld.field(n, n.typ.Field(i))
		if err != nil {
			return codecplan.Under(err, n.typ.Field(i).Name)
		}
		if f == nil {
			continue
		}
		n.fields = append(n.fields, *f)
		if f.when != nil {
			fixed = false
			continue
		}
		if n.min += f.min; n.min > codecplan.MaxMin {
			return codecplan.Under(codecplan.TooLarge("the struct takes at least %d bytes up to here", n.min), f.name)
		}
		fixed = fixed && f.fixed
	}
	n.fixed = fixed
	return nil
}

// field returns the plan for sf, a field of the struct that parent describes so far; nil if it does not travel.
func (bld *builder) field(parent *node, sf reflect.StructField) (*field, error) {
	f, condition, travels, err := formOf(sf)
	switch {
	case err != nil || !travels:
		return nil, err
	case sf.Type == versionType && condition != "":
		return nil, &codec.Error{Problem: "the class version has a condition", Remedy: "drop the tag"}
	case sf.Type == versionType && (len(parent.fields) > 0 || sf.Anonymous):
		return nil, &codec.Error{Problem: "the class version is not the first field", Remedy: "make it the first, with a name, or use a uint32"}
	case sf.Type == versionType:
		// Later values of the class have none, so it needs no bytes.
		return &field{node: &node{op: opVersion, typ: parent.typ}, name: sf.Name, index: sf.Index[0]}, nil
	}
	n, err := bld.node(sf.Type, f)
	if err != nil {
		return nil, err
	}
	if n.op == opCustom && !sf.IsExported() {
		return nil, &codec.Error{Problem: "the embedded type is not exported and cannot be asked for its bytes", Remedy: "export it, or give the field a name"}
	}
	planned := &field{node: n, name: sf.Name, index: sf.Index[0]}
	if condition != "" {
		planned.when, err = codecplan.ParseCondition(condition, parent.typ, parent.always())
	}
	return planned, err
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

// formOf reads the tag of sf. travels is false for fields that are left out.
func formOf(sf reflect.StructField) (f form, condition string, travels bool, err error) {
	tag := sf.Tag.Get(tagKey)
	if tag == "-" {
		return "", "", false, nil
	}
	for option := range strings.SplitSeq(tag, ",") {
		when, conditional := strings.CutPrefix(option, "when=")
		switch o := form(option); {
		case conditional:
			condition = when
		case tag == "", o == optional, o == unique, o == shared:
			f = o
		default:
			return "", "", false, &codec.Error{
				Problem: fmt.Sprintf("unknown tag %s:%q", tagKey, tag), Remedy: `tags are "-", "optional", "unique", "shared", and "when=F", "when=!F" or "when=F:1|2"`,
			}
		}
	}
	switch {
	case !sf.IsExported() && !(sf.Anonymous && sf.Type.Kind() == reflect.Struct):
		return "", "", false, &codec.Error{Problem: "the field is not exported", Remedy: `export it, or leave it out with the tag cereal:"-"`}
	case f != "" && !hasPointer(sf.Type, nil):
		return "", "", false, &codec.Error{Problem: fmt.Sprintf("%v has no pointer that could be %s", sf.Type, f), Remedy: "drop the tag"}
	}
	return f, condition, true, nil
}

// hasPointer reports whether a tag for pointers means something for t: they may lie in containers, and a struct has
// tags of its own. seen are the containers around t.
func hasPointer(t reflect.Type, seen []reflect.Type) bool {
	if slices.Contains(seen, t) {
		return false
	}
	seen = append(seen, t)
	switch t.Kind() {
	case reflect.Pointer:
		return true
	case reflect.Slice, reflect.Array:
		return hasPointer(t.Elem(), seen)
	case reflect.Map:
		return hasPointer(t.Key(), seen) || hasPointer(t.Elem(), seen)
	default:
		return false
	}
}

// variant completes the node of a struct that begins with a Variant.
func (bld *builder) variant(n *node) error {
	n.op, n.min = opVariant, altIndex
	for i := 1; i < n.typ.NumField(); i++ {
		sf := n.typ.Field(i)
		if sf.Tag.Get(tagKey) != "" || sf.Type.Kind() != reflect.Pointer || !sf.IsExported() || sf.Anonymous {
			return codecplan.Under(&codec.Error{
				Problem: "an alternative of a variant is no plain, exported pointer",
				Remedy:  "declare a pointer to the alternative's type, without a tag",
			}, sf.Name)
		}
		elem, err := bld.node(sf.Type.Elem(), "")
		if err != nil {
			return codecplan.Under(err, sf.Name)
		}
		n.fields = append(n.fields, field{node: elem, name: sf.Name, index: i})
	}
	if len(n.fields) == 0 {
		return &codec.Error{Problem: fmt.Sprintf("%v has no alternatives", n.typ), Remedy: "declare a pointer for each"}
	}
	return nil
}
