package ofitcp

import (
	"bytes"
	"container/list"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"cinnabar/internal/hostmem"
	"cinnabar/internal/hostquota"
	"cinnabar/internal/invariants"
	"cinnabar/internal/na"
	"cinnabar/internal/peerbook"
)

// This protocol can refuse an access to memory only by ending the connection. A server does not learn that its caller has given
// up a call, so it may access memory, by a handle in the call's request, after the caller has closed that memory. Ending the
// connection would then fail all other calls to the server. Therefore the endpoint keeps such memory for the server of the call
// when the program closes it:
//
//	          GiveUp: the call's request has the handle
//	open -----------------------------------------------> open, with calls
//	  | Close                                                | Close (Withdraw)
//	  v                                                      v
//	gone <----------------------------------------------- kept: another memory replaces it, under the same key
//	          the last such call is answered or its
//	          connection ends; Config.LateAccess has passed
//
// A read of kept memory returns a copy of the program's slices, or the memory itself if that came from the engine. A write to
// kept memory is discarded. Accesses of other peers than the servers of the calls are refused.

// lates holds the given-up calls of an endpoint with handles of its memory in their requests. It is safe for concurrent use.
type lates struct {
	calls peerbook.GivenUp[*conn, *lateCall] // guarded by mu, except Len
	wg    sync.WaitGroup                     // counts kept memory

	mu invariants.Mutex // lock order: after the locks of connections and peers, before those of the memory table
	// kept holds the kept memory, the one that expires first at the front.
	// +checklocks:mu
	kept list.List
	// +checklocks:mu
	timer *time.Timer // calls expire when the front of kept expires
	// +checklocks:mu
	closed bool
}

// lateCall is a given-up call. Its server may still access the memory.
type lateCall struct {
	c    *conn
	name string
	mem  []*lateHandle
}

// lateHandle is a handle in the request of a given-up call.
type lateHandle struct {
	call   *lateCall
	key    uint64
	size   uint64
	m      *memory   // the open or kept memory; nil if there is none any more
	closed time.Time // when the program closed the memory; zero: it is open
	gone   string    // the reason why the memory is not kept, for errors
}

// lateMemory is the state of a memory that concerns given-up calls.
type lateMemory struct {
	kept  bool         // the memory replaces one that the program has closed
	since time.Time    // when the program closed that one
	n     atomic.Int32 // len(handles)

	// The mutex of lates guards the rest.

	handles []*lateHandle
	until   time.Time     // when kept memory expires
	at      *list.Element // its element of lates.kept, nil before and after
	done    func()        // called once when no access to kept memory is possible any more
}

// lateError is the cause of the end of a connection because the peer accesses closed memory of a given-up call.
type lateError struct{ text string }

func (e *lateError) Error() string { return e.text }

// handleMark is a byte sequence in every handle of this package, at offset handleMarkAt: behind the key, the length, the number
// of pieces and the access rights.
var (
	handleMark   = []byte{0, 0, 0, 0, 0, 0, 0, handleBase & 0xff, handleBase >> 8, 0, 0, 0, 0, 0, 0}
	handleMarkAt = 25
)

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
	known := make(map[uint64]struct{})
	for at := 0; ; {
		i := bytes.Index(request[at:], handleMark)
		if i < 0 {
			break
		}
		at += i + 1
		start := at - 1 - handleMarkAt
		if start < 0 {
			continue
		}
		key := binary.LittleEndian.Uint64(request[start:])
		if _, ok := known[key]; ok {
			continue
		}
		if m := e.mem.find(key); m != nil {
			known[key] = struct{}{}
			call.mem = append(call.mem, &lateHandle{call: call, key: key, size: m.size})
		}
	}
	if len(call.mem) == 0 {
		return
	}
	call.name = name()
	e.late.add(call, tag, &e.mem)
	if !p.expected.Has(tag) { // the response has come, or the connection has ended
		e.late.answered(c, uint64(tag))
	}
	if c.dead.Load() { // lost may have run before the call was entered
		e.late.lost(c)
	}
}

// withhold returns the connection with p, if there is one. Otherwise it cancels the request with tag that waits for a connection.
func (p *peer) withhold(tag uint32) *conn {
	p.mu.Lock()
	if c := p.conn.Load(); c != nil {
		p.mu.Unlock()
		return c
	}
	i := slices.IndexFunc(p.waiting, func(it item) bool { return it.request && it.tag() == tag })
	if i < 0 {
		p.mu.Unlock()
		return nil
	}
	it := p.waiting[i]
	p.waiting = slices.Delete(p.waiting, i, i+1)
	p.mu.Unlock()
	p.giveBack(it, &na.Error{Kind: na.Canceled, Op: it.what, Addr: p.str})
	return nil
}

