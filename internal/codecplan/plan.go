package codecplan

import (
	"reflect"

	"cinnabar/codec"
)

// Root is the plan of a whole value in one codec. Its methods return unfinished errors, which Make's plan completes.
type Root interface {
	// AppendValue appends v, which is addressable, to b and returns the extended buffer.
	AppendValue(b []byte, v reflect.Value) ([]byte, error)

	// DecodeValue reads v, which can be set, from the start of b and returns the rest of b.
	DecodeValue(b []byte, v reflect.Value) (rest []byte, err error)
}

// Make returns the plan of codec c for type t. It calls build for the root, except for a custom type, which writes its own
// bytes.
func Make(c codec.Codec, t reflect.Type, build func(t reflect.Type) (Root, error)) (codec.Plan, error) {
	if t == nil {
		return nil, &codec.Error{Codec: c.Name(), Op: codec.OpPlan, Problem: "no type given", Remedy: "pass the type of a value"}
	}
	p := &plan{codec: c, typ: t, ptr: reflect.PointerTo(t)}
	custom, err := IsCustom(t)
	if err == nil && !custom {
		p.root, err = build(t)
	}
	if err != nil {
		return nil, Finish(err, c.Name(), codec.OpPlan, t)
	}
	return p, nil
}

// plan is the codec.Plan that Make returns. It is immutable.
type plan struct {
	codec codec.Codec
	root  Root // nil for a custom type
	typ   reflect.Type
	ptr   reflect.Type // *typ, the type that Append and Decode require
}

func (p *plan) Append(b []byte, v any) ([]byte, error) {
	out, err := p.append(b, v)
	if err != nil {
		return b, Finish(err, p.codec.Name(), codec.OpAppend, p.typ)
	}
	return out, nil
}

func (p *plan) append(b []byte, v any) ([]byte, error) {
	rv, err := Value(v, p.ptr)
	switch {
	case err != nil:
		return nil, err
	case p.root == nil:
		return Append(p.codec, b, v)
	default:
		return p.root.AppendValue(b, rv)
	}
}

func (p *plan) Decode(b []byte, v any) (int, error) {
	rest, err := p.decode(b, v)
	if err != nil {
		return 0, Finish(err, p.codec.Name(), codec.OpDecode, p.typ)
	}
	return len(b) - len(rest), nil
}

func (p *plan) decode(b []byte, v any) ([]byte, error) {
	rv, err := Value(v, p.ptr)
	switch {
	case err != nil:
		return nil, err
	case p.root == nil:
		return Decode(p.codec, b, v)
	default:
		return p.root.DecodeValue(b, rv)
	}
}
