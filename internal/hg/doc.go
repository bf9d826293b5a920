// Package hg is Mercury's RPC core: calls, requests and bulk memory over one [na.Endpoint], byte for byte as HG and HG
// core of Mercury 2.4 write them.
//
// # Nouns
//
//   - A [Class] stands on one endpoint. It is that endpoint's [na.Handler].
//   - A [Registry] holds the handlers of a provider's RPCs by their ids.
//   - A [Call] is the origin's half of one RPC, a [Request] the target's.
//   - A [Bulk] is memory of this process that peers may reach; a [Desc] is the descriptor by which they do; a [Transfer]
//     moves bytes between such memory of a peer and slices of this process.
//
// # Usage
//
//	c := hg.New(hg.Config{Dispatch: handlers})
//	ep, err := ofitcp.Open(address, c, ...)
//	c.Attach(ep)
//	c.Serve()
//
//	k := c.NewCall()
//	k.Start(peer, id, hg.CallOptions{}, append(k.Input(), argument...))
//	if err := k.Wait(ctx); err == nil {
//		use(k.Output())
//	}
//	k.Free()
//
// # Messages
//
// A request is a core header, a header of HG and the user's payload; a response too. Two builds of Mercury differ in the
// size of these headers, see [wire.ChecksumMode]. A payload that does not fit into one message travels as a bulk descriptor
// which the receiver pulls (overflow). docs/wire-ofitcp.md has the bytes.
//
// # Concurrency
//
// A Class is safe for concurrent use. A Call, Request or Transfer belongs to one goroutine at a time, except for its
// Cancel. Each ends exactly once: by the answer, by Cancel, by the loss of the peer, or by Close.
// Methods of [Dispatcher], [Notifier] and [TransferNotifier] are called on goroutines that make progress and must not
// block.
//
// # Limits
//
// A descriptor of this process has at most [wire.MaxSegments] segments. Payloads beyond one message are limited by
// [Config].MaxOverflow, each, and by [Config].OverflowBudget, all together. The memory of one grows with the bytes that come, and the pull
// ends if the peer does not serve the payload that it has announced. All bytes from a peer are checked before they are used: malformed
// messages are dropped, counted, and logged at a limited rate for each host.
package hg
