package ring_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"cinnabar/regmem"
	"cinnabar/regmem/ring"
)

// region is a registration in the example; a *verbs.MR is one.
type region []byte

func (r region) Bytes() []byte { return r }

// Blocks follow each other, and the memory comes back in their order, in which messages are sent. Who finds the ring full
// waits.
// parity: S13
func Example() {
	r, err := ring.New(make(region, 4096+64))
	if err != nil {
		log.Fatal(err)
	}
	a, _ := r.Alloc(2000)
	b, _ := r.Alloc(2000)
	_, err = r.Alloc(2000)
	fmt.Println("full:", errors.Is(err, regmem.ErrFull))

	_ = b.Free() // in any order, but the memory of b comes back behind that of a
	s := r.Stats()
	fmt.Printf("%d of %d bytes in use, %d of them held behind a block\n", s.InUse, s.Size, s.Held)

	third := make(chan int)
	go func() {
		c, err := r.AllocContext(context.Background(), 2000) // waits for a
		if err != nil {
			log.Fatal(err)
		}
		third <- c.Len()
		_ = c.Free()
	}()
	_ = a.Free()
	fmt.Println(<-third, "bytes more")
	// Output:
	// full: true
	// 4096 of 4160 bytes in use, 2048 of them held behind a block
	// 2000 bytes more
}
