package envelope

import "sync"

// Blocks allocates the contexts of handlers in blocks, because an allocation for each request costs more. A context is never used for a second
// request, because a program may keep it after the handler has returned. A context that a program keeps also keeps the other 31 of its block in memory.
// The zero Blocks is ready for use, and safe for concurrent use.
type Blocks[T any] struct{ pool sync.Pool } // of *block[T] that have unused values

// block is a block of values. Those from next on are unused.
type block[T any] struct {
	next int
	all  [ValuesOfBlock]T
}

// ValuesOfBlock is the number of values in a block. A larger block needs fewer allocations, but one value that a program keeps then keeps more memory.
const ValuesOfBlock = 32

// Take returns a zero value that no other call of Take returns.
func (b *Blocks[T]) Take() *T {
	k, _ := b.pool.Get().(*block[T])
	if k == nil {
		k = new(block[T])
	}
	v := &k.all[k.next]
	if k.next++; k.next < len(k.all) {
		b.pool.Put(k)
	}
	return v
}
