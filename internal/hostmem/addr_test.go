package hostmem

import (
	"math"
	"testing"
)

func TestAddr(t *testing.T) {
	if got := Addr(nil); got != 0 {
		t.Errorf("Addr(nil) = %#x, want 0", got)
	}
	b := make([]byte, 16)
	if got := Addr(b[3:3]); got != 0 {
		t.Errorf("Addr of empty slice = %#x, want 0", got)
	}
	if got, want := Addr(b[3:]), Addr(b)+3; got != want {
		t.Errorf("Addr(b[3:]) = %#x, want %#x", got, want)
	}
}

func TestBytesSharesMemory(t *testing.T) {
	s := []uint32{0, 0, 0}
	b := Bytes(s)
	if len(b) != 12 || cap(b) != 12 {
		t.Fatalf("len, cap = %d, %d, want 12, 12", len(b), cap(b))
	}
	for i := range b[4:8] {
		b[4+i] = 0xff
	}
	if s[0] != 0 || s[1] != math.MaxUint32 || s[2] != 0 {
		t.Errorf("s = %x, want only s[1] set", s)
	}
	s[2] = math.MaxUint32
	if b[11] != 0xff {
		t.Errorf("b = %x does not see the write to s[2]", b)
	}
}

func TestBytesHidesCapacity(t *testing.T) {
	s := make([]int64, 1, 4)
	if b := Bytes(s); cap(b) != 8 {
		t.Errorf("cap = %d, want 8", cap(b))
	}
}

func TestBytesSizes(t *testing.T) {
	type celsius float32 // a named type is a number too
	for _, tc := range []struct {
		name      string
		got, want int
	}{
		{"nil", len(Bytes[int8](nil)), 0},
		{"empty", len(Bytes([]int64{})), 0},
		{"int8", len(Bytes(make([]int8, 3))), 3},
		{"uint8", len(Bytes(make([]uint8, 3))), 3},
		{"int16", len(Bytes(make([]int16, 3))), 6},
		{"uint16", len(Bytes(make([]uint16, 3))), 6},
		{"int32", len(Bytes(make([]int32, 3))), 12},
		{"int64", len(Bytes(make([]int64, 3))), 24},
		{"uint64", len(Bytes(make([]uint64, 3))), 24},
		{"float64", len(Bytes(make([]float64, 3))), 24},
		{"named", len(Bytes(make([]celsius, 3))), 12},
	} {
		if tc.got != tc.want {
			t.Errorf("%s: %d bytes, want %d", tc.name, tc.got, tc.want)
		}
	}
}
