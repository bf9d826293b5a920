package native

import (
	"fmt"
	"reflect"

	"cinnabar"
	"cinnabar/internal/codecplan"
	"cinnabar/internal/envelope"
)

// Parts that the types of a kind have.
const (
	hasElem = 1 << iota
	hasKey
	hasLen
	hasFields
)

// kindCustom is the kind of types that write their own bytes.
const kindCustom = "custom"

// kinds are the kinds of types in descriptions, with the parts of each.
var kinds = map[string]int{kindCustom: 0}

func init() {
	for k := reflect.Bool; k <= reflect.UnsafePointer; k++ {
		kinds[k.String()] = 0
	}
	kinds[reflect.Array.String()] = hasElem | hasLen
	kinds[reflect.Slice.String()] = hasElem
	kinds[reflect.Pointer.String()] = hasElem
	kinds[reflect.Map.String()] = hasElem | hasKey
	kinds[reflect.Struct.String()] = hasFields
}

// tagKeys are the keys of the struct tags that codecs read. The description of a field has only the value of its codec's key.
var tagKeys = map[string]string{"hgproc": "proc", "cereal": "cereal"}

// describer describes the types of one RPC.
type describer struct {
	tagKey string // empty: the codec is unknown, so whole tags are described
	places map[reflect.Type]uint32
	types  []Type
	fields int
	bytes  int
}

// describe describes an RPC. Types that exceed a limit are left out, and Problem names the limit.
func describe(r *envelope.Registration) Description {
	d := Description{
		Name: printable(r.Name), ID: r.ID, Provider: r.Provider, Flavor: cinnabar.Flavor(r.Flavor),
		Native: r.Native, Stream: r.Stream, OneWay: r.OneWay, Codec: printable(r.Codec),
	}
	x := describer{tagKey: tagKeys[r.Codec], places: map[reflect.Type]uint32{}, bytes: len(d.Codec)}
	var err error
	if len(d.Name) > maxRPCName {
		d.Name, _ = shorten(d.Name, maxRPCName)
		err = fmt.Errorf("its name has more than %d bytes", maxRPCName)
	}
	if len(d.Codec) > maxText {
		d.Codec, _ = shorten(d.Codec, maxText)
	}
	if err == nil {
		d.In, err = x.place(r.In, 1)
	}
	if err == nil {
		d.Out, err = x.place(r.Out, 1)
	}
	if err != nil {
		d.In, d.Out = 0, 0
		d.Problem, _ = shorten("the types are not described: "+printable(err.Error()), maxText)
		return d
	}
	d.Types = x.types
	return d
}

// place describes a type, unless x.types has it already, and returns its index in x.types.
func (x *describer) place(t reflect.Type, depth int) (uint32, error) {
	if at, ok := x.places[t]; ok {
		return at, nil
	}
	switch {
	case len(x.types) == maxTypes:
		return 0, fmt.Errorf("there are more than %d types", maxTypes)
	case depth > maxDepth:
		return 0, fmt.Errorf("types lie more than %d deep in each other", maxDepth)
	}
	at := uint32(len(x.types))
	x.places[t] = at // before its parts, because they may refer to it
	x.types = append(x.types, Type{})
	d := Type{Kind: t.Kind().String()}
	if t.PkgPath() != "" {
		d.Name, _ = shorten(printable(t.PkgPath()+"."+t.Name()), maxTypeName)
	}
	if err := x.count(len(d.Name)); err != nil {
		return 0, err
	}
	var err error
	if custom, refused := codecplan.IsCustom(t); custom || refused != nil {
		d.Kind = kindCustom
	} else {
		err = x.parts(t, &d, depth+1)
	}
	x.types[at] = d
	return at, err
}

// count counts bytes of names and tags.
func (x *describer) count(n int) error {
	if x.bytes += n; x.bytes > maxTypeBytes {
		return fmt.Errorf("names and tags have more than %d bytes", maxTypeBytes)
	}
	return nil
}

// parts describes the parts of t.
func (x *describer) parts(t reflect.Type, d *Type, depth int) (err error) {
	shape := kinds[d.Kind]
	if shape&hasElem != 0 {
		if d.Elem, err = x.place(t.Elem(), depth); err != nil {
			return err
		}
	}
	if shape&hasKey != 0 {
		if d.Key, err = x.place(t.Key(), depth); err != nil {
			return err
		}
	}
	if shape&hasLen != 0 {
		d.Len = uint64(t.Len())
	}
	if shape&hasFields == 0 {
		return nil
	}
	for i := range t.NumField() {
		sf := t.Field(i)
		tag := string(sf.Tag)
		if x.tagKey != "" {
			tag = sf.Tag.Get(x.tagKey)
		}
		if tag = printable(tag); tag == "-" {
			continue // it does not travel
		}
		if x.fields++; x.fields > maxFields {
			return fmt.Errorf("there are more than %d fields", maxFields)
		}
		f := Field{Name: printable(sf.Name), Tag: tag}
		if err := x.count(len(f.Name) + len(f.Tag)); err != nil {
			return err
		}
		if f.Type, err = x.place(sf.Type, depth); err != nil {
			return err
		}
		d.Fields = append(d.Fields, f)
	}
	return nil
}
