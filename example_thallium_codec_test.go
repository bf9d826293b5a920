package cinnabar_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"reflect"

	"cinnabar"
	"cinnabar/codec"
	"cinnabar/codec/cereal"
	"cinnabar/codes"
)

// scaled is a point that travels moved and scaled, by what the program knows: a serialization context in C++.
type scaled struct {
	X, Y, Z float64

	Origin float64 // do not travel
	Factor float64
}

func (p scaled) AppendProc(b []byte) ([]byte, error) {
	for _, v := range []float64{p.X, p.Y, p.Z} {
		b = binary.LittleEndian.AppendUint64(b, math.Float64bits((v+p.Origin)*p.Factor))
	}
	return b, nil
}

func (p *scaled) DecodeProc(b []byte) (int, error) {
	const size = 3 * 8
	if len(b) < size {
		return 0, codec.ErrOverflow
	}
	for i, v := range []*float64{&p.X, &p.Y, &p.Z} {
		*v = math.Float64frombits(binary.LittleEndian.Uint64(b[8*i:]))
	}
	return size, nil
}

// 16_context: what a serializer needs to know besides the value is in fields of the value.
// parity: T56
func Example_thallium16Context() {
	process := cinnabar.NewRPC[scaled, scaled]("process", inCpp)
	server, ep := onLoopback()
	defer server.Close()
	check(process.Handle(server, func(_ context.Context, p scaled) (scaled, error) {
		p.Origin, p.Factor = 1, 2
		return p, nil
	}))
	got, err := process.Call(context.Background(), ep, scaled{X: 4, Y: 5, Z: 6, Origin: 1, Factor: 10})
	check(err)
	fmt.Println(got.X, got.Y, got.Z)
	// Output: 102 122 142
}

// 17_partial: a handler reads the first argument and decides by it how to read the others.
// parity: T58
func Example_thallium17Partial() {
	type first struct {
		X    int32
		Rest cereal.Rest
	}
	secondPlan, err := cereal.Codec{}.Plan(reflect.TypeFor[int32]())
	check(err)
	server, ep := onLoopback()
	defer server.Close()
	partial := cinnabar.NewRPC[first, int32]("sum", inCpp)
	check(partial.Handle(server, func(_ context.Context, in first) (int32, error) {
		fmt.Println("Starting RPC, x =", in.X)
		var y int32
		if _, err := secondPlan.Decode(in.Rest, &y); err != nil {
			return 0, codes.InvalidArg
		}
		fmt.Println("y =", y)
		return in.X + y, nil
	}))
	ret, err := cppSum.Call(context.Background(), ep, twoInts{42, 63})
	check(err)
	fmt.Println("Server answered", ret)
	// Output:
	// Starting RPC, x = 42
	// y = 63
	// Server answered 105
}

// alphabet writes its 26 letters straight into the message, and reads them there.
type alphabet struct{}

func (alphabet) AppendProc(b []byte) ([]byte, error) {
	for c := byte('A'); c <= 'Z'; c++ {
		b = append(b, c)
	}
	return b, nil
}

func (*alphabet) DecodeProc(b []byte) (int, error) {
	const size = 26
	if len(b) < size {
		return 0, codec.ErrOverflow
	}
	fmt.Printf("%s\n", b[:size])
	return size, nil
}

// 21_encoding: a type that has the message's own memory, without a copy in between.
// parity: T54 T62
func Example_thallium21Encoding() {
	stream := cinnabar.NewRPC[alphabet, struct{}]("stream", inCpp)
	server, ep := onLoopback()
	defer server.Close()
	check(stream.Handle(server, func(context.Context, alphabet) (struct{}, error) { return struct{}{}, nil }))
	_, err := stream.Call(context.Background(), ep, alphabet{})
	check(err)
	// Output: ABCDEFGHIJKLMNOPQRSTUVWXYZ
}
