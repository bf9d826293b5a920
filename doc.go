// Package cinnabar is RDMA for Go: remote procedure calls and bulk transfers of memory, on the wire of Mercury and Margo.
// A Go program and a C program can be the two ends of one call.
//
// A server opens an [Engine] by [Listen] and registers handlers for its procedures; a client opens one by [Open] and
// calls them:
//
//	var Add = cinnabar.NewRPC[AddIn, AddOut]("add") // shared by both sides
//
//	server, err := cinnabar.Listen(ctx, "ofi+tcp://", nil)
//	err = Add.Handle(server, func(ctx context.Context, in AddIn) (AddOut, error) {
//		return AddOut{Sum: in.X + in.Y}, nil
//	})
//
//	client, err := cinnabar.Open(ctx, "ofi+tcp", nil)
//	ep, err := client.Lookup(server.Addr())
//	out, err := Add.Call(ctx, ep, AddIn{X: 1, Y: 2})
//
// For megabytes a program exposes memory as a [Bulk] and sends its [BulkHandle] in a message; the receiver reads or writes
// the memory by a [RemoteBulk]. A program ends each engine with [Engine.Shutdown] or [Engine.Close]. All types except plain structs such as
// [Config] are safe for concurrent use, and handlers may block.
//
// Read on at [Call] for responses that come later, at [Pending] for operations in flight, at [Error] and
// [cinnabar/codes] for failures, at [HandlerPool] for limits, at [cinnabar/stats] for observation, and in
// [cinnabar/margo] for the JSON configuration of Margo. The verbs of RDMA programming are in [cinnabar/verbs].
// The package does not authenticate peers; SECURITY.md describes the trust in them.
package cinnabar
