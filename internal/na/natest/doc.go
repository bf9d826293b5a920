// Package natest is a network in memory, for tests of packages that use [na.Endpoint].
//
//	n := natest.New(natest.Config{Seed: 1, Delay: time.Millisecond})
//	server := n.Open(handler)
//	client := n.Open(nil)
//
// It behaves as real networks do: operations complete later and on other goroutines, messages to one peer arrive in
// order and those to different peers in any order, connections are lost, peers die, transfers stop in the middle, memory
// is checked. The order of the steps is drawn from the seed. A hook ([Config].Fault) sees each step and may interfere.
//
// # Progress
//
// One goroutine does one step after the other while there are any, and ends when there are none. It waits with timers
// only, so a network can be used inside a bubble of testing/synctest. With [Config].Direct there is no such goroutine:
// each operation happens within the call that starts it, so that its completion runs before that call returns. There are
// no delays then.
//
// # Strictness
//
// A message is read from its buffer at the moment when its sending completes, not before, so that a buffer that is used
// too early shows. A handle or address has the size and layout of Mercury's over ofi+tcp.
//
// All methods are safe for concurrent use.
package natest
