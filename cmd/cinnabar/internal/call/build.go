package call

import (
	"errors"
	"fmt"
	"go/token"
	"path"
	"reflect"
	"strings"

	"cinnabar/codec"
	"cinnabar/codec/cereal"
	"cinnabar/codec/hgproc"
	"cinnabar/native"
)

// Limits of the types that are built from a description, because a short description may nest types so that they have exponentially many parts.
const (
	maxText = 1 << 20 // bytes of the text by which package reflect names a type, with its parts
	maxWork = 1 << 22 // fields and elements in a variable of a type, at all depths
	// maxThin is the number of bytes of an element in memory for each byte that it takes in a message at least, because a response would otherwise
	// take its own length many times over: an element may have fields that do not travel.
	maxThin = 32
)

// codecs are the codecs of the RPCs that can be called by a description, with the keys of their tags.
var codecs = map[string]struct {
	codec codec.Codec
	key   string
}{"hgproc": {hgproc.Codec{}, "proc"}, "cereal": {cereal.Codec{}, "cereal"}}

var variantType = reflect.TypeFor[cereal.Variant]()

// knownTypes are the types with names that codecs treat in a way of their own.
var knownTypes = map[string]reflect.Type{
	"cinnabar.BulkHandle":                bulkType,
	"cinnabar/codec/hgproc.ConstString":  reflect.TypeFor[hgproc.ConstString](),
	"cinnabar/codec/hgproc.ID":           reflect.TypeFor[hgproc.ID](),
	"cinnabar/codec/cereal.Variant":      variantType,
	"cinnabar/codec/cereal.ClassVersion": reflect.TypeFor[cereal.ClassVersion](),
}

// basicTypes are the types of kinds without parts.
var basicTypes = map[string]reflect.Type{}

func init() {
	for _, v := range []any{
		false, int8(0), int16(0), int32(0), int64(0), uint8(0), uint16(0), uint32(0), uint64(0), float32(0), float64(0), complex64(0), complex128(0), "",
	} {
		t := reflect.TypeOf(v)
		basicTypes[t.String()] = t
	}
}

// builder builds types of Go from a description, which a hostile server may have made.
type builder struct {
	d     *native.Description
	tag   string // key of the codec's tags
	built map[uint32]builtType
}

// builtType is a type with its measures.
type builtType struct {
	typ   reflect.Type // nil while its parts are built
	text  int          // see maxText
	work  int          // see maxWork
	least int          // no variable takes fewer bytes in a message
}

// build returns the type with the index at in the description.
func (b *builder) build(at uint32) (builtType, error) {
	if int64(at) >= int64(len(b.d.Types)) {
		return builtType{}, fmt.Errorf("there is no type %d", at)
	}
	t := &b.d.Types[at]
	if x, ok := b.built[at]; ok {
		if x.typ == nil {
			return x, fmt.Errorf("type %s contains itself, so only a program that has the type can call the RPC", typeName(b.d, at))
		}
		return x, nil
	}
	b.built[at] = builtType{}
	x, err := b.parts(at, t)
	if err != nil {
		return x, err
	}
	switch {
	case x.text > maxText:
		return x, fmt.Errorf("type %s is too long; its text may have %d bytes", typeName(b.d, at), maxText)
	case x.work > maxWork || x.typ.Size() > maxFixed:
		return x, fmt.Errorf("a variable of type %s is too large; it may have %d parts and %d bytes", typeName(b.d, at), maxWork, maxFixed)
	}
	b.built[at] = x
	return x, nil
}

// parts builds the type t from its parts. build checks the result against the limits.
func (b *builder) parts(at uint32, t *native.Type) (x builtType, err error) {
	if known, ok := knownTypes[t.Name]; ok {
		return builtType{known, len(t.Name), 1, 1}, nil
	}
	if basic, ok := basicTypes[t.Kind]; ok {
		return builtType{basic, len(t.Kind), 1, 1}, nil
	}
	var elem, key builtType
	switch t.Kind {
	case "struct":
		return b.structure(at, t)
	case "array", "slice", "ptr", "map":
		if elem, err = b.build(t.Elem); err != nil {
			return x, err
		}
	case "custom":
		return x, fmt.Errorf("type %s writes its own bytes, so only a program that has the type can call the RPC", typeName(b.d, at))
	default:
		return x, fmt.Errorf("type %s is a %s, which has no values here", typeName(b.d, at), t.Kind)
	}
	x = builtType{text: 32 + elem.text, work: 1, least: 1}
	switch t.Kind {
	case "array":
		if t.Len > maxArray || int64(t.Len)*int64(elem.typ.Size()) > maxFixed || int64(t.Len)*int64(elem.work) > maxWork {
			return x, fmt.Errorf("an array of %d elements is too large; %d elements, %d parts and %d bytes are possible", t.Len, maxArray, maxWork, maxFixed)
		}
		x.typ, x.work = reflect.ArrayOf(int(t.Len), elem.typ), max(1, int(t.Len)*elem.work)
		x.least = int(t.Len) * elem.least
		return x, nil
	case "slice":
		x.typ = reflect.SliceOf(elem.typ)
	case "ptr":
		x.typ = reflect.PointerTo(elem.typ)
	case "map":
		if key, err = b.build(t.Key); err != nil {
			return x, err
		}
		if !key.typ.Comparable() {
			return x, fmt.Errorf("keys of a map are %s, which cannot be compared", typeName(b.d, t.Key))
		}
		x.text += key.text
		x.typ = reflect.MapOf(key.typ, elem.typ)
	}
	for at, part := range map[uint32]builtType{t.Elem: elem, t.Key: key} {
		if part.typ != nil && part.typ.Size() > uintptr(maxThin*max(1, part.least)) {
			return x, fmt.Errorf("an element of type %s takes %d bytes of memory, and perhaps only %d of a message; at most %d times as many are possible",
				typeName(b.d, at), part.typ.Size(), part.least, maxThin)
		}
	}
	return x, nil
}

