package hgproc

import (
	"reflect"
	"slices"

	"cinnabar/codec"
	"cinnabar/internal/codecplan"
)

// Codec is the hg_proc encoding. The zero value is ready for use.
type Codec struct{}

// Name returns "hgproc".
func (Codec) Name() string { return name }

const name = "hgproc"

// Plan returns how values of t are written; the package documentation says which types have bytes.
func (Codec) Plan(t reflect.Type) (codec.Plan, error) {
	if t == nil {
		return nil, &codec.Error{Codec: name, Op: codec.OpPlan, Problem: "no type given"}
	}
	var bld builder
	root, err := bld.node(t)
	if err != nil {
		return nil, codecplan.Finish(err, name, codec.OpPlan, t)
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
		return b, codecplan.Finish(err, name, codec.OpAppend, p.typ)
	}
	return out, nil
}

func (p *plan) append(b []byte, v any) ([]byte, error) {
	rv, err := codecplan.Value(v, p.ptr)
	if err != nil {
		return b, err
	}
	if p.root.op == opCustom {
		return codecplan.Append(Codec{}, b, v)
	}
	return p.root.append(slices.Grow(b, p.root.min), rv)
}

func (p *plan) Decode(b []byte, v any) (int, error) {
	rest, err := p.decode(b, v)
	if err != nil {
		return 0, codecplan.Finish(err, name, codec.OpDecode, p.typ)
	}
	return len(b) - len(rest), nil
}

func (p *plan) decode(b []byte, v any) ([]byte, error) {
	rv, err := codecplan.Value(v, p.ptr)
	if err != nil {
		return nil, err
	}
	if p.root.op == opCustom {
		return codecplan.Decode(Codec{}, b, v)
	}
	return p.root.decode(b, rv)
}
