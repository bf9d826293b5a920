package fault

import (
	"context"
	"sync"

	"cinnabar/verbs"
)

// Injector carries out a plan on one device and keeps the trace.
type Injector struct {
	plan Plan
	wg   sync.WaitGroup // the layer's goroutines

	// mu guards the fields below and the objects reached from them; devices below are
	// called with it held where they do not block.
	mu      sync.Mutex
	wrapped bool

	// The books of decisions.
	tallies map[ruleQueue]tally
	trace   []Event

	// The objects by number, from 0. They stay after Close, for the completions
	// that are still to be taken.
	qps       []*qp
	byNum     map[uint32]*qp
	cqs       []*cq
	srqs      []*srq
	pds       int
	listeners int

	clock    int                              // polls that Advance has added
	advanced chan struct{}                    // closed and replaced by Advance
	events   []verbs.DeviceEvent              // raised and not taken yet
	waiters  map[*context.CancelFunc]struct{} // calls of NextEvent to be woken
}

// New checks a plan. An error names the rule that can never match or act.
func New(plan Plan) (*Injector, error) {
	if err := plan.check(); err != nil {
		return nil, err
	}
	return &Injector{
		plan:     plan,
		tallies:  make(map[ruleQueue]tally),
		byNum:    make(map[uint32]*qp),
		advanced: make(chan struct{}),
		waiters:  make(map[*context.CancelFunc]struct{}),
	}, nil
}

// Wrap puts the layer around dev, which from now on belongs to the device that
// is returned and is closed with it. An injector wraps one device, because its
// queues are numbered by the order of their creation; a second call panics.
func (in *Injector) Wrap(dev *verbs.Device) *verbs.Device {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.wrapped {
		panic("fault: an injector wraps one device; make another one for the next")
	}
	in.wrapped = true
	return verbs.NewDevice(&device{in: in, inner: dev.Driver()})
}

// Wrap puts a layer that carries out plan around dev. It returns dev itself if
// the plan has no rules, and panics if the plan makes no sense; [New] returns an
// error instead, and gives access to the trace.
func Wrap(dev *verbs.Device, plan Plan) *verbs.Device {
	in, err := New(plan)
	if err != nil {
		panic(err)
	}
	if len(plan.Rules) == 0 {
		return dev
	}
	return in.Wrap(dev)
}

// Advance lets so many polls pass at once on every completion queue, and lets
// delayed connections go on that waited for it.
func (in *Injector) Advance(polls int) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.clock += polls
	close(in.advanced)
	in.advanced = make(chan struct{})
	for _, c := range in.cqs {
		c.signal()
	}
}

// await waits until Advance was given n in all since.
func (in *Injector) await(ctx context.Context, n int) error {
	in.mu.Lock()
	until := in.clock + n
	for in.clock < until {
		advanced := in.advanced
		in.mu.Unlock()
		select {
		case <-advanced:
		case <-ctx.Done():
			return ctx.Err()
		}
		in.mu.Lock()
	}
	in.mu.Unlock()
	return nil
}

// Disconnect breaks the connection of a queue pair now; outstanding requests are
// flushed. The number counts queue pairs in the order of creation, from 1.
func (in *Injector) Disconnect(queuePair int) error {
	in.mu.Lock()
	defer in.mu.Unlock()
	if queuePair < 1 || queuePair > len(in.qps) {
		return verbs.Errorf("inject disconnect", verbs.ErrInvalid, "queue pair %d; there are %d", queuePair, len(in.qps))
	}
	return in.qps[queuePair-1].breakDown()
}
