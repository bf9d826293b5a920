package fault

import (
	"context"
	"net/netip"
	"sync"

	"cinnabar/identity"
	"cinnabar/verbs"
)

// device is the layer's face as a device.
type device struct {
	in    *Injector
	inner verbs.DeviceDriver
}

func (d *device) Query() (verbs.DeviceAttr, error) { return d.inner.Query() }

// Stats adds the number of injected faults to the device's counters.
func (d *device) Stats() verbs.Stats {
	s := verbs.Stats{}
	for k, v := range d.inner.Stats() {
		s[k] = v
	}
	d.in.mu.Lock()
	defer d.in.mu.Unlock()
	s["faults_injected"] = uint64(len(d.in.trace))
	return s
}

// Close closes the device below and waits for the layer's goroutines, which end
// with the queues and connections that must be closed before.
func (d *device) Close() error {
	if err := d.inner.Close(); err != nil {
		return err
	}
	d.in.wg.Wait()
	return nil
}

// failure is the error that the plan wants from a call, nil for none.
func (in *Injector) failure(at Point, queue int) error {
	in.mu.Lock()
	defer in.mu.Unlock()
	if f, ok := in.decide(at, queue, 0).do.(fail); ok {
		return f.err
	}
	return nil
}

func (d *device) AllocPD() (verbs.PDDriver, error) {
	p, err := d.inner.AllocPD()
	if err != nil {
		return nil, err
	}
	d.in.mu.Lock()
	defer d.in.mu.Unlock()
	d.in.pds++
	return &pd{in: d.in, inner: p, number: d.in.pds, regions: make(map[uint32]*mr)}, nil
}

func (d *device) Listen(addr netip.AddrPort, cfg verbs.ListenConfig) (verbs.ListenerDriver, error) {
	l, err := d.inner.Listen(addr, cfg)
	if err != nil {
		return nil, err
	}
	d.in.mu.Lock()
	defer d.in.mu.Unlock()
	d.in.listeners++
	return &listener{ListenerDriver: l, in: d.in, number: d.in.listeners}, nil
}

// Dial may fail, wait or be rejected before the device below is asked.
func (d *device) Dial(ctx context.Context, dq verbs.QPDriver, addr netip.AddrPort, p verbs.ConnParam) (verbs.ConnDriver, error) {
	q, ok := dq.(*qp)
	if !ok {
		return nil, verbs.Errorf("dial", verbs.ErrInvalid, "the queue pair belongs to another device")
	}
	d.in.mu.Lock()
	do := d.in.decide(AtDial, q.number, 0).do
	d.in.mu.Unlock()
	switch a := do.(type) {
	case fail:
		return nil, &verbs.Error{Op: "dial", Detail: addr.String(), Err: a.err}
	case reject:
		return nil, &verbs.RejectedError{PrivateData: []byte(a.data)}
	case ignore:
		<-ctx.Done()
		return nil, &verbs.Error{Op: "dial", Detail: addr.String(), Err: ctx.Err()}
	case delay:
		if err := d.in.await(ctx, a.polls); err != nil {
			return nil, &verbs.Error{Op: "dial", Detail: addr.String(), Err: err}
		}
	}
	c, err := d.inner.Dial(ctx, q.inner, addr, p)
	if err != nil {
		return nil, err
	}
	q.watch(c)
	return c, nil
}

// pd is a protection domain.
type pd struct {
	in     *Injector
	inner  verbs.PDDriver
	number int

	mu sync.Mutex
	// regions are the open ones by lkey, to find inline data.
	// +checklocks:mu
	regions map[uint32]*mr
}

