package envelope

import (
	"sync"
	"testing"
)

// TestBlocks takes values on several goroutines. Each value is zero and belongs to one taker.
func TestBlocks(t *testing.T) {
	var blocks Blocks[[2]int]
	var wg sync.WaitGroup
	for n := range 4 {
		wg.Go(func() {
			var own []*[2]int
			for i := range 10 * ValuesOfBlock {
				v := blocks.Take()
				if *v != [2]int{} {
					t.Errorf("a value is %v at first", *v)
				}
				*v = [2]int{n, i}
				own = append(own, v)
			}
			for i, v := range own {
				if *v != [2]int{n, i} {
					t.Errorf("value %d of taker %d has become %v", i, n, *v)
				}
			}
		})
	}
	wg.Wait()
}
