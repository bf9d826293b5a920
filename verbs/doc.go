// Package verbs is RDMA for Go programs: queue pairs, work requests and
// completions in the terms of libibverbs, connections in those of rdma_cm.
//
// The nouns:
//
//   - A [Device] comes from a package that implements one: verbs/iwarp needs no
//     hardware. [DeviceAttr] has its limits, and in Caps its abilities.
//   - A [PD] (protection domain) groups the objects that may work together.
//   - An [MR] (memory region) is memory that the device may use. Its lkey names
//     it in work requests here, its rkey lets the peer use it ([RemoteAddr]).
//     A [MemoryWindow] is a further key for a part of a region.
//   - A [QP] (queue pair) is one end of a connection. A [SendWR] asks it to send,
//     write, read or do an atomic operation, a [RecvWR] gives it room for a message.
//     An [SRQ] is a receive queue that several queue pairs share.
//   - A [CQ] (completion queue) collects a [WC] for each request that is done.
//   - [Dial], [Listen] and [Conn] connect queue pairs. Package verbs/rdmacm does it in
//     the manner of librdmacm, with event channels, identifiers and endpoints; package
//     verbs/oob does it over a plain socket, as ibv_rc_pingpong.
//
// A program that sends one message:
//
//	dev, err := iwarp.Open(iwarp.Config{})
//	pd, err := dev.AllocPD()
//	cq, err := dev.CreateCQ(16)
//	qp, err := pd.CreateQP(verbs.QPConfig{SendCQ: cq})
//	mr, err := pd.RegMR([]byte("hello"), 0)
//	conn, err := verbs.Dial(ctx, qp, addr, verbs.ConnParam{})
//	_, err = qp.PostSend([]verbs.SendWR{{
//		Op: verbs.OpSend, Flags: verbs.Signaled, SGL: []verbs.SGE{mr.SGE(0, mr.Len())},
//	}})
//	wc := make([]verbs.WC, 1)
//	_, err = cq.Wait(ctx, wc) // then wc[0].Err() reports failure
//	err = conn.Disconnect(ctx)
//	err = qp.Close()          // then mr, cq, pd, dev
//
// # Concurrency
//
// Everything is safe for concurrent use, as in libibverbs. Posting, polling and
// arming never block and never allocate, with two exceptions for memory windows. A
// post of OpBindMW may allocate, and on a device of rdma-core it may wait for a Close
// of a region or a window of the same domain. When the software device executes an
// OpLocalInv, it waits for an access by the key that is under way, which is one
// non-blocking system call. Requests of one queue are processed in
// the order in which they were posted; between queues there is no order. A
// completion, an event and a connection request go to exactly one of the
// goroutines that wait. A blocking call with an ended context still succeeds if
// it need not block. An object is closed after those that depend on it, or Close
// fails with [ErrBusy] and lists them; closing twice is harmless.
//
// # Memory
//
// The memory of a work request belongs to the device from the post to the
// completion (a request without a completion: to that of a later one on the same
// queue). Data written by a peer may be read only after the completion that says
// so. Slices that are registered with [PD.RegMR] are pinned and kept alive until
// [MR.Close]; memory of [PD.AllocMR] is outside the Go heap and gone after it.
// When Close of an MR or a QP returns, the device no longer accesses its memory.
//
// The race detector sees neither mapped memory nor the writes of another process.
// In builds with the race detector AllocMR uses pinned memory of the Go heap.
//
// # Limits
//
// An operation that a device does not have is refused with an error that matches
// [errors.ErrUnsupported]; a value over its limits with one that matches [ErrInvalid]
// and names the limit. Memory of other devices,
// multicast and flow steering are not part of this package.
package verbs
