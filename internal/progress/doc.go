// Package progress decides which goroutine reads a connection, how long a goroutine that waits for a peer polls before it parks, and when
// it lets other threads and goroutines run meanwhile. It knows no transport: the goroutines look for messages themselves, and report each
// result.
//
// The nouns:
//
//   - A [Policy] holds the mode and the counters of one engine. All policies of a process share the price of a wake-up, the record
//     of yields, and the right to spin.
//   - A [Source] is one place that messages come from, such as a connection. It remembers whether spinning has paid there.
//   - A [Spin] is one wait on a source. It belongs to one goroutine and usually stands on that goroutine's stack.
//   - The price is the time from the signal to a parked goroutine until that goroutine runs.
//   - A driver is a goroutine that waits for a message and reads the connection itself. A [Claim] states that drivers read a connection.
//   - The background goroutine of a connection, or the poller of an engine, reads while no driver does. [Tasks] holds the handlers that it
//     runs.
//   - The [Watcher] ends claims that no driver uses, and replaces background goroutines that are in a task for long.
//
// # The reader
//
// One goroutine at a time reads a connection: it holds the read role. The role is an atomic flag or a lock of the transport and not of this
// package, because transports do different work when a goroutine gives the role back. A connection, or an engine, has a background goroutine
// until it ends. The states of that goroutine are below. Package ofitcp has all of them. The poller of sm does not rest, because it goes on
// to read the connections that no driver has claimed.
//
//	                      messages: Tasks.Offer, Watcher.Add
//	         +---------+ ----------------------------------> +---------+
//	         | active  |                                     | in task |
//	         | reads,  | <---------------------------------- | runs    | --+ Tasks.Next:
//	         | spins   |   Tasks.Next: no more               | tasks   | <-+ the next one
//	         +---------+                                     +---------+
//	no message |  ^  ^ |                                          | Tasks.Replace: the task takes two looks of the watcher,
//	during the |  |  | | a driver has the                         |   or it waits for the connection itself
//	spin       |  |  | | role or a claim                          | Tasks.Ended: the task calls runtime.Goexit
//	           v  |  | v                                          v
//	 +--------+   |  |  +---------+                          +----------+
//	 | parked | --+  +--| resting |                          | replaced | ends with its task; a goroutine of the next
//	 +--------+         +---------+                          +----------+ generation is active, with the other tasks
//	   messages wake it   the end of the claim,
//	   or a driver does   or of the role, wakes it
//
// A driver that comes while the background goroutine is active leaves the reading to it, unless nothing else is expected from the peer.
// Otherwise it takes the role:
//
//	          Claim.Drive                             its message, or the end of its spin
//	(waits) ---------------> has the role, reads  ---------------------------------------> gives the role back
//	             |           takes the claim, unless                                            |
//	             |           the background goroutine is                                        |  it has its message, and nothing
//	             |           in a task; Watcher.Add                                             |  else is expected from the peer
//	             v                                                                    +---------+---------+
//	      Tasks.Detach, if the background                                         yes |                   | no
//	      goroutine is in a task: the task may                                        v                   v
//	      be that of the driver, and the others                                  keeps the claim     Claim.End: the background
//	      would wait with it                                                     for its next call   goroutine reads again
//
// If a driver reads requests, it starts a goroutine for the task of each, because the driver must return to its caller. A driver that has
// not got its message parks. Before that it calls Tasks.Replace if the background goroutine is in a task, because no goroutine would read
// until the end of that task, and the task may be the driver itself.
//
//	                      Add                     Look: false, and Depends: false
//	(not in the list) -----------> in the list ------------------------------------> (not in the list)
//	                                 |      ^
//	                                 +------+ each WatchInterval: Look ends a claim without a driver for four looks, or one
//	                                          look if operations wait for the peer, and replaces a
//	                                          goroutine in the same task as at the last look
//
// The watcher bounds the time for which no goroutine reads a connection: two intervals after the last driver has left a claimed connection
// whose operations wait, or after a handler that does not return has begun, another goroutine reads. If no operation waits, five intervals pass before the
// claim ends. After a time of steady traffic three intervals more may pass, see below.
// The goroutine and the timer of the watcher exist only while its list is not empty, so an idle engine has neither.
//
// Each tick of that timer wakes a thread, which may take the processor of a spinning waiter; this happens at both ends of a connection. A
// spinning waiter of a source with [Source.Relieve] therefore does the work of the watcher: it looks at the objects when a look is due, and
// restarts the timer before it would expire. A restart is a system call that is dear on virtual machines, so waiters that have looked for
// some time set the timer to four intervals. After the last waiter has stopped, the timer expires at the end of that time at the latest, and
// then at each interval.
//
// The following orders of loads and stores make sure that no wake-up is lost:
//
//   - A background goroutine that begins to rest stores its state before it loads the claim and the role. Other goroutines release the role or
//     end the claim before they load that state, or they signal a channel of capacity 1 without loading it.
//   - Depends must return true before Add is called. The watcher removes the object from its list before it calls Depends.
//   - The background goroutine stores "in task" before the first call of Tasks.Next, and "active" after the last one. Tasks.Replace
//     succeeds only in between.
//
// # How long a waiter spins
//
// The time for which a waiter spins before it parks is its budget: twice the price. A wait therefore costs at most three prices (two for
// the spin, one for the wake-up), which is three times the cost of the best choice between spinning and parking. With a budget of one
// price the wait would cost at most twice the best choice. But a waiter must also spin for longer than a parked peer takes to wake up and
// to answer: if both sides of a connection parked, neither would answer within the other's spin, and both would park again at every
// message. The first Policy of a process measures the price on this machine, and wake-ups of parked goroutines correct it ([Policy.Woken]).
// The budget stays between 50 and 500 µs. Mode Latency has a constant budget of 10 ms, and mode Economy parks at once.
// Mode Balanced parks at once too where a reading of the clock takes longer than 1.5 µs, as under an emulator.
//
// While the kernel runs another thread on the waiter's processor, the waiter cannot look. Such a stall does not mean that the peer is slow.
// Spin therefore lengthens the spin by the duration of the stall, and does not count the spin as a miss.
//
//	            3 misses in a row
//	eager  ------------------------------>  resting
//	each wait   <------------------------   1, then 2, 4, 8, 16 waits park at once;
//	spins             a hit                 then one wait spins for two budgets (a probe);
//	                                        a probe that misses doubles the number
//
// A miss is a whole budget without a message and without a stall. A hit is a message during a spin, or a message within a budget
// and a price after the waiter has parked. In the second case the peer answered as soon as it was woken, so it would answer within a
// budget if both sides spun.
//
// If a waiter has parked after a usual spin and its message comes within a budget and a price, as the answer to a transfer of a megabyte may,
// the waits of that source spin for three budgets from then on, because each would otherwise pay for the spin and for the wake-up. This ends
// with the first such spin in vain.
//
// # Other threads and goroutines
//
// One goroutine of a process spins at a time, so that a process occupies no more than one processor by waiting. A driver gets the right to
// spin before the poller of an engine. While both ends of a connection are in the process ([Policy.AddPair]), two goroutines may spin, one
// for each end.
//
// A waiter that has looked in vain for a while yields its processor to other threads between looks: after 2 µs on memory, and after
// 20 µs on sockets, because a look there is a system call itself. The duration of a yield decides about later yields of the process:
//
//	a yield took      and                          then
//	at most 1 µs, or                               no thread waited for the processor
//	3 µs on sockets
//	longer            the next look found a        the peer shares the processor: waiters yield from
//	                  message                      the first look on, for 8 messages
//	over 2 ms                                      another program has used its time slice: no yields for
//	                                               50 ms, doubled up to 800 ms while that goes on
//
// If the process may use one processor only, because the machine has no other or because the process is bound to it, waiters yield from the first
// look on, and park at once while there are no yields. A peer on the same processor can then run too.
//
// Two threads that yield to each other may stay on one processor for tens of milliseconds while another one is idle. The kernel puts a thread
// that it wakes on an idle processor. After 16 messages in a row on a shared processor a waiter therefore parks once, unless the mode
// is Latency, or the waiter is a driver on a socket. If the peer still shares the processor afterwards, because no other processor is idle, the
// next waiter parks after 32 messages, and so on up to 512.
//
// A reader that has handed a request to another goroutine calls [Policy.HandOver] once, because that goroutine would otherwise run only
// after another processor has woken up. A spinning waiter calls [runtime.Gosched] only while as many goroutines spin as the process has
// threads for goroutines, because other goroutines could not run otherwise. It does not call it in other cases, because Go's scheduler would
// then wake a thread that looks for work, and that thread may run on the processor of the peer.
package progress