// tag returns the tag of a request.
func (it *item) tag() uint32 { return uint32(header(it.msg).word(baseLen)) }

// add enters a call into lates, unless the call's connection has ended.
func (l *lates) add(call *lateCall, tag uint32, table *memoryTable) {
	l.mu.Lock()
	if call.c.dead.Load() {
		l.mu.Unlock()
		return
	}
	var over []*memory
	for _, old := range l.calls.Add(call.c, tag, call, len(call.mem)) {
		over = l.endLocked(old, over)
	}
	for _, h := range call.mem {
		h.enterLocked(table.find(h.key))
	}
	l.mu.Unlock()
	l.finish(over)
}

// enterLocked records the handle at m, which may be nil. The caller holds the mutex of lates.
func (h *lateHandle) enterLocked(m *memory) {
	if m == nil { // the program has closed it
		return
	}
	h.m = m
	m.late.handles = append(m.late.handles, h)
	m.late.n.Add(1)
	if m.late.kept {
		h.closed = m.late.since
	}
	if m.users.Closed() { // revoked meanwhile: forget may have run before the handle was recorded
		m.late.forgetLocked()
	}
}

// answered ends the call with that tag, because its server has responded and therefore no longer accesses the memory.
func (l *lates) answered(c *conn, tag uint64) {
	if l.calls.Len() == 0 || tag >= 1<<32 {
		return
	}
	l.mu.Lock()
	var over []*memory
	if call, ok := l.calls.Answered(c, uint32(tag)); ok {
		over = l.endLocked(call, over)
	}
	l.mu.Unlock()
	l.finish(over)
}

// lost ends the calls of a connection that has ended.
func (l *lates) lost(c *conn) {
	if l.calls.Len() == 0 {
		return
	}
	l.mu.Lock()
	var over []*memory
	for _, call := range l.calls.Lost(c) {
		over = l.endLocked(call, over)
	}
	l.mu.Unlock()
	l.finish(over)
}

// endLocked removes the handles of a call that is over. It appends to over the kept memory that no other given-up call has a handle of.
//
// +checklocks:l.mu
func (l *lates) endLocked(call *lateCall, over []*memory) []*memory {
	for _, h := range call.mem {
		m := h.m
		h.m = nil
		if m == nil {
			continue
		}
		m.late.handles = slices.DeleteFunc(m.late.handles, func(o *lateHandle) bool { return o == h })
		m.late.n.Store(int32(len(m.late.handles)))
		if m.late.kept && len(m.late.handles) == 0 {
			over = l.endKeptLocked(m, over)
		}
	}
	return over
}

// endKeptLocked removes kept memory from the table, so that no access finds it any more, and appends it to over. A second call
// for the same memory does nothing.
//
// +checklocks:l.mu
func (l *lates) endKeptLocked(k *memory, over []*memory) []*memory {
	if k.late.at == nil {
		return over
	}
	l.kept.Remove(k.late.at)
	k.late.at = nil
	k.ep.mem.drop(k)
	return append(over, k)
}

// finish releases kept memory. It does not block: a goroutine waits for the accesses under way.
func (l *lates) finish(over []*memory) {
	if len(over) == 0 {
		return
	}
	for _, k := range over {
		k.Revoke()
	}
	go func() {
		end := func(k *memory) {
			k.Close()
			k.late.done()
			l.wg.Done()
		}
		var used []*memory
		for _, k := range over {
			if k.users.Users() == 0 {
				end(k)
			} else {
				used = append(used, k)
			}
		}
		for _, k := range used {
			end(k)
		}
	}()
}

// close ends the keeping of all memory and waits until all of it is released. The caller has ended the connections.
func (l *lates) close() {
	l.mu.Lock()
	l.closed = true
	if l.timer != nil {
		l.timer.Stop()
	}
	l.mu.Unlock()
	l.expire()
	l.wg.Wait()
}

// serves reports whether memory k is kept for a call to the peer of c.
func (l *lates) serves(c *conn, k *memory) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.ContainsFunc(k.late.handles, func(h *lateHandle) bool { return h.call.c == c })
}

