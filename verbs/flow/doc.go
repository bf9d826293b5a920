// Package flow sends records between the two ends of a queue pair, as fast as the reader takes them and no faster: the
// flow control that RDMA leaves to programs (the slides "Understanding RDMA Programming", on flow control, the ring buffer
// and how a receiver learns of completion).
//
//	l, err := flow.Listen(dev, addr, flow.Config{})
//	c, err := l.Accept(ctx)          // one end
//	c, err := flow.Dial(ctx, dev, addr, flow.Config{}) // the other
//	err = c.Send(ctx, record)        // waits while the reader has no room
//	r, err := c.Recv(ctx)            // io.EOF after the peer's CloseWrite
//	use(r.Bytes())                   // in place, where the device has put it
//	err = r.Release()                // gives the room back
//
// # Protocol
//
// Each end exposes a ring of memory for the peer to write into, and posts a receive for every record that it lets the peer
// have under way, and some for control. A record is one of:
//
//	short   SEND   header, payload            lands in the receive's buffer
//	long    WRITE  payload                    lands in the ring, where the sender's Layout says
//	        SEND   header                     tells that it is there: it is delivered after the write
//
// so a receiver never polls, and never has a message without a receive (no RNR). Both kinds count against the window:
// records and bytes not yet released. The header is 24 bytes, numbers in network byte order:
//
//	+------+-------+----------+--------+--------+---------+-------+-----+
//	| kind | flags | 0        | length | offset | granted | known | seq |
//	|  1   |  1    |  2       |  4     |  4     |  4      |  4    |  4  |
//	+------+-------+----------+--------+--------+---------+-------+-----+
//
// granted is how many of the peer's records have been released in all, so every record that goes the other way brings a
// grant along. If there is none, the sender asks: with a flag on a record when half of its window is used ("soon"), or by
// a control message when it must wait ("now"). Each question is answered once, when there is something to tell that the
// asker did not know (known). Questions and answers have receives of their own, so that they get through when both
// windows are used up: there is no deadlock at zero.
//
// Rings, windows and keys are exchanged in the private data of the connection (28 bytes).
//
// # A peer that has vanished
//
// A device notices the end of a connection, but not that a host has vanished on a connection over which nothing is sent.
// With Config.KeepAlive a connection over which nothing comes has the peer's device answer a read of one byte now
// and then, and ends with [ErrSilent] if there is no answer.
//
// # Cost
//
// Sending, receiving and releasing a record allocates nothing on the Go heap in steady state.
//
// # Concurrency
//
// All methods are safe for concurrent use. Records of concurrent senders are not mixed; those who wait are served in the
// order in which they came. Each connection has one goroutine until Close, and with Config.KeepAlive one more, or two while
// the peer's device is asked.
package flow
