package cereal_test

import (
	"fmt"
	"log"
	"reflect"

	"cinnabar/codec/cereal"
)

// The arguments of a C++ function
//
//	void put(const tl::request&, const std::string&, const std::map<std::string, double>&, const std::optional<int>&);
type putIn struct {
	Key    string
	Values map[string]float64
	TTL    *int32 `cereal:"optional"`
}

func Example() {
	plan, err := cereal.Codec{}.Plan(reflect.TypeFor[putIn]())
	if err != nil {
		log.Fatal(err)
	}
	b, err := plan.Append(nil, &putIn{Key: "k", Values: map[string]float64{"b": 1, "a": 0.5}, TTL: new(int32(60))})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%d bytes\n", len(b))
	var in putIn
	if _, err := plan.Decode(b, &in); err != nil {
		log.Fatal(err)
	}
	fmt.Println(in.Key, in.Values, *in.TTL)
	// Output:
	// 56 bytes
	// k map[a:0.5 b:1] 60
}

// Nodes of a list that shared pointers close to a ring.
func Example_shared() {
	type node struct {
		Name string
		Next *node `cereal:"shared"`
	}
	a := &node{Name: "a"}
	a.Next = &node{Name: "b", Next: a}
	plan, err := cereal.Codec{}.Plan(reflect.TypeFor[node]())
	if err != nil {
		log.Fatal(err)
	}
	b, err := plan.Append(nil, a)
	if err != nil {
		log.Fatal(err)
	}
	var first node
	if _, err := plan.Decode(b, &first); err != nil {
		log.Fatal(err)
	}
	fmt.Println(first.Name, first.Next.Name, first.Next.Next.Name, first.Next.Next.Next == first.Next)
	// Output: a b a true
}

// A Go type whose size differs between platforms is refused before anything is sent.
func ExampleCodec_Plan() {
	_, err := cereal.Codec{}.Plan(reflect.TypeFor[struct{ Count int }]())
	fmt.Println(err)
	// Output:
	// cereal: plan struct { Count int }: Count: Go type int has a size of its own on each platform; use int32 for C++'s int, int64 for its long and ptrdiff_t
}
