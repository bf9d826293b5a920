package ofiverbs

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"cinnabar/internal/na"
	"cinnabar/verbs"
)

// transfer is a Get or a Put, cut into reads or writes of one piece of local memory each. Its fields are guarded by the mutex of its
// connection from push on.
type transfer struct {
	op     *na.Op
	c      *conn
	put    bool
	frags  []na.Fragment
	opName string

	frag   int    // the next piece to post is in this fragment,
	off    uint64 // from here on
	local  *local // registration of the rest of that fragment; nil: it has not begun
	under  int    // pieces that the device is working on
	behind bool   // the read that confirms the writes is posted, or none is needed
	moved  int64
	err    error // why the transfer ends early; it is over when under is 0
}

// move is a read or write that the device is working on.
type move struct {
	t     *transfer // nil: the entry is free
	local *local    // nil: the read that confirms writes
	mem   []byte    // the program's memory of the piece
}

// oneSided is the state of a connection's reads and writes.
type oneSided struct {
	queue []*transfer // with pieces to post
	slots []move
	free  []int
}

// cancelTime is for how long the device may work on the memory of a given-up transfer before the connection ends.
const cancelTime = 500 * time.Millisecond

// errHeld is the cause of the end of a connection because of a given-up transfer.
var errHeld = fmt.Errorf("the device did not end the reads or writes of a canceled transfer within %v", cancelTime)

func (m *oneSided) init(n int) {
	m.slots = make([]move, n)
	for i := range n {
		m.free = append(m.free, i)
	}
}

// sizeOf returns the size and the access of remote memory, as [na.CheckFragments] needs it.
func sizeOf(m na.RemoteMemory) (size uint64, access na.Access, ok bool) {
	r, ok := m.(*remote)
	if !ok {
		return 0, 0, false
	}
	return r.size, r.access, true
}

// moveLocked posts pieces of transfers while there is room, and appends the operations that are over because their memory cannot be
// registered to list.
//
// +checklocks:c.mu
func (c *conn) moveLocked(list endings) endings {
	m := &c.moves
	for len(m.queue) > 0 && len(m.free) > 0 && c.end == nil {
		t := m.queue[0]
		if t.frag == len(t.frags) && t.err == nil && !t.behind && t.put && c.byteMR != nil {
			c.postConfirmLocked(t)
			continue
		}
		if t.frag == len(t.frags) || t.err != nil {
			t.behind = true
			m.queue[0] = nil
			m.queue = m.queue[1:]
			if t.under == 0 {
				list = append(list, t.over())
			}
			continue
		}
		f := &t.frags[t.frag]
		if len(f.Local) == 0 {
			t.frag++
			continue
		}
		if t.local == nil {
			l, unused, err := c.ep.locals.acquire(f.Local, t.put)
			for _, u := range unused {
				list = append(list, ended{local: u})
			}
			if err != nil {
				t.err = &na.Error{Kind: na.NotAvailable, Op: t.opName, Addr: c.peer.str, Err: err}
				continue
			}
			t.local = l
		}
		c.postMoveLocked(t, f)
	}
	return list
}

// sinkAccess returns the rights of local memory in a transfer.
func (e *Endpoint) sinkAccess(put bool) verbs.Access {
	if put {
		return 0
	}
	return verbs.LocalWrite | e.attr.ReadSink
}

// postMoveLocked posts the next piece of t, which is in fragment f.
//
// +checklocks:c.mu
func (c *conn) postMoveLocked(t *transfer, f *na.Fragment) {
	m := &c.moves
	r, _ := f.Remote.(*remote) // na.CheckFragments has checked it
	n := min(uint64(len(f.Local))-t.off, c.ep.shape.chunk)
	last := len(m.free) - 1
	slot := m.free[last]
	m.free = m.free[:last]
	m.slots[slot] = move{t: t, local: t.local, mem: f.Local[t.off : t.off+n]}
	wr := verbs.SendWR{ID: idOneSided | uint64(slot), Op: verbs.OpRead, Flags: verbs.Signaled, Remote: r.at.Add(f.Offset + t.off)}
	if t.put {
		wr.Op = verbs.OpWrite
	}
	c.addLocked(wr, t.local.mr.SGE(t.local.off+int(t.off), int(n)))
	c.used = true
	t.under++
	t.local.pieces++
	if t.off += n; t.off == uint64(len(f.Local)) {
		t.local.posted = true
		t.local, t.off = nil, 0
		t.frag++
	}
}

// postConfirmLocked posts a read behind the writes of t. The peer's device answers it when it has placed them, because it processes the
// requests of a connection in order.
//
// +checklocks:c.mu
func (c *conn) postConfirmLocked(t *transfer) {
	m := &c.moves
	last := len(m.free) - 1
	slot := m.free[last]
	m.free = m.free[:last]
	m.slots[slot] = move{t: t}
	c.addLocked(verbs.SendWR{ID: idOneSided | uint64(slot), Op: verbs.OpRead, Flags: verbs.Signaled, Remote: c.confirm}, c.byteMR.SGE(0, 1))
	t.under++
	t.behind = true
}

