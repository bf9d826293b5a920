package progress

import (
	"io"
	"math"
	"os"
	"slices"
	"sync"
	"time"
)

const (
	// initialPrice is the price of a wake-up until it is measured.
	initialPrice = 100 * time.Microsecond
	// Limits of the budget. If the price is above half of mostBudget, the machine has no free processor for the woken thread, and a
	// longer spin would take one more from it.
	leastBudget = 50 * time.Microsecond
	mostBudget  = 500 * time.Microsecond
	// leastPrice is the shortest sample that counts. A goroutine that runs sooner after its signal ran on the thread of the waker, which
	// had parked, so no thread was woken.
	leastPrice = 5 * time.Microsecond
	// priceSamples is the number of latest samples that the price comes from.
	priceSamples = 32
)

// price is the ninth decile of the latest samples: nine of ten wake-ups are not longer.
type price struct {
	mu sync.Mutex
	// +checklocks:mu
	samples [priceSamples]int64
	// sorted has the latest samples in their order of size, because many calls in flight wake a goroutine each.
	// +checklocks:mu
	sorted [priceSamples]int64
	// +checklocks:mu
	count int // of all samples so far
}

// add adds a sample, in nanoseconds.
func (p *process) add(d int64) {
	if d < int64(leastPrice) {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	n, at := min(p.count, priceSamples), p.count%priceSamples
	if n == priceSamples { // the oldest sample leaves
		i, _ := slices.BinarySearch(p.sorted[:n], p.samples[at])
		n--
		copy(p.sorted[i:n], p.sorted[i+1:])
	}
	i, _ := slices.BinarySearch(p.sorted[:n], d)
	copy(p.sorted[i+1:], p.sorted[i:n])
	p.sorted[i] = d
	n++
	p.samples[at] = d
	p.count++
	p.setPrice(time.Duration(p.sorted[(n-1)*9/10]))
}

func (p *process) setPrice(d time.Duration) {
	p.budget.Store(int64(min(max(2*d, leastBudget), mostBudget)))
}

const (
	clockReads  = 16 // number of readings of the clock in a row that measure their price
	clockRounds = 4  // number of such rows; the shortest counts, because another thread may have the processor for a part of the others
	// dearClock is the price of a reading of the clock above which waiters do not spin in mode Balanced, because a spin would consist of readings.
	// A reading takes 20 to 50 ns on most machines, about a microsecond with the clock of a chip set, and many microseconds under an emulator.
	dearClock = 1500 * time.Nanosecond
)

// measureClock measures the price of a reading of the clock.
func (p *process) measureClock() {
	shortest := int64(math.MaxInt64)
	for range clockRounds {
		begin := p.now()
		end := begin
		for range clockReads {
			end = p.now()
		}
		shortest = min(shortest, end-begin)
	}
	p.dearClock.Store(shortest > clockReads*int64(dearClock))
}

const (
	probes       = 16                    // number of wake-ups that measure times
	probeIdle    = 60 * time.Microsecond // time that the sleeper has for parking, so that its processor becomes idle
	measureLimit = 5 * time.Millisecond  // of all probes together
	// probeLooks bounds each loop of a probe, where the clock may stand still. It takes longer than measureLimit.
	probeLooks = 1 << 18
)

// measure measures the price of a wake-up: a goroutine that parks in Go's poller is woken by bytes, as by those of a peer, while the
// waker keeps its own processor.
func (p *process) measure() {
	if p.threads() == 1 {
		return
	}
	p.measureClock()
	r, w, err := os.Pipe()
	if err != nil {
		return // the initial price stays
	}
	awake := make(chan int64, probes)
	var sleeper sync.WaitGroup
	sleeper.Go(func() {
		var b [1]byte
		for {
			if _, err := io.ReadFull(r, b[:]); err != nil {
				return
			}
			hook.late()
			awake <- p.now()
		}
	})
	end := p.now() + int64(measureLimit)
	for range probes {
		if !p.probe(w, awake, end) {
			break
		}
	}
	_ = w.Close() // ends the sleeper
	sleeper.Wait()
	_ = r.Close() // nothing is left to read
}

// probe wakes the sleeper once, and adds the sample. It returns false if there was no time for it before end.
func (p *process) probe(w io.Writer, awake <-chan int64, end int64) bool {
	start := p.now()
	for i := 0; p.now()-start < int64(probeIdle); i++ {
		if i == probeLooks {
			return false
		}
	}
	rang := p.now()
	if _, err := w.Write([]byte{0}); err != nil {
		return false
	}
	for range probeLooks {
		select {
		case at := <-awake:
			p.add(at - rang)
			return p.now() < end
		default:
		}
		if now := p.now(); now > end {
			p.add(now - rang)
			return false
		}
	}
	return false
}

// forget drops all samples.
func (p *process) forget() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.count = 0
	p.setPrice(initialPrice)
}
