package hostmem

import (
	"runtime"
	"testing"
)

// collected returns a channel that is closed when b's backing array has been
// collected. b is an ordinary heap slice of at least a page.
func collected(b []byte) <-chan struct{} {
	done := make(chan struct{})
	runtime.AddCleanup(&b[0], func(c chan struct{}) { close(c) }, done)
	return done
}

// TestPinSurvivesGC: a pinned array lives through collections with nobody but
// the Pin referring to it, keeps its contents, and dies after Unpin.
func TestPinSurvivesGC(t *testing.T) {
	b := make([]byte, 64<<10)
	for i := range b {
		b[i] = byte(i)
	}
	addr, gone := Addr(b), collected(b)
	p := PinSlice(b)
	for range 3 {
		runtime.GC()
		churn()
	}
	select {
	case <-gone:
		t.Fatal("pinned memory was collected")
	default:
	}
	if got := Addr(p.b); got != addr {
		t.Errorf("pinned memory moved from %#x to %#x", addr, got)
	}
	for i, v := range p.b {
		if v != byte(i) {
			t.Fatalf("byte %d is %#x after collections", i, v)
		}
	}
	p.Unpin()
	runtime.GC()
	<-gone // a pin left behind would let the test time out
}

// churn allocates over whatever the collector freed.
func churn() {
	for range 64 {
		b := make([]byte, 64<<10)
		b[0] = 0xff
		runtime.KeepAlive(b)
	}
}

func TestPinOverlapping(t *testing.T) {
	b := make([]byte, 64<<10)
	gone := collected(b)
	whole, again, part := PinSlice(b), PinSlice(b), PinSlice(b[100:200])
	b = nil
	whole.Unpin()
	again.Unpin()
	runtime.GC()
	select {
	case <-gone:
		t.Fatal("memory was collected while one of three pins is left")
	default:
	}
	if len(part.b) != 100 {
		t.Fatalf("pin holds %d bytes, want 100", len(part.b))
	}
	part.Unpin()
	runtime.GC()
	<-gone
}

var global [64]byte

// TestPinOfWhatIsNotHeap: mapped memory, the program's data and empty slices
// have nothing to pin, and their pins are harmless.
func TestPinOfWhatIsNotHeap(t *testing.T) {
	mapped := mustMap(t, 4096)
	for name, b := range map[string][]byte{
		"mapped": mapped, "inside mapped": mapped[100:200], "data": global[:], "nil": nil, "empty": {},
	} {
		p := PinSlice(b)
		if p == nil {
			t.Fatalf("%s: PinSlice returned nil", name)
		}
		runtime.GC()
		p.Unpin()
		p.Unpin() // idempotent
	}
	// Were there a live pin in any of them, its collection would panic here.
	runtime.GC()
	runtime.GC()
}
