// Package regmem has the words that everything about registered memory shares: memory that a network device has been
// told of, so that peers, or the device itself, may read and write it in place.
//
// Registration costs far more than the use of the memory (the slides "Understanding RDMA Programming", part on memory
// registration), so programs register large regions once and hand out pieces of them:
//
//   - A [Region] is a registration: a *verbs.MR, or or what a program makes of other kinds of memory.
//   - A [Block] is a piece of a region that somebody owns until Free.
//   - An [Allocator] hands out blocks. Packages arena (any size, any order) and ring (first in, first out) have one each,
//     and a program's own memory manager is another: it calls [NewBlock].
//   - A [Buffer] is what bytes.Buffer is, in a block: what is written to it can be sent without a copy.
//   - A [Cache] keeps registrations for reuse, for programs that cannot do with one large region.
//
// A program that builds its record in registered memory and sends it:
//
//	mr, err := pd.AllocMR(1<<20, 0)
//	a, err := arena.New(arena.Config[*verbs.MR]{}, mr)
//	b, err := a.Alloc(4096)
//	n := copy(b.Bytes(), "record")
//	_, err = qp.PostSend([]verbs.SendWR{{Op: verbs.OpSend, SGL: []verbs.SGE{b.Region().SGE(b.Offset(), n)}}})
//	// after the completion:
//	err = b.Free()
//
// Blocks are values. A block that is freed may be somebody else's at once: free it when the device and all peers are done
// with it, which only the program can know. Everything here but Buffer is safe for concurrent use.
package regmem
