package verbs

import (
	"context"
	"iter"
	"sync"
	"time"
)

const (
	// spinBatch is the number of polls between two looks at the context, each of which costs as much as a poll.
	spinBatch = 8
	// stillPolls is the number of polls after which Wait compares the clock with that of stillPolls polls before, once, and parks if it stands
	// still: the clock of testing/synctest does while a goroutine runs. So many polls take some 10 µs by a real clock.
	stillPolls = 512
)

// Wait fills wc with the oldest completions, waiting until there is at least
// one. It polls for a bounded time ([CQ.SetSpin]) before it parks. Any number of
// goroutines may wait on one queue, and others may poll it meanwhile.
//
// Completions that are there are returned even if ctx has ended. An overrun is
// returned as [ErrCQOverrun], Close of the queue as [ErrClosed].
func (cq *CQ) Wait(ctx context.Context, wc []WC) (int, error) {
	if len(wc) == 0 {
		return 0, Errorf("wait for completions", ErrInvalid, "no room for a completion: wc is empty")
	}
	if n, err := cq.drv.Poll(wc); n > 0 || err != nil {
		return n, err
	}
	if n, err := cq.spin(ctx, wc); n > 0 || err != nil {
		return n, err
	}
	source := cq.source.Load()
	source.Park()
	n, err := cq.park(ctx, wc)
	if n > 0 {
		source.Answered()
	}
	return n, err
}

// spin polls for as long as source allows. It returns 0 and no error when that time is over or ctx ends.
func (cq *CQ) spin(ctx context.Context, wc []WC) (int, error) {
	s := cq.source.Load().Spin(true)
	defer s.End()
	var clock time.Time
	for look := 1; s.Vain() && (look%spinBatch != 0 || ctx.Err() == nil); look++ {
		if n, err := cq.drv.Poll(wc); n > 0 || err != nil {
			s.Found()
			return n, err
		}
		switch look {
		case stillPolls:
			clock = time.Now()
		case 2 * stillPolls:
			if time.Now().Equal(clock) {
				return 0, nil
			}
		}
	}
	return 0, nil
}

// park waits for a completion, in the device if that can wait itself (CQParker), or else for an event. The device
// remembers one event only, and an event uses up the arming, however many goroutines wait. So one of them leads: it
// alone parks in the device, arms, polls again and reads events. When it leaves, for any reason, the next one leads and
// begins by polling; hence no completion stays unseen while a goroutine waits.
func (cq *CQ) park(ctx context.Context, wc []WC) (int, error) {
	select {
	case cq.lead <- struct{}{}:
		defer func() { <-cq.lead }()
	case <-ctx.Done():
		return cq.lastPoll(ctx, wc)
	case <-cq.done:
		return 0, cq.closedErr()
	}
	for cq.parkInDevice(ctx) {
		if n, err := cq.drv.Poll(wc); n > 0 || err != nil {
			return n, err
		}
		if ctx.Err() != nil {
			return cq.lastPoll(ctx, wc)
		}
	}
	for {
		if err := cq.drv.Arm(false); err != nil {
			return 0, err
		}
		// A completion from before Arm raises no event.
		if n, err := cq.drv.Poll(wc); n > 0 || err != nil {
			return n, err
		}
		select {
		case <-cq.drv.Event():
		case <-ctx.Done():
			return cq.lastPoll(ctx, wc)
		case <-cq.done:
			return 0, cq.closedErr()
		}
		if n, err := cq.drv.Poll(wc); n > 0 || err != nil {
			return n, err
		}
		// An event without a completion: another goroutine was faster, or it
		// was left over from an earlier arming.
	}
}

// parkInDevice parks until the queue may have a completion or ctx has ended. It returns false if the device does not do so.
func (cq *CQ) parkInDevice(ctx context.Context) bool {
	if cq.parker == nil {
		return false
	}
	var stop func() bool
	if ctx.Done() != nil {
		stop = cq.interrupt.set(ctx, cq.parker)
	}
	return cq.parker.Park(stop)
}

// interrupt calls a function when the context of a goroutine in CQParker.Park ends. It stays registered with the context
// after that, because a program mostly waits again with the same one, and each registration allocates.
type interrupt struct {
	mu sync.Mutex
	// done is that of the registered context; nil: none is registered
	// +checklocks:mu
	done <-chan struct{}
	// over reports whether done is closed
	// +checklocks:mu
	over func() bool
	// +checklocks:mu
	stop func() bool
	// +checklocks:mu
	ended bool
}

// set registers p.Unpark with ctx, in place of an earlier context, and returns a function that reports whether ctx has ended. Its argument
// is p and not the method value p.Unpark, because each evaluation of a method value allocates.
func (i *interrupt) set(ctx context.Context, p CQParker) (over func() bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	done := ctx.Done()
	if done == i.done {
		return i.over
	}
	over = func() bool {
		select {
		case <-done:
			return true
		default:
			return false
		}
	}
	if i.ended {
		return over
	}
	if i.stop != nil {
		i.stop()
	}
	i.done, i.over, i.stop = done, over, context.AfterFunc(ctx, p.Unpark)
	return over
}

// end takes the registration back.
func (i *interrupt) end() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.ended = true
	if i.stop != nil {
		i.stop()
	}
	i.done, i.over, i.stop = nil, nil, nil
}

// lastPoll is the result of a wait after its context has ended.
func (cq *CQ) lastPoll(ctx context.Context, wc []WC) (int, error) {
	if n, err := cq.drv.Poll(wc); n > 0 || err != nil {
		return n, err
	}
	return 0, ctx.Err()
}

func (cq *CQ) closedErr() error {
	return Errorf("wait for completions", ErrClosed, "the completion queue was closed")
}

// All iterates over the completions of the queue as they come. It ends without
// an error when ctx ends; any other failure is yielded once, as the last pair.
// It takes one completion at a time, so leaving the loop loses none. A loop over
// [CQ.Poll] with a batch is faster.
func (cq *CQ) All(ctx context.Context) iter.Seq2[WC, error] {
	return func(yield func(WC, error) bool) {
		wc := make([]WC, 1)
		for {
			_, err := cq.Wait(ctx, wc)
			switch {
			case err == nil:
				if !yield(wc[0], nil) {
					return
				}
			case ctx.Err() != nil:
				return
			default:
				yield(WC{}, err)
				return
			}
		}
	}
}
