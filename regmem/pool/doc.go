// Package pool lends a fixed number of registered buffers. Each buffer is registered once and lent many times, so a server that receives
// into buffers of a pool does not allocate and register memory for each request, and the memory of all its requests together is bounded.
// Margo's margo_bulk_pool_t and margo_bulk_poolset_t are such pools.
//
//   - A [Buffer] is a value with Close: a *cinnabar.Bulk, which peers reach by its handle, or a *verbs.MR, which work requests name.
//   - A [Pool] has buffers of one size.
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
//	err = buffers.Close() // after Engine.Shutdown, because no handler uses a buffer then
//
// The function that makes a buffer may also cut it from one large allocation, and register each part, for example with Engine.Expose. A
// page of memory then holds several small buffers.
//
// From Get to Release a buffer has one user. The pool cannot know whether a device or a peer still accesses the buffer, so the user
// releases a *verbs.MR only after all work requests that name it have completed, and a *cinnabar.Bulk only after peers have stopped using
// its handle. All functions and methods are safe for concurrent use. The package starts goroutines only in Close, which waits for them.
package pool
