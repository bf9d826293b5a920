package arena_test

import (
	"errors"
	"fmt"
	"log"

	"cinnabar/regmem"
	"cinnabar/regmem/arena"
	"cinnabar/verbs"
	"cinnabar/verbs/iwarp"
)

// must ends the example on an error; programs return it.
func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

// open makes a protection domain on a device of its own.
func open() (pd *verbs.PD, end func()) {
	dev, err := iwarp.Open(iwarp.Config{})
	must(err)
	pd, err = dev.AllocPD()
	must(err)
	return pd, func() {
		must(pd.Close())
		must(dev.Close())
	}
}

// One registration serves blocks of any size, which are freed in any order.
// parity: S14
func Example() {
	pd, end := open()
	defer end()
	mr, err := pd.AllocMR(1<<20, verbs.LocalWrite)
	must(err)
	a, err := arena.New(arena.Config[*verbs.MR]{}, mr)
	must(err)

	small, err := a.Alloc(100)
	must(err)
	large, err := a.Alloc(100_000)
	must(err)
	copy(small.Bytes(), "a record")
	_ = large.Region().SGE(large.Offset(), large.Len()) // what a work request names

	must(small.Free())
	s := a.Stats()
	fmt.Printf("%d block of %d bytes takes %d; free memory is in %d pieces\n", s.Blocks, s.Requested, s.InUse, s.FreeChunks)
	must(large.Free())
	fmt.Println("a second free:", errors.Is(large.Free(), regmem.ErrDoubleFree))
	s = a.Stats()
	fmt.Printf("all freed: %d piece of %d bytes\n", s.FreeChunks, s.LargestFree)
	must(a.Close())
	must(mr.Close())
	// Output:
	// 1 block of 100000 bytes takes 100096; free memory is in 2 pieces
	// a second free: true
	// all freed: 1 piece of 1048576 bytes
}

// An arena that registers more memory when it has none left, up to a limit.
// parity: S14
func ExampleConfig() {
	pd, end := open()
	defer end()
	a, err := arena.New(arena.Config[*verbs.MR]{
		Grow:    func(size int) (*verbs.MR, error) { return pd.AllocMR(size, verbs.LocalWrite) },
		Release: (*verbs.MR).Close,
		GrowBy:  64 << 10,
		Limit:   1 << 20,
	})
	must(err)
	var blocks []regmem.Block[*verbs.MR]
	for range 5 {
		b, err := a.Alloc(30_000)
		must(err)
		blocks = append(blocks, b)
	}
	s := a.Stats()
	fmt.Printf("%d registrations for %d blocks\n", s.Regions, s.Blocks)
	for _, b := range blocks {
		must(b.Free())
	}
	freed, err := a.Trim()
	fmt.Println(freed == s.Size, err)
	must(a.Close())
	// Output:
	// 2 registrations for 5 blocks
	// true <nil>
}
