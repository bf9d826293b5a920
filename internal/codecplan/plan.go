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

// Make returns the plan of codec c for type t. The root that build returns for t writes and reads the values. The plan checks its
// arguments before it calls the root, and completes the root's errors with the codec, the method and the type.
func Make(c codec.Codec, t reflect.Type, build func(t reflect.Type) (Root, error)) (codec.Plan, error) {
	if t == nil {
		return nil, &codec.Error{Codec: c.Name(), Op: codec.OpPlan, Problem: "no type given", Remedy: "pass the type of a value"}
	}
	root, err := build(t)
	if err != nil {
		return nil, Finish(err, c.Name(), codec.OpPlan, t)
	}
	return &plan{name: c.Name(), root: root, typ: t, ptr: reflect.PointerTo(t)}, nil
}

// plan is the codec.Plan that Make returns. It is immutable.
type plan struct {
	name string // of the codec
	root Root
	typ  reflect.Type
	ptr  reflect.Type // *typ, the type that Append and Decode require
}

func (p *plan) Append(b []byte, v any) ([]byte, error) {
	rv, err := Value(v, p.ptr)
	if err == nil {
		var out []byte
		if out, err = p.root.AppendValue(b, rv); err == nil {
			return out, nil
		}
	}
	return b, Finish(err, p.name, codec.OpAppend, p.typ)
}

func (p *plan) Decode(b []byte, v any) (int, error) {
	rv, err := Value(v, p.ptr)
	if err != nil {
		return 0, Finish(err, p.name, codec.OpDecode, p.typ)
	}
	rest, err := p.root.DecodeValue(b, rv)
	if err != nil {
		return 0, Finish(err, p.name, codec.OpDecode, p.typ)
	}
	return len(b) - len(rest), nil
}
