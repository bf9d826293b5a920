package verbs

import (
	"context"
	"errors"
	"sync"
	"testing"

	"cinnabar/verbs/driver"
)

// fakeDevice is a driver whose completions and events the test makes. What it
// does not implement panics, through the nil interface.
type fakeDevice struct {
	driver.Device
	attr   driver.DeviceAttr
	events chan driver.AsyncEvent // closed: the device is closed

	mu       sync.Mutex
	failNext error // returned by the next call that can fail, once
	cqs      []*fakeCQ
}

func newFake(t *testing.T) (*Device, *fakeDevice) {
	t.Helper()
	f := &fakeDevice{
		attr: driver.DeviceAttr{
			Name: "fake0", QPTypes: []QPType{RC}, MaxMRSize: 1 << 20, MaxQPWR: 64, MaxSGE: 2, MaxInline: 16, MaxCQE: 1 << 16,
			MaxSRQWR: 32, MaxSRQSGE: 1, MaxPrivateData: 56, MaxQPRDAtom: 8, MaxQPInitRDAtom: 4,
			Caps: CapRawState,
		},
		events: make(chan driver.AsyncEvent, 4),
	}
	return NewDevice(f), f
}

// fail makes the next call fail.
func (f *fakeDevice) fail(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.failNext = err
}

func (f *fakeDevice) failure() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	err := f.failNext
	f.failNext = nil
	return err
}

func (f *fakeDevice) Query() (driver.DeviceAttr, error) { return f.attr, f.failure() }
func (f *fakeDevice) Stats() driver.Stats               { return driver.Stats{"posts": 1} }
func (f *fakeDevice) Close() error                      { return f.failure() }
func (f *fakeDevice) AllocPD() (driver.PD, error)       { return &fakePD{dev: f}, f.failure() }

func (f *fakeDevice) CreateCQ(depth int, cqContext any) (driver.CQ, error) {
	cq := &fakeCQ{dev: f, depth: depth, context: cqContext, event: make(chan struct{}, 1)}
	f.mu.Lock()
	f.cqs = append(f.cqs, cq)
	f.mu.Unlock()
	return cq, f.failure()
}

func (f *fakeDevice) NextEvent(ctx context.Context) (driver.AsyncEvent, error) {
	select {
	case e, ok := <-f.events:
		if !ok {
			return e, driver.ErrClosed
		}
		return e, f.failure()
	case <-ctx.Done():
		return driver.AsyncEvent{}, ctx.Err()
	}
}

// fakePD keeps nothing of what it registers, so that pins alone keep memory alive.
type fakePD struct {
	driver.PD
	dev *fakeDevice
}

func (p *fakePD) RegMR(r driver.Region, _ Access) (driver.MR, error) {
	return &fakeMR{dev: p.dev, addr: r.Addr}, p.dev.failure()
}

func (p *fakePD) CreateQP(init driver.QPInit) (driver.QP, error) {
	return &fakeQP{dev: p.dev, init: init}, p.dev.failure()
}

func (p *fakePD) CreateSRQ(init driver.SRQInit) (driver.SRQ, error) {
	return &fakeSRQ{dev: p.dev, init: init}, p.dev.failure()
}

func (p *fakePD) Close() error { return p.dev.failure() }

type fakeMR struct {
	dev  *fakeDevice
	addr uint64
}

func (m *fakeMR) LKey() uint32 { return 0x11 }
func (m *fakeMR) RKey() uint32 { return 0x22 }
func (m *fakeMR) IOVA() uint64 { return m.addr }
func (m *fakeMR) Close() error { return m.dev.failure() }

type fakeSRQ struct {
	dev  *fakeDevice
	init driver.SRQInit
	attr SRQAttr
}

func (s *fakeSRQ) PostRecv(wrs []RecvWR) (int, error) { return len(wrs), nil }
func (s *fakeSRQ) Query() SRQAttr                     { return s.attr }
func (s *fakeSRQ) Close() error                       { return s.dev.failure() }

func (s *fakeSRQ) Modify(a SRQAttr, limit, depth bool) error {
	if limit {
		s.attr.Limit = a.Limit
	}
	if depth {
		s.attr.MaxWR = a.MaxWR
	}
	return nil
}

// fakeQP accepts the requests up to the first whose id is badID.
type fakeQP struct {
	dev  *fakeDevice
	init driver.QPInit

	mu    sync.Mutex
	attr  QPAttr
	steps []QPAttr
}

const badID = 666

var errBadID = errors.New("bad id")

func (q *fakeQP) Num() uint32  { return 0x123456 }
func (q *fakeQP) Close() error { return q.dev.failure() }

func (q *fakeQP) PostSend(wrs []SendWR) (int, error) {
	for i := range wrs {
		if wrs[i].ID == badID {
			return i, errBadID
		}
	}
	return len(wrs), nil
}

func (q *fakeQP) PostRecv(wrs []RecvWR) (int, error) { return len(wrs), nil }

func (q *fakeQP) Modify(a QPAttr) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if err := driver.CheckTransition(q.init.Type, q.attr.State, a.State, a.Mask); err != nil {
		return err
	}
	q.attr.State = a.State
	if a.Mask&AttrQKey != 0 {
		q.attr.QKey, q.attr.Mask = a.QKey, q.attr.Mask|AttrQKey
	}
	q.steps = append(q.steps, a)
	return nil
}

func (q *fakeQP) Query() (QPAttr, driver.QPInit) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.attr, q.init
}

// fakeCQ follows the rules of driver.CQ to the letter: one event for one arming,
// at most one unread, none for what came before.
type fakeCQ struct {
	dev     *fakeDevice
	depth   int
	context any
	event   chan struct{}

	mu       sync.Mutex
	wcs      []WC
	armed    bool
	overrun  bool
	onArm    func() // called without mu before Arm takes effect
	afterArm func() // called without mu after it
}

func (c *fakeCQ) Event() <-chan struct{} { return c.event }
func (c *fakeCQ) Depth() int             { return c.depth }
func (c *fakeCQ) Close() error           { return c.dev.failure() }

func (c *fakeCQ) Resize(depth int) error {
	c.depth = depth
	return nil
}

// add makes a completion.
func (c *fakeCQ) add(wc WC) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.wcs = append(c.wcs, wc)
	if c.armed {
		c.armed = false
		c.notify()
	}
}

// notify raises an event, with or without a completion behind it.
func (c *fakeCQ) notify() {
	select {
	case c.event <- struct{}{}:
	default:
	}
}

func (c *fakeCQ) Poll(wc []WC) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := copy(wc, c.wcs)
	c.wcs = c.wcs[:copy(c.wcs, c.wcs[n:])]
	if n == 0 && c.overrun {
		return 0, driver.ErrCQOverrun
	}
	return n, nil
}

func (c *fakeCQ) Arm(bool) error {
	if c.onArm != nil {
		c.onArm()
	}
	c.mu.Lock()
	c.armed = true
	c.mu.Unlock()
	if c.afterArm != nil {
		c.afterArm()
	}
	return nil
}
