package main

import (
	"sync"
	"time"
)

// intervalFlagText describes --interval of perf's clients.
const intervalFlagText = "print the rate of each such time on standard error, while a size is measured (default 1s on a terminal, else none)"

// intervalDefault is the default of --interval if standard error is a terminal.
const intervalDefault = time.Second

// interval returns the time between two lines of a measurement; 0: no lines. By default lines appear only on a terminal, because
// they are for a person that waits.
func interval(given bool, value time.Duration, s streams) (time.Duration, error) {
	switch {
	case !given && isTerminal(s.err):
		return intervalDefault, nil
	case value < 0:
		return 0, usagef("--interval %v is negative; give a time, or 0 for no lines", value)
	}
	return value, nil
}

// rateLines prints the rate of the operations of one size at each interval.
type rateLines struct {
	s     streams
	every time.Duration // time between two lines; 0: no lines
	size  int64         // bytes of the measured size, for the text
	bytes int64         // bytes that one operation moves
	unit  string        // name of the operations: calls, operations, round trips
	made  func() uint64 // returns the number of operations so far; called on another goroutine
}

// start prints lines from the close of open until the caller calls stop.
func (l rateLines) start(open <-chan struct{}) (stop func()) {
	if l.every <= 0 {
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
func (l rateLines) print(end <-chan struct{}) {
	tick := time.NewTicker(l.every)
	defer tick.Stop()
	begin := time.Now()
	last, before := begin, l.made()
	for {
		select {
		case <-end:
			return
		case <-tick.C:
		}
		now, made := time.Now(), l.made()
		n, took := int64(made-before), now.Sub(last)
		l.s.notef("%d bytes, after %.1f s: %.0f %s/s, %.2f MiB/s\n", l.size, now.Sub(begin).Seconds(), perSecond(n, took), l.unit, mibPerSecond(n*l.bytes, took))
		last, before = now, made
	}
}
