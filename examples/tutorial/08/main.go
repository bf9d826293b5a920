// Command 08 is the eighth tutorial, types with bytes of their own: a linked list is the argument and the result of a procedure.
package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"iter"
	"log"

	"cinnabar"
	"cinnabar/codes"
)

// List is a linked list, which no struct tag describes. On the wire it is a count of 8 bytes and the values.
type List struct{ first *node }

type node struct {
	value int32
	next  *node
}

// Push inserts a value at the front.
func (l *List) Push(v int32) { l.first = &node{v, l.first} }

// All iterates over the values.
func (l List) All() iter.Seq[int32] {
	return func(yield func(int32) bool) {
		for n := l.first; n != nil && yield(n.value); n = n.next {
		}
	}
}

// AppendProc appends the list's bytes to b, as a C proc does for HG_ENCODE.
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

// DecodeProc reads a list from b and returns the number of bytes that it has read, as a C proc does for HG_DECODE. A peer has
// sent b, so DecodeProc compares the count with the length of b before it uses the count.
func (l *List) DecodeProc(b []byte) (int, error) {
	if len(b) < 8 {
		return 0, codes.Overflow
	}
	count, rest := binary.LittleEndian.Uint64(b), b[8:]
	if count > uint64(len(rest)/4) {
		return 0, codes.Overflow
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

// Reverse returns its argument in the opposite order.
var Reverse = cinnabar.NewRPC[List, List]("reverse")

func reverse(_ context.Context, in List) (out List, _ error) {
	for v := range in.All() {
		out.Push(v)
	}
	return out, nil
}

func run(ctx context.Context) error {
	server, err := cinnabar.Listen(ctx, "ofi+tcp://127.0.0.1", nil)
	if err != nil {
		return err
	}
	defer server.Close()
	if err := Reverse.Handle(server, reverse); err != nil {
		return err
	}

	var list List
	for v := range int32(4) {
		list.Push(v)
	}
	out, err := Reverse.Call(ctx, server.Self(), list)
	if err != nil {
		return err
	}
	for v := range out.All() {
		fmt.Println(v)
	}
	b, err := out.AppendProc(nil)
	fmt.Printf("%d bytes, %v\n", len(b), err)
	_, err = list.DecodeProc([]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff})
	fmt.Println("a count larger than the message:", err)
	return nil
}

func main() {
	if err := run(context.Background()); err != nil {
		log.Fatal(err)
	}
}
