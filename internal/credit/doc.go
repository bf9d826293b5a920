// Package credit is the flow control of a receiver that lends a fixed number of
// buffers to a sender, who fills them in turn: the several buffers "in a
// round-robin fashion" of section 4.2 of Bedeir's Basic Flow Control for RDMA
// Transfers (2013).
//
// The two sides keep one half each:
//
//   - [Window] is the sender's. Take lends the next buffer, if one is free;
//     Grant counts those that the receiver has given back.
//
//   - [Ledger] is the receiver's. Arrive checks that what a sender announces is
//     the next chunk and that its buffer is free; Release gives a buffer back, and
//     returns the number that Grant wants.
//
//     w := credit.New(4)
//     for slot, ok := w.Take(); ok; slot, ok = w.Take() {
//     write(slot) // 0, 1, 2, 3
//     }
//     err := w.Grant(1) // the first buffer is free again: Take returns 0 next
//
// A grant is the count of all buffers ever given back, not an increment, so that
// one that is repeated or overtaken does no harm. Buffers are given back in the order
// in which they were lent: the count stands still until the oldest is free.
//
// Both halves are plain state: no goroutine, no clock, no input or output. They
// are not safe for concurrent use. What a peer says is checked: an
// error means that the peer broke the rules, and leaves the state as it was.
package credit