// moved processes the completion of the piece in a slot, and appends what is over with it to list.
func (c *conn) moved(list endings, slot int, err error) endings {
	c.mu.Lock()
	defer c.mu.Unlock()
	m := &c.moves
	mv := m.slots[slot]
	m.slots[slot] = move{}
	m.free = append(m.free, slot)
	t := mv.t
	if t == nil {
		return list
	}
	t.under--
	if mv.local != nil {
		mv.local.pieces--
	}
	if err == nil && mv.local != nil && !t.put {
		err = mv.local.arrived(mv.mem)
	}
	if err == nil {
		n := int64(len(mv.mem))
		t.moved += n
		t.op.Progress.Add(n)
		c.ep.locals.counters.rdma.Add(uint64(n))
	} else if t.err == nil {
		t.err = c.moveError(t, err)
	}
	if mv.local != nil && mv.local.pieces == 0 && mv.local.posted {
		list = append(list, ended{local: mv.local})
	}
	if t.under == 0 && (t.err != nil || t.behind) {
		list = append(list, t.over())
		m.remove(t)
	}
	return list
}

// moveError returns the error of a transfer of which a piece has failed.
func (c *conn) moveError(t *transfer, err error) error {
	kind := na.Unreachable
	if errors.Is(err, verbs.StatusRemAccessErr) {
		kind = na.Denied
	}
	return &na.Error{Kind: kind, Op: t.opName, Addr: c.peer.str, Err: err}
}

// over returns the end of a transfer on which the device does not work.
func (t *transfer) over() ended {
	t.c.moving.Add(-1)
	l := t.local // the rest of a fragment that is not posted
	t.local = nil
	return ended{op: t.op, n: t.moved, err: t.err, local: l}
}

func (m *oneSided) remove(t *transfer) {
	if i := slices.Index(m.queue, t); i >= 0 {
		m.queue = slices.Delete(m.queue, i, i+1)
	}
}

// takeUnsent removes and returns the transfers that have not begun.
func (m *oneSided) takeUnsent() (unsent []item) {
	m.queue = slices.DeleteFunc(m.queue, func(t *transfer) bool {
		if t.frag > 0 || t.local != nil || t.err != nil || t.behind {
			return false
		}
		t.c.moving.Add(-1)
		unsent = append(unsent, item{op: t.op, opName: t.opName, t: t})
		return true
	})
	return unsent
}

// failQueued ends the transfers of which nothing is under way, because the connection ends.
func (m *oneSided) failQueued(kind na.Kind, err error) (list endings) {
	for _, t := range m.queue {
		if t.err == nil {
			t.err = &na.Error{Kind: kind, Op: t.opName, Addr: t.c.peer.str, Err: err}
		}
		if t.under == 0 {
			list = append(list, t.over())
		}
	}
	m.queue = nil
	return list
}

// abandon ends the transfers that were under way when the queue pair was closed.
func (m *oneSided) abandon(end *na.Error) (list endings) {
	for i := range m.slots {
		mv := m.slots[i]
		m.slots[i] = move{}
		if mv.t == nil {
			continue
		}
		t := mv.t
		t.under--
		if l := mv.local; l != nil {
			if l.pieces--; l.pieces == 0 && l.posted {
				list = append(list, ended{local: l})
			}
		}
		if t.err == nil {
			t.err = &na.Error{Kind: end.Kind, Op: t.opName, Addr: t.c.peer.str, Err: end.Err}
		}
		if t.under == 0 {
			list = append(list, t.over())
		}
	}
	return list
}

// cancelMoveLocked gives up the transfer of op. It completes when the device is done with its memory, or after the end of the connection
// if that takes longer than cancelTime.
//
// +checklocks:c.mu
func (c *conn) cancelMoveLocked(op *na.Op) (list endings, found bool) {
	t := c.moves.find(op)
	if t == nil || t.err != nil {
		return nil, t != nil
	}
	t.err = &na.Error{Kind: na.Canceled, Op: t.opName, Addr: c.peer.str}
	c.moves.remove(t)
	if t.under == 0 {
		return endings{t.over()}, true
	}
	time.AfterFunc(cancelTime, func() {
		c.mu.Lock()
		held := t.under > 0
		c.mu.Unlock()
		if held {
			c.fail(na.Unreachable, errHeld)
		}
	})
	return nil, true
}

// find returns the transfer of op, nil if there is none.
func (m *oneSided) find(op *na.Op) *transfer {
	for _, t := range m.queue {
		if t.op == op {
			return t
		}
	}
	for i := range m.slots {
		if t := m.slots[i].t; t != nil && t.op == op {
			return t
		}
	}
	return nil
}
