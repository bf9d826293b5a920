package solutions

import (
	"fmt"
	"slices"

	"cinnabar/examples/course/internal/lab"
)

// Place solves the exercise of lesson 9.
func Place(size, head, tail, blocks, n int) (offset int, ok bool, err error) {
	switch {
	case blocks == 0:
		return 0, n <= size, nil
	case head <= tail: // the free bytes are between the two
		return head, n <= tail-head, nil
	case n <= size-head:
		return head, true, nil
	}
	return 0, n <= tail, nil
}

// Alloc solves the first half of the exercise of lesson 10.
func Alloc(free []lab.Chunk, n int) (block lab.Chunk, left []lab.Chunk, ok bool, err error) {
	best := -1
	for i, c := range free {
		if c.Size >= n && (best < 0 || c.Size < free[best].Size) {
			best = i
		}
	}
	if best < 0 {
		return lab.Chunk{}, free, false, nil
	}
	c := free[best]
	if c.Size == n {
		free = slices.Delete(free, best, best+1)
	} else {
		free[best] = lab.Chunk{Offset: c.Offset + n, Size: c.Size - n}
	}
	return lab.Chunk{Offset: c.Offset, Size: n}, free, true, nil
}

// Free solves the second half of the exercise of lesson 10.
func Free(free []lab.Chunk, block lab.Chunk) ([]lab.Chunk, error) {
	end := func(c lab.Chunk) int { return c.Offset + c.Size }
	i, _ := slices.BinarySearchFunc(free, block.Offset, func(c lab.Chunk, offset int) int { return c.Offset - offset })
	if i > 0 && end(free[i-1]) > block.Offset || i < len(free) && end(block) > free[i].Offset {
		return nil, fmt.Errorf("bytes of the block at offset %d are free already", block.Offset)
	}
	if i < len(free) && end(block) == free[i].Offset {
		block.Size += free[i].Size
		free = slices.Delete(free, i, i+1)
	}
	if i > 0 && end(free[i-1]) == block.Offset {
		free[i-1].Size += block.Size
		return free, nil
	}
	return slices.Insert(free, i, block), nil
}
