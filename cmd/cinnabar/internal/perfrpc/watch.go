package perfrpc

import (
	"sync"
	"sync/atomic"
	"time"

	"cinnabar"
)

// watch finds out that a client's calls end no more, because a server is frozen or lost without a word. It watches
// the number of calls that have ended instead of each call, which costs the calls next to nothing.
type watch struct {
	ended  atomic.Uint64 // calls
	rests  atomic.Bool   // no call is under way: the client is busy with something else
	gaveUp atomic.Bool
}

func (w *watch) called() { w.ended.Add(1) }

// rest runs f, during which no call has to end.
func (w *watch) rest(f func()) {
	w.rests.Store(true)
	defer w.rests.Store(false)
	f()
}

// watchTicks is into how many parts the time without an answer is divided: a frozen server is found in the time that is
// set, or a part more.
const watchTicks = 4

// guard watches until the function that it returns is called, which returns when nothing of it is left. If no call ends
// in the time, it closes the engine, and with that ends the calls.
func (w *watch) guard(limit time.Duration, engine *cinnabar.Engine) (end func()) {
	var wg sync.WaitGroup
	stop := make(chan struct{})
	wg.Go(func() {
		tick := time.NewTicker(max(1, limit/watchTicks))
		defer tick.Stop()
		if w.stalls(tick.C, stop) {
			w.gaveUp.Store(true)
			_ = engine.Close() // the calls return the reason
		}
	})
	return func() {
		close(stop)
		wg.Wait()
	}
}

// stalls returns true when no call has ended for watchTicks ticks, false when stop is closed before.
func (w *watch) stalls(tick <-chan time.Time, stop <-chan struct{}) bool {
	seen, still := w.ended.Load(), 0
	for {
		select {
		case <-stop:
			return false
		case <-tick:
		}
		if n := w.ended.Load(); n != seen || w.rests.Load() {
			seen, still = n, 0
			continue
		}
		if still++; still == watchTicks {
			return true
		}
	}
}
