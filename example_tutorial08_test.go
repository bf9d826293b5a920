package cinnabar_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"iter"
	"log"

	"cinnabar"
)

// List is a linked list, which no struct tag describes: on the wire it is a count of 8 bytes and the values.
type List struct{ first *node }

type node struct {
	value int32
	next  *node
}

// Push puts a value in front.
func (l *List) Push(v int32) { l.first = &node{v, l.first} }

// All iterates over the values.
func (l List) All() iter.Seq[int32] {
	return func(yield func(int32) bool) {
		for n := l.first; n != nil && yield(n.value); n = n.next {
		}
	}
}

// AppendProc writes the list: what a proc does for HG_ENCODE.
func (l List) AppendProc(b []byte) ([]byte, error) {
	at, count := len(b), uint64(0)
	b = binary.LittleEndian.AppendUint64(b, 0)
	for v := range l.All() {
		b = binary.LittleEndian.AppendUint32(b, uint32(v))
		count++
	}
	binary.LittleEndian.PutUint64(b[at:], count)
	return b, nil
}

// DecodeProc reads the list and tells how many bytes it had: HG_DECODE. Nothing has to be freed. b is what a peer has
// sent, so the count is compared with what there is before it is believed.
func (l *List) DecodeProc(b []byte) (int, error) {
	if len(b) < 8 {
		return 0, cinnabar.CodeOverflow
	}
	count, rest := binary.LittleEndian.Uint64(b), b[8:]
	if count > uint64(len(rest)/4) {
		return 0, cinnabar.CodeOverflow
	}
	var values []int32
	for i := range int(count) {
		values = append(values, int32(binary.LittleEndian.Uint32(rest[4*i:])))
	}
	*l = List{}
	for i := range values {
		l.Push(values[len(values)-1-i])
	}
	return 8 + 4*int(count), nil
}

// Reverse returns its argument in the other order.
var Reverse = cinnabar.NewRPC[List, List]("reverse")

// Tutorial 8, types with bytes of their own: what has AppendProc and DecodeProc travels as these methods say.
// parity: G96
func Example_tutorial08() {
	client, server, ep := twoEngines()
	defer client.Close()
	defer server.Close()
	err := Reverse.Handle(server, func(_ context.Context, in List) (out List, _ error) {
		for v := range in.All() {
			out.Push(v)
		}
		return out, nil
	})
	if err != nil {
		log.Fatal(err)
	}

	var list List
	for v := range int32(4) {
		list.Push(v)
	}
	out, err := Reverse.Call(context.Background(), ep, list)
	if err != nil {
		log.Fatal(err)
	}
	for v := range out.All() {
		fmt.Println(v)
	}
	b, err := out.AppendProc(nil)
	fmt.Printf("%d bytes, %v\n", len(b), err)
	_, err = list.DecodeProc([]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff})
	fmt.Println("a count that cannot be:", err)
	// Output:
	// 0
	// 1
	// 2
	// 3
	// 24 bytes, <nil>
	// a count that cannot be: HG_OVERFLOW
}
