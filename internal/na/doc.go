// Package na is the network abstraction below Mercury's RPC core: addressable peers, tagged messages, and memory that a
// peer reads and writes by key.
//
// It is Mercury's NA layer (na.h) in the form of Go:
//
//   - An [Endpoint] is one process's presence on one network. It sends messages to an [Addr] and makes progress on
//     goroutines of its own.
//   - A request is an unexpected message: it reaches the peer's [Handler]. Its answer is an expected message: it reaches
//     the [Op] that waits for its tag. One [Op] stands for each operation in flight and completes exactly once.
//   - Memory is registered ([Endpoint.Register]), described to a peer by [Memory.AppendHandle], and then read and written
//     by that peer with Get and Put, without this process's programs taking part.
//
// # Progress
//
// Each transport has goroutines of its own that make progress. A goroutine that waits for an operation should call
// [Endpoint.Drive] before it parks: for a bounded time the waiter then does the transport's work itself, which spares
// two hand-offs between goroutines and, on an idle machine, the waking of a parked thread.
//
// # Ownership
//
// Memory that is passed to an operation is the transport's until the operation's completion, which is also true of a
// cancelled one: [Endpoint.Cancel] completes an operation only when its memory will not be touched any more.
//
// # Limits
//
// A transport never calls a [Completer] or a [Handler] with a lock held that the other methods of the Endpoint take,
// except as those types say. Nothing here knows about RPC headers: that is internal/hg.
package na
