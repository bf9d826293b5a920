// Package cinnabar is RDMA for Go: remote procedure calls with bulk transfers of memory, on the wire of Mercury and Margo.
// A Go program and a C program can be the two ends of one call. What lies below, the verbs of RDMA programming, is in
// [cinnabar/verbs].
//
// # Nouns
//
//   - An [Engine] is a process's presence on one network. It makes and serves calls and exposes memory.
//   - An [Endpoint] is another process, a [ProviderHandle] one of several services in it.
//   - An [RPC] describes a remote procedure: name, types, encoding. A [OneWay] is one without response.
//   - A handler is a plain function. A [Call] is its long form, to answer early, late or elsewhere.
//   - A [Pending] is an operation in flight.
//   - A [Bulk] is memory of this process that peers may reach; a [BulkHandle] describes it in a message; a [RemoteBulk]
//     joins such a description with the process that has the memory, and reads and writes it.
//   - An [Error] has a [codes.Code], which is Mercury's return code.
//
// # Usage
//
//	var Add = cinnabar.NewRPC[AddIn, AddOut]("add") // shared by both sides
//
//	// the server
//	eng, err := cinnabar.Listen("ofi+tcp://", nil)
//	err = Add.Handle(eng, func(ctx context.Context, in AddIn) (AddOut, error) {
//		return AddOut{Sum: in.X + in.Y}, nil
//	})
//	fmt.Println(eng.Addr())
//
//	// the client
//	eng, err := cinnabar.Open("ofi+tcp", nil)
//	server, err := eng.Lookup(addr)
//	out, err := Add.Call(ctx, server, AddIn{X: 1, Y: 2})
//
// # Rules
//
//   - No call returns while the network may still touch the caller's memory. Arguments are copied until Call or Start
//     returns; Pull and Push, when their context ends, first make the network let go and then return.
//   - Close of a [Bulk] waits for operations that were started here. What peers may still do is a matter of the protocol
//     between them: end that first.
//   - A handler's context ends when the connection to its caller is lost, and when the engine is closed or stops waiting
//     for handlers; never because the caller's deadline passed, of which nothing is sent. A request is not taken back.
//   - A handler that returns an [*Error] or a [codes.Code] sends that code; the errors of contexts become codes.Timeout and
//     codes.Canceled; anything else codes.OtherError. The text stays. [Error].Remote tells whether the peer said it.
//   - Data that a peer has written may be read after the completion that says so, not before.
//
// # Concurrency
//
// Everything is safe for concurrent use. Nobody has to make progress: the engine's goroutines do, and a goroutine that
// waits helps for a short time before it sleeps ([Config].Progress).
//
// Handlers may block. Each has a goroutine of its own, or runs on the one that reads the network once its RPC has proved
// quick; a handler that takes long there delays others by a millisecond or two and is then left alone. MaxHandlers run at
// once, and requests beyond that wait, peer by peer in turn, up to MaxQueued; what is beyond that is answered codes.Again.
// Pools ([Config].Pools, [WithPool]) keep kinds of handlers apart.
//
// # Limits
//
// Peers are trusted as far as Mercury trusts them: there is no authentication, everything travels in the clear, and who
// can connect can call. Whatever a peer sends is checked before it is used, and hurts at most that peer's calls. Memory is
// reachable only as long as it is exposed, and only as its mode allows.
//
// Messages of up to 4 KiB travel at once; longer arguments and results are fetched by the other side, which takes two
// more messages. For megabytes use a [Bulk].
package cinnabar
