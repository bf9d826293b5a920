package autosm

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	"cinnabar/internal/na"
	"cinnabar/internal/na/sm"
)

// Endpoint is an endpoint in shared memory and one on a network. It implements [na.SharedMemory].
type Endpoint struct {
	near    *sm.Endpoint
	network na.Endpoint
	self    *self
	limits  na.Limits
	// nearRoom is the room that near leaves unused at the beginning of messages, and networkRoom that of network.
	nearRoom, networkRoom rooms
}

// rooms has the numbers of bytes at the beginning of a request and of a response that a part of an Endpoint does not use.
type rooms struct{ request, response int }

var (
	_ na.SharedMemory = (*Endpoint)(nil)
	_ na.GroupDriver  = (*Endpoint)(nil)
	_ na.LateServer   = (*Endpoint)(nil)
	_ na.Reporter     = (*Endpoint)(nil)
	_ na.Mover        = (*Endpoint)(nil)
)

// Open opens an endpoint in shared memory, and then one on the network by calling network. Both must have the same handler. If either
// fails, Open returns the error, and nothing stays open.
func Open(ctx context.Context, cfg sm.Config, network func() (na.Endpoint, error)) (na.Endpoint, error) {
	opened, err := sm.Open(ctx, cfg)
	if err != nil {
		return nil, err
	}
	near := opened.(*sm.Endpoint) // which Open of package sm returns
	far, err := network()
	if err != nil {
		return nil, errors.Join(err, near.Close(ctx))
	}
	if err := near.SetBeside(far.Addr().String()); err != nil {
		return nil, errors.Join(err, far.Close(ctx), near.Close(ctx))
	}
	return join(near, far), nil
}

// join makes an Endpoint of its parts.
func join(near *sm.Endpoint, network na.Endpoint) *Endpoint {
	n, f := near.Limits(), network.Limits()
	l := na.Limits{
		MaxRequest: min(n.MaxRequest, f.MaxRequest), MaxResponse: min(n.MaxResponse, f.MaxResponse),
		RequestRoom: max(n.RequestRoom, f.RequestRoom), ResponseRoom: max(n.ResponseRoom, f.ResponseRoom),
	}
	e := &Endpoint{
		near: near, network: network, limits: l,
		nearRoom:    rooms{l.RequestRoom - n.RequestRoom, l.ResponseRoom - n.ResponseRoom},
		networkRoom: rooms{l.RequestRoom - f.RequestRoom, l.ResponseRoom - f.ResponseRoom},
	}
	e.self = &self{both{near: near.Addr(), network: network.Addr()}}
	e.self.str = combine(e.self.near, e.self.network)
	return e
}

// combine returns the combined address of a process on this host.
func combine(near, network na.Addr) string {
	return sm.Combined{Host: sm.HostID(), Shared: near.String(), Other: network.String()}.String()
}

// part returns the endpoint to which operations with a belong, the address that it knows, and whether that is shared memory.
func (e *Endpoint) part(a na.Addr) (ep na.Endpoint, known na.Addr, shared bool) {
	switch p := a.(type) {
	case *peer:
		return e.near, p.near, true
	case *self:
		return e.network, p.network, false
	case *sm.Addr:
		return e.near, p, true
	}
	return e.network, a, false
}

// Shares implements [na.SharedMemory].
func (e *Endpoint) Shares(a na.Addr) bool {
	_, _, shared := e.part(a)
	return shared
}

// Part implements [na.SharedMemory].
func (e *Endpoint) Part(a na.Addr, shared bool) na.Addr {
	var of both
	switch p := a.(type) {
	case *peer:
		of = p.both
	case *self:
		of = p.both
	case *sm.Addr:
		if !shared {
			return nil
		}
		return p
	default:
		return a
	}
	if shared {
		return of.near
	}
	return of.network
}

// Addr implements [na.Endpoint].
func (e *Endpoint) Addr() na.Addr { return e.self }

// Listening implements [na.Endpoint].
func (e *Endpoint) Listening() bool { return e.network.Listening() }

// Limits implements [na.Endpoint].
func (e *Endpoint) Limits() na.Limits { return e.limits }

