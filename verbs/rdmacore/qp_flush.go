//go:build linux

package rdmacore

import (
	"cinnabar/verbs"
)

// On iWARP the kernel's siw keeps less order and fewer promises than the book:
//
//   - reads complete when their data has come, sends and writes when they are in
//     the socket, each kind in order, but the latter may overtake the former
//     (siw_qp_sq_process);
//   - a queue pair's ERR is entered by the end of its connection, which flushes
//     both queues; a request that is posted afterwards lies in the queues for ever
//     (siw_qp_llp_close). The program cannot know before the event comes.
//
// So on iWARP each slot of our account records whether it is open, and the end of
// a connection gives back the open ones. Slots of receives record it everywhere: those
// posted in ERR are given back by us, perhaps before the driver has flushed earlier ones.

// anyOrder prepares a queue for completions that overtake each other.
func (r *queue) anyOrder() { r.open = make([]bool, len(r.ids)) }

// isOpen reports whether the request at pos has not been given back yet. A
// driver may be so late that the slot is another one's by now.
func (r *queue) isOpen(pos uint32) bool {
	head, tail := r.head.Load(), r.tail.Load() // makes the stores of put visible here
	return r.open == nil || pos-tail < head-tail && r.open[pos&uint32(len(r.open)-1)]
}

// skip takes a position for a request that is not the program's.
func (r *queue) skip(pos uint32) {
	r.put(pos, 0, verbs.WCWrite)
	if r.open != nil {
		r.open[pos&uint32(len(r.open)-1)] = false
	}
}

// retire closes pos and the requests posted before it, except reads if pos is
// none itself, and frees the slots before the first open one.
func (r *queue) retire(pos uint32) {
	mask := uint32(len(r.open) - 1)
	read := r.ops[pos&mask] == verbs.WCRead
	tail := r.tail.Load()
	for p := tail; int32(pos-p) >= 0; p++ {
		if read || r.ops[p&mask] != verbs.WCRead {
			r.open[p&mask] = false
		}
	}
	r.advance(tail)
}

// advance moves the tail from tail to the first open slot.
func (r *queue) advance(tail uint32) {
	head, mask := r.head.Load(), uint32(len(r.open)-1)
	for tail != head && !r.open[tail&mask] {
		tail++
	}
	r.tail.Store(tail)
}

// giveBack flushes the requests that are still open in a queue, once the library has
// nothing more. The driver may flush some of them too, and be later; these are dropped
// then. It wakes the waiters of the completion queue. The caller keeps the queue from
// being posted to.
func (c *cq) giveBack(r *queue, kind, token uint64) {
	c.mu.Lock()
	for p := r.tail.Load(); p != r.head.Load(); p++ {
		if r.isOpen(p) {
			c.late = append(c.late, makeToken(kind, token, p))
		}
	}
	c.mu.Unlock()
	c.notify()
}

// flush gives back one request that the device does not, and reports whether
// it was still open.
func (q *qp) flush(kind uint64, pos uint32, wc *verbs.WC) bool {
	*wc = verbs.WC{Status: verbs.StatusWRFlushErr, QPNum: q.num}
	r := &q.sq
	if kind == kindRecv {
		r = &q.rq
	}
	if r.open == nil {
		return q.complete(kind, pos, wc)
	}
	if !r.isOpen(pos) {
		return false
	}
	i := pos & uint32(len(r.open)-1)
	wc.ID, wc.Op = r.ids[i], r.ops[i]
	r.open[i] = false
	r.advance(r.tail.Load())
	return true
}
