// Package bench holds the benchmarks that set the library beside its
// yardsticks, in one run on one machine: RDMA writes and send/receive
// ping-pong of the software device, and files by package xfer, beside the same
// work over a plain TCP connection. It has no code of its own; results/ keeps
// recorded runs.
//
//	bench/run > bench/results/NAME.txt
//
// The two ends of every pair are two processes, as in use: the test binary
// starts itself as the peer.
package bench
