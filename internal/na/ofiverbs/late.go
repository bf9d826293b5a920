package ofiverbs

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"cinnabar/internal/hostmem"
	"cinnabar/internal/hostquota"
	"cinnabar/internal/invariants"
	"cinnabar/internal/na"
	"cinnabar/internal/peerbook"
)

// A device refuses an access to memory by ending the connection. A server does not learn that its caller has given up a call, so it may
// access memory, by a handle in the call's request, after the caller has closed that memory. All other calls to the server would then fail.
// Therefore the endpoint keeps such memory registered when the program closes it:
//
//	          GiveUp: the call's request has the handle
//	open -----------------------------------------------> open, with calls
//	  | Close                                                | Close (Withdraw)
//	  v                                                      v
//	deregistered <--------------------------------------- kept: registered under the same key
//	          the last such call is answered or its
//	          connection ends; Config.LateAccess has passed
//
// The device cannot give the key to other memory. So a read of the server returns the bytes that are in the memory at the time of the read,
// and the endpoint keeps memory that peers may write only if it came from the engine, because the engine does not reuse such memory before it is
// deregistered. The endpoint keeps no memory that the program has mapped, because the program may unmap it after Close, and the address may then
// have bytes that no peer may read.

// lates holds the given-up calls of an endpoint that have handles of the endpoint's memory in their requests. It is safe for concurrent use.
type lates struct {
	calls peerbook.GivenUp[*conn, *lateCall] // guarded by mu, except Len

	mu invariants.Mutex // lock order: after those of connections and peers, before that of the endpoint
	// +checklocks:mu
	kept map[*memory]struct{}
	// +checklocks:mu
	closed bool
}

// lateCall is a given-up call. Its server may still access the memory of mem.
type lateCall struct {
	c    *conn
	name string
	mem  []*lateHandle
}

// lateHandle is a handle in the request of a given-up call.
type lateHandle struct {
	call   *lateCall
	m      *memory   // nil if the memory is neither open nor kept
	size   uint64    // bytes
	closed time.Time // time at which the program closed the memory; zero if it is open
	gone   string    // the reason why the memory is not kept, for errors
}

// lateMemory is the state of a memory that concerns given-up calls. The mutex of lates guards all but n.
type lateMemory struct {
	n       atomic.Int32 // len(handles)
	handles []*lateHandle
	closed  bool        // by the program
	timer   *time.Timer // calls expire
	done    func()      // called once when kept memory is deregistered
}

// handleMark is the number of pieces in every handle of this package, 1, at offset offHandlePieces. findHandles searches requests for it.
var handleMark = []byte{1, 0, 0, 0, 0, 0, 0, 0}

// GiveUp implements [na.LateServer].
func (e *Endpoint) GiveUp(to na.Addr, tag uint32, request []byte, name func() string) {
	p, _ := e.resolve(to)
	if p == nil {
		return
	}
	c := p.conn.Load()
	if c == nil {
		c = p.withhold(tag)
	}
	if c == nil {
		return
	}
	call := &lateCall{c: c}
	e.findHandles(call, request)
	if len(call.mem) == 0 {
		return
	}
	call.name = name()
	over := e.late.add(call, tag)
	if !p.expected.Has(tag) { // the response has come, or the connection has ended
		over = append(over, e.late.answered(c, tag)...)
	}
	e.endKept(over)
	if c.dead.Load() { // because fail may have called lostLate before add
		e.lostLate(c)
	}
}

// withhold returns the connection with p, or nil if there is none. In the second case it cancels the request with tag, which waits for a
// connection, so that the server never gets its handles.
func (p *peer) withhold(tag uint32) *conn {
	p.mu.Lock()
	if c := p.conn.Load(); c != nil {
		p.mu.Unlock()
		return c
	}
	i := slices.IndexFunc(p.waiting, func(it item) bool { return it.request && it.tag == tag })
	if i < 0 {
		p.mu.Unlock()
		return nil
	}
	it := p.waiting[i]
	p.waiting = slices.Delete(p.waiting, i, i+1)
	p.mu.Unlock()
	it.op.Finish(0, &na.Error{Kind: na.Canceled, Op: it.opName, Addr: p.str})
	return nil
}

