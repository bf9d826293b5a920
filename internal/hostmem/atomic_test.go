package hostmem

import (
	"encoding/binary"
	"sync"
	"testing"
)

// TestAtomicsCheckTheirMemory: a short or misaligned word is refused and not
// touched, at every offset.
func TestAtomicsCheckTheirMemory(t *testing.T) {
	b := mustMap(t, 64)
	for off := range 17 {
		for size := range 13 {
			part := b[off : off+size]
			if got, want := allAtomic64(part), size >= 8 && off%8 == 0; got != want {
				t.Errorf("64-bit at offset %d, %d bytes: ok = %v, want %v", off, size, got, want)
			}
			if got, want := allAtomic32(part), size >= 4 && off%4 == 0; got != want {
				t.Errorf("32-bit at offset %d, %d bytes: ok = %v, want %v", off, size, got, want)
			}
		}
	}
	for i, v := range b {
		if v != 0 {
			t.Fatalf("byte %d is %#x, but only zeros were written", i, v)
		}
	}
}

// allAtomic64 applies every 64-bit operation, none of which changes a zero word,
// and reports whether all were allowed; it panics if they disagree.
func allAtomic64(b []byte) bool {
	_, load := Load64(b)
	store := Store64(b, 0)
	_, add := Add64(b, 0)
	_, cas := CompareAndSwap64(b, 1, 2)
	if load != store || load != add || load != cas {
		panic("64-bit operations disagree about a slice")
	}
	return load
}

func allAtomic32(b []byte) bool {
	_, load := LoadUint32(b)
	if store := StoreUint32(b, 0); load != store {
		panic("32-bit operations disagree about a slice")
	}
	return load
}

func TestAtomicResults(t *testing.T) {
	b := mustMap(t, 16)
	Store64(b, 40)
	if old, _ := Add64(b, 2); old != 40 {
		t.Errorf("Add64 returned %d, want the old 40", old)
	}
	if old, _ := CompareAndSwap64(b, 41, 7); old != 42 {
		t.Errorf("refused CompareAndSwap64 returned %d, want the old 42", old)
	}
	if old, _ := CompareAndSwap64(b, 42, ^uint64(0)); old != 42 {
		t.Errorf("CompareAndSwap64 returned %d, want the old 42", old)
	}
	if old, _ := Add64(b, 3); old != ^uint64(0) {
		t.Errorf("Add64 returned %#x, want all ones", old)
	}
	if v, _ := Load64(b); v != 2 {
		t.Errorf("word = %d, want 2: addition wraps around", v)
	}
	if got := binary.NativeEndian.Uint64(b); got != 2 {
		t.Errorf("bytes hold %d in host order, want 2", got)
	}
	StoreUint32(b[8:], 0x01020304)
	if got := binary.NativeEndian.Uint32(b[8:]); got != 0x01020304 {
		t.Errorf("StoreUint32 left %#x in host order", got)
	}
	if v, _ := LoadUint32(b[12:]); v != 0 {
		t.Errorf("StoreUint32 wrote %#x beyond its four bytes", v)
	}
}

// TestAtomicsAreAtomic: no increment of several goroutines is lost, whether by
// addition or by compare and swap.
func TestAtomicsAreAtomic(t *testing.T) {
	const workers, rounds = 4, 2000
	b := mustMap(t, 16)
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for range rounds {
				Add64(b[:8], 1)
				increment(b[8:])
			}
		})
	}
	wg.Wait()
	for off := 0; off < 16; off += 8 {
		if got, _ := Load64(b[off:]); got != workers*rounds {
			t.Errorf("word at %d = %d, want %d", off, got, workers*rounds)
		}
	}
}

// increment adds one by compare and swap.
func increment(b []byte) {
	v, _ := Load64(b)
	for {
		old, _ := CompareAndSwap64(b, v, v+1)
		if old == v {
			return
		}
		v = old
	}
}

// TestPolledWordPublishes: what was written before StoreUint32 is there when
// LoadUint32 sees the word; the race detector checks it in its builds.
func TestPolledWordPublishes(t *testing.T) {
	b := mustMap(t, 64)
	var wg sync.WaitGroup
	wg.Go(func() {
		b[32] = 99
		StoreUint32(b, 1)
	})
	for v := uint32(0); v == 0; {
		v, _ = LoadUint32(b)
	}
	if b[32] != 99 {
		t.Errorf("byte before the flag = %d, want 99", b[32])
	}
	wg.Wait()
}

func TestAtomicsDoNotAllocate(t *testing.T) {
	b := mustMap(t, 8)
	n := testing.AllocsPerRun(100, func() {
		Add64(b, 1)
		CompareAndSwap64(b, 1, 2)
		LoadUint32(b)
	})
	if n != 0 {
		t.Errorf("%v allocations, want 0", n)
	}
}
