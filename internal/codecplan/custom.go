package codecplan

import (
	"fmt"
	"reflect"

	"cinnabar/codec"
)

var (
	appenderType     = reflect.TypeFor[codec.Appender]()
	decoderType      = reflect.TypeFor[codec.Decoder]()
	appenderWithType = reflect.TypeFor[codec.AppenderWith]()
	decoderWithType  = reflect.TypeFor[codec.DecoderWith]()
)

// pairs are the interfaces that make a type write its own bytes. Both of a pair are needed, because a type that does one
// half would be misread only at the peer.
var pairs = [...]struct {
	append, decode         reflect.Type
	appendName, decodeName string
}{
	{appenderType, decoderType, "AppendProc", "DecodeProc"},
	{appenderWithType, decoderWithType, "AppendProcWith", "DecodeProcWith"},
}

// IsCustom reports whether t reads and writes its own bytes. It returns an error for a type that does only one of them,
// and for one that does so through an embedded field beside others, because those would be dropped.
func IsCustom(t reflect.Type) (bool, error) {
	if t.Kind() == reflect.Interface || t.Kind() == reflect.Pointer {
		return false, nil
	}
	ptr, custom := reflect.PointerTo(t), false
	for _, p := range pairs {
		appends, decodes := ptr.Implements(p.append), ptr.Implements(p.decode)
		if appends != decodes {
			has, lacks := p.appendName, p.decodeName
			if decodes {
				has, lacks = lacks, has
			}
			return false, &codec.Error{
				Problem: fmt.Sprintf("%v has %s but no %s", t, has, lacks),
				Remedy:  fmt.Sprintf("implement both codec.%s and codec.%s", p.append.Name(), p.decode.Name()),
			}
		}
		custom = custom || appends
	}
	if !custom {
		return false, nil
	}
	if f, ok := embeddedCustom(t); ok {
		return false, &codec.Error{
			Problem: fmt.Sprintf("%v would be written as its embedded field %s alone", t, f),
			Remedy:  "give that field a name",
		}
	}
	return true, nil
}

// HoldsCustom reports whether a value of type t has in its own memory a part of a custom type for which known is false. The methods of such a
// part get its address.
func HoldsCustom(t reflect.Type, known func(reflect.Type) bool) bool {
	if known(t) {
		return false
	}
	if custom, err := IsCustom(t); custom || err != nil {
		return true
	}
	switch t.Kind() {
	case reflect.Array:
		return HoldsCustom(t.Elem(), known)
	case reflect.Struct:
		for i := range t.NumField() {
			if HoldsCustom(t.Field(i).Type, known) {
				return true
			}
		}
	default:
	}
	return false
}

// embeddedCustom returns the name of an embedded field that lends t the methods of a custom type, unless that is a value and the only
// field.
func embeddedCustom(t reflect.Type) (string, bool) {
	if t.Kind() != reflect.Struct || t.NumField() == 1 && t.Field(0).Type.Kind() == reflect.Struct {
		return "", false
	}
	for i := range t.NumField() {
		f := t.Field(i)
		ptr := f.Type
		if ptr.Kind() != reflect.Pointer && ptr.Kind() != reflect.Interface {
			ptr = reflect.PointerTo(ptr)
		}
		for _, p := range pairs {
			if f.Anonymous && (ptr.Implements(p.append) || ptr.Implements(p.decode)) {
				return f.Name, true
			}
		}
	}
	return "", false
}

// Append calls AppendProcWith or AppendProc of p, a pointer to a custom type, which appends the value's bytes to b, and returns the
// extended buffer. AppendProcWith gets c, because c writes the parts of the value.
func Append(c codec.Codec, b []byte, p any) ([]byte, error) {
	var out []byte
	var err error
	if with, ok := p.(codec.AppenderWith); ok {
		out, err = with.AppendProcWith(c, b)
	} else {
		out, err = p.(codec.Appender).AppendProc(b)
	}
	if err != nil {
		return nil, Foreign(err)
	}
	if len(out) < len(b) {
		return nil, &codec.Error{
			Problem: fmt.Sprintf("AppendProc of %T returned %d bytes, fewer than the %d it was given", p, len(out), len(b)),
			Remedy:  "append to the buffer and return it",
		}
	}
	return out, nil
}

// Decode calls DecodeProcWith or DecodeProc of p, a pointer to a custom type, which reads the value from the start of b, and returns the
// rest of b. DecodeProcWith gets c, because c reads the parts of the value.
func Decode(c codec.Codec, b []byte, p any) ([]byte, error) {
	var n int
	var err error
	if with, ok := p.(codec.DecoderWith); ok {
		n, err = with.DecodeProcWith(c, b)
	} else {
		n, err = p.(codec.Decoder).DecodeProc(b)
	}
	if err != nil {
		return nil, Foreign(err)
	}
	if n < 0 || n > len(b) {
		return nil, &codec.Error{
			Problem: fmt.Sprintf("DecodeProc of %T took %d bytes of %d", p, n, len(b)),
			Remedy:  "return how many bytes were read",
		}
	}
	return b[n:], nil
}
