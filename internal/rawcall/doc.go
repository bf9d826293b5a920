// Package rawcall makes system calls that return at once, without telling Go's scheduler. All functions are for Linux.
//
// In an ordinary system call Go's syscall package tells the scheduler that the calling thread may sleep in the kernel. If the process was idle before, because all its goroutines were
// parked, the first such call wakes the monitoring thread of Go's runtime, which then wakes every 20 µs while the process stays busy, and less and less often
// after a millisecond. A goroutine that was parked until a message came makes some system calls before it handles the message. With ordinary calls each message
// would wake the monitoring thread, and this thread would take the processor of a waiter that spins. A wake-up takes 50 µs on some machines, which is most of the time of a call there.
// ADR 0064 has the figures.
//
// Other goroutines cannot use the calling thread during a raw call, and the garbage collector waits for the end of the call. So a call must not wait
// in the kernel: descriptors are non-blocking, and buffers are small.
package rawcall
