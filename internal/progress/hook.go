package progress

import (
	"sync/atomic"
	"time"
)

// dearWakeUps makes wake-ups dear, where they are cheap, for tests and benchmarks.
type dearWakeUps struct {
	lateness, tolls atomic.Int64 // nanoseconds
	lates, rings    atomic.Uint64
}

// hook holds the delays of this process.
var hook dearWakeUps

// MakeWakeUpsDear makes each goroutine of this process that was parked compute for the time late before its first look, and each
// goroutine that signals another process compute for the time toll. On Linux a goroutine computes only if its thread has parked too: the
// price of a wake-up is that of a thread on an idle processor, which a thread that runs several woken goroutines in turn pays once. Tests and
// benchmarks call it to have the prices of a machine with dear wake-ups on any machine; zeros undo it. If measure is true, it also drops the
// samples of the price and measures the price anew. Otherwise the process learns the new price from its wake-ups.
func MakeWakeUpsDear(late, toll time.Duration, measure bool) {
	hook.lateness.Store(int64(late))
	hook.tolls.Store(int64(toll))
	if measure {
		shared.forget()
		shared.measure()
	}
}

// DearWakeUps returns the number of wake-ups and the number of signals that were delayed because of [MakeWakeUpsDear].
func DearWakeUps() (lates, tolls uint64) { return hook.lates.Load(), hook.rings.Load() }

// Toll is called before a signal to another process.
func Toll() {
	if d := hook.tolls.Load(); d > 0 {
		hook.rings.Add(1)
		spend(d)
	}
}

// late is called after a wake-up.
func (h *dearWakeUps) late() {
	if d := h.lateness.Load(); d > 0 && threadParked() {
		h.lates.Add(1)
		spend(d)
	}
}

// spend keeps the processor for d nanoseconds.
func spend(d int64) {
	for end := Now() + d; Now() < end; {
	}
}
