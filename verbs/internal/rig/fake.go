package rig

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"cinnabar/internal/verbsrules"
	"cinnabar/verbs"
)

// FakeDevice is a device with completions and events that the test makes. A call of a
// method that it does not implement panics, because the embedded interface is nil. The
// test sets its fields before it uses the device.
type FakeDevice struct {
	verbs.DeviceDriver
	Attr   verbs.DeviceAttr
	Events chan verbs.DeviceEvent // the events for NextEvent; closed: NextEvent returns ErrClosed

	// The objects that were created, in order. The test reads them while it creates no object.
	CQs  []*FakeCQ
	QPs  []*FakeQP
	SRQs []*FakeSRQ
	AHs  []verbs.AHAttr

	mu       sync.Mutex
	failNext error // +checklocks:mu
}

// NewFake opens a fake device with small limits, so that a test can exceed them.
func NewFake(t *testing.T) (*verbs.Device, *FakeDevice) {
	t.Helper()
	f := &FakeDevice{
		Attr: verbs.DeviceAttr{
			Name: "fake0", QPTypes: []verbs.QPType{verbs.RC}, MaxMRSize: 1 << 20, MaxQPWR: 64, MaxSGE: 2, MaxInline: 16, MaxCQE: 1 << 16,
			MaxSRQWR: 32, MaxSRQSGE: 1, MaxPrivateData: 56, MaxQPRDAtom: 8, MaxQPInitRDAtom: 4,
			Caps: verbs.CapRawState, ReadSink: verbs.LocalWrite,
		},
		Events: make(chan verbs.DeviceEvent, 4),
	}
	return verbs.NewDevice(f), f
}

// Fail makes the next call fail with err, once.
func (f *FakeDevice) Fail(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.failNext = err
}

// failure returns the error that Fail left for this call, if any.
func (f *FakeDevice) failure() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	err := f.failNext
	f.failNext = nil
	return err
}

// Query implements the device.
func (f *FakeDevice) Query() (verbs.DeviceAttr, error) { return f.Attr, f.failure() }

// Stats implements the device.
func (f *FakeDevice) Stats() verbs.Stats { return verbs.Stats{"posts": 1} }

// Close implements the device.
func (f *FakeDevice) Close() error { return f.failure() }

// AllocPD implements the device.
func (f *FakeDevice) AllocPD() (verbs.PDDriver, error) { return &fakePD{dev: f}, f.failure() }

// CreateCQ implements the device.
func (f *FakeDevice) CreateCQ(depth int, cqContext any) (verbs.CQDriver, error) {
	cq := &FakeCQ{dev: f, depth: depth, Context: cqContext, event: make(chan struct{}, 1)}
	f.mu.Lock()
	f.CQs = append(f.CQs, cq)
	f.mu.Unlock()
	return cq, f.failure()
}

// NextEvent implements the device.
func (f *FakeDevice) NextEvent(ctx context.Context) (verbs.DeviceEvent, error) {
	select {
	case e, ok := <-f.Events:
		if !ok {
			return e, verbs.ErrClosed
		}
		return e, f.failure()
	case <-ctx.Done():
		return verbs.DeviceEvent{}, ctx.Err()
	}
}

// fakePD keeps no reference to the memory that it registers, so that only the pins of package verbs keep the memory alive.
type fakePD struct {
	verbs.PDDriver
	dev *FakeDevice
}

func (p *fakePD) RegMR(r verbs.MRInit, _ verbs.Access) (verbs.MRDriver, error) {
	m := &fakeMR{dev: p.dev, addr: r.Addr}
	if r.HasIOVA {
		m.addr = r.IOVA
	}
	return m, p.dev.failure()
}

func (p *fakePD) CreateQP(init verbs.QPInit) (verbs.QPDriver, error) {
	qp := &FakeQP{dev: p.dev, Init: init}
	p.dev.mu.Lock()
	p.dev.QPs = append(p.dev.QPs, qp)
	p.dev.mu.Unlock()
	return qp, p.dev.failure()
}

func (p *fakePD) CreateSRQ(init verbs.SRQInit) (verbs.SRQDriver, error) {
	srq := &FakeSRQ{dev: p.dev, Init: init}
	p.dev.mu.Lock()
	p.dev.SRQs = append(p.dev.SRQs, srq)
	p.dev.mu.Unlock()
	return srq, p.dev.failure()
}

// CreateAH notes the attributes. It returns no handle.
func (p *fakePD) CreateAH(attr verbs.AHAttr) (verbs.AddressHandle, error) {
	p.dev.mu.Lock()
	p.dev.AHs = append(p.dev.AHs, attr)
	p.dev.mu.Unlock()
	return nil, p.dev.failure()
}

func (p *fakePD) Close() error { return p.dev.failure() }

type fakeMR struct {
	dev  *FakeDevice
	addr uint64
}

func (m *fakeMR) LKey() uint32 { return 0x11 }
func (m *fakeMR) RKey() uint32 { return 0x22 }
func (m *fakeMR) IOVA() uint64 { return m.addr }
func (m *fakeMR) Close() error { return m.dev.failure() }

// Rereg keeps the keys.
func (m *fakeMR) Rereg(c verbs.MRReinit) (verbs.MRDriver, error) {
	next := *m
	if c.Memory != nil {
		next.addr = c.Memory.Addr
	}
	return &next, m.dev.failure()
}

// FakeSRQ is a shared receive queue that takes every receive and consumes none.
type FakeSRQ struct {
	Init verbs.SRQInit

	dev  *FakeDevice
	attr verbs.SRQAttr
}