// enter adds a region of the device below to the list.
func (p *pd) enter(m verbs.MRDriver, r verbs.MRInit) verbs.MRDriver {
	if r.HasIOVA {
		r.Addr = r.IOVA // because work requests name the region by IOVA
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	own := &mr{MRDriver: m, pd: p, init: r}
	p.regions[m.LKey()] = own
	return own
}

func (p *pd) RegMR(r verbs.MRInit, access verbs.Access) (verbs.MRDriver, error) {
	if err := p.in.failure(AtRegister, p.number); err != nil {
		return nil, err
	}
	m, err := p.inner.RegMR(r, access)
	if err != nil {
		return nil, err
	}
	return p.enter(m, r), nil
}

// mr is a region that is taken off the domain's list when it is closed.
type mr struct {
	verbs.MRDriver
	pd   *pd
	init verbs.MRInit
}

// leave takes the region off the list, unless the device has given its key to another one.
func (m *mr) leave() {
	m.pd.mu.Lock()
	defer m.pd.mu.Unlock()
	if m.pd.regions[m.LKey()] == m {
		delete(m.pd.regions, m.LKey())
	}
}

func (m *mr) Close() error {
	m.leave()
	return m.MRDriver.Close()
}

// Rereg changes the region of the device below, and replaces its entry in the domain's list.
func (m *mr) Rereg(c verbs.MRReinit) (verbs.MRDriver, error) {
	if err := m.pd.in.failure(AtRegister, m.pd.number); err != nil {
		return nil, err
	}
	p, r := m.pd, m.init
	if c.PD != nil {
		p = c.PD.(*pd)
		c.PD = p.inner
	}
	if c.Memory != nil {
		r = *c.Memory
	}
	next, err := m.MRDriver.Rereg(c)
	if err != nil {
		return nil, err
	}
	m.leave()
	return p.enter(next, r), nil
}

func (p *pd) CreateAH(attr verbs.AHAttr) (verbs.AddressHandle, error) {
	return p.inner.CreateAH(attr)
}

// AllocMW passes the windows of the device below on, as CreateAH does with its handles.
func (p *pd) AllocMW(t verbs.MWType) (verbs.MemoryWindow, error) { return p.inner.AllocMW(t) }

func (p *pd) Close() error { return p.inner.Close() }

// listener is a listener that can lose requests.
type listener struct {
	verbs.ListenerDriver
	in     *Injector
	number int

	mu sync.Mutex
	// kept are the requests that are ignored.
	// +checklocks:mu
	kept []verbs.ConnRequestDriver
}

// Accept hands out the next request that the plan leaves alone.
func (l *listener) Accept(ctx context.Context) (verbs.ConnRequestDriver, error) {
	for {
		r, err := l.ListenerDriver.Accept(ctx)
		if err != nil {
			return nil, err
		}
		l.in.mu.Lock()
		do := l.in.decide(AtRequest, l.number, 0).do
		l.in.mu.Unlock()
		switch a := do.(type) {
		case fail:
			_ = r.Reject(nil) // the peer may be gone already
			return nil, &verbs.Error{Op: "accept", Err: a.err}
		case reject:
			_ = r.Reject([]byte(a.data)) // the peer may be gone already
			continue
		case ignore:
			l.keep(r)
			continue
		case delay:
			if err := l.in.await(ctx, a.polls); err != nil {
				l.keep(r)
				return nil, err
			}
		}
		return &connRequest{r}, nil
	}
}

func (l *listener) keep(r verbs.ConnRequestDriver) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.kept = append(l.kept, r)
}

// Close answers the ignored requests too, since each must be answered.
func (l *listener) Close() error {
	l.mu.Lock()
	kept := l.kept
	l.kept = nil
	l.mu.Unlock()
	for _, r := range kept {
		_ = r.Reject(nil) // the peer may be gone already
	}
	return l.ListenerDriver.Close()
}

// connRequest passes the queue pair below on.
type connRequest struct{ verbs.ConnRequestDriver }

// Identity implements [verbs.Identified].
func (r *connRequest) Identity() identity.Peer { return verbs.IdentityOf(r.ConnRequestDriver) }

func (r *connRequest) Accept(ctx context.Context, dq verbs.QPDriver, p verbs.ConnParam) (verbs.ConnDriver, error) {
	q, ok := dq.(*qp)
	if !ok {
		return nil, verbs.Errorf("accept", verbs.ErrInvalid, "the queue pair belongs to another device")
	}
	c, err := r.ConnRequestDriver.Accept(ctx, q.inner, p)
	if err != nil {
		return nil, err
	}
	q.watch(c)
	return c, nil
}