// findHandles searches request for handles of the endpoint's open memory, and adds each memory that it finds to the call.
func (e *Endpoint) findHandles(call *lateCall, request []byte) {
	found := make(map[uint32][]remote) // by key, because the pieces of one region have handles with the same key
	for at := 0; ; at++ {
		i := bytes.Index(request[at:], handleMark)
		if i < 0 {
			break
		}
		at += i
		if start := at - offHandlePieces; start >= 0 && start+handleLen <= len(request) {
			if r, err := parseHandle(request[start : start+handleLen]); err == nil {
				found[r.at.RKey] = append(found[r.at.RKey], r)
			}
		}
	}
	if len(found) == 0 {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for m := range e.memory {
		if slices.ContainsFunc(found[m.mr.RKey()], func(r remote) bool { return m.has(&r) }) {
			call.mem = append(call.mem, &lateHandle{call: call, m: m, size: uint64(m.mr.Len())})
		}
	}
}

// add enters a call into lates, unless the call's connection has ended. Like the other methods of lates, it returns in over the kept memory
// that no given-up call needs any more; the caller passes over to endKept after it has released its locks.
func (l *lates) add(call *lateCall, tag uint32) (over []*memory) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if call.c.dead.Load() {
		return nil
	}
	for _, old := range l.calls.Add(call.c, tag, call, len(call.mem)) {
		over = l.endLocked(old, over)
	}
	for _, h := range call.mem {
		if h.m.late.closed { // because the program closed it after findHandles
			h.m, h.closed = nil, time.Now()
			continue
		}
		h.m.late.handles = append(h.m.late.handles, h)
		h.m.late.n.Add(1)
	}
	return over
}

