// Package arena hands out pieces of registered memory: best fit with coalescing ("BFC"), as TensorFlow's allocator of
// that name and the slides "Understanding RDMA Programming" have it. One registration serves any number of transfers.
//
//	a, err := arena.New(arena.Config[*verbs.MR]{}, mr) // fixed; Config.Grow makes it register more as needed
//	b, err := a.Alloc(4096)
//	copy(b.Bytes(), data)
//	... b.Region().SGE(b.Offset(), b.Len()) ...
//	err = b.Free()
//
// # How it works
//
// Memory is cut into chunks of whole units of 256 bytes. A chunk knows its neighbours in memory, so that a freed one is
// joined with free neighbours at once: two free chunks never touch, and when all is freed each region is one chunk.
// Alloc takes the smallest chunk that is large enough, of those the one at the lowest place, and gives the rest of it
// back. Free chunks up to 32 KiB lie in a bin for each size, found through a bitmap; larger ones in a tree ordered by
// size and place. Nothing is allocated on the Go heap once the table of chunks has grown to its size.
//
// A chunk of the very size that was freed just before is taken without more ado. When that happens the chunk is hot: from
// then on it is handed out and taken back without the lock, by one atomic operation each, until a block of another size is
// requested or another block is freed.
//
// Sizes are rounded up to whole units; [Stats] reports the bytes lost by that, and how scattered the free memory is.
//
// # Concurrency
//
// All methods are safe for concurrent use. Waiters (AllocContext) are served in the order in which they came, and a later
// request gets no memory before them, so that large requests are not starved by small ones.
package arena
