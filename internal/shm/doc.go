// Package shm is memory that several processes share: mapped files, atomic access to the words in them, and the few
// system calls by which processes that share memory wake each other.
//
// The nouns:
//
//   - A [Region] is a file mapped into memory ([Create], [Open]), or memory of this process alone that is laid out like
//     one ([Private]).
//   - [Uint32] and [Uint64] are the words of a region as typed atomics.
//   - A guard ([Region.Guard], [Region.Recover]) turns the fault of an access to a file that another program has truncated
//     into an error.
//   - A [Doorbell] adds to an eventfd. [Pause] is the processor's instruction for loops that wait for memory to change.
//
// A reader of a word that a peer writes:
//
//	func (q *queue) next() (v uint64, err error) {
//		defer q.region.Recover(q.region.Guard(), &err)
//		tail := q.tail.Load() & q.mask // read once, and reduced to an index
//		...
//	}
//
// A peer can change any byte of a region at any moment to any value, so every value read from it is input from a peer. A
// reader loads it once into a variable, checks it, and uses the variable. It copies bytes out before it parses them.
//
// The methods of a Region are safe for concurrent use except Close. No goroutine may access its bytes or words during or
// after Close, so the caller of Close must know that none does.
//
// Limits: regions and bells exist on Linux only; elsewhere regions fail with [errors.ErrUnsupported]. The race detector
// does not see mapped memory; [Publish] and [Observe] pass it the order that the words establish.
package shm
