// Package invariants says whether this build checks its own invariants, and whether it has the race detector ([Race]).
//
// A build with the tag `invariants` sets Enabled; every other build leaves it false, and the compiler then drops
// the checks and what they compute:
//
//	if invariants.Enabled && q.head-q.tail > q.depth {
//		panic("send queue holds more than its depth")
//	}
//
// A check guards a belief about our own code and may panic. What a peer sent or a caller passed is checked in
// every build and answered with an error.
package invariants
