package iwarp

import (
	"cinnabar/verbs"
)

// mw is a memory window of type 2B: its key is valid on one connection only.
//
//	          OpBindMW
//	free ────────────────▶ bound
//	  ▲                      │  OpLocalInv, a Send with Invalidate of the
//	  └──────────────────────┘  peer, the end of the connection, Close
//
// A bound window is a region of its own in the table of remote keys: the part of the parent region that the window is bound to, with the rights
// of the window. So the device checks an access through a window by the same code as an access to a region, and refuses an access by the key of an
// unbound window like one by the key of a closed region.
type mw struct {
	pd *pd

	// Guarded by keyTable.mu.

	key    uint32 // of the last posted OpBindMW
	bound  *mr    // until it is unbound and drained; nil: free
	closed bool
}

// binding is the content of a posted OpBindMW.
type binding struct {
	mw     *mw
	key    uint32
	rng    verbs.SGE
	access verbs.Access
}

// windowAccess are the rights that a window can give to peers.
const windowAccess = verbs.RemoteRead | verbs.RemoteWrite | verbs.RemoteAtomic

// AllocMW implements verbs.PDDriver.
func (p *pd) AllocMW(t verbs.MWType) (verbs.MemoryWindow, error) {
	const op = "allocate memory window"
	if t != verbs.MWType2 {
		return nil, verbs.Unsupported(op, "type %d; iWARP has windows of type 2 only, which belong to one connection", t)
	}
	if p.closed.Load() {
		return nil, verbs.Errorf(op, verbs.ErrClosed, "the protection domain is closed")
	}
	p.children.Add(1)
	w := &mw{pd: p}
	p.dev.keys.renew(w)
	return w, nil
}

func (w *mw) Type() verbs.MWType { return verbs.MWType2 }

func (w *mw) RKey() uint32 {
	t := &w.pd.dev.keys
	t.mu.RLock()
	defer t.mu.RUnlock()
	return w.key
}

func (w *mw) Close() error {
	t := &w.pd.dev.keys
	part, unbound, open := t.dropWindow(w)
	switch {
	case unbound:
		t.drain(part)
	case part != nil: // which another goroutine has unbound, and drains
		<-part.users.Idle()
	}
	if open {
		w.pd.children.Add(-1)
	}
	return nil
}

// renew gives w a new key, which it returns. A key by which w is bound stays valid.
func (t *keyTable) renew(w *mw) uint32 {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.windows[w.key] == w {
		delete(t.windows, w.key)
	}
	w.key = t.freeRemoteLocked()
	if !w.closed {
		t.windows[w.key] = w
	}
	return w.key
}

// dropWindow closes w. part is what w is bound to, or was and is being drained. unbound reports that dropWindow has unbound it, and that the caller drains
// it. open is false if w was closed before.
func (t *keyTable) dropWindow(w *mw) (part *mr, unbound, open bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	part, open = w.bound, !w.closed
	if open {
		w.closed = true
		delete(t.windows, w.key)
	}
	if unbound = part != nil && !part.unbound; unbound {
		t.unbindLocked(part)
	}
	return part, unbound, open
}

// isOpen reports whether w is not closed.
func (t *keyTable) isOpen(w *mw) bool {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return !w.closed
}

// isLocal reports whether the operation concerns keys of this side only, and sends nothing.
func isLocal(op verbs.Opcode) bool { return op == verbs.OpBindMW || op == verbs.OpLocalInv }

// checkLocal is checkSend for the operations on windows. The state of the window and the range are checked when the request's turn comes, because
// requests before it can change them.
func (q *qp) checkLocal(wr *verbs.SendWR) error {
	const op = "post send"
	if wr.Flags&verbs.Inline != 0 {
		return verbs.Errorf(op, verbs.ErrInvalid, "%s cannot be inline: it sends nothing", wr.Op)
	}
	if wr.Op == verbs.OpLocalInv {
		if len(wr.SGL) > 0 {
			return verbs.Errorf(op, verbs.ErrInvalid, "%s has %d gather entries; it sends nothing", wr.Op, len(wr.SGL))
		}
		return nil
	}
	w, ok := wr.MW.(*mw)
	switch {
	case !ok || w.pd != q.pd:
		return verbs.Errorf(op, verbs.ErrInvalid, "%s: MW is not a window of the queue pair's protection domain", wr.Op)
	case !q.pd.dev.keys.isOpen(w):
		return verbs.Errorf(op, verbs.ErrClosed, "%s: the window is closed", wr.Op)
	case len(wr.SGL) != 1 || wr.SGL[0].Length == 0:
		return verbs.Errorf(op, verbs.ErrInvalid, "%s: SGL must be one entry of at least 1 byte, the range of the window", wr.Op)
	case wr.MWAccess&^windowAccess != 0:
		return verbs.Errorf(op, verbs.ErrInvalid, "%s: MWAccess is %s; a window can have only %s", wr.Op, wr.MWAccess, windowAccess)
	}
	return nil
}