// explain returns the error of an access by the peer of c to a key from a handle of a given-up call, and nil for other keys.
// k is the kept memory under the key, nil if there is none.
func (l *lates) explain(c *conn, key uint64, k *memory) error {
	if l.calls.Len() == 0 {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for call := range l.calls.Of(c) {
		for _, h := range call.mem {
			if h.key == key {
				return h.explain(h.gone)
			}
		}
	}
	if k != nil && len(k.late.handles) > 0 {
		return k.late.handles[0].explain("it is kept for the server of that call only")
	}
	return nil
}

func (h *lateHandle) explain(why string) error {
	text := fmt.Sprintf("memory of %d bytes that was exposed for the call %s, which was given up, is closed", h.size, h.call.name)
	if !h.closed.IsZero() {
		text = fmt.Sprintf("memory of %d bytes that was exposed for the call %s, which was given up, was closed %v ago",
			h.size, h.call.name, time.Since(h.closed).Round(time.Millisecond))
	}
	if why != "" {
		text += ": " + why
	}
	return &lateError{text}
}

// Late implements [na.LateMemory].
func (m *memory) Late() bool { return m.late.n.Load() > 0 }

// Withdraw implements [na.LateMemory].
func (m *memory) Withdraw(hold func() (release func())) {
	m.revoke.Do(func() {
		m.revoked = time.Now()
		kept := m.Late() && m.ep.late.keep(m, hold)
		m.users.Close()
		if !kept {
			m.ep.mem.drop(m)
			m.ep.late.forget(m)
		}
	})
}

// forget records that the program has closed m and that the endpoint does not keep it.
func (l *lates) forget(m *memory) {
	if !m.Late() {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	m.late.forgetLocked()
}

// forgetLocked removes closed memory from the handles of the given-up calls. The caller holds the mutex of lates.
func (m *lateMemory) forgetLocked() {
	for _, h := range m.handles {
		h.m = nil
		if h.closed.IsZero() {
			h.closed = time.Now()
		}
	}
	m.handles = nil
	m.n.Store(0)
}

// keep replaces m by kept memory, and reports whether it could.
func (l *lates) keep(m *memory, hold func() (release func())) bool {
	k, why := m.copyForLate(hold)
	l.mu.Lock()
	if k != nil && (l.closed || len(m.late.handles) == 0 || !m.ep.mem.replace(m, k)) {
		l.mu.Unlock()
		k.late.done()
		return false
	}
	handles := m.late.handles
	m.late.handles = nil
	m.late.n.Store(0)
	for _, h := range handles {
		h.m, h.closed, h.gone = k, m.revoked, why
	}
	if k != nil {
		k.late.handles = handles
		k.late.n.Store(int32(len(handles)))
		k.late.until = time.Now().Add(m.ep.cfg.LateAccess)
		k.late.at = l.kept.PushBack(k)
		if k.late.at.Prev() == nil {
			l.startTimerLocked()
		}
		l.wg.Add(1)
	}
	l.mu.Unlock()
	return k != nil
}

// copyForLate returns the kept memory for m, or nil with the reason why m is not kept.
func (m *memory) copyForLate(hold func() (release func())) (k *memory, why string) {
	l := &m.ep.late
	if m.ep.cfg.LateAccess < 0 {
		return nil, "Config.LateAccess is negative"
	}
	l.mu.Lock()
	var account *hostquota.Account
	if len(m.late.handles) > 0 {
		account = m.late.handles[0].call.c.peer.account
	}
	l.mu.Unlock()
	if account == nil { // the calls have ended
		return nil, ""
	}
	n := int64(m.size)
	if hold == nil && m.access&na.ReadOnly == 0 {
		n = 0
	}
	give := func() {}
	if n > 0 {
		if err := account.Take(hostquota.Memory, n); err != nil {
			return nil, fmt.Sprintf("there is no room to keep it: %v (Config.MaxMemory)", err)
		}
		give = func() { account.Give(hostquota.Memory, n) }
	}
	k = &memory{ep: m.ep, key: m.key, access: m.access, size: m.size, revoked: m.revoked}
	k.late.kept, k.late.since = true, m.revoked
	k.late.done = give
	switch {
	case hold != nil:
		k.buf = m.buf
		release := hold()
		k.late.done = func() {
			give()
			release()
		}
	case n > 0:
		if err := hostmem.Guard(func() {
			k.buf = make([]byte, n)
			hostmem.CopyExposed(k.buf, m.buf)
		}); err != nil {
			give()
			return nil, fmt.Sprintf("it could not be copied: %v", err)
		}
	}
	return k, ""
}

// startTimerLocked sets the timer that calls expire when the first kept memory expires.
//
// +checklocks:l.mu
func (l *lates) startTimerLocked() {
	first := l.kept.Front()
	if first == nil {
		return
	}
	d := time.Until(first.Value.(*memory).late.until)
	if l.timer == nil {
		l.timer = time.AfterFunc(d, l.expire)
	} else {
		l.timer.Reset(d)
	}
}

// expire ends the keeping of memory that has expired, and of all memory when the endpoint ends.
func (l *lates) expire() {
	l.mu.Lock()
	var over []*memory
	for at := l.kept.Front(); at != nil; at = l.kept.Front() {
		k := at.Value.(*memory)
		if !l.closed && time.Until(k.late.until) > 0 {
			break
		}
		for _, h := range k.late.handles {
			h.m, h.gone = nil, fmt.Sprintf("it was kept for %v (Config.LateAccess)", k.ep.cfg.LateAccess)
		}
		k.late.handles = nil
		k.late.n.Store(0)
		over = l.endKeptLocked(k, over)
	}
	l.startTimerLocked()
	l.mu.Unlock()
	l.finish(over)
}

// about returns the error for an operation of a connection that ended with f. If a late access ended the connection, the error
// also says whether the peer may have executed the request, because the program may repeat a call if its request was not sent.
func (f *failure) about(what string) error {
	if !f.isLate() {
		return f.err
	}
	switch what {
	case "receive":
		return fmt.Errorf("%w; the request of this call has left, and may have been executed", f.err)
	case "send":
		return fmt.Errorf("%w; the request of this call has not left as a whole, and is not executed", f.err)
	}
	return f.err
}

func (f *failure) isLate() bool {
	_, late := errors.AsType[*lateError](f.err)
	return late
}

// unsent holds the requests of which no byte was sent when a late access ended their connection. The peer's next connection sends
// them. A nil *unsent holds none.
type unsent struct {
	c      *conn
	writes bool // findUnsent has locked the connection's write role
	items  []item
}

// findUnsent takes the connection's write role, if it is free, before the connection ends. The caller calls release.
//
// +checklocksignore: it does not know TryLock.
func (c *conn) findUnsent(f *failure) *unsent {
	if !f.isLate() {
		return nil
	}
	return &unsent{c: c, writes: c.wmu.TryLock()} // otherwise a goroutine that writes may be sending the batch
}

// +checklocksignore: it does not know TryLock.
func (u *unsent) release() {
	if u != nil && u.writes {
		u.c.wmu.Unlock()
	}
}

// collectLocked removes the unsent requests from the batch and the queue. The caller holds the mutexes of the peer and the
// connection.
//
// +checklocksignore: it does not know TryLock.
func (u *unsent) collectLocked() {
	if u == nil {
		return
	}
	c := u.c
	if p := c.peer; p.conn.Load() != c || p.firewalled || p.ep.closed.Load() {
		return
	}
	if t := &c.tx; u.writes {
		left := c.left()
		for i := t.done; i < len(t.marks); i++ {
			m := &t.marks[i]
			if m.op == nil || m.msg == nil || m.end-uint64(len(m.msg)) < left || slices.Contains(c.canceled, m.op) {
				continue
			}
			u.items = append(u.items, item{op: m.op, what: "send request", msg: m.msg, request: true})
			m.op, m.msg = nil, nil
		}
	}
	for range c.queue.len() {
		it := c.queue.pop()
		if it.request {
			u.items = append(u.items, it)
		} else {
			c.queue.push(it)
		}
	}
}

// tags returns the tags of the requests.
func (u *unsent) tags() map[uint32]bool {
	if u == nil || len(u.items) == 0 {
		return nil
	}
	tags := make(map[uint32]bool, len(u.items))
	for _, it := range u.items {
		tags[it.tag()] = true
	}
	return tags
}

// sendAgainLocked queues the requests for the next connection, and starts to connect if no attempt is under way.
//
// +checklocks:p.mu
func (p *peer) sendAgainLocked(u *unsent) {
	if u == nil || len(u.items) == 0 {
		return
	}
	p.activate()
	p.waiting = append(p.waiting, u.items...)
	if p.link == linkIdle {
		p.dialLocked() // false: the endpoint is closed, and Close completes the requests
	}
}
