// Package invariants reports whether this build checks its own invariants and whether it has the race detector ([Race]),
// and counts locks in a build that checks.
//
// A build with the tag `invariants` sets Enabled; every other build leaves it false, and the compiler then drops
// the checks and the values that only they use:
//
//	if invariants.Enabled && q.head-q.tail > q.depth {
//		panic("send queue holds more than its depth")
//	}
//
// A check guards a belief about our own code and may panic. Input from peers and callers is checked in
// every build and answered with an error.
//
// Packages on the path of an RPC declare their locks as [Mutex] and [RWMutex]. In a build with the tag these count how often they are
// acquired, so that a test can check the number of locks that one RPC takes. In every other build they are the types of package sync.
package invariants
