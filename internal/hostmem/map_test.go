package hostmem

import (
	"errors"
	"os"
	"strconv"
	"strings"
	"testing"
)

func TestMapIsAlignedZeroedAndCounted(t *testing.T) {
	page := os.Getpagesize()
	for _, size := range []int{1, 8, page - 1, page, page + 1, 1 << 20} {
		before := Mapped()
		b, err := Map(size)
		if err != nil {
			t.Fatalf("Map(%d): %v", size, err)
		}
		if len(b) != size || cap(b) != size {
			t.Errorf("Map(%d): len, cap = %d, %d", size, len(b), cap(b))
		}
		if Addr(b)%uint64(page) != 0 {
			t.Errorf("Map(%d) at %#x is not page-aligned", size, Addr(b))
		}
		for i, v := range b {
			if v != 0 {
				t.Fatalf("Map(%d): byte %d is %#x", size, i, v)
			}
			b[i] = 0xa5 // dirty, for the next one to come out clean
		}
		if got := Mapped(); got != before+1 {
			t.Errorf("Mapped() = %d with one more mapping than at %d", got, before)
		}
		if err := Unmap(b); err != nil {
			t.Fatalf("Unmap of %d bytes: %v", size, err)
		}
		if got := Mapped(); got != before {
			t.Errorf("Mapped() = %d after Unmap, want %d", got, before)
		}
	}
}

func TestMapRefusesImpossibleSizes(t *testing.T) {
	before := Mapped()
	sizes := []int{0, -1, -maxInt - 1, maxInt, maxInt - os.Getpagesize() + 1}
	if strconv.IntSize == 64 { // more than any processor can address
		sizes = append(sizes, maxInt-os.Getpagesize(), maxInt/2)
	}
	for _, size := range sizes {
		b, err := Map(size)
		if err == nil {
			t.Errorf("Map(%d) succeeded with %d bytes", size, len(b))
		} else if !strings.HasPrefix(err.Error(), "hostmem: map ") {
			t.Errorf("Map(%d): error %q does not name the operation", size, err)
		}
	}
	if got := Mapped(); got != before {
		t.Errorf("Mapped() = %d after refusals, want %d", got, before)
	}
}

func TestUnmapIsExact(t *testing.T) {
	b := mustMap(t, 3*os.Getpagesize())
	for name, part := range map[string][]byte{
		"nil":    nil,
		"empty":  b[:0],
		"head":   b[:os.Getpagesize()],
		"tail":   b[os.Getpagesize():],
		"gomem":  make([]byte, 8),
		"middle": b[1:2],
	} {
		if err := Unmap(part); !errors.Is(err, errNotMapped) {
			t.Errorf("Unmap of %s: error %v, want %v", name, err, errNotMapped)
		}
	}
	b[0], b[len(b)-1] = 1, 1 // still there
}

func TestUnmapTwice(t *testing.T) {
	b, err := Map(100)
	if err != nil {
		t.Fatal(err)
	}
	if err := Unmap(b); err != nil {
		t.Fatal(err)
	}
	if err := Unmap(b); !errors.Is(err, errNotMapped) {
		t.Errorf("second Unmap: error %v, want %v", err, errNotMapped)
	}
}
