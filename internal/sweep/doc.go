// Package sweep calls a function at intervals while that has objects to look after.
package sweep

import "time"

// Run calls sweep after every interval, and returns when sweep returns false or stop is closed. A call that lasts longer than
// interval delays the next one.
func Run(interval time.Duration, stop <-chan struct{}, sweep func() bool) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-stop:
			return
		}
		if !sweep() {
			return
		}
	}
}
