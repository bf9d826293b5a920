package hostmem

import "testing"

// escaped refers to slices of the tests, so that the compiler does not place them on the stack.
var escaped []byte

// TestInGoHeap distinguishes slices of the heap from global variables. It calls InGoHeap twice for each slice, because the first call must leave
// no cleanup on the object.
func TestInGoHeap(t *testing.T) {
	for _, size := range []int{1, 100, 1 << 20, 100 << 20} {
		b := make([]byte, size)
		escaped = b
		for range 2 {
			if !InGoHeap(b) || !InGoHeap(b[size/2:]) || !InGoHeap(b[size-1:]) {
				t.Errorf("a slice of %d bytes is not in the heap", size)
			}
		}
	}
	if InGoHeap(nil) || InGoHeap(escaped[:0]) || InGoHeap(global[:]) {
		t.Error("no memory, or a global variable, is in the heap")
	}
}

// TestInGoHeapOfPinned calls InGoHeap for a pinned slice, because the slices of registered memory are pinned.
func TestInGoHeapOfPinned(t *testing.T) {
	b := make([]byte, 4096)
	pin := PinSlice(b)
	defer pin.Unpin()
	if !InGoHeap(b) || !InGoHeap(b[100:200]) {
		t.Error("a pinned slice is not in the heap")
	}
}

func BenchmarkInGoHeap(b *testing.B) {
	escaped = make([]byte, 64<<10)
	b.ReportAllocs()
	for b.Loop() {
		InGoHeap(escaped)
	}
}
