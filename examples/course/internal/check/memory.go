package check

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"

	"cinnabar/examples/course/internal/lab"
)

// Place checks the exercise of lesson 9: first some drawings, then a long run of a ring against a map of its bytes.
func Place(student func(size, head, tail, blocks, n int) (int, bool, error)) Exercise {
	return func(context.Context) error {
		for _, c := range []struct {
			size, head, tail, blocks, n int
			offset                      int
			ok                          bool
		}{
			{100, 40, 40, 0, 100, 0, true},
			{100, 0, 0, 0, 101, 0, false},
			{100, 40, 0, 1, 60, 40, true},
			{100, 40, 0, 1, 61, 0, false},
			{100, 90, 50, 1, 20, 0, true},
			{100, 90, 50, 1, 50, 0, true},
			{100, 90, 50, 1, 51, 0, false},
			{100, 90, 50, 1, 10, 90, true},
			{100, 20, 50, 2, 30, 20, true},
			{100, 20, 50, 2, 31, 0, false},
			{100, 50, 50, 2, 1, 0, false},
			{100, 100, 0, 1, 1, 0, false},
		} {
			offset, ok, err := student(c.size, c.head, c.tail, c.blocks, c.n)
			if err != nil {
				return err
			}
			if ok != c.ok || ok && offset != c.offset {
				return fmt.Errorf("Place(size %d, head %d, tail %d, blocks %d, n %d) returns %d, %t, and not %d, %t", c.size, c.head, c.tail, c.blocks, c.n, offset, ok, c.offset, c.ok)
			}
		}
		return ringRun(student)
	}
}

// ringRun allocates and frees blocks of a ring in an order that is the same in each run.
func ringRun(student func(size, head, tail, blocks, n int) (int, bool, error)) error {
	const size = 64
	random := rand.New(rand.NewPCG(9, 9))
	var blocks []lab.Chunk // oldest first
	head := 0
	for range 10_000 {
		n := 1 + random.IntN(24)
		tail := head
		if len(blocks) > 0 {
			tail = blocks[0].Offset
		}
		offset, ok, err := student(size, head, tail, len(blocks), n)
		if err != nil {
			return err
		}
		if !ok {
			if len(blocks) == 0 {
				return fmt.Errorf("an empty ring of %d bytes has no room for %d", size, n)
			}
			blocks = blocks[1:]
			continue
		}
		if offset < 0 || offset > size-n {
			return fmt.Errorf("a block of %d bytes at offset %d leaves the ring of %d bytes", n, offset, size)
		}
		for _, b := range blocks {
			if offset < b.Offset+b.Size && b.Offset < offset+n {
				return fmt.Errorf("a block of %d bytes at offset %d covers a block in use, %d bytes at %d", n, offset, b.Size, b.Offset)
			}
		}
		blocks, head = append(blocks, lab.Chunk{Offset: offset, Size: n}), offset+n
	}
	return nil
}

// list returns chunks with these offsets and sizes.
func list(values ...int) (chunks []lab.Chunk) {
	for v := range slices.Chunk(values, 2) {
		chunks = append(chunks, lab.Chunk{Offset: v[0], Size: v[1]})
	}
	return chunks
}

// Allocator checks the exercise of lesson 10.
func Allocator(alloc func(free []lab.Chunk, n int) (lab.Chunk, []lab.Chunk, bool, error), free func(free []lab.Chunk, block lab.Chunk) ([]lab.Chunk, error)) Exercise {
	return func(context.Context) error {
		chunks := list(0, 50, 100, 20, 200, 30, 300, 20)
		for _, c := range []struct {
			n    int
			want lab.Chunk
			left []lab.Chunk
		}{
			{25, lab.Chunk{Offset: 200, Size: 25}, list(0, 50, 100, 20, 225, 5, 300, 20)},
			{20, lab.Chunk{Offset: 100, Size: 20}, list(0, 50, 200, 30, 300, 20)},
			{50, lab.Chunk{Offset: 0, Size: 50}, list(100, 20, 200, 30, 300, 20)},
		} {
			block, left, ok, err := alloc(slices.Clone(chunks), c.n)
			if err != nil {
				return err
			}
			if !ok || block != c.want || !slices.Equal(left, c.left) {
				return fmt.Errorf("a call of Alloc for %d bytes of %v returns the block %v, %t, and leaves %v. The best fit is %v, and leaves %v", c.n, chunks, block, ok, left, c.want, c.left)
			}
		}
		if block, _, ok, err := alloc(slices.Clone(chunks), 51); err != nil || ok {
			return errors.Join(err, fmt.Errorf("a call of Alloc for 51 bytes of %v returns %v, although no chunk has room", chunks, block))
		}
		for _, c := range []struct{ block, touches lab.Chunk }{{lab.Chunk{Offset: 40, Size: 20}, chunks[0]}, {lab.Chunk{Offset: 100, Size: 20}, chunks[1]}, {lab.Chunk{Offset: 290, Size: 11}, chunks[3]}, {lab.Chunk{Offset: 99, Size: 30}, chunks[1]}} {
			left, err := free(slices.Clone(chunks), c.block)
			if unsolved(err) {
				return err
			}
			if err == nil {
				return fmt.Errorf("a call of Free for %v returns %v and no error, although bytes of it are free in %v", c.block, left, c.touches)
			}
		}
		return allocatorRun(alloc, free)
	}
}

// allocatorRun allocates and frees blocks in an order that is the same in each run. At its end all memory is one chunk.
func allocatorRun(alloc func(free []lab.Chunk, n int) (lab.Chunk, []lab.Chunk, bool, error), free func(free []lab.Chunk, block lab.Chunk) ([]lab.Chunk, error)) error {
	random := rand.New(rand.NewPCG(10, 10))
	chunks := list(0, 500)
	var blocks []lab.Chunk
	for step := range 4000 {
		if step < 3000 && random.IntN(2) == 0 {
			block, left, ok, err := alloc(slices.Clone(chunks), 1+random.IntN(60))
			if err != nil {
				return err
			}
			if ok {
				blocks, chunks = append(blocks, block), left
			}
		} else if len(blocks) > 0 {
			i := random.IntN(len(blocks))
			left, err := free(slices.Clone(chunks), blocks[i])
			if err != nil {
				return fmt.Errorf("a call of Free for %v with the free chunks %v: %w", blocks[i], chunks, err)
			}
			blocks, chunks = slices.Delete(blocks, i, i+1), left
		}
		for i := 1; i < len(chunks); i++ {
			if chunks[i-1].Offset+chunks[i-1].Size >= chunks[i].Offset {
				return fmt.Errorf("the free chunks %v and %v touch or are not in order: Free joins a block with both neighbours", chunks[i-1], chunks[i])
			}
		}
	}
	if !slices.Equal(chunks, list(0, 500)) {
		return fmt.Errorf("all blocks are free, and the free chunks are %v in the place of one chunk of 500 bytes", chunks)
	}
	return nil
}
