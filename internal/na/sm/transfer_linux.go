package sm

import (
	"errors"
	"sync"
	"sync/atomic"

	"cinnabar/internal/na"
)

// Sizes in bytes that decide which goroutine moves a transfer, and in how many calls.
const (
	// inlineBytes is the largest size of a transfer that the goroutine that starts it moves itself. The kernel takes about ten
	// microseconds for it, as long as a worker needs to start with it.
	inlineBytes = 128 << 10
	// inlineMapped is inlineBytes for a copy within this process.
	inlineMapped = 512 << 10
	// blockingBytes is inlineBytes for a goroutine that would only wait for the transfer otherwise: it takes a millisecond or two, in
	// which the transfer cannot be cancelled.
	blockingBytes = 4 << 20
	// callBytes is the most that one system call of a longer transfer moves, because Cancel and Close wait for one call.
	callBytes = 4 << 20
)

// transfer is a Get or Put.
type transfer struct {
	op    *na.Op
	to    *Addr
	put   bool
	total uint64
	done  uint64
	at    cursor // the next byte to move

	win  *window   // the window through which it is copied, nil if there is none
	next *transfer // in the lane; guarded by transfers.mu

	refused error // the kernel's refusal, after which the peer's relay moves it; nil if the kernel has not refused

	stop atomic.Uint32 // the na.Kind with which it must end early; 0: it goes on

	mu sync.Mutex
	// link is the relay connection that it waits for, nil if it waits for the kernel.
	// +checklocks:mu
	link *relayLink
}

var pooledTransfers = sync.Pool{New: func() any { return new(transfer) }}

// opName names the operation in errors.
func (t *transfer) opName() string {
	if t.put {
		return "put"
	}
	return "get"
}

// free returns t to the pool.
func (t *transfer) free() {
	t.op, t.to, t.next, t.refused = nil, nil, nil, nil
	t.total, t.done, t.at = 0, 0, cursor{}
	t.stop.Store(0)
	pooledTransfers.Put(t)
}

// fill adds the next bytes of t to b, at most limit of them, and returns their first address in the peer's process. The position of
// t moves behind them.
func (t *transfer) fill(b *batch, limit uint64) (first uint64) {
	for {
		local, addr := t.at.next(limit - b.bytes)
		if local == nil || !b.add(local, addr) {
			return first
		}
		if b.bytes == uint64(len(local)) { // it was empty before
			first = addr
		}
		t.at.advance(len(local))
	}
}

// cursor is a position in the fragments of a transfer. It divides them into pieces that are contiguous on both sides. Package sglist
// has no such cursor, because the memory of the peer is a list of addresses.
type cursor struct {
	frags []na.Fragment // their remote memory is of type *remote
	frag  int           // the position is in frags[frag],
	off   uint64        // at this offset
}

// next returns the piece at the position, which has at most limit bytes, and its address in the peer's process. It returns nil at the
// end of the fragments, and if limit is 0. The position stays.
func (c *cursor) next(limit uint64) (local []byte, addr uint64) {
	for ; c.frag < len(c.frags); c.frag, c.off = c.frag+1, 0 {
		f := &c.frags[c.frag]
		rest := f.Local[c.off:]
		if len(rest) == 0 {
			continue
		}
		r, _ := f.Remote.(*remote)
		i, skip := r.find(f.Offset + c.off)
		seg := r.segs[i]
		if n := min(seg.len-skip, uint64(len(rest)), limit); n > 0 {
			return rest[:n], seg.addr + skip
		}
		break
	}
	return nil, 0
}

// advance moves the position behind the first n bytes of the piece that next has returned.
func (c *cursor) advance(n int) { c.off += uint64(n) }

// rewind moves the position back by n bytes, all of which it has passed.
func (c *cursor) rewind(n uint64) {
	for n > c.off {
		n -= c.off
		c.frag--
		c.off = uint64(len(c.frags[c.frag].Local))
	}
	c.off -= n
}

// run moves all bytes, at most limit of them in each system call.
func (t *transfer) run(limit uint64) error {
	b, _ := batches.Get().(*batch)
	defer b.free()
	for t.done < t.total {
		if err := t.check(); err != nil {
			return err
		}
		b.reset()
		at := t.fill(b, limit)
		n, err := b.move(t.to.ident.pid, t.put)
		t.at.rewind(b.bytes - n)
		if err != nil {
			return accessError(t.to.ident.pid, at, err)
		}
		t.done += n
		t.op.Progress.Add(int64(n))
	}
	return nil
}

// check returns an error if t must not go on: it was stopped, or the peer has ended.
func (t *transfer) check() error {
	if kind := na.Kind(t.stop.Load()); kind != 0 {
		return &na.Error{Kind: kind}
	}
	return t.to.alive()
}

// finish completes the operation and frees t.
func (t *transfer) finish(err error) {
	op, n := t.op, int64(t.done)
	if e, ok := errors.AsType[*na.Error](err); ok { // made for this transfer
		e.Op = t.opName()
		if t.to != nil {
			e.Addr = t.to.String()
		}
	}
	t.free()
	op.Finish(n, err)
}

// needed returns the access that a transfer needs.
func needed(put bool) na.Access {
	if put {
		return na.WriteOnly
	}
	return na.ReadOnly
}

// sizeOf returns the size and the access of remote memory, as [na.CheckFragments] needs it.
func sizeOf(m na.RemoteMemory) (size uint64, access na.Access, ok bool) {
	r, ok := m.(*remote)
	if !ok {
		return 0, 0, false
	}
	return r.size, r.access, true
}

// end makes t end early, as soon as its system call returns. It interrupts the relay connection that t waits for.
func (t *transfer) end(kind na.Kind) {
	t.stop.Store(uint32(kind))
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.link != nil {
		t.link.interrupt()
	}
}

// setLink sets the relay connection that t waits for. After setLink with another one, or nil, end does not interrupt the former
// connection.
func (t *transfer) setLink(l *relayLink) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.link = l
}

// byRelay reports whether the peer's relay moves t, because the kernel does not.
func (t *transfer) byRelay() bool {
	return t.win == nil && (t.refused != nil || t.to.relayed.Load())
}

// tryRelay leaves t to the peer's relay if err is the kernel's refusal, and reports whether it did.
func (t *transfer) tryRelay(err error) bool {
	if !attachRefused(err) || t.refused != nil {
		return false
	}
	t.refused = err
	return true
}