// Lookup implements [na.Endpoint]. A combined address becomes a [na.Named], because the process may be gone from shared memory, or come
// there, before an operation uses the address.
func (e *Endpoint) Lookup(s string) (na.Addr, error) {
	c, ok, err := sm.ParseCombined(s)
	switch {
	case err != nil:
		return nil, &na.Error{Kind: na.Invalid, Op: "lookup", Addr: s, Err: err}
	case !ok && (strings.HasPrefix(s, "na+sm:") || strings.HasPrefix(s, "sm:")):
		return e.near.Lookup(s)
	case !ok:
		return e.network.Lookup(s)
	}
	network, err := e.network.Lookup(c.Other)
	if err != nil || c.Host != sm.HostID() || !onThisHost(network) {
		return network, err
	}
	near, err := e.near.Lookup(c.Shared)
	if err != nil {
		return nil, err
	}
	if e.near.Addr().Equal(near) && e.network.Addr().Equal(network) {
		return e.self, nil
	}
	return &named{ep: e, str: s, near: near, network: network}, nil
}

// AppendAddr implements [na.Endpoint]. The form of the endpoint's own address is that of the network; that of another address is that of
// the network to which messages for it go.
func (e *Endpoint) AppendAddr(b []byte, a na.Addr) []byte {
	ep, known, _ := e.part(a)
	return ep.AppendAddr(b, known)
}

// AppendSharedAddr implements [na.SharedMemory].
func (e *Endpoint) AppendSharedAddr(b []byte, a na.Addr) []byte {
	return e.near.AppendAddr(b, e.Part(a, true))
}

// ParseAddr implements [na.Endpoint].
func (e *Endpoint) ParseAddr(b []byte) (na.Addr, error) { return e.network.ParseAddr(b) }

// ParseAddrs implements [na.SharedMemory].
func (e *Endpoint) ParseAddrs(network, shared []byte) (na.Addr, error) {
	far, err := e.network.ParseAddr(network)
	if err != nil {
		return nil, err
	}
	near, err := e.near.ParseAddr(shared)
	switch {
	case err != nil:
		return nil, err
	case e.near.Addr().Equal(near):
		return e.self, nil
	case !e.reaches(near, far):
		return far, nil
	}
	return e.peerAt(near, far), nil
}

// SendRequest implements [na.Endpoint].
func (e *Endpoint) SendRequest(op *na.Op, to na.Addr, tag uint32, msg []byte) {
	ep, known, shared := e.part(to)
	ep.SendRequest(op, known, tag, msg[e.room(shared).request:])
}

// RecvExpected implements [na.Endpoint].
func (e *Endpoint) RecvExpected(op *na.Op, from na.Addr, tag uint32, buf []byte) {
	ep, known, _ := e.part(from)
	ep.RecvExpected(op, known, tag, buf)
}

// SendExpected implements [na.Endpoint].
func (e *Endpoint) SendExpected(op *na.Op, to na.Addr, tag uint32, msg []byte) {
	ep, known, shared := e.part(to)
	ep.SendExpected(op, known, tag, msg[e.room(shared).response:])
}

func (e *Endpoint) room(shared bool) rooms {
	if shared {
		return e.nearRoom
	}
	return e.networkRoom
}

// Cancel implements [na.Endpoint]. At most one of the two endpoints knows op.
func (e *Endpoint) Cancel(op *na.Op) {
	e.near.Cancel(op)
	e.network.Cancel(op)
}

// Drive implements [na.Endpoint].
func (e *Endpoint) Drive(a na.Addr, ev *na.Event) {
	ep, known, _ := e.part(a)
	ep.Drive(known, ev)
}

// DriveGroup implements [na.GroupDriver]. It does nothing for a peer on a network that is no GroupDriver.
func (e *Endpoint) DriveGroup(a na.Addr, ev *na.Event) {
	ep, known, _ := e.part(a)
	if g, ok := ep.(na.GroupDriver); ok {
		g.DriveGroup(known, ev)
	}
}

