package waitlist

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
)

// ErrEnded is what Wait returns when End was called.
var ErrEnded = errors.New("the resource is gone")

// List is the queue. Want is what a goroutine asks for, Got what it is given. The zero List is empty. Its user's lock
// guards it.
type List[Want, Got any] struct {
	first, last *waiter[Want, Got]
	n           int
	ended       bool
	wanted      atomic.Bool // first != nil, for those without the lock
	spare       sync.Pool   // of *waiter[Want, Got], whose channels are empty
}

// Take hands out what is wanted and reports whether it could. It is called with the user's lock held.
type Take[Want, Got any] func(Want) (Got, bool)

// waiter is a goroutine in Wait.
type waiter[Want, Got any] struct {
	want       Want
	got        Got
	err        error
	decided    bool
	wake       chan struct{} // capacity 1
	prev, next *waiter[Want, Got]
}

// Waiting tells whether somebody waits.
func (l *List[Want, Got]) Waiting() bool { return l.first != nil }

// Wanted is Waiting for who does not hold the lock and has just given something back by an atomic operation: if it says
// false, whoever begins to wait from now on finds what was given back. If it says true, take the lock and call Serve.
func (l *List[Want, Got]) Wanted() bool { return l.wanted.Load() }

// Len returns how many wait.
func (l *List[Want, Got]) Len() int { return l.n }

// Serve gives to those who wait, in their order, until take cannot, or calls End.
func (l *List[Want, Got]) Serve(take Take[Want, Got]) {
	for w := l.first; w != nil; w = l.first {
		got, ok := take(w.want)
		if !ok || l.ended { // by take: then w has been told, and may be somebody else's by now
			return
		}
		w.got = got
		l.decide(w)
	}
}

// End has all who wait, and will, fail with ErrEnded.
func (l *List[Want, Got]) End() {
	l.ended = true
	for w := l.first; w != nil; w = l.first {
		w.err = ErrEnded
		l.decide(w)
	}
}

func (l *List[Want, Got]) decide(w *waiter[Want, Got]) {
	l.remove(w)
	w.decided = true
	w.wake <- struct{}{}
}

// Wait waits behind all others for what is wanted. It takes the lock, which the caller does not hold. If ctx ends before,
// the error is its cause.
func (l *List[Want, Got]) Wait(ctx context.Context, mu sync.Locker, want Want, take Take[Want, Got]) (got Got, err error) {
	w := l.waiter(want)
	defer l.drop(w)
	mu.Lock()
	if l.ended {
		mu.Unlock()
		return got, ErrEnded
	}
	l.push(w)
	l.Serve(take) // something may have been given back since the caller looked
	mu.Unlock()
	select {
	case <-w.wake:
	case <-ctx.Done():
		if l.abandon(mu, w, take) {
			return got, context.Cause(ctx)
		}
		<-w.wake // it was served first
	}
	return w.got, w.err
}

// waiter makes one, or takes one that was dropped.
func (l *List[Want, Got]) waiter(want Want) *waiter[Want, Got] {
	w, ok := l.spare.Get().(*waiter[Want, Got])
	if !ok {
		w = &waiter[Want, Got]{wake: make(chan struct{}, 1)}
	}
	w.want = want
	return w
}

// drop forgets what w was about. It is in no queue, and its channel is empty.
func (l *List[Want, Got]) drop(w *waiter[Want, Got]) {
	*w = waiter[Want, Got]{wake: w.wake}
	l.spare.Put(w)
}

// abandon takes w out of the queue and reports whether it was still in it.
func (l *List[Want, Got]) abandon(mu sync.Locker, w *waiter[Want, Got], take Take[Want, Got]) bool {
	mu.Lock()
	defer mu.Unlock()
	if w.decided {
		return false
	}
	l.remove(w)
	l.Serve(take) // those behind may want less
	return true
}

func (l *List[Want, Got]) push(w *waiter[Want, Got]) {
	w.prev = l.last
	if l.last == nil {
		l.first = w
		l.wanted.Store(true)
	} else {
		l.last.next = w
	}
	l.last = w
	l.n++
}

func (l *List[Want, Got]) remove(w *waiter[Want, Got]) {
	if w.prev == nil {
		l.first = w.next
	} else {
		w.prev.next = w.next
	}
	if w.next == nil {
		l.last = w.prev
	} else {
		w.next.prev = w.prev
	}
	w.prev, w.next = nil, nil
	l.n--
	if l.first == nil {
		l.wanted.Store(false)
	}
}