// structure builds a struct.
func (b *builder) structure(at uint32, t *native.Type) (x builtType, err error) {
	x.work = 1
	var fields []reflect.StructField
	var size uintptr
	seen := map[string]bool{}
	for i, f := range t.Fields {
		part, err := b.build(f.Type)
		if err != nil {
			return x, fmt.Errorf("field %s: %w", f.Name, err)
		}
		sf := reflect.StructField{Name: f.Name, Type: part.typ}
		if f.Tag != "" {
			sf.Tag = reflect.StructTag(fmt.Sprintf("%s:%q", b.tag, f.Tag))
		}
		switch {
		case f.Name == "_":
			sf.PkgPath = "call"
		case !token.IsIdentifier(f.Name) || !token.IsExported(f.Name) || seen[f.Name]:
			return x, fmt.Errorf("%q is no name of a field of type %s, or has come before", f.Name, typeName(b.d, at))
		case part.typ == variantType && i == 0:
			sf.Anonymous = true
		}
		seen[f.Name] = true
		x.text += 16 + len(f.Name) + 2*len(sf.Tag) + part.text
		x.work += part.work
		if f.Tag != "-" && !strings.Contains(f.Tag, "when=") {
			x.least += part.least
		}
		if size += part.typ.Size() + 16; x.text > maxText || x.work > maxWork || size > maxFixed {
			return x, fmt.Errorf("type %s is too large; its text may have %d bytes, and a variable %d parts and %d bytes", typeName(b.d, at), maxText, maxWork, maxFixed)
		}
		fields = append(fields, sf)
	}
	if len(fields) > 0 && fields[0].Anonymous && fields[0].Name != variantType.Name() {
		return x, errors.New("a Variant is not embedded by its name")
	}
	if len(fields) > 0 && fields[0].Anonymous {
		x.least = 4 // its index; one of the others follows
	}
	x.typ = reflect.StructOf(fields)
	return x, nil
}

// typeName returns a name for a type of a description.
func typeName(d *native.Description, at uint32) string {
	if int64(at) >= int64(len(d.Types)) {
		return "unknown"
	}
	t := &d.Types[at]
	if t.Name == "cinnabar.BulkHandle" {
		return "bulk"
	}
	if t.Name != "" {
		return path.Base(t.Name)
	}
	if _, basic := basicTypes[t.Kind]; basic {
		return t.Kind
	}
	return fmt.Sprintf("%s#%d", t.Kind, at)
}

// typeText returns the text of a type, in which each struct has its fields once.
func typeText(d *native.Description, at uint32) string {
	var b strings.Builder
	writeType(&b, d, at, map[uint32]bool{})
	return b.String()
}

func writeType(b *strings.Builder, d *native.Description, at uint32, seen map[uint32]bool) {
	t := &d.Types[at] // Reflect has checked all places
	if seen[at] {
		b.WriteString(typeName(d, at))
		return
	}
	switch t.Kind {
	case "array":
		fmt.Fprintf(b, "[%d]", t.Len)
	case "slice":
		b.WriteString("[]")
	case "ptr":
		b.WriteString("*")
	case "map":
		seen[at] = true // it stays set, because maps in the keys and elements of maps may have exponentially many parts
		b.WriteString("map[")
		writeType(b, d, t.Key, seen)
		b.WriteString("]")
	case "struct":
		seen[at] = true
		if t.Name != "" {
			b.WriteString(typeName(d, at))
		}
		b.WriteString("{")
		for i, f := range t.Fields {
			if i > 0 {
				b.WriteString(", ")
			}
			b.WriteString(f.Name + " ")
			writeType(b, d, f.Type, seen)
		}
		b.WriteString("}")
		return
	default:
		b.WriteString(typeName(d, at))
		return
	}
	seen[at] = true
	writeType(b, d, t.Elem, seen)
	if t.Kind != "map" {
		delete(seen, at)
	}
}