// PostRecv implements the queue.
func (s *FakeSRQ) PostRecv(wrs []verbs.RecvWR) (int, error) { return len(wrs), nil }

// Query implements the queue.
func (s *FakeSRQ) Query() verbs.SRQAttr { return s.attr }

// Close implements the queue.
func (s *FakeSRQ) Close() error { return s.dev.failure() }

// Modify implements the queue.
func (s *FakeSRQ) Modify(a verbs.SRQAttr, limit, depth bool) error {
	if limit {
		s.attr.Limit = a.Limit
	}
	if depth {
		s.attr.MaxWR = a.MaxWR
	}
	return nil
}

// FakeQP accepts the requests up to the first with the id [BadID], and every legal
// change of its state.
type FakeQP struct {
	Init verbs.QPInit

	dev *FakeDevice

	mu    sync.Mutex
	attr  verbs.QPAttr   // +checklocks:mu
	steps []verbs.QPAttr // +checklocks:mu
}

// BadID is the id of a request that FakeQP refuses with [ErrBadID].
const BadID = 666

// ErrBadID is the refusal of a request with [BadID].
var ErrBadID = errors.New("bad id")

// FakeQPOf returns the fake queue pair below qp, which belongs to a fake device.
func FakeQPOf(t *testing.T, qp *verbs.QP) *FakeQP {
	t.Helper()
	f := qp.PD().Device().Driver().(*FakeDevice)
	for _, q := range f.QPs {
		if q.Init.Context == qp {
			return q
		}
	}
	t.Fatal("the queue pair is not one of its device")
	return nil
}

// Steps returns the changes that Modify made, in order.
func (q *FakeQP) Steps() []verbs.QPAttr {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.steps
}

// Num implements the queue pair.
func (q *FakeQP) Num() uint32 { return 0x123456 }

// Close implements the queue pair.
func (q *FakeQP) Close() error { return q.dev.failure() }

// PostSend implements the queue pair.
func (q *FakeQP) PostSend(wrs []verbs.SendWR) (int, error) {
	for i := range wrs {
		if wrs[i].ID == BadID {
			return i, ErrBadID
		}
	}
	return len(wrs), nil
}

// PostRecv implements the queue pair.
func (q *FakeQP) PostRecv(wrs []verbs.RecvWR) (int, error) { return len(wrs), nil }

// Modify implements the queue pair.
func (q *FakeQP) Modify(a verbs.QPAttr) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if err := verbsrules.CheckTransition(q.Init.Type, q.attr.State, a.State, a.Mask); err != nil {
		return err
	}
	q.attr.State = a.State
	if a.Mask&verbs.AttrQKey != 0 {
		q.attr.QKey, q.attr.Mask = a.QKey, q.attr.Mask|verbs.AttrQKey
	}
	q.steps = append(q.steps, a)
	return nil
}

// Query implements the queue pair.
func (q *FakeQP) Query() (verbs.QPAttr, verbs.QPInit) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.attr, q.Init
}

// FakeCQ is a completion queue that raises as few events as the interface allows: one event
// for each Arm, at most one unread event, and none for a completion from before Arm. The test
// sets its exported fields before it uses the queue.
type FakeCQ struct {
	Context  any
	OnArm    func() // Arm calls it without a lock before it takes effect
	AfterArm func() // Arm calls it without a lock after it has taken effect

	dev   *FakeDevice
	depth int
	event chan struct{}

	mu      sync.Mutex
	wcs     []verbs.WC // +checklocks:mu
	armed   bool       // +checklocks:mu
	overrun bool       // +checklocks:mu
}

// Event implements the queue.
func (c *FakeCQ) Event() <-chan struct{} { return c.event }

// Depth implements the queue.
func (c *FakeCQ) Depth() int { return c.depth }

// Close implements the queue.
func (c *FakeCQ) Close() error { return c.dev.failure() }

// Resize implements the queue.
func (c *FakeCQ) Resize(depth int) error {
	c.depth = depth
	return nil
}

// Moderate implements the queue.
func (c *FakeCQ) Moderate(int, time.Duration) error { return c.dev.failure() }

// SetTimestamps implements the queue.
func (c *FakeCQ) SetTimestamps(bool) error { return c.dev.failure() }

// Add makes a completion.
func (c *FakeCQ) Add(wc verbs.WC) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.wcs = append(c.wcs, wc)
	if c.armed {
		c.armed = false
		c.Notify()
	}
}

// AddUnseen makes a completion that raises no event.
func (c *FakeCQ) AddUnseen(wc verbs.WC) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.wcs = append(c.wcs, wc)
}

// Notify raises an event, with or without a completion behind it.
func (c *FakeCQ) Notify() {
	select {
	case c.event <- struct{}{}:
	default:
	}
}

// Overrun makes Poll report an overrun once no completion is left.
func (c *FakeCQ) Overrun() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.overrun = true
}

// Poll implements the queue.
func (c *FakeCQ) Poll(wc []verbs.WC) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := copy(wc, c.wcs)
	c.wcs = c.wcs[:copy(c.wcs, c.wcs[n:])]
	if n == 0 && c.overrun {
		return 0, verbs.ErrCQOverrun
	}
	return n, nil
}

// Arm implements the queue.
func (c *FakeCQ) Arm(bool) error {
	if c.OnArm != nil {
		c.OnArm()
	}
	c.mu.Lock()
	c.armed = true
	c.mu.Unlock()
	if c.AfterArm != nil {
		c.AfterArm()
	}
	return nil
}