// Undriven implements [na.GroupDriver].
func (e *Endpoint) Undriven(a na.Addr) {
	ep, known, _ := e.part(a)
	if g, ok := ep.(na.GroupDriver); ok {
		g.Undriven(known)
	}
}

// DrivesTransfers implements [na.GroupDriver].
func (e *Endpoint) DrivesTransfers(a na.Addr) bool {
	ep, known, _ := e.part(a)
	g, ok := ep.(na.GroupDriver)
	return ok && g.DrivesTransfers(known)
}

// GiveUp implements [na.LateServer].
func (e *Endpoint) GiveUp(to na.Addr, tag uint32, request []byte, name func() string) {
	ep, known, _ := e.part(to)
	if late, ok := ep.(na.LateServer); ok {
		late.GiveUp(known, tag, request, name)
	}
}

// Report implements [na.Reporter].
func (e *Endpoint) Report(a na.Addr) string {
	ep, known, _ := e.part(a)
	if r, ok := ep.(na.Reporter); ok {
		return r.Report(known)
	}
	return ""
}

// Moved implements [na.Mover]. Shared memory has no device.
func (e *Endpoint) Moved() (rdma, copied uint64) {
	if m, ok := e.network.(na.Mover); ok {
		return m.Moved()
	}
	return 0, 0
}

// allocator is an endpoint with memory that is better for transfers than any other.
type allocator interface {
	Alloc(size int) (mem []byte, free func() error, err error)
}

// Alloc returns memory of the network's device if it has one, and otherwise memory that peers on this host can map.
func (e *Endpoint) Alloc(size int) (mem []byte, free func() error, err error) {
	if a, ok := e.network.(allocator); ok {
		return a.Alloc(size)
	}
	return e.near.Alloc(size)
}

// Shutdown implements [na.Endpoint].
func (e *Endpoint) Shutdown() {
	e.near.Shutdown()
	e.network.Shutdown()
}

// Close implements [na.Endpoint]. It closes both endpoints at the same time, because each may wait for peers until ctx is done.
func (e *Endpoint) Close(ctx context.Context) error {
	var near, network error
	var wg sync.WaitGroup
	wg.Go(func() { near = e.near.Close(ctx) })
	wg.Go(func() { network = e.network.Close(ctx) })
	wg.Wait()
	return errors.Join(near, network)
}

// Get implements [na.Endpoint].
func (e *Endpoint) Get(op *na.Op, from na.Addr, frags []na.Fragment) {
	if ep, known, ok := e.transfer(op, "get", from, frags); ok {
		ep.Get(op, known, frags)
	}
}

// Put implements [na.Endpoint].
func (e *Endpoint) Put(op *na.Op, to na.Addr, frags []na.Fragment) {
	if ep, known, ok := e.transfer(op, "put", to, frags); ok {
		ep.Put(op, known, frags)
	}
}

// transfer returns the endpoint for a transfer, and puts the remote memory as that endpoint knows it into frags. If the memory is not
// known there, transfer completes op with an error.
func (e *Endpoint) transfer(op *na.Op, name string, a na.Addr, frags []na.Fragment) (ep na.Endpoint, known na.Addr, ok bool) {
	ep, known, shared := e.part(a)
	for i := range frags {
		r, ok := frags[i].Remote.(*remote)
		if ok && shared {
			frags[i].Remote, ok = r.near, r.near != nil
		} else if ok {
			frags[i].Remote = r.network
		}
		if !ok {
			op.Begin()
			op.Finish(0, &na.Error{Kind: na.Invalid, Op: name, Addr: a.String(), Err: fmt.Errorf("fragment %d: its memory has no handle of the network to that address", i)})
			return nil, nil, false
		}
	}
	return ep, known, true
}

// Conns implements [na.ConnLister].
func (e *Endpoint) Conns(limit int) (list []na.ConnInfo, total int) {
	for _, ep := range []na.Endpoint{e.near, e.network} {
		if l, ok := ep.(na.ConnLister); ok {
			part, n := l.Conns(limit)
			list, total = append(list, part...), total+n
		}
	}
	return na.FirstConns(list, limit), total
}
