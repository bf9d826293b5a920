package ring

import (
	"errors"
	"sync"
	"testing"

	"cinnabar/regmem"
)

// TestConcurrentFree frees from many goroutines while the list of blocks grows, and each block twice: once it works.
// parity: S13
func TestConcurrentFree(t *testing.T) {
	for range 20 {
		r := newRing(t, 2000*line)
		first := alloc(t, r, line) // keeps all others
		blocks := make(chan block)
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				for b := range blocks {
					var second sync.WaitGroup
					var errs [2]error
					second.Go(func() { errs[0] = b.Free() })
					errs[1] = b.Free()
					second.Wait()
					if (errs[0] == nil) == (errs[1] == nil) || !errors.Is(errors.Join(errs[:]...), regmem.ErrDoubleFree) {
						t.Errorf("freed twice: %v", errs)
					}
				}
			})
		}
		for range 4 * leastSpans {
			blocks <- alloc(t, r, line)
		}
		close(blocks)
		wg.Wait()
		if s := r.Stats(); s.Blocks != 1 || s.Held != 4*leastSpans*line {
			t.Errorf("%+v", s)
		}
		free(t, first)
		if s := r.Stats(); s.Blocks != 0 || s.InUse != 0 || s.Allocs != s.Frees {
			t.Errorf("%+v", s)
		}
	}
}
