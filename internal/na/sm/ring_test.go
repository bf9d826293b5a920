package sm

import (
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"

	"cinnabar/internal/shm"
)

// ringBytes is memory for a ring.
func ringBytes(t testing.TB, slots int) []byte {
	t.Helper()
	m, err := shm.Private(offSlots + slots*slotSize)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.Close() })
	resetRing(m.Bytes(), slots)
	return m.Bytes()
}

// TestRingHistory compares a ring with a queue, across changes of tenants at both ends.
func TestRingHistory(t *testing.T) {
	b := ringBytes(t, ringSlots)
	rapid.Check(t, func(t *rapid.T) {
		resetRing(b, ringSlots)
		out, in := producer(b), consumer(b)
		var want []descriptor
		next := descriptor(1)
		t.Repeat(map[string]func(*rapid.T){
			"push": func(t *rapid.T) {
				if out.full() != (len(want) == ringSlots-1) || out.waiting() != len(want) {
					t.Fatalf("full %v, waiting %d, with %d inside", out.full(), out.waiting(), len(want))
				}
				if !out.full() {
					out.push(next)
					want = append(want, next)
					next++
				}
			},
			"pop": func(t *rapid.T) {
				d, _, ok := in.peek()
				if ok != (len(want) > 0) || ok && d != want[0] {
					t.Fatalf("got %v %v, want %v", d, ok, want)
				}
				if ok {
					in.advance()
					want = want[1:]
				}
			},
			"tenants": func(*rapid.T) { out, in = producer(b), consumer(b) },
		})
	})
}

// TestRingScribbled has the positions overwritten by the other end: whatever they are, indices stay inside.
func TestRingScribbled(t *testing.T) {
	b := ringBytes(t, ringSlots)
	out, in := producer(b), consumer(b)
	for _, v := range []uint32{64, 0x7FFFFFFF, 0xFFFFFFFF, 0x80000000} {
		for _, off := range []int{offProdHead, offProdTail, offConsHead, offConsTail} {
			shm.Uint32(b, off).Store(v)
			for range 2 * ringSlots {
				if !out.full() {
					out.push(1)
				}
				if _, _, ok := in.peek(); ok {
					in.advance()
				}
			}
			shm.Uint32(b, off).Store(v)
			_, _ = producer(b), consumer(b)
		}
	}
}

func TestCommandRing(t *testing.T) {
	q := commands{ringBytes(t, commandSlots)}
	const producers, each = 4, 2000
	end := time.Now().Add(30 * time.Second)
	var wg sync.WaitGroup
	for p := range producers {
		wg.Go(func() {
			for i := range each {
				for q.push(command(p<<16|i)) != nil {
					if time.Now().After(end) {
						t.Errorf("producer %d has not put command %d into the ring in time", p, i)
						return
					}
					runtime.Gosched()
				}
			}
		})
	}
	last := [producers]int{-1, -1, -1, -1}
	for n := 0; n < producers*each; {
		c, ok := q.pop()
		if !ok {
			if time.Now().After(end) {
				t.Errorf("%d commands of %d have come in time", n, producers*each)
				break
			}
			runtime.Gosched()
			continue
		}
		n++
		p, i := int(c>>16), int(c&0xFFFF)
		if i <= last[p] {
			t.Fatalf("command %d of producer %d after %d", i, p, last[p])
		}
		last[p] = i
	}
	wg.Wait()
	if q.waiting() {
		t.Error("commands are left")
	}
}

// TestCommandRingStuck has a producer die between claiming a slot and publishing it: others do not wait for ever.
func TestCommandRingStuck(t *testing.T) {
	q := commands{ringBytes(t, commandSlots)}
	shm.Uint32(q.b, offProdHead).Store(1)
	if err := q.push(1); !errors.Is(err, errStuck) {
		t.Errorf("got %v, want %v", err, errStuck)
	}
}

func TestCommandRingFull(t *testing.T) {
	q := commands{ringBytes(t, commandSlots)}
	for i := range commandSlots - 1 {
		if err := q.push(command(i)); err != nil {
			t.Fatal(err)
		}
	}
	if err := q.push(0); !errors.Is(err, errFull) {
		t.Errorf("got %v, want %v", err, errFull)
	}
}

func TestBitmap(t *testing.T) {
	var w atomic.Uint64
	w.Store(0b1010)
	if a, b, c := claimBit(&w), claimBit(&w), claimBit(&w); a != 1 || b != 3 || c != -1 {
		t.Errorf("claimed %d, %d, %d", a, b, c)
	}
	releaseBit(&w, 63)
	if got := claimBit(&w); got != 63 {
		t.Errorf("claimed %d", got)
	}
}
