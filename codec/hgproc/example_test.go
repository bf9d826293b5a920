package hgproc_test

import (
	"encoding/binary"
	"fmt"
	"log"
	"reflect"

	"cinnabar/codec"
	"cinnabar/codec/hgproc"
)

// IntList is a linked list, a type that no plan can be made for. It travels as the number of its values and the
// values, which is what the C routine hg_proc_int_list_t of Margo's tutorial on custom types writes.
type IntList struct{ First *IntNode }

type IntNode struct {
	Value int32
	Next  *IntNode
}

// AppendProc walks the list once: it leaves room for the count and comes back to it.
func (l IntList) AppendProc(b []byte) ([]byte, error) {
	at := len(b)
	b = binary.LittleEndian.AppendUint64(b, 0)
	count := uint64(0)
	for n := l.First; n != nil; n = n.Next {
		b = binary.LittleEndian.AppendUint32(b, uint32(n.Value))
		count++
	}
	binary.LittleEndian.PutUint64(b[at:], count)
	return b, nil
}

// DecodeProc believes the count only as far as there are bytes. There is nothing to free afterwards.
func (l *IntList) DecodeProc(b []byte) (int, error) {
	if len(b) < 8 {
		return 0, codec.ErrOverflow
	}
	count, values := binary.LittleEndian.Uint64(b), b[8:]
	if count > uint64(len(values)/4) {
		return 0, fmt.Errorf("list of %d values in %d bytes: %w", count, len(values), codec.ErrOverflow)
	}
	end := &l.First
	for i := range int(count) {
		*end = &IntNode{Value: int32(binary.LittleEndian.Uint32(values[4*i:]))}
		end = &(*end).Next
	}
	*end = nil
	return 8 + 4*int(count), nil
}

// A type that writes its own bytes, inside a struct that does not.
// parity: H105 H106
func Example_customType() {
	type In struct {
		Name string
		List IntList
	}
	plan, err := hgproc.Codec{}.Plan(reflect.TypeFor[In]())
	if err != nil {
		log.Fatal(err)
	}
	in := &In{Name: "primes", List: IntList{&IntNode{2, &IntNode{3, &IntNode{5, nil}}}}}
	buf, err := plan.Append(nil, in)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%x\n%x\n", buf[:17], buf[17:])

	var out In
	if _, err := plan.Decode(buf, &out); err != nil {
		log.Fatal(err)
	}
	fmt.Print(out.Name)
	for n := out.List.First; n != nil; n = n.Next {
		fmt.Print(" ", n.Value)
	}
	fmt.Println()

	_, err = plan.Decode(buf[:30], &out)
	fmt.Println(err)
	// Output:
	// 07000000000000007072696d6573000000
	// 0300000000000000020000000300000005000000
	// primes 2 3 5
	// hgproc: decode hgproc_test.In: List: list of 3 values in 5 bytes: codec: value runs past the end of the message
}

// A C structure, a Go struct, and the same bytes.
func Example() {
	// MERCURY_GEN_PROC(put_in_t, ((hg_string_t)(key)) ((hg_size_t)(size)) ((int32_t)(flags)))
	type PutIn struct {
		Key   string
		Size  uint64
		Flags int32
	}
	plan, err := hgproc.Codec{}.Plan(reflect.TypeFor[PutIn]())
	if err != nil {
		log.Fatal(err)
	}
	buf, err := plan.Append(nil, &PutIn{Key: "k", Size: 4096, Flags: -1})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%x\n", buf)

	var in PutIn
	n, err := plan.Decode(buf, &in)
	fmt.Printf("%d %+v %v\n", n, in, err)
	// Output:
	// 02000000000000006b0000000010000000000000ffffffff
	// 24 {Key:k Size:4096 Flags:-1} <nil>
}

// What has no bytes in C is refused when an RPC is declared, not when it is called.
func ExampleCodec_Plan() {
	type In struct {
		Count int
	}
	_, err := hgproc.Codec{}.Plan(reflect.TypeFor[In]())
	fmt.Println(err)
	// Output:
	// hgproc: plan hgproc_test.In: Count: hg_proc has no encoding for Go type int; use int32 for C's int, int64 for its long
}

// Raw bytes have no length in Mercury's encoding: another field must hold it.
// parity: H102
func Example_countedSlice() {
	type In struct {
		N      uint32
		Values []int16 `proc:"count=N"`
	}
	plan, err := hgproc.Codec{}.Plan(reflect.TypeFor[In]())
	if err != nil {
		log.Fatal(err)
	}
	buf, err := plan.Append(nil, &In{N: 2, Values: []int16{1, -1}})
	fmt.Printf("%x %v\n", buf, err)
	_, err = plan.Append(nil, &In{N: 3, Values: []int16{1, -1}})
	fmt.Println(err)
	// Output:
	// 020000000100ffff <nil>
	// hgproc: append hgproc_test.In: Values: the slice has 2 elements, its count N says 3; set the count to the length of the slice
}
