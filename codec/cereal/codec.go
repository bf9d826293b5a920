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
		return root, ends{}.check(root, true)
	})
}
