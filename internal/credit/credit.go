package credit

import "fmt"

// Window is the sender's half: which buffers of the receiver may be written.
//
// Invariant: granted <= taken <= granted+size.
type Window struct {
	size    uint64
	taken   uint64 // buffers ever lent to us
	granted uint64 // buffers ever given back
}

// New returns a window over size free buffers. It panics if there is none,
// since nothing could ever be sent.
func New(size int) Window {
	mustHaveBuffers(size)
	return Window{size: uint64(size)}
}

// Take lends the next buffer and returns its number, from 0 to Size-1 in turn.
// It returns false if the receiver still holds that buffer.
func (w *Window) Take() (slot int, ok bool) {
	if w.Free() == 0 {
		return 0, false
	}
	slot = int(w.taken % w.size)
	w.taken++
	return slot, true
}

// Grant says that the receiver has given back total buffers in all. A number
// below an earlier one is stale and changes nothing; one above what was taken
// is an error.
func (w *Window) Grant(total uint64) error {
	if total > w.taken {
		return fmt.Errorf("a grant of %d buffers in all, of which %d were ever used", total, w.taken)
	}
	w.granted = max(w.granted, total)
	return nil
}

// Free returns how many buffers may be taken now.
func (w *Window) Free() int { return int(w.size - (w.taken - w.granted)) }

// Taken returns how many buffers were ever taken.
func (w *Window) Taken() uint64 { return w.taken }

// Granted returns how many buffers were ever given back.
func (w *Window) Granted() uint64 { return w.granted }

// Size returns the number of buffers.
func (w *Window) Size() int { return int(w.size) }

// Ledger is the receiver's half: which buffers are still in use here.
//
// Invariant: freed <= arrived <= freed+len(held), and exactly the
// buffers of the chunks from freed to arrived-1 may be held.
type Ledger struct {
	held    []bool
	arrived uint64 // chunks ever announced
	freed   uint64 // buffers given back in order
}

// NewLedger returns a ledger of size free buffers. It panics if there is none.
func NewLedger(size int) Ledger {
	mustHaveBuffers(size)
	return Ledger{held: make([]bool, size)}
}

// Arrive takes the announcement of chunk index, counted from 0, and returns the
// buffer that it lies in, which is held until [Ledger.Release].
func (l *Ledger) Arrive(index uint64) (slot int, err error) {
	if index != l.arrived {
		return 0, fmt.Errorf("chunk %d is announced, but chunk %d is next", index, l.arrived)
	}
	if l.Free() == 0 {
		return 0, fmt.Errorf("chunk %d is announced, but all %d buffers are in use", index, len(l.held))
	}
	slot = int(index % uint64(len(l.held)))
	l.held[slot] = true
	l.arrived++
	return slot, nil
}

// Release gives a buffer back and returns how many were given back in all, in
// the order in which they were lent. It panics if the buffer is not held.
func (l *Ledger) Release(slot int) (total uint64) {
	if !l.held[slot] {
		panic(fmt.Sprintf("credit: buffer %d is not held", slot))
	}
	l.held[slot] = false
	for l.freed < l.arrived && !l.held[l.freed%uint64(len(l.held))] {
		l.freed++
	}
	return l.freed
}

// Free returns how many more chunks may arrive now.
func (l *Ledger) Free() int { return len(l.held) - int(l.arrived-l.freed) }

// Arrived returns how many chunks were ever announced.
func (l *Ledger) Arrived() uint64 { return l.arrived }

// Idle reports whether no buffer is held.
func (l *Ledger) Idle() bool { return l.freed == l.arrived }

func mustHaveBuffers(size int) {
	if size < 1 {
		panic(fmt.Sprintf("credit: %d buffers; at least 1 is needed", size))
	}
}
