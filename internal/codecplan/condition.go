package codecplan

import (
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"cinnabar/codec"
)

// Condition decides by the value of an earlier field whether a field of a struct travels. The conditions "OK" and "!OK" require that the
// bool OK is true or false, and "Kind:1|2" that the integer Kind is 1 or 2.
type Condition struct {
	text   string
	name   string // of the field that decides
	index  int    // of that field
	want   bool   // for a bool
	values []int64
	bits   []uint64 // the same for an unsigned integer; nil for a bool and a signed one
}

// ParseCondition reads a condition for a field of struct t that stands behind the fields with the indices earlier, all of
// which travel before it.
func ParseCondition(text string, t reflect.Type, earlier []int) (*Condition, error) {
	name, values, listed := strings.Cut(text, ":")
	c := &Condition{text: text, want: true}
	if rest, negated := strings.CutPrefix(name, "!"); negated && !listed {
		name, c.want = rest, false
	}
	c.name = name
	i := slices.IndexFunc(earlier, func(i int) bool { return t.Field(i).Name == name })
	if i < 0 {
		return nil, &codec.Error{
			Problem: fmt.Sprintf("no field %q before it decides whether it travels", name),
			Remedy:  "declare one before it, since the receiver needs it first",
		}
	}
	c.index = earlier[i]
	decides := t.Field(c.index).Type
	switch {
	case decides.Kind() == reflect.Bool && !listed:
		return c, nil
	case !listed || !(reflect.Zero(decides).CanInt() || reflect.Zero(decides).CanUint()):
		return nil, &codec.Error{
			Problem: fmt.Sprintf("condition %q does not fit the field %s of type %v", text, name, decides),
			Remedy:  "write when=F or when=!F for a bool F, when=F:1|2 for an integer F",
		}
	}
	for value := range strings.SplitSeq(values, "|") {
		if err := c.add(value, decides); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// add parses value, one of the listed values, as an integer of the type decides, and adds it to the condition.
func (c *Condition) add(value string, decides reflect.Type) (err error) {
	if reflect.Zero(decides).CanUint() {
		var bits uint64
		bits, err = strconv.ParseUint(value, 0, decides.Bits())
		c.bits = append(c.bits, bits)
	} else {
		var n int64
		n, err = strconv.ParseInt(value, 0, decides.Bits())
		c.values = append(c.values, n)
	}
	if err != nil {
		return &codec.Error{Problem: fmt.Sprintf("%q in condition %q is no %v", value, c.text, decides), Remedy: "write an integer of the field's range"}
	}
	return nil
}

// Holds reports whether the field travels with the struct s.
func (c *Condition) Holds(s reflect.Value) bool {
	v := s.Field(c.index)
	switch {
	case v.Kind() == reflect.Bool:
		return v.Bool() == c.want
	case v.CanUint():
		return slices.Contains(c.bits, v.Uint())
	default:
		return slices.Contains(c.values, v.Int())
	}
}

// CheckUnsent returns an error if field v of the struct s, which does not travel, holds a value, because that would be lost.
func (c *Condition) CheckUnsent(s, v reflect.Value) error {
	if v.IsZero() {
		return nil
	}
	return &codec.Error{
		Problem: fmt.Sprintf("the field has a value that does not travel, because %s is %v and the condition is %q", c.name, s.Field(c.index), c.text),
		Remedy:  "leave the field zero, or set " + c.name,
	}
}