// newBinding gives the window of a checked request its new key.
func newBinding(wr *verbs.SendWR) *binding {
	w := wr.MW.(*mw)
	return &binding{mw: w, key: w.pd.dev.keys.renew(w), rng: wr.SGL[0], access: wr.MWAccess}
}

// runLocalLocked carries out the operations on windows that are next in the send queue. An operation that fails stays next in the send queue with
// its status. The connection ends once all requests before the failed one are complete.
//
// +checklocks:c.txMu
// +checklocks:c.qp.mu
func (c *conn) runLocalLocked() {
	q := c.qp
	for q.state == verbs.StateRTS && q.sq.next != q.sq.head {
		w := q.sq.at(q.sq.next)
		if !isLocal(w.op) || w.status != verbs.StatusSuccess || w.flags&verbs.Fence != 0 && c.reads.count > 0 {
			return
		}
		if w.status = c.runLocal(w); w.status != verbs.StatusSuccess {
			return
		}
		q.sq.next++
		q.countUnsentLocked()
		w.sent, w.bind = true, nil
		q.retireLocked()
		c.tx.signalDrained()
	}
}

// runLocal carries out an operation on a window.
func (c *conn) runLocal(w *sendWQE) verbs.WCStatus {
	t := &c.dev.keys
	if w.op == verbs.OpBindMW {
		return t.bind(c, w.bind)
	}
	part := t.invalidateOwn(c, w.invKey)
	if part == nil {
		return verbs.StatusMWBindErr
	}
	t.drain(part)
	return verbs.StatusSuccess
}

// bind makes the key of b valid on c.
func (t *keyTable) bind(c *conn, b *binding) verbs.WCStatus {
	t.mu.Lock()
	defer t.mu.Unlock()
	m := t.local[b.rng.LKey]
	if m == nil || m.pd != c.qp.pd || m.access&verbs.MWBind == 0 || b.mw.closed || b.mw.bound != nil {
		return verbs.StatusMWBindErr
	}
	if b.access&(verbs.RemoteWrite|verbs.RemoteAtomic) != 0 && m.access&verbs.LocalWrite == 0 {
		return verbs.StatusMWBindErr
	}
	n := int(b.rng.Length)
	off, ok := m.local(b.rng.Addr, uint64(n))
	if !ok || !m.enter() {
		return verbs.StatusMWBindErr
	}
	m.windows++
	c.windows++
	part := &mr{pd: m.pd, buf: m.buf[off : off+n : off+n], base: b.rng.Addr, iova: m.iova + uint64(off), access: b.access, rkey: b.key,
		window: b.mw, parent: m, conn: c}
	b.mw.bound = part
	t.remote[part.rkey] = part
	return verbs.StatusSuccess
}

// unbindLocked revokes the key by which a window is bound to part. The caller drains part without the lock.
//
// +checklocks:t.mu
func (t *keyTable) unbindLocked(part *mr) {
	t.revokeLocked(part)
	part.unbound = true
	part.parent.windows--
	part.conn.windows--
	part.users.Close()
}

// drain waits until the device accesses no memory of part, the part of a window that has been unbound. drain then ends the use of the parent region that
// bind has begun. Close of the parent waits for the end of all uses.
func (t *keyTable) drain(part *mr) {
	<-part.users.Idle()
	t.mu.Lock()
	part.window.bound = nil
	t.mu.Unlock()
	part.parent.exit()
}

// invalidateOwn unbinds the window that is bound by key on c, and returns its part, which the caller drains; nil if there is none.
func (t *keyTable) invalidateOwn(c *conn, key uint32) *mr {
	t.mu.Lock()
	defer t.mu.Unlock()
	part := t.remote[key]
	if part == nil || part.window == nil || part.conn != c {
		return nil
	}
	t.unbindLocked(part)
	return part
}

// unbindAll unbinds the windows that are bound on c, whose end has come.
func (t *keyTable) unbindAll(c *conn) {
	for _, part := range t.unbindConn(c) {
		t.drain(part)
	}
}

// unbindConn is unbindAll, but the caller drains the parts.
func (t *keyTable) unbindConn(c *conn) (parts []*mr) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if c.windows == 0 {
		return nil
	}
	for _, w := range t.windows {
		if part := w.bound; part != nil && part.conn == c && !part.unbound {
			t.unbindLocked(part)
			parts = append(parts, part)
		}
	}
	return parts
}
