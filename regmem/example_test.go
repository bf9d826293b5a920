package regmem_test

import (
	"context"
	"fmt"
	"io"
	"log"
	"strings"
	"sync"

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

// A buffer takes what the program formats, reads or copies, and it lies where a device can send it from.
// parity: S15 S23
func ExampleBuffer() {
	pd, end := open()
	defer end()
	mr, err := pd.AllocMR(1<<16, 0)
	must(err)
	pool, err := arena.New(arena.Config[*verbs.MR]{}, mr)
	must(err)

	buf := regmem.NewBuffer[*verbs.MR](pool)
	must(buf.Grow(100)) // so that nothing is copied later
	_, err = fmt.Fprintf(buf, "temperature %d", 21)
	must(err)
	_, err = io.Copy(buf, strings.NewReader(" degrees"))
	must(err)

	block, n := buf.Take()
	sge := block.Region().SGE(block.Offset(), n) // what a work request names
	fmt.Printf("%q: %d bytes to send, %d copied\n", block.Bytes()[:n], sge.Length, buf.Copied())
	must(block.Free())
	must(pool.Close())
	must(mr.Close())
	// Output: "temperature 21 degrees": 22 bytes to send, 0 copied
}

// A cache registers a program's own buffers, each once.
// parity: S12
func ExampleCache() {
	pd, end := open()
	defer end()
	cache, err := regmem.NewCache(regmem.CacheConfig[*verbs.MR]{
		Register: func(b []byte) (*verbs.MR, error) { return pd.RegMR(b, 0) },
		Release:  (*verbs.MR).Close,
	})
	must(err)
	buffers := [][]byte{make([]byte, 4096), make([]byte, 4096)}
	for i := range 10_000 {
		use, err := cache.Acquire(buffers[i%2])
		must(err)
		_ = use.Region().SGE(use.Offset(), 4096) // to be sent
		must(use.Release())
	}
	s := cache.Stats()
	fmt.Printf("%d registrations, %d uses of them\n", s.Registrations, s.Registrations+s.Hits)
	must(cache.Close())
	// Output: 2 registrations, 10000 uses of them
}

// pages is a program's own memory manager, which hands out pages of a registered region.
type pages struct {
	source regmem.Source[*verbs.MR]

	mu   sync.Mutex
	free []int // offsets of pages
	used map[uint64]bool
	next uint64 // tag of the next block
}

const pageSize = 4096

func newPages(mr *verbs.MR) *pages {
	p := &pages{used: map[uint64]bool{}}
	p.source = regmem.Source[*verbs.MR]{Owner: p, Region: mr}
	for off := mr.Len() - pageSize; off >= 0; off -= pageSize {
		p.free = append(p.free, off)
	}
	return p
}

// Alloc implements [regmem.Allocator].
func (p *pages) Alloc(n int) (b regmem.Block[*verbs.MR], err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case n > pageSize:
		return b, regmem.ErrTooLarge
	case len(p.free) == 0:
		return b, regmem.ErrFull
	}
	off := p.free[len(p.free)-1]
	p.free = p.free[:len(p.free)-1]
	p.next++
	p.used[p.next] = true
	return regmem.NewBlock(&p.source, off, n, p.next), nil
}

// AllocContext implements [regmem.Allocator]. This manager cannot wait.
func (p *pages) AllocContext(_ context.Context, n int) (regmem.Block[*verbs.MR], error) {
	return p.Alloc(n)
}

// FreeBlock implements [regmem.Owner].
func (p *pages) FreeBlock(tag uint64, off, _ int) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.used[tag] {
		return regmem.ErrDoubleFree
	}
	delete(p.used, tag)
	p.free = append(p.free, off)
	return nil
}

// A program's own memory manager is an Allocator, and works with all that takes one.
// parity: S15
func ExampleAllocator() {
	pd, end := open()
	defer end()
	mr, err := pd.AllocMR(2*pageSize, 0)
	must(err)
	var own regmem.Allocator[*verbs.MR] = newPages(mr)

	buf := regmem.NewBuffer(own)
	_, err = buf.WriteString("in a page of the program's")
	must(err)
	block, n := buf.Take()
	fmt.Printf("%q at offset %d\n", block.Bytes()[:n], block.Offset())
	fmt.Println(block.Free(), block.Free())
	must(mr.Close())
	// Output:
	// "in a page of the program's" at offset 0
	// <nil> the block is free already
}
