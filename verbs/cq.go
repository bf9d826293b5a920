package verbs

import (
	"sync"
	"sync/atomic"
	"time"

	"cinnabar/internal/progress"
)

// CQ is a completion queue. All methods are safe for concurrent use; a
// completion goes to exactly one caller.
type CQ struct {
	dev *Device
	drv CQDriver
	dependents

	parker    CQParker // drv, if it is one
	mover     CQMover  // drv, if it implements CQMover; otherwise nil
	interrupt interrupt

	source atomic.Pointer[progress.Source] // decides for how long Wait polls before it parks

	// lead has capacity 1. The waiter that has sent into it arms the queue and reads
	// its events; it receives from lead when it stops waiting. See park.
	lead chan struct{}

	closeOnce sync.Once
	done      chan struct{} // closed by Close
}

// CreateCQ makes a completion queue of at least depth entries. A queue that
// is too short for the work requests of its queue pairs can overrun.
func (d *Device) CreateCQ(depth int) (*CQ, error) {
	const op = "create completion queue"
	attr, err := d.limits()
	if err != nil {
		return nil, err
	}
	if err := checkLimit(op, "the depth", depth, 1, attr.MaxCQE, "MaxCQE"); err != nil {
		return nil, err
	}
	if err := d.addDependent(childCQ, op, "device"); err != nil {
		return nil, err
	}
	cq := &CQ{dev: d, lead: make(chan struct{}, 1), done: make(chan struct{})}
	cq.setPolicy(progress.New(progress.Balanced))
	cq.drv, err = d.drv.CreateCQ(depth, cq)
	if err != nil {
		d.removeDependent(childCQ)
		return nil, err
	}
	cq.parker, _ = cq.drv.(CQParker)
	cq.mover, _ = cq.drv.(CQMover)
	return cq, nil
}

// Device returns the device of the queue.
func (cq *CQ) Device() *Device { return cq.dev }

// Driver returns the queue below, for layers that wait for completions in a way of their own.
func (cq *CQ) Driver() CQDriver { return cq.drv }

// Poll fills wc with the oldest completions and returns how many. It never
// blocks and never allocates; devices in software make progress in it. After an
// overrun it returns [ErrCQOverrun] once the intact completions are gone.
func (cq *CQ) Poll(wc []WC) (int, error) { return cq.drv.Poll(wc) }

// Moves returns a number that changes when bytes of messages, reads or writes move on connections of the queue, in either direction. It
// also changes if these bytes lead to no completion in this process, for example because a peer reads or writes memory of this process. A
// program that polls compares two results to learn whether its peer is busy. The number stays 0 on devices in hardware, because they move
// bytes without polls.
func (cq *CQ) Moves() uint64 {
	if cq.mover == nil {
		return 0
	}
	return cq.mover.Moves()
}

// Arm asks for one event when the next completion is added; with solicitedOnly,
// when the next solicited or failed one is. Completions that came earlier raise
// none, so the caller polls once more between Arm and waiting for [CQ.Event].
func (cq *CQ) Arm(solicitedOnly bool) error { return cq.drv.Arm(solicitedOnly) }

// Event is the completion channel: it carries the events that Arm asked for, at
// most one unread. An event may come without a completion to find. Programs that
// use it do not call [CQ.Wait] on the same queue, which reads it too.
func (cq *CQ) Event() <-chan struct{} { return cq.drv.Event() }

// SetSpin sets the time for which [CQ.Wait] polls before it parks; 0 parks at once. Without a call of SetSpin, Wait polls for about twice the
// time that a parked goroutine needs to wake up on this machine, 50 to 500 µs, but most calls park at once while polls of this queue
// find nothing. One goroutine of a process polls in Wait at a time, and further ones park at once.
func (cq *CQ) SetSpin(d time.Duration) { cq.setPolicy(progress.NewFixed(d)) }

func (cq *CQ) setPolicy(p *progress.Policy) {
	s := new(progress.Source)
	s.Init(p, progress.Socket)
	cq.source.Store(s)
}

// Resize changes the depth; it fails if more completions than that are waiting.
func (cq *CQ) Resize(depth int) error {
	const op = "resize completion queue"
	attr, err := cq.dev.limits()
	if err != nil {
		return err
	}
	if err := checkLimit(op, "the depth", depth, 1, attr.MaxCQE, "MaxCQE"); err != nil {
		return err
	}
	return cq.drv.Resize(depth)
}

// Depth returns how many completions the queue holds.
func (cq *CQ) Depth() int { return cq.drv.Depth() }

// Limits of [CQ.Moderate], because struct ibv_moderate_cq has 16 bits for the count and 16 for the period in microseconds.
const (
	MaxModerateCount  = 1<<16 - 1
	MaxModeratePeriod = (1<<16 - 1) * time.Microsecond
)

// Moderate delays the event of an armed queue (ibv_modify_cq), because one event for several small messages costs less than one for each.
// On the software device the event comes when count completions for which [CQ.Arm] asked have been added since Arm, or when period has passed
// since the first of them. Cards may count the completions before Arm, too. count is 1 to [MaxModerateCount]; 1 ends the moderation. A
// delayed event comes at once when Moderate is called. period is 0 to [MaxModeratePeriod]; devices of rdma-core round it up to a microsecond. A count above 1 needs
// a period, because the last completions would otherwise raise no event.
//
// On the software device a failed completion and an overrun raise the event at once, and [CQ.Wait] is not delayed. On other devices a Wait that
// has parked may return up to period later, because it waits for an event. Moderate returns an error that matches [ErrInvalid] for values out
// of range, [ErrClosed] after Close, and [errors.ErrUnsupported] on a device without moderation.
func (cq *CQ) Moderate(count int, period time.Duration) error {
	const op = "moderate completion queue"
	if count < 1 || count > MaxModerateCount {
		return Errorf(op, ErrInvalid, "the count is %d; it can be 1 to %d (MaxModerateCount)", count, MaxModerateCount)
	}
	if period < 0 || period > MaxModeratePeriod {
		return Errorf(op, ErrInvalid, "the period is %v; it can be 0 to %v (MaxModeratePeriod)", period, MaxModeratePeriod)
	}
	if count > 1 && period == 0 {
		return Errorf(op, ErrInvalid, "%d completions without a period: the last ones would raise no event; give a period, or a count of 1", count)
	}
	return cq.drv.Moderate(count, period)
}

// SetTimestamps turns [WC.WallclockNS] on or off for completions that are added later (IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK). It is off
// at first. The software device then reads the clock for each completion. Devices of rdma-core return an error that matches
// [errors.ErrUnsupported], because this module polls them with ibv_poll_cq, whose completions carry no time.
func (cq *CQ) SetTimestamps(on bool) error { return cq.drv.SetTimestamps(on) }

// Close releases the queue and ends all waiting with [ErrClosed]. It fails with
// [ErrBusy] while queue pairs use it. A second Close does nothing.
func (cq *CQ) Close() error {
	return cq.closeUnlessBusy("close completion queue", func() error {
		if err := cq.drv.Close(); err != nil {
			return err
		}
		cq.closeOnce.Do(func() { close(cq.done) })
		cq.interrupt.end()
		cq.dev.removeDependent(childCQ)
		return nil
	})
}
