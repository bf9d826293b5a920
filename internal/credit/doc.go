// Package credit is the flow control between a sender of messages and a receiver that has room for a limited number of
// messages and bytes. xfer uses it for the several buffers of section 4.2 of Bedeir's Basic Flow Control for RDMA Transfers
// (2013), and verbs/flow for its records.
//
// Messages are numbered from 0. [SendWindow] is the sender's half: it reports whether the receiver has room for a message, and
// counts the messages that the receiver has released. [ReceiveWindow] is the receiver's half: it checks that the sender keeps
// to the limits, and counts the messages that the program has released.
//
//	      granted                    sent                 granted + messages
//	---------+-------------------------+-------------------------+---------
//	released |      outstanding        |  the sender may send    | no credit
//
// A message of any number lies at Slot(number), which is the number modulo the limit of messages: so a receiver with four
// buffers receives into buffers 0, 1, 2, 3, 0, ... A program may release messages in any order, but the count of released
// messages grows in the order of the numbers, because a slot has to be free before it is used again.
//
// A grant is that count, not an increment, because a grant that is repeated or overtaken by a later one then does no harm.
// Protocols that carry the low 32 bits of a number get the whole number from [Extend].
//
//	if w.Fits(n) {
//		seq := w.Send(n)
//		write(w.Slot(seq), p)
//	}
//	err := w.Grant(total) // from the receiver
//
// Both halves are plain state without goroutines, clocks and I/O. Their methods are not safe for concurrent use. Numbers, lengths
// and grants of the peer are checked; an error says which rule the peer has broken, and the window is unchanged.
package credit
