package codecplan

import (
	"reflect"

	"cinnabar/codec"
)

// Root is the plan of a whole value in one codec. Its methods return unfinished errors, which Make's plan completes.
type Root interface {
	// AppendValue appends v, which is addressable, to b and returns the extended buffer. c is the codec that the methods of custom types
	// get: the codec of the plan, or its form for shared memory (see [OverSharedMemory]).
	AppendValue(c codec.Codec, b []byte, v reflect.Value) ([]byte, error)

	// DecodeValue reads v, which can be set, from the start of b and returns the rest of b. c is as in AppendValue.
	DecodeValue(c codec.Codec, b []byte, v reflect.Value) (rest []byte, err error)
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
	return &plan{codec: c, root: root, typ: t, ptr: reflect.PointerTo(t)}, nil
}

// plan is the codec.Plan that Make returns. It is immutable.
type plan struct {
	codec codec.Codec
	root  Root
	typ   reflect.Type
	ptr   reflect.Type // *typ, the type that Append and Decode require
}

func (p *plan) Append(b []byte, v any) ([]byte, error) {
	rv, err := Value(v, p.ptr)
	if err == nil {
		var out []byte
		if out, err = p.root.AppendValue(p.codec, b, rv); err == nil {
			return out, nil
		}
	}
	return b, Finish(err, p.codec.Name(), codec.OpAppend, p.typ)
}

func (p *plan) Decode(b []byte, v any) (int, error) {
	rv, err := Value(v, p.ptr)
	if err != nil {
		return 0, Finish(err, p.codec.Name(), codec.OpDecode, p.typ)
	}
	rest, err := p.root.DecodeValue(p.codec, b, rv)
	if err != nil {
		return 0, Finish(err, p.codec.Name(), codec.OpDecode, p.typ)
	}
	return len(b) - len(rest), nil
}

// Keeper is a [Root] that may store parts of the message itself in a value, in place of copies.
type Keeper interface {
	Root
	// Keeps reports whether values have parts that may be stored in this way.
	Keeps() bool
	// DecodeKept is DecodeValue for a message in memory that belongs to the value from now on. kept reports whether the value refers to that memory.
	DecodeKept(c codec.Codec, b []byte, v reflect.Value) (rest []byte, kept bool, err error)
}

// KeepingPlan is a plan that may store parts of the message itself in a value. A plan from [Make] implements it, and an [Outer] may.
type KeepingPlan interface {
	codec.Plan
	// Keeps reports whether values have parts that may be stored in this way.
	Keeps() bool
	// DecodeKept is Decode for a message in memory that belongs to the value from now on: nothing else writes to that memory or uses it again. kept
	// reports whether the value refers to it. The garbage collector then frees b only with the value. At least half of b is a part of the value.
	DecodeKept(b []byte, v any) (n int, kept bool, err error)
}

// Lender is a [Root] that can leave the contents of a []byte out of a message.
type Lender interface {
	Root
	// Lends reports whether AppendAround leaves out contents of v.
	Lends(v reflect.Value, least int) bool
	// AppendAround is AppendValue without the contents lent of the first []byte that has least bytes or more, is in no slice or array, and is not
	// written by a custom type. lent belongs between out[:at] and out[at:]. It is nil if there is none.
	AppendAround(c codec.Codec, b []byte, v reflect.Value, least int) (out []byte, at int, lent []byte, err error)
}

// LendingPlan is a plan that can leave the contents of a []byte out of a message. A plan from [Make] implements it, and an [Outer] may.
type LendingPlan interface {
	codec.Plan
	// Lends reports whether AppendAround leaves out contents of *v.
	Lends(v any, least int) bool
	// AppendAround is Append without the contents lent of a []byte of least bytes or more, which belong between out[:at] and out[at:]. lent
	// is memory of *v, and nil if nothing is left out.
	AppendAround(b []byte, v any, least int) (out []byte, at int, lent []byte, err error)
}

// Lends is [LendingPlan.Lends] of p, and false if p is no LendingPlan.
func Lends(p codec.Plan, v any, least int) bool {
	l, ok := p.(LendingPlan)
	return ok && l.Lends(v, least)
}

