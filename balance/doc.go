// Package balance distributes the native calls of a client over several servers.
//
// A [Resolver] lists the servers: [Static], [DNS], [SRV], [GroupFile], a type of the modules cinnabar/balance/etcd and cinnabar/balance/kubernetes, or one of the program. A [Client] watches the health of each of them
// ([cinnabar/native.Health]) and sends a call to one that is serving, by a [Policy]:
//
//	c, err := balance.New(engine, &balance.Config{
//		Resolver: balance.DNS{Protocol: "ofi+tcp", Host: "store.example", Port: 4321},
//		Policy:   balance.LeastLoaded,
//	})
//	out, err := balance.Call(ctx, c, Add, AddIn{X: 1, Y: 2})
//
// [Call] sends a call again, to another server, if the first server has refused it before a handler has begun, because it is draining or overloaded.
// Only an RPC that is declared with [cinnabar/native.Idempotent] is also sent again after a failure that leaves open whether a handler has run, and
// only such an RPC is hedged: sent to a second server when the first one takes long. A budget bounds the repeated calls to a part of all calls, because
// clients that repeat every call multiply the load of servers that are overloaded.
//
// A program that opens streams, or calls with options, asks for one server by [Client.Pick].
//
// All functions and methods are safe for concurrent use.
package balance
