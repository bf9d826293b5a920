// Command 09_ring_buffer sends messages out of one registered region that is used as a ring. It is lesson 9 of the course.
package main

import (
	"context"
	"errors"
	"fmt"

	"cinnabar/examples/course/internal/lab"
	"cinnabar/regmem"
	"cinnabar/regmem/ring"
	"cinnabar/verbs"
	"cinnabar/verbs/iwarp"
)

func main() { lab.Run(iwarp.Config{}, lesson) }

func lesson(ctx context.Context, l *lab.Lab) {
	client, server := l.Pair(ctx)
	sizes := []int{100, 60, 60, 100, 60}
	for id := range sizes {
		lab.Check(server.Receive(uint64(id+1), lab.Must(server.Alloc(128, verbs.LocalWrite))))
	}

	// One registration serves all messages.
	memory := lab.Must(client.Alloc(256, 0))
	r := lab.Must(ring.New(memory))
	var onTheirWay []regmem.Block[*verbs.MR]
	for i, size := range sizes {
		b, err := r.Alloc(size)
		for errors.Is(err, regmem.ErrFull) {
			// The completion of the oldest message says that its memory is free.
			wc := lab.Must(client.Wait(ctx))
			lab.Check(onTheirWay[0].Free())
			onTheirWay = onTheirWay[1:]
			fmt.Printf("the ring is full: message %d is done, and its block is free\n", wc.ID)
			b, err = r.Alloc(size)
		}
		lab.Check(err)
		fmt.Printf("message %d: %3d bytes at offset %3d\n", i+1, size, b.Offset())
		copy(b.Bytes(), "the program makes the message in registered memory, where the device takes it")
		lab.Check(client.Send(verbs.SendWR{
			ID: uint64(i + 1), Op: verbs.OpSend, Flags: verbs.Signaled, SGL: []verbs.SGE{b.Region().SGE(b.Offset(), b.Len())},
		}))
		onTheirWay = append(onTheirWay, b)
	}
	fmt.Printf("the ring: %d bytes, %d blocks in use, %d wrap\n", r.Size(), r.Stats().Blocks, r.Stats().Wraps)
}
