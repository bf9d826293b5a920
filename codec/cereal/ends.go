package cereal

import (
	"reflect"

	"cinnabar/codec"
	"cinnabar/internal/codecplan"
)

var restType = reflect.TypeFor[Rest]()

// ends are the nodes that have been looked at, each as the end of a message (true) and as what something follows.
type ends map[end]bool

type end struct {
	n    *node
	last bool
}

// check refuses a Rest behind which a value could follow: it would be written, and never be read again.
func (s ends) check(n *node, last bool) error {
	if n.typ == restType && !last {
		return &codec.Error{Problem: "cereal.Rest takes all that remains, and more follows", Remedy: "make it the last field of the value"}
	}
	if s[end{n, last}] {
		return nil
	}
	s[end{n, last}] = true
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

func (s ends) under(n *node, last bool, step string) error {
	if err := s.check(n, last); err != nil {
		return codecplan.Under(err, step)
	}
	return nil
}
