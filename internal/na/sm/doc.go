// Package sm is a network between the processes of one host: messages through shared memory, and bulk memory that the kernel copies
// from one process to another. It is wire-compatible with the na+sm plugin of C's Mercury 2.3 to 2.4.1 in both roles.
//
// The nouns:
//
//   - A region is the memory that a listening [Endpoint] puts into /dev/shm for its clients: 255 pairs of rings, and copy
//     buffers that all of them share.
//   - A ring carries descriptors of 8 bytes, one for each message; the bytes lie in a copy buffer or, between endpoints of
//     this package, in a slot of the ring's own.
//   - A conn is a pair with the two doorbells (eventfds) that belong to it. A client sends them through the server's
//     socket in /tmp when it connects, which it does with its first message. C's peers get a token for each message; peers
//     of this package get one only while the region says that they sleep.
//   - The poller is an endpoint's goroutine that makes progress while no caller drives. A caller that waits polls its conn
//     itself ([Endpoint.Drive]). A caller that waits for several calls, one after the other, receives the messages of all of them
//     ([Endpoint.DriveGroup]).
//   - The joint receiver is a goroutine of the process. It receives for the callers while several of them wait for different conns.
//   - Transfers ([Endpoint.Get], [Endpoint.Put]) are single system calls of the goroutine that starts them.
//
// Usage:
//
//	ep, err := sm.Open(ctx, sm.Config{Listen: true, Handler: h})
//	if err != nil {
//		return err
//	}
//	defer ep.Close(ctx)
//	fmt.Println(ep.Addr()) // na+sm://1234-0
//
// All methods are safe for concurrent use. Handlers are called on the goroutine that makes progress.
//
// Everything that a peer can write is checked: descriptors, lengths, indices and positions are read once, and messages are copied out
// before they are read. A peer that breaks the rules, dies, or is stopped costs its own connection; its pair and buffers are freed
// when its process has ended. There is no more protection than that, because a region is open to all processes of its user, and the
// kernel lets these read and write each other's whole memory in any case. Other users are kept out by the owners and rights of all
// files, which both sides compare before they use a file; see trust_linux.go. The resources that one process can take from a server
// are bounded; see share_linux.go.
//
// Limits: Linux only. Messages have 4,096 bytes at most. A server has 255 clients at most; the next one waits for a place. C's
// endpoints with names of their own cannot be reached by C's clients, and C's servers take 511 connections in their life from clients
// in C; clients of this package do not count among them. C's programs that call HG_Cleanup remove the regions of all programs, those
// of living servers too: an endpoint of this package restores its own within some milliseconds, while clients of a server in C stay
// connected, but new ones cannot find it. A region that another program truncates is made anew without its messages; see
// recover_linux.go.
package sm
