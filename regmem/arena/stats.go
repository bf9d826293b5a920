package arena

import (
	"bufio"
	"fmt"
	"io"
	"math/bits"
)

// Stats describes the use of an arena's memory. Sizes are in bytes.
type Stats struct {
	Regions     int    // registrations
	Size        int64  // of all regions, in whole units
	InUse       int64  // in blocks, rounded up to whole units
	Requested   int64  // asked for in these blocks; InUse-Requested is lost to rounding
	Peak        int64  // the most that InUse was
	Blocks      int    // blocks in use
	FreeChunks  int    // pieces that the free memory is in
	LargestFree int64  // the largest of them
	Waiting     int    // goroutines in AllocContext
	Allocs      uint64 // blocks handed out
	Frees       uint64 // blocks taken back
	Failed      uint64 // requests refused for want of memory
	Bins        []Bin  // by size, without empty ones
}

// Bin counts the chunks of one range of sizes.
type Bin struct {
	Least      int64 // smallest size of the bin in bytes, a power of two; the next bin begins at its double
	Free, Used int   // chunks
	FreeBytes  int64
	UsedBytes  int64
}

// Fragmentation is how much of the free memory is not in its largest piece: 0 if it is in one piece or there is none,
// close to 1 if it is scattered.
func (s *Stats) Fragmentation() float64 {
	all := s.Size - s.InUse
	if all == 0 {
		return 0
	}
	return 1 - float64(s.LargestFree)/float64(all)
}

// Stats looks at all chunks, so it takes longer the more there are.
func (a *Arena[R]) Stats() Stats {
	c := &a.core
	c.mu.Lock()
	defer c.mu.Unlock()
	c.coolLocked()
	c.heap.settle()
	s := Stats{
		Size: c.heap.total << unitShift, InUse: c.heap.used << unitShift, Requested: c.requested, Peak: c.peak << unitShift,
		Allocs: c.allocs, Frees: c.frees, Failed: c.failed, Waiting: c.waiters.Len(),
	}
	for i := range c.regions {
		if c.regions[i].size > 0 {
			s.Regions++
		}
	}
	var bins [32]Bin
	for i := range c.heap.chunks {
		s.count(&c.heap.chunks[i], &bins)
	}
	for i := range bins {
		if b := bins[i]; b.Free+b.Used > 0 {
			b.Least = 1 << (i + unitShift)
			s.Bins = append(s.Bins, b)
		}
	}
	return s
}

func (s *Stats) count(c *chunk, bins *[32]Bin) {
	size := int64(c.size) << unitShift
	switch c.state {
	case unused, warm: // there is no warm one now
	case free:
		b := &bins[bits.Len32(uint32(c.size))-1]
		b.Free++
		b.FreeBytes += size
		s.FreeChunks++
		s.LargestFree = max(s.LargestFree, size)
	case inUse:
		b := &bins[bits.Len32(uint32(c.size))-1]
		b.Used++
		b.UsedBytes += size
		s.Blocks++
	}
}

// String is a summary in one line.
func (s *Stats) String() string {
	return fmt.Sprintf("%d regions, %d bytes, %d in use in %d blocks (%d asked for), %d free in %d pieces, the largest %d, fragmentation %.2f",
		s.Regions, s.Size, s.InUse, s.Blocks, s.Requested, s.Size-s.InUse, s.FreeChunks, s.LargestFree, s.Fragmentation())
}

// Dump writes the summary, the bins, and all chunks in the order of memory, a line each, for people.
func (a *Arena[R]) Dump(w io.Writer) error {
	s := a.Stats()
	out := bufio.NewWriter(w)
	_, _ = fmt.Fprintln(out, s.String()) // Flush returns the first error of these writes
	for _, b := range s.Bins {
		_, _ = fmt.Fprintf(out, "chunks from %d bytes: %d in use (%d bytes), %d free (%d bytes)\n", b.Least, b.Used, b.UsedBytes, b.Free, b.FreeBytes)
	}
	for _, c := range a.snapshot() {
		use := "free"
		if c.state == inUse {
			use = fmt.Sprintf("in use, %d asked for", c.asked)
		}
		_, _ = fmt.Fprintf(out, "region %d at %d: %d bytes %s\n", c.region, int64(c.at)<<unitShift, int64(c.size)<<unitShift, use)
	}
	return out.Flush()
}

// snapshot is a copy of the chunks in the order of memory.
func (a *Arena[R]) snapshot() []chunk {
	c := &a.core
	c.mu.Lock()
	defer c.mu.Unlock()
	c.coolLocked()
	c.heap.settle()
	firsts := make([]int32, len(c.regions))
	for i := range firsts {
		firsts[i] = none
	}
	for i := range c.heap.chunks {
		if k := &c.heap.chunks[i]; k.state != unused && k.prev == none {
			firsts[k.region] = int32(i)
		}
	}
	var list []chunk
	for _, i := range firsts {
		for ; i != none; i = c.heap.chunks[i].next {
			list = append(list, c.heap.chunks[i])
		}
	}
	return list
}
