// Package progress decides how long a goroutine that waits for a peer polls before it parks, and when it lets other threads and
// goroutines run meanwhile. It knows no transport: the waiter looks for messages itself, and reports each result.
//
// The nouns:
//
//   - A [Policy] holds the mode and the counters of one engine. All policies of a process share the price of a wake-up, the record
//     of yields, and the right to spin.
//   - A [Source] is one place that messages come from, such as a connection. It remembers whether spinning has paid there.
//   - A [Spin] is one wait on a source. It belongs to one goroutine and usually stands on that goroutine's stack.
//   - The price is the time from the signal to a parked goroutine until that goroutine runs.
//
// # How long a waiter spins
//
// The time for which a waiter spins before it parks is its budget: twice the price. A wait therefore costs at most three prices (two for
// the spin, one for the wake-up), which is three times the cost of the best choice between spinning and parking. One price would
// bound it by two times, but a waiter must also outlast a peer that has to be woken: if both sides of a connection parked, neither would
// answer within the other's spin, and both would park again at every message. The first Policy of a process measures the price on this
// machine, and wake-ups of parked goroutines correct it ([Policy.Woken]). The budget stays between 50 and 500 µs. Mode Latency has a
// constant budget of 10 ms, and mode Economy parks at once.
//
// If the kernel runs another thread on the waiter's processor, the waiter cannot look for that time. Such a stall says nothing about
// the peer. Spin therefore lengthens the spin by the stall, and does not count it as a miss.
//
//	            3 misses in a row
//	eager  ------------------------------>  resting
//	each wait   <------------------------   1, then 2, 4, 8, 16 waits park at once;
//	spins             a hit                 then one wait spins for two budgets (a probe);
//	                                        a vain probe doubles the number
//
// A miss is a whole budget without a message and without a stall. A hit is a message during a spin, or a message within a budget
// and a price after the waiter has parked. In the second case the peer answered as soon as it was woken, so it would answer within a
// budget if both sides spun.
//
// # Other threads and goroutines
//
// One goroutine of a process spins at a time, so that a process occupies no more than one processor by waiting. A driver, which is a
// waiter that reads the connection for its own call, comes before the poller of an engine. While both ends of a connection of na+sm are
// in the process ([Policy.AddPair]), two goroutines may spin, one for each end.
//
// A waiter that has looked in vain for a while yields its processor to other threads between looks: after 2 µs on memory, and after
// 20 µs on sockets, because a look there is a system call itself. The duration of a yield decides about later yields of the process:
//
//	a yield took      and                          then
//	at most 1 µs                                   no thread waited for the processor
//	over 1 µs         the next look found a        the peer shares the processor: waiters yield from
//	                  message                      the first look on, for 8 messages
//	over 2 ms                                      another program has used its time slice: no yields for
//	                                               50 ms, doubled up to 800 ms while that goes on
//
// A reader that has handed a request to another goroutine calls [Policy.HandOver] once, because that goroutine would otherwise run only
// after another processor was woken. A spinning waiter does not call [runtime.Gosched] by itself, unless the process has only one
// thread for goroutines: the scheduler would wake a thread to look for work on the processor of the peer.
package progress
