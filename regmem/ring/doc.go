// Package ring hands out pieces of one registered region in a ring: each block follows the one before, and the memory
// comes round again in the order in which it was handed out. That is all that a stream of messages needs, and cheaper
// and free of fragmentation where package arena must search (the slides "Understanding RDMA Programming" name both).
//
//	r, err := ring.New(mr)
//	b, err := r.AllocContext(ctx, n) // waits while the ring is full
//	... build the message in b.Bytes(), post it ...
//	err = b.Free() // when the completion says that it was sent
//
// # How it works
//
//	      tail                head
//	       |                   |
//	+------v-------------------v-----------+------+
//	| free | A | B (freed) | C | free      | skip |
//	+------+---+-----------+---+-----------+------+
//
// A block never wraps: if one does not fit between head and the end of the region, that rest is skipped
// until the block before it is freed, and the block begins at the start. Blocks may be freed in any order. Memory comes back in the order of the
// blocks, so one that is held for long (A) holds all behind it; [Stats] reports how much is held that way. A ring without
// blocks begins at the start again, so a block of any size up to the ring's always fits then.
//
// Sizes are rounded up to multiples of 64 bytes, so that two blocks never share a line of a processor's cache.
//
// # Concurrency
//
// All methods are safe for concurrent use. Free takes no lock unless a goroutine waits for memory: it marks the block by one
// atomic operation, and the next Alloc takes the memory back. Waiters are served in the order in which they came.
package ring
