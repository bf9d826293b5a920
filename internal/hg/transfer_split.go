package hg

import (
	"fmt"
	"math"
	"slices"

	"cinnabar/codes"
	"cinnabar/internal/hg/wire"
	"cinnabar/internal/hostmem"
	"cinnabar/internal/na"
	"cinnabar/internal/sglist"
)

// remotesOf returns the memory of each segment of d as the transport knows it, or that of all segments if d has one handle
// for all.
func (c *Class) remotesOf(d *Desc) ([]na.RemoteMemory, codes.Code, error) {
	if r := d.remotes.Load(); r != nil && r.c == c {
		return r.list, wire.Success, nil
	}
	n := d.Segments()
	if d.Flags()&wire.BulkRegV != 0 {
		n = 1
	}
	list := make([]na.RemoteMemory, n)
	for i := range list {
		need := d.Segment(i).Length
		switch {
		case d.Flags()&wire.BulkRegV != 0:
			need = d.Len()
		case need == 0:
			continue
		}
		handle := d.Handle(i)
		if handle == nil {
			return nil, codes.InvalidArg, errNoHandle
		}
		m, err := c.parseHandle(handle, d.shared().SharedHandle(i))
		if err != nil {
			return nil, codeOf(err), err
		}
		if m.Len() < need {
			return nil, codes.ProtocolError, fmt.Errorf("segment %d of the descriptor has %d bytes, its handle %d", i, need, m.Len())
		}
		list[i] = m
	}
	d.remotes.Store(&remotes{c: c, list: list})
	return list, wire.Success, nil
}

// parseHandle reads the handle of a segment. shared is its handle of shared memory, nil if it has none.
func (c *Class) parseHandle(handle, shared []byte) (na.RemoteMemory, error) {
	if c.shared != nil {
		return c.shared.ParseHandles(handle, shared)
	}
	return c.ep.ParseHandle(handle)
}

// split appends the pieces of a transfer: one for each overlap of a segment and a local slice, as C makes one operation
// for each, or one for each local slice if the segments have one handle. The range and the length of local have been checked.
func split(frags []na.Fragment, d *Desc, remotes []na.RemoteMemory, off uint64, local [][]byte, n uint64) []na.Fragment {
	rest := sglist.NewCursor(local)
	if d.Flags()&wire.BulkRegV != 0 { // the segments are one run of bytes
		for n > 0 {
			piece := rest.Next(n)
			frags = append(frags, na.Fragment{Remote: remotes[0], Offset: off, Local: piece})
			off += uint64(len(piece))
			n -= uint64(len(piece))
		}
		return frags
	}
	frags = slices.Grow(frags, min(d.Segments(), int(min(n, math.MaxInt32)))) // because growing step by step leaves copies behind
	for i := range remotes {
		length := d.Segment(i).Length
		if off >= length {
			off -= length
		} else {
			for at := off; at < length && n > 0; {
				piece := rest.Next(min(length-at, n))
				frags = append(frags, na.Fragment{Remote: remotes[i], Offset: at, Local: piece})
				at += uint64(len(piece))
				n -= uint64(len(piece))
			}
			off = 0
		}
		if n == 0 {
			break
		}
	}
	return frags
}

// syncCopy is up to which size memory is copied within Start, and how much a longer copy does between looking for
// Cancel, in bytes.
const syncCopy = 1 << 20

// copyLocal is a transfer within this process. The caller holds the transfer.
func (t *Transfer) copyLocal(d *Desc, off uint64, local [][]byte, n uint64) {
	b := t.c.exposed.find(d)
	if b == nil {
		t.fail(codes.InvalidArg, errRevoked)
		return
	}
	t.c.count.localCopies.Add(1)
	if n <= syncCopy {
		t.copyBulk(b, off, local, n)
		return
	}
	t.state.hold(0)
	t.c.tasks.Go(func() {
		t.copyBulk(b, off, local, n)
		t.release(0)
	})
}

// copyBulk copies between memory that this process exposes and local.
func (t *Transfer) copyBulk(b *Bulk, off uint64, local [][]byte, n uint64) {
	b.mu.RLock()
	defer b.mu.RUnlock()
	if b.closed {
		t.fail(codes.InvalidArg, errRevoked)
		return
	}
	here := sglist.NewCursor(local)
	for _, s := range b.segs {
		if off >= uint64(len(s)) {
			off -= uint64(len(s))
			continue
		}
		for s = s[off:]; len(s) > 0 && n > 0; {
			if t.canceled() {
				return
			}
			piece := here.Next(min(uint64(len(s)), n, syncCopy))
			to, from := piece, s
			if t.dir == Push {
				to, from = s, piece
			}
			if _, err := hostmem.Copy(to, from); err != nil { // a mapping of a file that has become shorter, or has no room
				t.fail(codes.Fault, err)
				return
			}
			t.n += int64(len(piece))
			n -= uint64(len(piece))
			s = s[len(piece):]
		}
		off = 0
	}
	t.finish(t.n)
}
