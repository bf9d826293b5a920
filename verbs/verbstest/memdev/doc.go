// Package memdev is an RDMA device for tests: its queue pairs live in one
// process and a work request is carried out during the post that makes it
// possible, so that a program which uses one goroutine sees the same
// completions in the same order every time.
//
// It stands below package verbs like any device:
//
//	dev := verbs.NewDevice(memdev.Open(memdev.Config{}))
//	defer dev.Close()
//
// It serves unit tests of layers above a device (the
// fault-injecting layer, protocols over verbs) without sockets, and as a second
// device beside the real ones that the conformance suite must accept.
//
// Queue pairs find each other through [Device.Listen] and [Device.Dial] of the
// same device; addresses are names only, no socket is opened. All seven
// operations of a reliable connection, send with invalidate and shared receive
// queues are there, with the statuses of InfiniBand: a write or a send
// completes when the peer has it.
//
// One mutex guards the whole device and every method is safe for concurrent
// use. There is no goroutine; the only timer is that of a sender that waits a
// finite time for a receiver. Payloads are copied once.
package memdev
