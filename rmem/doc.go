// Package rmem is remote memory: remote_malloc and remote_free of the slides "Understanding RDMA Programming". A server
// lends memory; a client allocates a [Region] there, reads and writes it without the server's program (one-sided),
// and frees it.
//
//	s, err := rmem.Serve(engine, rmem.Config{Provider: 7, Quota: 1 << 30}) // at the server
//
//	c, err := rmem.Dial(ctx, endpoint.Provider(7)) // at the client
//	r, err := c.Alloc(ctx, 1<<20)
//	n, err := r.WriteAt(data, 0)
//	old, err := r.FetchAdd(ctx, 8, 1)
//	fmt.Println(r.Handle()) // names the region: another process reads and writes it with Open
//	err = r.Free(ctx)
//
// # Owners of regions
//
// A region belongs to the client that has allocated it, and goes when the client closes or dies, which the server sees by
// the end of its connection. A region with a lease depends on no connection: it lives until the lease ends, is renewed and
// freed by every process that has its [Region.Token], and may outlive its client. A [Handle] lets a process read,
// write and do atomics; a token lets it free and renew as well. Both are as confidential as the memory.
//
// # Messages and transfers
//
// Reads and writes are bulk transfers (RDMA read and write) straight between the client's slice and the server's memory.
// Everything else is one RPC, rmem_request. A region that is lent for one read ([AllocOptions]) is claimed by an RPC first, under another
// name, and freed behind the read. Compare-and-swap and fetch-and-add are executed by the server, one at a time
// for each region: they are atomic with respect to each other, not to writes that overlap them.
//
// # Over verbs
//
// Package [cinnabar/rmem/verbsrmem] does the same on a verbs device, without an engine. This package imports no package of verbs.
//
// # Guesses
//
// A handle has 64 random bits. A host that guesses gets the answers to its refused requests with a growing delay.
//
// # Copies between servers
//
// [Region.CopyFrom] of a region at another server has this region's server connect there and read. A server does that only for
// servers that Config.CopyFrom allows, because a client could otherwise choose where the process connects. Copies between regions
// of one server are always allowed.
//
// # Revocation
//
// When a region is freed, expires, or is revoked by the server's program ([Server.Revoke]), all its keys die with it: over
// ofi+tcp and verbs later reads and writes fail with an error that names the reason, and none lands in memory that has become
// another client's. Over na+sm the kernel, not the server, checks accesses, and it lets processes of one user reach each
// other's memory: there clients are trusted to stop, unless Config.Strict has all reads and writes made by the server.
//
// The content of a region stays in the server's memory until that is used again. Config.Wipe, or AllocOptions.Wipe for one region,
// overwrites it when the last access of a peer has ended.
//
// All types are safe for concurrent use.
package rmem
