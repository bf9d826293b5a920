package codec_test

import (
	"fmt"
	"log"
	"reflect"

	"cinnabar/codec"
	"cinnabar/codec/cereal"
	"cinnabar/codec/hgproc"
)

// The same value has different bytes in the two families of programs.
func Example() {
	type in struct {
		Name string
		N    int32
	}
	for _, c := range []codec.Codec{hgproc.Codec{}, cereal.Codec{}} {
		plan, err := c.Plan(reflect.TypeFor[in]())
		if err != nil {
			log.Fatal(err)
		}
		b, err := plan.Append(nil, &in{Name: "go", N: 7})
		if err != nil {
			log.Fatal(err)
		}
		var back in
		n, err := plan.Decode(b, &back)
		fmt.Printf("%T: %d bytes, %+v, %v\n", c, n, back, err)
	}
	// Output:
	// hgproc.Codec: 17 bytes, {Name:go N:7}, <nil>
	// cereal.Codec: 14 bytes, {Name:go N:7}, <nil>
}
