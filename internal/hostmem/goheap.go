package hostmem

import "runtime"

// InGoHeap reports whether b lies in an object of Go's heap. If so, no other object gets the address of b while a [Pin] holds b. InGoHeap
// returns false for mapped memory, because its owner may unmap it in spite of a Pin, and for global variables and empty slices. A call for
// a slice of the heap takes about half a microsecond.
//
// InGoHeap calls [runtime.AddCleanup], because that function must find the heap object of b: it panics if the memory is not Go's, and returns the
// zero Cleanup for memory of Go outside the heap.
func InGoHeap(b []byte) (yes bool) {
	if len(b) == 0 {
		return false
	}
	defer func() {
		if recover() != nil {
			yes = false
		}
	}()
	c := runtime.AddCleanup(&b[0], func(struct{}) {}, struct{}{})
	c.Stop()
	runtime.KeepAlive(b)
	return c != runtime.Cleanup{}
}
