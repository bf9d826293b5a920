package hgproc

import (
	"fmt"
	"reflect"
	"slices"

	"cinnabar/codec"
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
		return b, err
	}
	if p.root.op == opCustom {
		return appendCustom(b, v)
	}
	return p.root.append(slices.Grow(b, p.root.min), rv)
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
	return p.root.decode(b, rv)
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

// finish completes an error made below with what only the entry points know.
func finish(err error, op codec.Op, t reflect.Type) error {
	e := own(err)
	e.Codec, e.Op, e.Type = name, op, t
	return e
}

// under puts step, a field name or an index in brackets, before the path of err.
func under(err error, step string) error {
	e := own(err)
	if e.Path != "" && e.Path[0] != '[' {
		step += "."
	}
	e.Path = step + e.Path
	return e
}

// own returns err as the *codec.Error that everything below the entry points returns.
func own(err error) *codec.Error {
	if e, ok := err.(*codec.Error); ok { //nolint:errorlint // not a wrapped one: it is changed in place
		return e
	}
	return &codec.Error{Problem: err.Error(), Err: err}
}

// foreign makes an error that own may change from that of a custom type. An unfinished one comes from AppendString or
// DecodeString and is taken over with its path.
func foreign(err error) error {
	if e, ok := err.(*codec.Error); ok && e.Codec == "" { //nolint:errorlint // a wrapped one has text of its own around it
		return new(*e)
	}
	return &codec.Error{Problem: err.Error(), Err: err}
}
