package codec

import (
	"reflect"
	"sync"
)

// Append appends *v, a part of a value that writes its own bytes, as c does. v must be a pointer that is not nil. The plan
// of each type is made once for each codec and kept. cereal's shared pointers and class versions are counted anew in
// each part. On failure the returned buffer is b.
func Append(c Codec, b []byte, v any) ([]byte, error) {
	p, err := planOf(c, v, OpAppend)
	if err != nil {
		return b, err
	}
	return p.Append(b, v)
}

// Decode reads a part that [Append] wrote from the start of b into *v, as c does, and returns how many bytes it took. v
// must be a pointer that is not nil.
func Decode(c Codec, b []byte, v any) (int, error) {
	p, err := planOf(c, v, OpDecode)
	if err != nil {
		return 0, err
	}
	return p.Decode(b, v)
}

// plans are those of parts, by codec and type. A program has as many as it has types.
var plans sync.Map

type planKey struct {
	codec Codec
	typ   reflect.Type
}

// planOf returns the plan for the variable that v points to.
func planOf(c Codec, v any, op Op) (Plan, error) {
	t := reflect.TypeOf(v)
	if t == nil || t.Kind() != reflect.Pointer {
		return nil, &Error{Codec: c.Name(), Op: op, Type: t, Problem: "the part is no pointer", Remedy: "pass a pointer to a value"}
	}
	key := planKey{c, t.Elem()}
	kept := reflect.TypeOf(c).Comparable()
	if kept {
		if p, ok := plans.Load(key); ok {
			return p.(Plan), nil
		}
	}
	p, err := c.Plan(t.Elem())
	if err == nil && kept {
		plans.Store(key, p)
	}
	return p, err
}
