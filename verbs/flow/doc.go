// Package flow sends records between the two ends of a queue pair, as fast as the reader receives them and no faster: the
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
//	        SEND   header                     announces it, because it is delivered after the write
//
// so a receiver never polls, and never has a message without a receive (no RNR). Both kinds count against the window:
// records and bytes not yet released. The header is 24 bytes, numbers in network byte order:
//
//	+------+-------+----------+--------+--------+---------+-------+-----+
//	| kind | flags | 0        | length | offset | granted | known | seq |
//	|  1   |  1    |  2       |  4     |  4     |  4      |  4    |  4  |
//	+------+-------+----------+--------+--------+---------+-------+-----+
//
// granted is the number of the peer's records that have been released in all, so every record of the other direction carries a
// grant. Without such records the sender requests one: with a flag of a record when half of its window is used ("soon"), or with
// a control message when a record must wait ("now"). Each request is answered once, when there is a grant that the sender
// did not know when it sent the request (known). Requests and answers have receives of their own, because they must be delivered
// when both windows are used up: so no deadlock is possible without credit.
//
// Rings, windows and keys are exchanged in the private data of the connection (28 bytes).
//
// # A peer that has vanished
//
// A device notices the end of a connection, but not that a host has vanished if nothing is sent on the connection.
// With Config.KeepAlive a connection that receives nothing reads one byte of the peer's ring now and then, and ends with
// [ErrSilent] if the peer's device does not answer.
//
// # Cost
//
// Sending, receiving and releasing a record allocates nothing on the Go heap in steady state.
//
// A connection that has used more than 32 KiB of its ring and of the memory of its receives gives the pages of both back to the system
// when no record has come or gone for half a second and the program has released all records. The regions and the peer's window
// stay as they are, and the next records take memory again. Devices that pin memory, and all devices on systems other than Linux, keep the pages
// ([verbs.QP.GivePages]). The limit Config.MaxMemory counts the memory in any case, because the peer may use it at any time. Send
// frees the memory for its copies of long records after half a second without a long record, too. With the pages the connection frees the
// memory by which traffic has made its queues grow, also those of the software device.
//
// # Concurrency
//
// All methods are safe for concurrent use. Records of concurrent senders are not mixed; calls that wait are served in the
// order in which they began to wait. Each connection has one goroutine until Close, and with Config.KeepAlive one more, or two while
// the peer's device is asked. That goroutine processes completions while no caller waits. A caller that waits processes them itself, so
// that the message which it waits for wakes no other goroutine.
package flow
