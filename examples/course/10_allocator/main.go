// Command 10_allocator allocates registered memory by best fit, here and on another machine. It is lesson 10 of the course.
package main

import (
	"context"
	"fmt"

	"cinnabar/examples/course/internal/lab"
	"cinnabar/regmem"
	"cinnabar/regmem/arena"
	"cinnabar/rmem"
	"cinnabar/rmem/verbsrmem"
	"cinnabar/verbs"
	"cinnabar/verbs/iwarp"
)

func main() { lab.Run(iwarp.Config{}, lesson) }

func lesson(ctx context.Context, l *lab.Lab) {
	// Blocks of any size, freed in any order, of one registered region.
	pd := lab.Must(l.Client.AllocPD())
	defer pd.Close()
	memory := lab.Must(pd.AllocMR(4096, 0))
	defer memory.Close()
	a := lab.Must(arena.New(arena.Config[*verbs.MR]{}, memory))
	var blocks []regmem.Block[*verbs.MR]
	for _, size := range []int{1000, 200, 500, 200} {
		blocks = append(blocks, lab.Must(a.Alloc(size)))
	}
	lab.Check(blocks[0].Free())
	lab.Check(blocks[2].Free())
	show(a, "two blocks are freed")
	b := lab.Must(a.Alloc(400))
	fmt.Printf("the smallest free chunk that has room for 400 bytes is at offset %d\n", b.Offset())
	for _, b := range []regmem.Block[*verbs.MR]{b, blocks[1], blocks[3]} {
		lab.Check(b.Free())
	}
	show(a, "all blocks are freed")

	// remote_malloc: the same on another machine. The server lends memory, and its program takes no part in reads and writes.
	s := lab.Must(verbsrmem.Listen(l.Server, lab.Loopback, rmem.Config{Quota: 1 << 20}))
	defer s.Close()
	c := lab.Must(verbsrmem.Dial(ctx, l.Client, lab.Must(l.Via(s.Addr()))))
	defer c.Close()
	far := lab.Must(c.Alloc(ctx, 4096))
	lab.Must(far.WriteAt([]byte("far away"), 100))
	text := make([]byte, 8)
	lab.Must(far.ReadAt(text, 100))
	fmt.Printf("the server lends %d bytes, and byte 100 and the following ones are %q\n", s.Stats().Used, text)
	lab.Check(far.Free(ctx))
	fmt.Printf("the server lends %d bytes\n", s.Stats().Used)
}

func show(a *arena.Arena[*verbs.MR], event string) {
	s := a.Stats()
	fmt.Printf("%s; free chunks: %d, bytes of the largest: %d\n", event, s.FreeChunks, s.LargestFree)
}
