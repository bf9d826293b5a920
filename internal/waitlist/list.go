package waitlist

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
)

// ErrEnded is the error of Wait after a call of End.
var ErrEnded = errors.New("the resource is gone")

// List is the queue. Want is the type of requests, Got that of the parts that are handed out. The zero List is empty. The lock of its
// user guards it.
type List[Want, Got any] struct {
	first, last *waiter[Want, Got]
	n           int
	ended       bool
	wanted      atomic.Bool // first != nil, for goroutines without the lock
	spare       sync.Pool   // of *waiter[Want, Got] with empty channels
}

// Take hands out the wanted part and reports whether it could. It is called with the lock of the user held.
type Take[Want, Got any] func(Want) (Got, bool)

// Entry is the place of a goroutine in the queue.
type Entry interface {
	// Served reports whether the wait has been decided, by a part of the resource or by End. The caller holds the lock of the List's user.
	Served() bool
}

// waiter is a goroutine in Wait.
type waiter[Want, Got any] struct {
	want       Want
	got        Got
	err        error
	decided    bool
	wake       chan struct{} // capacity 1
	prev, next *waiter[Want, Got]
}

// Served implements [Entry].
func (w *waiter[Want, Got]) Served() bool { return w.decided }

// Waiting reports whether any goroutine waits.
func (l *List[Want, Got]) Waiting() bool { return l.first != nil }

// Wanted is Waiting for a goroutine that does not hold the lock and has just given something back by an atomic operation. If Wanted
// returns false, goroutines that begin to wait from now on find the part that was given back. If it returns true, the caller must take
// the lock and call Serve.
func (l *List[Want, Got]) Wanted() bool { return l.wanted.Load() }

// Len returns the number of goroutines that wait.
func (l *List[Want, Got]) Len() int { return l.n }

// Serve serves the waiters in their order, until take returns false or calls End.
func (l *List[Want, Got]) Serve(take Take[Want, Got]) {
	for w := l.first; w != nil; w = l.first {
		got, ok := take(w.want)
		if !ok || l.ended { // if take has called End, w has its error, and may belong to another goroutine by now
			return
		}
		w.got = got
		l.decide(w)
	}
}

// End makes all present and future waiters fail with ErrEnded.
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

// Wait waits behind all others until take has handed out want. It takes the lock, which the caller does not hold. If ctx ends before,
// the error is its cause.
func (l *List[Want, Got]) Wait(ctx context.Context, mu sync.Locker, want Want, take Take[Want, Got]) (got Got, err error) {
	return l.WaitWorking(ctx, mu, want, take, nil)
}

// WaitWorking is Wait for a goroutine that can itself do the work that frees the resource. If the goroutine must wait, WaitWorking calls
// work once, without the lock, after the goroutine has got its place in the queue. work may return before or after the goroutine is served. A
// nil work does nothing.
func (l *List[Want, Got]) WaitWorking(ctx context.Context, mu sync.Locker, want Want, take Take[Want, Got], work func(context.Context, Entry)) (got Got, err error) {
	w := l.waiter(want)
	defer l.drop(w)
	mu.Lock()
	if l.ended {
		mu.Unlock()
		return got, ErrEnded
	}
	l.push(w)
	l.Serve(take) // because a part may have been given back since the caller looked
	served := w.decided
	mu.Unlock()
	if work != nil && !served {
		work(ctx, w)
	}
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

// waiter returns a waiter from the pool, or a new one.
func (l *List[Want, Got]) waiter(want Want) *waiter[Want, Got] {
	w, ok := l.spare.Get().(*waiter[Want, Got])
	if !ok {
		w = &waiter[Want, Got]{wake: make(chan struct{}, 1)}
	}
	w.want = want
	return w
}

// drop clears w and puts it into the pool. w is in no queue, and its channel is empty.
func (l *List[Want, Got]) drop(w *waiter[Want, Got]) {
	*w = waiter[Want, Got]{wake: w.wake}
	l.spare.Put(w)
}

// abandon removes w from the queue and reports whether it was still in it.
func (l *List[Want, Got]) abandon(mu sync.Locker, w *waiter[Want, Got], take Take[Want, Got]) bool {
	mu.Lock()
	defer mu.Unlock()
	if w.decided {
		return false
	}
	l.remove(w)
	l.Serve(take) // because later waiters may want less
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
