package sm

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"cinnabar/internal/na"
)

// Sizes in bytes that decide how a transfer is done.
const (
	// inlineBytes is up to which size the goroutine that starts a transfer moves it itself. It takes the kernel some
	// ten microseconds, about as long as another goroutine needs to take it over.
	inlineBytes = 128 << 10
	// inlineMapped is the same where it is a copy within this process.
	inlineMapped = 512 << 10
	// blockingBytes is up to which size it does so if it would only wait otherwise: a millisecond or two, in which nobody
	// cancels.
	blockingBytes = 4 << 20
	// callBytes is how much one system call moves of a longer one: Cancel and Close wait for one call.
	callBytes = 4 << 20
)

// transfer is a Get or Put.
type transfer struct {
	op    *na.Op
	to    *Addr
	put   bool
	frags []na.Fragment
	total uint64
	done  uint64

	frag int    // the next byte to move is in frags[frag],
	off  uint64 // there

	win  *window   // through which it is done, if it is
	next *transfer // in the list of those that wait; guarded by that list's lock

	refused error // why the kernel does not move it, which the peer is then asked to; nil if it has not been tried

	stop atomic.Uint32 // why it must end early, a na.Kind; 0: it need not

	mu sync.Mutex
	// link is what it waits for, if that is not the kernel.
	// +checklocks:mu
	link *relayLink
}

var pooledTransfers = sync.Pool{New: func() any { return new(transfer) }}

// what names the operation in errors.
func (t *transfer) what() string {
	if t.put {
		return "put"
	}
	return "get"
}

// free gives t back.
func (t *transfer) free() {
	t.op, t.to, t.frags, t.next, t.refused = nil, nil, nil, nil, nil
	t.total, t.done, t.frag, t.off = 0, 0, 0, 0
	t.stop.Store(0)
	pooledTransfers.Put(t)
}

// fill puts the next bytes to move into b, limit of them at most, and returns where they begin in the peer's process.
// The place in t moves on behind them.
func (t *transfer) fill(b *batch, limit uint64) (first uint64) {
	for ; t.frag < len(t.frags); t.frag, t.off = t.frag+1, 0 {
		f := &t.frags[t.frag]
		r, _ := f.Remote.(*remote) // checked when the transfer started
		for t.off < uint64(len(f.Local)) {
			seg, skip := r.find(f.Offset + t.off)
			s := r.segs[seg]
			n := min(s.len-skip, uint64(len(f.Local))-t.off, limit-b.bytes)
			if n == 0 || !b.add(f.Local[t.off:t.off+n], s.addr+skip) {
				return first
			}
			if b.bytes == n {
				first = s.addr + skip
			}
			t.off += n
		}
	}
	return first
}

// rewind puts the place in t n bytes back, all of which fill has passed.
func (t *transfer) rewind(n uint64) {
	for n > t.off {
		n -= t.off
		t.frag--
		t.off = uint64(len(t.frags[t.frag].Local))
	}
	t.off -= n
}

// run moves all bytes, limit of them at most in each system call, and returns why it did not.
func (t *transfer) run(limit uint64) error {
	b, _ := batches.Get().(*batch)
	defer b.free()
	for t.done < t.total {
		if err := t.check(); err != nil {
			return err
		}
		b.reset()
		at := t.fill(b, limit)
		n, err := b.move(t.to.who.pid, t.put)
		t.rewind(b.bytes - n)
		if err != nil {
			return accessError(t.to.who.pid, at, err)
		}
		t.done += n
		t.op.Progress.Add(int64(n))
	}
	return nil
}

// check returns why t must not go on.
func (t *transfer) check() error {
	if kind := na.Kind(t.stop.Load()); kind != 0 {
		return &na.Error{Kind: kind}
	}
	return t.to.alive()
}

// finish completes the operation, after which t is gone.
func (t *transfer) finish(err error) {
	op, n := t.op, int64(t.done)
	if e, ok := errors.AsType[*na.Error](err); ok { // made for this transfer
		e.Op = t.what()
		if t.to != nil {
			e.Addr = t.to.String()
		}
	}
	t.free()
	op.Finish(n, err)
}

// needed is the access that a transfer needs.
func needed(put bool) na.Access {
	if put {
		return na.WriteOnly
	}
	return na.ReadOnly
}

// checkFragments checks the pieces of a transfer and adds up their lengths.
func checkFragments(frags []na.Fragment, put bool) (total uint64, err error) {
	need := needed(put)
	for i := range frags {
		f := &frags[i]
		r, ok := f.Remote.(*remote)
		n := uint64(len(f.Local))
		switch {
		case !ok:
			return 0, &na.Error{Kind: na.Invalid, Err: fmt.Errorf("fragment %d: its memory is not of this network", i)}
		case f.Offset > r.size || n > r.size-f.Offset:
			return 0, &na.Error{Kind: na.Denied, Err: fmt.Errorf("fragment %d: %d bytes at offset %d of memory of %d bytes", i, n, f.Offset, r.size)}
		case r.access&need == 0:
			return 0, &na.Error{Kind: na.Denied, Err: fmt.Errorf("fragment %d: its memory is registered with access %d, which does not allow it", i, r.access)}
		}
		total += n
	}
	return total, nil
}

// end has t end early, as soon as what it waits for returns.
func (t *transfer) end(kind na.Kind) {
	t.stop.Store(uint32(kind))
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.link != nil {
		t.link.interrupt()
	}
}

// hold says what t waits for from now on. Once that is another link, or nil, end does nothing to the last one any more.
func (t *transfer) hold(l *relayLink) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.link = l
}

// byRelay tells whether the peer is to move t, since the kernel does not.
func (t *transfer) byRelay() bool {
	return t.win == nil && (t.refused != nil || t.to.relayed.Load())
}

// tryRelay has the peer move t if err says that the kernel does not, and reports whether that is so.
func (t *transfer) tryRelay(err error) bool {
	if !attachRefused(err) || t.refused != nil {
		return false
	}
	t.refused = err
	return true
}
