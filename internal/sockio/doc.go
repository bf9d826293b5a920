// Package sockio reads and writes a TCP connection without blocking, with
// gathered buffers, next to Go's network poller.
//
// The nouns:
//
//   - A [Conn] stands on a [net.TCPConn], which it takes over.
//   - A try call ([Conn.TryReadv], [Conn.TryWritev]) moves the bytes that can be
//     moved now and returns [ErrWouldBlock] rather than wait. It allocates nothing.
//   - A waiter ([Conn.WaitRead], [Conn.WaitWrite]) is a goroutine parked in the
//     poller, which calls its ready function whenever trying may succeed. A
//     parked waiter does not hinder try calls of other goroutines, so one goroutine
//     may spin on a connection while another one is parked on it.
//
// A connection's background reader looks like this:
//
//	err := conn.WaitRead(func() bool {
//		progress.Lock()
//		defer progress.Unlock()
//		for {
//			switch n, err := conn.TryReadv(bufs); {
//			case errors.Is(err, sockio.ErrWouldBlock):
//				return false
//			case err != nil:
//				return true
//			default:
//				deliver(n)
//			}
//		}
//	})
//
// # Events and wake-ups
//
// A socket is watched only while a goroutine waits. While a goroutine spins on
// TryReadv, arriving data wakes no other goroutine or thread. For this reason the
// implementation for Linux keeps the socket out of Go's poller (see direct).
//
// Code that is to work everywhere takes events for edges that may have come before a call
// of WaitRead: each call of ready tries until [ErrWouldBlock]. If it cannot,
// because another goroutine holds the lock that guards trying, then after ready
// has returned that goroutine must try until ErrWouldBlock, or call [Conn.WakeRead].
// The usual shape is a flag: ready sets it before it attempts the lock, and
// the goroutine that releases the lock and finds the flag set clears it and calls WakeRead.
// On Linux a ready that returns false with something left to read is called
// again at once.
//
// # Two implementations
//
// On Linux ([Direct] is true) the try calls are single system calls on the
// socket, at most 64 buffers each, straight from and to the caller's memory. On
// other systems the bytes pass through a staging buffer of 64 KiB in each
// direction, which only a waiter fills and empties: TryReadv finds nothing unless
// a goroutine is, or was, in WaitRead, and TryWritev takes nothing unless one is
// in WaitWrite. Code that hands over to a waiter on ErrWouldBlock, and keeps one
// in WaitRead, works with both.
//
// # The race detector
//
// The kernel's reads and writes of the caller's memory are not shown to the race
// detector, unlike those of package net: a peer's access to exposed memory is
// concurrent by design. But a write happens before the read that receives it, as
// with package net, so that two ends in one process may order their own data by
// messages.
package sockio