// answered ends the call with that tag, because its server has responded and therefore no longer accesses the memory.
func (l *lates) answered(c *conn, tag uint32) (over []*memory) {
	if l.calls.Len() == 0 {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if call, ok := l.calls.Answered(c, tag); ok {
		over = l.endLocked(call, nil)
	}
	return over
}

// lost ends the calls of a connection that has ended.
func (l *lates) lost(c *conn) (over []*memory) {
	if l.calls.Len() == 0 {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, call := range l.calls.Lost(c) {
		over = l.endLocked(call, over)
	}
	return over
}

// endLocked removes the handles of a call that is over. It appends to over the kept memory that no other given-up call has a handle of.
//
// +checklocks:l.mu
func (l *lates) endLocked(call *lateCall, over []*memory) []*memory {
	for _, h := range call.mem {
		m := h.m
		if h.m = nil; m == nil {
			continue
		}
		m.late.handles = slices.DeleteFunc(m.late.handles, func(o *lateHandle) bool { return o == h })
		m.late.n.Store(int32(len(m.late.handles)))
		if len(m.late.handles) == 0 {
			over = l.takeKeptLocked(m, over)
		}
	}
	return over
}

// takeKeptLocked appends m to over if it is kept. The caller then passes over to endKept.
//
// +checklocks:l.mu
func (l *lates) takeKeptLocked(m *memory, over []*memory) []*memory {
	if _, kept := l.kept[m]; !kept {
		return over
	}
	delete(l.kept, m)
	m.late.timer.Stop()
	return append(over, m)
}

// lostLate ends the given-up calls of a connection that has ended.
func (e *Endpoint) lostLate(c *conn) { e.endKept(e.late.lost(c)) }

// endKept deregisters memory that was kept. That takes no longer than the device needs to copy bytes that have arrived.
func (e *Endpoint) endKept(over []*memory) {
	for _, m := range over {
		m.deregister()
		m.late.done()
	}
}

// Late implements [na.LateMemory].
func (m *memory) Late() bool { return m.late.n.Load() > 0 }

// Withdraw implements [na.LateMemory].
func (m *memory) Withdraw(hold func() (release func())) {
	m.revoke.Do(func() {
		if !m.ep.keep(m, hold) {
			m.deregister()
		}
	})
}

// forget records that the program has closed m and that the endpoint does not keep it.
func (l *lates) forget(m *memory) {
	l.mu.Lock()
	defer l.mu.Unlock()
	m.late.forgetLocked("")
}

// forgetLocked removes the memory, which is closed and not kept, from the handles of the given-up calls. gone is the reason why it is not kept,
// or empty. The caller holds the mutex of lates.
func (m *lateMemory) forgetLocked(gone string) {
	m.closed = true
	for _, h := range m.handles {
		h.m, h.gone = nil, gone
		if h.closed.IsZero() {
			h.closed = time.Now()
		}
	}
	m.handles = nil
	m.n.Store(0)
}

// keep enters the memory into lates.kept, and reports whether it could. The caller deregisters the memory if keep returns false.
func (e *Endpoint) keep(m *memory, hold func() (release func())) bool {
	l := &e.late
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(m.late.handles) == 0 || l.closed { // the calls have ended
		m.late.forgetLocked("")
		return false
	}
	account, n := m.late.handles[0].call.c.peer.account, int64(m.remote().size)
	gone := ""
	switch {
	case e.cfg.LateAccess < 0:
		gone = "Config.LateAccess is negative"
	case hold == nil && m.access&na.WriteOnly != 0:
		gone = "memory of the program that peers may write is not kept, because the program may reuse it (memory of Alloc is kept)"
	case hold == nil && !hostmem.InGoHeap(m.mr.Bytes()): // a slice of the heap stays where it is while it is registered
		gone = "memory outside Go's heap is not kept, because the program may unmap it (memory of Alloc is kept)"
	default:
		if err := account.Take(hostquota.Memory, n); err != nil {
			gone = fmt.Sprintf("there is no room to keep it: %v (Config.MaxMemory)", err)
		}
	}
	if gone != "" {
		m.late.forgetLocked(gone)
		return false
	}
	m.late.closed = true
	for _, h := range m.late.handles {
		h.closed = time.Now()
	}
	m.late.done = func() { account.Give(hostquota.Memory, n) }
	if hold != nil {
		release := hold()
		m.late.done = func() {
			account.Give(hostquota.Memory, n)
			release()
		}
	}
	if l.kept == nil {
		l.kept = map[*memory]struct{}{}
	}
	l.kept[m] = struct{}{}
	m.late.timer = time.AfterFunc(e.cfg.LateAccess, func() { e.expire(m) })
	return true
}

// expire deregisters kept memory, because Config.LateAccess has passed.
func (e *Endpoint) expire(m *memory) {
	l := &e.late
	l.mu.Lock()
	m.late.forgetLocked(fmt.Sprintf("it was kept for %v (Config.LateAccess)", e.cfg.LateAccess))
	over := l.takeKeptLocked(m, nil)
	l.mu.Unlock()
	e.endKept(over)
}

// closeLate deregisters all kept memory. keep returns false afterwards.
func (e *Endpoint) closeLate() {
	l := &e.late
	l.mu.Lock()
	l.closed = true
	var over []*memory
	for m := range l.kept {
		over = l.takeKeptLocked(m, over)
	}
	l.mu.Unlock()
	e.endKept(over)
}

// lateError is the cause of the end of a connection on which the peer may have accessed closed memory of a given-up call.
type lateError struct {
	text string
	err  error // of the device
}

func (e *lateError) Error() string { return e.err.Error() + "; " + e.text }

func (e *lateError) Unwrap() error { return e.err }

// explain returns an error for the end of c with the cause err, which the device has reported. The device does not name the memory that the
// peer has accessed. Therefore the text also names memory of a given-up call to the peer that is closed and not kept, if there is any.
func (l *lates) explain(c *conn, err error) error {
	if l.calls.Len() == 0 {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for call := range l.calls.Of(c) {
		for _, h := range call.mem {
			if h.m == nil && !h.closed.IsZero() {
				text := fmt.Sprintf("the peer may have accessed memory of %d bytes that was exposed for the call %s, which was given up; the memory was closed %v ago",
					h.size, call.name, time.Since(h.closed).Round(time.Millisecond))
				if h.gone != "" {
					text += ": " + h.gone
				}
				return &lateError{text, err}
			}
		}
	}
	return err
}

// about returns the cause of the failure of an operation after its connection has ended with err. If an access to closed memory may have ended
// the connection, or a canceled transfer has, the error of a call that waits for its response also says that the peer may have executed the
// request, because a program may repeat a call only if its request was not sent.
func about(opName string, err error) error {
	if _, late := errors.AsType[*lateError](err); opName == "receive" && (late || errors.Is(err, errHeld)) {
		return fmt.Errorf("%w; the request of this call has left, and may have been executed", err)
	}
	return err
}
