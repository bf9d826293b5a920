package sm

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"cinnabar/internal/progress"
	"cinnabar/internal/shm"
)

// burner keeps a processor until standard input ends.
func (p *player) burner() {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		p.say("ready")
	}()
	for {
		select {
		case <-ended:
			return
		default:
			shm.Pause(1000)
		}
	}
}

// contender is a client and a server in another process, who call each other while others want the processors too.
type contender struct {
	name  string
	mode  progress.Mode
	call  *caller
	times []time.Duration
}

func (c *contender) open(b *testing.B) {
	s := start(b, "server", modeEnv+"="+string(c.mode))
	client := open(b, Config{Progress: progress.New(c.mode)})
	c.call = newCaller(client, lookup(b, client, s.expect("ready ")))
	if _, err := c.call.call(b, nil); err != nil {
		b.Fatal(err)
	}
}

// run makes n calls.
func (c *contender) run(b *testing.B, n int) {
	msg := make([]byte, 64)
	for range n {
		begin := time.Now()
		if _, err := c.call.call(b, msg); err != nil {
			b.Fatal(err)
		}
		c.times = append(c.times, time.Since(begin))
	}
}

// report tells the mean, and the time that one call in a hundred exceeds, which it returns.
func (c *contender) report(b *testing.B) time.Duration {
	var sum time.Duration
	for _, d := range c.times {
		sum += d
	}
	slices.Sort(c.times)
	p99 := c.times[len(c.times)*99/100]
	b.ReportMetric(float64(sum.Microseconds())/float64(len(c.times)), c.name+"-us/call")
	b.ReportMetric(float64(p99.Nanoseconds())/1000, c.name+"-p99-us")
	return p99
}

// BenchmarkBusy has two processes call each other, one call at a time, while so many others keep a processor each: with
// spinning as by default and without. Both are measured in turns, for 500 calls each. Spinning is to pay where there is a
// processor for it, and to cost little where there is none: p99-ratio is to stay below 3.
func BenchmarkBusy(b *testing.B) {
	for _, others := range []int{0, 1, 2} {
		b.Run(fmt.Sprintf("others=%d", others), func(b *testing.B) {
			spins, parks := &contender{name: "spin"}, &contender{name: "park", mode: progress.Economy}
			spins.open(b)
			parks.open(b)
			for range others {
				start(b, "burner").expect("ready")
			}
			for b.Loop() {
				spins.run(b, 500)
				parks.run(b, 500)
			}
			s, p := spins.report(b), parks.report(b)
			b.ReportMetric(float64(s)/float64(p), "p99-ratio")
			b.ReportMetric(0, "ns/op")
		})
	}
}