// AppendAround is [LendingPlan.AppendAround] of p, or Append if p is no LendingPlan.
func AppendAround(p codec.Plan, b []byte, v any, least int) (out []byte, at int, lent []byte, err error) {
	if l, ok := p.(LendingPlan); ok {
		return l.AppendAround(b, v, least)
	}
	out, err = p.Append(b, v)
	return out, 0, nil, err
}

// Lends implements [LendingPlan].
func (p *plan) Lends(v any, least int) bool {
	l, ok := p.root.(Lender)
	if !ok {
		return false
	}
	rv, err := Value(v, p.ptr)
	return err == nil && l.Lends(rv, least)
}

// AppendAround implements [LendingPlan].
func (p *plan) AppendAround(b []byte, v any, least int) (out []byte, at int, lent []byte, err error) {
	l, ok := p.root.(Lender)
	if !ok {
		out, err = p.Append(b, v)
		return out, 0, nil, err
	}
	rv, err := Value(v, p.ptr)
	if err == nil {
		if out, at, lent, err = l.AppendAround(p.codec, b, rv, least); err == nil {
			return out, at, lent, nil
		}
	}
	return b, 0, nil, Finish(err, p.codec.Name(), codec.OpAppend, p.typ)
}

// Keeps reports whether p may store parts of a message in values.
func Keeps(p codec.Plan) bool {
	k, ok := p.(KeepingPlan)
	return ok && k.Keeps()
}

// DecodeKept is [KeepingPlan.DecodeKept] of p, or Decode if p is no KeepingPlan.
func DecodeKept(p codec.Plan, b []byte, v any) (n int, kept bool, err error) {
	if k, ok := p.(KeepingPlan); ok {
		return k.DecodeKept(b, v)
	}
	n, err = p.Decode(b, v)
	return n, false, err
}

// Keeps implements [KeepingPlan].
func (p *plan) Keeps() bool {
	k, ok := p.root.(Keeper)
	return ok && k.Keeps()
}

// DecodeKept implements [KeepingPlan].
func (p *plan) DecodeKept(b []byte, v any) (n int, kept bool, err error) {
	k, ok := p.root.(Keeper)
	if !ok {
		n, err = p.Decode(b, v)
		return n, false, err
	}
	rv, err := Value(v, p.ptr)
	var rest []byte
	if err == nil {
		rest, kept, err = k.DecodeKept(p.codec, b, rv)
	}
	if err != nil {
		return 0, kept, Finish(err, p.codec.Name(), codec.OpDecode, p.typ)
	}
	return len(b) - len(rest), kept, nil
}

// OverSharedMemory returns the plan for values of messages that travel over shared memory (HG_PROC_SM): the codec that it passes to the
// methods of custom types is one for which [IsOverSharedMemory] is true. A plan that neither comes from Make nor is an [Outer] is returned as it is.
func OverSharedMemory(p codec.Plan) codec.Plan {
	switch p := p.(type) {
	case *plan:
		near := *p
		near.codec = sharedMemory{p.codec}
		return &near
	case Outer:
		return p.OverSharedMemory()
	}
	return p
}

// Outer is a plan of values that contain values of another plan.
type Outer interface {
	codec.Plan
	// OverSharedMemory returns a plan of the same values with the other plan in its form for shared memory.
	OverSharedMemory() codec.Plan
}

// IsOverSharedMemory reports whether a custom type that gets codec c is in a message that travels over shared memory.
func IsOverSharedMemory(c codec.Codec) bool {
	_, ok := c.(sharedMemory)
	return ok
}

// sharedMemory is the codec of a message that travels over shared memory. The bytes of values are the same as those of Codec, except
// that bulk handles in them also hold the handles of shared memory.
type sharedMemory struct{ codec.Codec }

// Plan implements [codec.Codec] for the parts of custom types.
func (c sharedMemory) Plan(t reflect.Type) (codec.Plan, error) {
	p, err := c.Codec.Plan(t)
	if err != nil {
		return nil, err
	}
	return OverSharedMemory(p), nil
}
