package cli

import (
	"sync"
	"time"
)

// IntervalText describes --interval of perf's clients.
const IntervalText = "print the rate of each such time on standard error, while a size is measured (default 1s on a terminal, else none)"

// intervalDefault is the default of --interval if standard error is a terminal.
const intervalDefault = time.Second

// Interval returns the time between two lines of a measurement; 0: no lines. By default lines appear only on a terminal, because
// they are for a person that waits.
func Interval(given bool, value time.Duration, s Streams) (time.Duration, error) {
	switch {
	case !given && IsTerminal(s.Err):
		return intervalDefault, nil
	case value < 0:
		return 0, Usagef("--interval %v is negative; give a time, or 0 for no lines", value)
	}
	return value, nil
}

// RateLines prints the rate of the operations of one size at each interval.
type RateLines struct {
	To    Streams
	Every time.Duration // time between two lines; 0: no lines
	Size  int64         // bytes of the measured size, for the text
	Bytes int64         // bytes that one operation moves
	Unit  string        // name of the operations: calls, operations, round trips
	Made  func() uint64 // returns the number of operations so far; called on another goroutine
}

// Start prints lines from the close of open until the caller calls stop.
func (l RateLines) Start(open <-chan struct{}) (stop func()) {
	if l.Every <= 0 {
		return func() {}
	}
	end := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		select {
		case <-open:
			l.print(end)
		case <-end:
		}
	})
	return sync.OnceFunc(func() {
		close(end)
		wg.Wait()
	})
}

// print prints lines until end is closed.
func (l RateLines) print(end <-chan struct{}) {
	tick := time.NewTicker(l.Every)
	defer tick.Stop()
	begin := time.Now()
	last, before := begin, l.Made()
	for {
		select {
		case <-end:
			return
		case <-tick.C:
		}
		now, made := time.Now(), l.Made()
		n, took := int64(made-before), now.Sub(last)
		l.To.Notef("%d bytes, after %.1f s: %.0f %s/s, %.2f MiB/s\n", l.Size, now.Sub(begin).Seconds(), PerSecond(n, took), l.Unit, MiBPerSecond(n*l.Bytes, took))
		last, before = now, made
	}
}
