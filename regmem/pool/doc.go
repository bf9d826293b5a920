// Package pool lends a fixed number of registered buffers. The buffers are registered once and used again and again, so a server that
// receives into them pays neither for memory nor for registration in each request, and the memory of all its requests together is
// bounded. Margo's margo_bulk_pool_t and margo_bulk_poolset_t are such pools.
//
//   - A [Buffer] is a value with Close: a *cinnabar.Bulk, which peers reach by its handle, or a *verbs.MR, which work requests name.
//   - A [Pool] has buffers that are alike.
//   - A [Set] has a pool for each of several sizes.
//
// A server with 16 buffers of 1 MiB:
//
//	buffers, err := pool.New(16, func() (*cinnabar.Bulk, error) { return engine.Alloc(cinnabar.WriteOnly, 1<<20) })
//
//	buf, err := buffers.Get(ctx) // in a handler; waits while all 16 are in use
//	if err != nil {
//		return err
//	}
//	defer func() { _ = buffers.Release(buf) }()
//
//	err = buffers.Close() // when no handler can have a buffer any more: after Engine.Shutdown
//
// The function that makes a buffer may also take it from one large allocation, for example a part of a slice that Engine.Expose
// registers. Pages then hold several small buffers.
//
// The user of a buffer has it alone from Get to Release. The pool cannot know whether a device or a peer still accesses the buffer: a
// *verbs.MR must be idle before its Release, and peers must no longer use a handle of a *cinnabar.Bulk. Everything in this package is
// safe for concurrent use, and nothing of it has a goroutine, except while Close runs.
package pool
