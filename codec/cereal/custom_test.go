package cereal_test

import (
	"bytes"
	"encoding/binary"
	"testing"

	"cinnabar/codec/cereal"
	"cinnabar/internal/codectest"
)

// evens are the even numbers of a list. How many they are is known when they have been written: the room for the count
// is reserved before, and filled in afterwards.
type evens []int32

func (e evens) AppendProc(b []byte) ([]byte, error) {
	at := len(b)
	b = cereal.AppendSize(b, 0)
	var count uint64
	for _, x := range e {
		if x%2 == 0 {
			b = binary.LittleEndian.AppendUint32(b, uint32(x))
			count++
		}
	}
	binary.LittleEndian.PutUint64(b[at:], count)
	return b, nil
}

func (e *evens) DecodeProc(b []byte) (int, error) {
	const size = 4
	count, n, err := cereal.DecodeSize(b, size)
	if err != nil {
		return 0, err
	}
	*e = make(evens, count)
	for i := range *e {
		(*e)[i] = int32(binary.LittleEndian.Uint32(b[n:]))
		n += size
	}
	return n, nil
}

// A type that writes itself goes back to the room that it has reserved, wherever in a message that is.
// parity: T59
func TestReservedRoom(t *testing.T) {
	type list[T any] struct {
		Name string
		All  []T
		End  uint8
	}
	odd := list[evens]{"two", []evens{{1, 2, 3, 4}, {5}, {6}}, 0xff}
	same := list[[]int32]{"two", [][]int32{{2, 4}, {}, {6}}, 0xff}
	b := codectest.MustAppend(t, planFor[list[evens]](t), &odd)
	if want := codectest.MustAppend(t, planFor[list[[]int32]](t), &same); !bytes.Equal(b, want) {
		t.Errorf("got  %x\nwant %x", b, want)
	}
	var got list[evens]
	codectest.MustDecode(t, planFor[list[evens]](t), b, &got)
	if len(got.All) != 3 || len(got.All[0]) != 2 || got.All[0][1] != 4 || got.End != 0xff {
		t.Errorf("got %+v", got)
	}
}
