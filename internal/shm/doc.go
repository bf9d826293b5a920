// Package shm is memory that several processes share: mapped files, atomic access to the words in them, and the few
// system calls by which processes that share memory wake each other.
//
// The nouns:
//
//   - A [Region] is a file mapped into memory ([Create], [Open]), or memory of this process alone that is laid out like
//     one ([Private]).
//   - [Uint32] and [Uint64] are the words of a region as typed atomics.
//   - A guard ([Region.Guard], [Region.Recover]) turns the fault of touching a file that somebody has truncated into an
//     error.
//   - [Signal] adds to an eventfd, [Pause] tells the processor that somebody spins.
//
// A reader of a word that a peer writes:
//
//	func (q *queue) next() (v uint64, err error) {
//		defer q.region.Recover(q.region.Guard(), &err)
//		tail := q.tail.Load() & q.mask // read once, and made an index whatever the peer has written
//		...
//	}
//
// Whatever lies in a region may change at any moment to anything: what is read from it is a peer's input. It is read
// once into a variable, checked, and the variable is used. Bytes are copied out before they are parsed.
//
// A Region's methods are safe for concurrent use but for Close, after which neither its bytes nor its words may be
// touched: who closes it must know that nobody does.
//
// Limits: regions and Signal exist on Linux only; elsewhere they fail with [errors.ErrUnsupported]. The race detector
// does not see mapped memory; [Publish] and [Observe] tell it of the order that words make.
package shm
