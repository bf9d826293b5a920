//go:build linux

package rdmacore

import "cinnabar/verbs"

// mw is a memory window.
type mw struct {
	pd  *pd
	h   mwHandle
	typ verbs.MWType

	// Guarded by pd.mu, which is also held while the library uses its object of the window, because a completion may let the program close the window
	// before the crossing that has posted the request is over.

	rkey   uint32
	closed bool
	bound  uint32 // lkey of the region that the last OpBindMW has named
}

// AllocMW implements verbs.PDDriver.
func (p *pd) AllocMW(t verbs.MWType) (verbs.MemoryWindow, error) {
	const op = "allocate memory window"
	if err := p.dev.usable(op); err != nil {
		return nil, err
	}
	if !p.adopt() {
		return nil, verbs.Errorf(op, verbs.ErrClosed, "the protection domain is closed")
	}
	h, rkey, err := allocMW(p.h, t)
	if err != nil {
		p.children.Add(-1)
		return nil, &verbs.Error{Op: op, Err: err}
	}
	p.windows.Add(1)
	return &mw{pd: p, h: h, typ: t, rkey: rkey}, nil
}

func (w *mw) Type() verbs.MWType { return w.typ }

func (w *mw) RKey() uint32 {
	w.pd.mu.Lock()
	defer w.pd.mu.Unlock()
	return w.rkey
}

func (w *mw) Close() error {
	w.pd.mu.Lock()
	defer w.pd.mu.Unlock()
	if w.closed {
		return nil
	}
	if err := w.pd.dev.released(deallocMW(w.h)); err != nil {
		return &verbs.Error{Op: "close memory window", Err: err}
	}
	w.closed = true
	w.pd.windows.Add(-1)
	w.pd.children.Add(-1)
	return nil
}

// windowAccess are the rights that a window can give to peers.
const windowAccess = verbs.RemoteRead | verbs.RemoteWrite | verbs.RemoteAtomic

// checkBind is checkSend for OpBindMW.
func (q *qp) checkBind(wr *verbs.SendWR) error {
	const op = "post send"
	w, ok := wr.MW.(*mw)
	switch {
	case !ok || w.pd != q.pd:
		return verbs.Errorf(op, verbs.ErrInvalid, "%s: MW is not a window of the queue pair's protection domain", wr.Op)
	case wr.MWAccess&^windowAccess != 0:
		return verbs.Errorf(op, verbs.ErrInvalid, "%s: MWAccess is %s; a window can have only %s", wr.Op, wr.MWAccess, windowAccess)
	case wr.Flags&verbs.Inline != 0:
		return verbs.Errorf(op, verbs.ErrInvalid, "%s cannot be inline: it sends nothing", wr.Op)
	case len(wr.SGL) == 0 && w.typ == verbs.MWType1:
		return nil
	case len(wr.SGL) != 1 || wr.SGL[0].Length == 0:
		return verbs.Errorf(op, verbs.ErrInvalid, "%s: SGL must be one entry of at least 1 byte, the range of the window", wr.Op)
	}
	return nil
}

// rawBind is a request that binds a window, for one crossing.
type rawBind struct {
	token  uint64
	flags  verbs.SendFlags
	mw     mwHandle
	mr     mrHandle
	rng    verbs.SGE
	access verbs.Access
	rkey   uint32 // the new key
}

// collectBind is collect for wr, an OpBindMW that has been checked, behind i requests in the batch. The request crosses alone, because drivers take the
// present key of a window from the library's object, which the crossing changes. The lock keeps the region open meanwhile.
func (q *qp) collectBind(i int, wr *verbs.SendWR, pos uint32, token uint64) (taken int, stop error) {
	const op = "post send"
	if i > 0 {
		return i, nil // the requests before it cross first
	}
	w := wr.MW.(*mw)
	r := &rawBind{token: makeToken(kindSend, token, pos), flags: wr.Flags, mw: w.h, access: wr.MWAccess}
	q.pd.mu.Lock()
	defer q.pd.mu.Unlock()
	if w.closed {
		return 0, verbs.Errorf(op, verbs.ErrClosed, "%s: the window is closed", wr.Op)
	}
	r.rkey = nextKey(w.rkey)
	r.rng.LKey = w.bound // for a window that is to be bound to nothing, because some drivers take no nil for the region
	if len(wr.SGL) > 0 {
		r.rng = wr.SGL[0]
	}
	m := q.pd.regions[r.rng.LKey]
	switch {
	case m == nil && len(wr.SGL) == 0:
		return 0, verbs.Errorf(op, verbs.ErrInvalid, "%s: SGL is empty, which unbinds a window, and the window is bound to no open region", wr.Op)
	case m == nil:
		return 0, verbs.Errorf(op, verbs.ErrInvalid, "%s: no region of the protection domain has lkey %#x", wr.Op, r.rng.LKey)
	}
	r.mr = m.h
	post := q.send.bind
	if w.typ == verbs.MWType1 {
		post = bindType1
	}
	// The completion can come before the crossing is over.
	q.sq.put(pos, wr.ID, wcOps[wr.Op])
	q.sq.head.Store(pos + 1)
	if err := post(q.h, r); err != nil {
		q.sq.head.Store(pos)
		return 0, postError(op, err)
	}
	w.rkey = r.rkey
	w.bound = r.rng.LKey
	return 1, nil
}

// nextKey returns the key of the next binding: its last byte belongs to the program, and the rest to the device (ibv_inc_rkey).
func nextKey(key uint32) uint32 { return key&^0xff | (key+1)&0xff }
