// Package kill shows that no death of a process leaves half a file behind.
//
// Its test runs a sender and a receiver of package xfer as processes, over a
// device that counts their steps: each call that posts work, each completion,
// each access to a file. At the k-th of these steps the process kills itself, or
// stops itself for good, as if the machine had decided so. The other side must
// notice within its timeout; nothing incomplete may stand under the file's name; and
// the next transfer must succeed.
//
//	go test ./test/kill                                 a few steps
//	CINNABAR_KILL_RUNS=200 go test -v ./test/kill       every step, and 200 runs at least
//
// It needs signals, so it runs on Unix. There is no other code here.
package kill
