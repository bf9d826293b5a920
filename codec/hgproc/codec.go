package hgproc

import (
	"reflect"

	"cinnabar/codec"
	"cinnabar/internal/codecplan"
)

// Codec is the hg_proc encoding. The zero value is ready for use.
type Codec struct{}

// Name returns "hgproc".
func (Codec) Name() string { return "hgproc" }

// Plan returns the plan for values of t; the package documentation lists the types that have bytes.
func (c Codec) Plan(t reflect.Type) (codec.Plan, error) {
	return codecplan.Make(c, t, func(t reflect.Type) (codecplan.Root, error) {
		var bld builder
		return bld.node(t)
	})
}
