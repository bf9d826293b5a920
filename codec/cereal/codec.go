package cereal

import (
	"reflect"

	"cinnabar/codec"
	"cinnabar/internal/codecplan"
)

// Codec is the encoding of Thallium's archives. The zero value is ready for use.
type Codec struct{}

// Name returns "cereal".
func (Codec) Name() string { return "cereal" }

// Plan returns the plan for values of t; the package documentation lists the types that have bytes.
func (c Codec) Plan(t reflect.Type) (codec.Plan, error) {
	return codecplan.Make(c, t, func(t reflect.Type) (codecplan.Root, error) {
		bld := builder{made: map[request]*node{}}
		root, err := bld.node(t, "")
		if err != nil {
			return nil, err
		}
		return root, restCheck{}.check(root, true)
	})
}

var restType = reflect.TypeFor[Rest]()

// restCheck has the nodes that it has checked, each at the end of a message (true) and before other values (false).
type restCheck map[placed]bool

// placed is a node at a place in a message.
type placed struct {
	n    *node
	last bool // at the end
}

// check refuses a Rest behind which a value could follow: it would be written, and never be read again.
func (s restCheck) check(n *node, last bool) error {
	if n.typ == restType && !last {
		return &codec.Error{Problem: "cereal.Rest takes all that remains, and more follows", Remedy: "make it the last field of the value"}
	}
	if s[placed{n, last}] {
		return nil
	}
	s[placed{n, last}] = true
	switch n.op {
	case opArray:
		return s.under(n.elem, last && n.count == 1, "[]")
	case opSlice, opMap: // keys are never a Rest
		return s.under(n.elem, false, "[]")
	case opOptional, opUnique, opShared:
		return s.check(n.elem, last)
	case opStruct:
		for i := range n.fields {
			if err := s.under(n.fields[i].node, last && i == len(n.fields)-1, n.fields[i].name); err != nil {
				return err
			}
		}
	case opVariant:
		for i := range n.fields {
			if err := s.under(n.fields[i].node, last, n.fields[i].name); err != nil {
				return err
			}
		}
	default: // nothing is inside, or nothing that has a plan
	}
	return nil
}

func (s restCheck) under(n *node, last bool, step string) error {
	if err := s.check(n, last); err != nil {
		return codecplan.Under(err, step)
	}
	return nil
}
