// Package regmem defines the types that all packages for registered memory share. Registered memory is memory that a network
// device knows, so that peers, or the device itself, may read and write it in place.
//
// Registration costs far more than the use of the memory (the slides "Understanding RDMA Programming", part on memory
// registration), so programs register large regions once and hand out pieces of them:
//
//   - A [Region] is a registration: a *verbs.MR, or a type of the program for other kinds of memory.
//   - A [Block] is a piece of a region that its caller owns until Free.
//   - An [Allocator] hands out blocks. Packages arena (any size, any order) and ring (first in, first out) have one each,
//     and a program's own memory manager is another: it calls [NewBlock].
//   - A [Buffer] is a bytes.Buffer in a block: the bytes written to it can be sent without a copy.
//   - Package pool lends whole buffers of one size, which may be anything with a Close: *verbs.MR, *cinnabar.Bulk.
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
// Blocks are values. A freed block may belong to another caller at once: free it when the device and all peers are done
// with it, which only the program can know. Everything here but Buffer is safe for concurrent use.
package regmem
