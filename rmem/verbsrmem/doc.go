// Package verbsrmem is remote memory (package [cinnabar/rmem]) over a verbs device, without an engine. [Listen] makes the server
// and [Dial] the client; regions, handles, limits and errors are those of package rmem.
//
//	s, err := verbsrmem.Listen(dev, addr, rmem.Config{Quota: 1 << 30}) // at the server
//
//	c, err := verbsrmem.Dial(ctx, dev, s.Addr()) // at the client
//	r, err := c.Alloc(ctx, 1<<20)
//	n, err := r.WriteAt(data, 0)
//
// Requests are records of package verbs/flow, one at a time for each client. Reads and writes are RDMA reads and writes, in
// which the server's program takes no part; up to 64 KiB go through registered memory of the client, longer ones register the
// caller's slice. Atomics are requests, so that they are atomic with respect to those of all clients.
//
// # Connections
//
// A client is a connection, and ends when its device is silent, because the host has vanished (Silence of [rmem.Config]).
// The client's regions without a lease are freed then. A region is opened with [rmem.Client.Open], over the connection of a client
// of the same server. An access to a region that is gone ends the connection, because a device breaks a connection at every access
// that it refuses.
//
// # Keys
//
// Each connection has a protection domain of its own, in which a region is registered when the connection allocates or opens
// it. A key is therefore worth nothing on another connection, and no peer can invalidate the key of another one. When a region
// is freed, expires, or is revoked ([Server.Revoke]), all its keys die with it.
//
// All types are safe for concurrent use.
package verbsrmem
