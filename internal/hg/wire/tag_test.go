package wire

import (
	"sync"
	"testing"
)

func TestTagsWrap(t *testing.T) {
	var g Tags
	g.Start(1<<32 - 3)
	for _, want := range []uint32{1<<32 - 2, 1<<32 - 1, 0, 1} {
		if got, ok := g.Take(); !ok || got != want {
			t.Fatalf("take = %d, %v; want %d", got, ok, want)
		}
		g.Release(want)
	}
}

func TestTagsSkipBlocksInUse(t *testing.T) {
	var g Tags
	g.Start(tagBlock - 1)
	if hanging, _ := g.Take(); hanging != tagBlock {
		t.Fatalf("first tag is %d", hanging)
	}
	g.Start(tagBlock - 1) // 2^32 calls later
	if got, ok := g.Take(); !ok || got != 2*tagBlock {
		t.Errorf("take = %d, %v; want the start of the next block", got, ok)
	}
	for i := range g.used {
		g.used[i].Add(1)
	}
	g.Start(tagBlock - 1)
	if got, ok := g.Take(); ok {
		t.Errorf("take = %d with a call in each block", got)
	}
}

func TestTagsUnique(t *testing.T) {
	const each, workers = 20000, 4
	var g Tags
	g.Start(3*tagBlock - each) // crosses a block's edge
	lists := make([][]uint32, workers)
	var wg sync.WaitGroup
	for i := range lists {
		wg.Go(func() {
			for range each {
				tag, _ := g.Take()
				lists[i] = append(lists[i], tag)
			}
		})
	}
	wg.Wait()
	seen := map[uint32]bool{}
	for _, l := range lists {
		for _, tag := range l {
			if seen[tag] {
				t.Fatalf("tag %d given out twice", tag)
			}
			seen[tag] = true
		}
	}
}
