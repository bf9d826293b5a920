package cereal

import (
	"fmt"
	"reflect"
	"slices"

	"cinnabar/codec"
)

// Codec is the encoding of Thallium's archives. The zero value is ready for use.
type Codec struct{}

// Name returns "cereal".
func (Codec) Name() string { return name }

const name = "cereal"

// Plan returns how values of t are written; the package documentation says which types have bytes.
func (Codec) Plan(t reflect.Type) (codec.Plan, error) {
	if t == nil {
		return nil, &codec.Error{Codec: name, Op: codec.OpPlan, Problem: "no type given"}
	}
	bld := builder{made: map[request]*node{}}
	root, err := bld.node(t, "")
	if err != nil {
		return nil, finish(err, codec.OpPlan, t)
	}
	if err := (ends{}).check(root, true); err != nil {
		return nil, finish(err, codec.OpPlan, t)
	}
	return &plan{root: root, typ: t, ptr: reflect.PointerTo(t)}, nil
}

// plan is what Codec.Plan returns. It is immutable.
type plan struct {
	root *node
	typ  reflect.Type
	ptr  reflect.Type // *typ, what Append and Decode are given
}

func (p *plan) Append(b []byte, v any) ([]byte, error) {
	out, err := p.append(b, v)
	if err != nil {
		return b, finish(err, codec.OpAppend, p.typ)
	}
	return out, nil
}

func (p *plan) append(b []byte, v any) ([]byte, error) {
	rv, err := p.value(v)
	if err != nil {
		return nil, err
	}
	if p.root.op == opCustom {
		return appendCustom(b, v)
	}
	e := encoder{b: slices.Grow(b, p.root.min)}
	if err := e.append(p.root, rv); err != nil {
		return nil, err
	}
	return e.b, nil
}

func (p *plan) Decode(b []byte, v any) (int, error) {
	rest, err := p.decode(b, v)
	if err != nil {
		return 0, finish(err, codec.OpDecode, p.typ)
	}
	return len(b) - len(rest), nil
}

func (p *plan) decode(b []byte, v any) ([]byte, error) {
	rv, err := p.value(v)
	if err != nil {
		return nil, err
	}
	if p.root.op == opCustom {
		return decodeCustom(b, v)
	}
	d := decoder{b: b, ahead: len(b)}
	if err := d.decode(p.root, rv); err != nil {
		return nil, err
	}
	return d.b, nil
}

// value returns what v points to, which is addressable.
func (p *plan) value(v any) (reflect.Value, error) {
	if reflect.TypeOf(v) != p.ptr {
		return reflect.Value{}, &codec.Error{Problem: fmt.Sprintf("given a %T", v), Remedy: "pass a " + p.ptr.String()}
	}
	rv := reflect.ValueOf(v).Elem()
	if !rv.IsValid() {
		return rv, &codec.Error{Problem: "given a nil pointer", Remedy: "pass a pointer to a value"}
	}
	return rv, nil
}
