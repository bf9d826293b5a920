package sockio

import (
	"os"

	"golang.org/x/sys/unix"

	"cinnabar/internal/invariants"
)

// A Poller wakes the readers of readable connections that Go's scheduler has not noticed, because the scheduler polls the network only
// when a processor is idle, or every 10 ms. A goroutine that keeps a processor busy, such as the reader of a connection with a peer
// that sends without pause, calls [Poller.Poll] before it yields, so that readers of other connections run next.
//
// A Poller never blocks and has no goroutine. A nil Poller finds nothing. On systems other than Linux a Poller does nothing. All
// methods are safe for concurrent use.
type Poller struct {
	mu invariants.Mutex
	// set is an epoll set of the sets that waiters park on; negative: closed. Its events are edges, because a waiter that
	// was woken needs a while to take its event, and must not be woken again meanwhile.
	// +checklocks:mu
	set int
	// +checklocks:mu
	waiters map[int32]*waiter // by the descriptor of their sets
	// +checklocks:mu
	events [pollEvents]unix.EpollEvent
}

// pollEvents is the largest number of waiters that one call of Poll wakes. The next call wakes further ones.
const pollEvents = 64

// NewPoller returns a Poller without connections. It has one descriptor until it is closed.
func NewPoller() (*Poller, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("epoll_create1", err)
	}
	return &Poller{set: fd, waiters: map[int32]*waiter{}}, nil
}

// Poll wakes the goroutines in [Conn.WaitRead] on readable connections, and returns their number.
//
// +checklocksignore: it does not know TryLock.
func (p *Poller) Poll() (woken int) {
	if p == nil || !p.mu.TryLock() { // another goroutine polls
		return 0
	}
	var found [pollEvents]*waiter
	n := 0
	if p.set >= 0 {
		n, _ = epollNow(p.set, p.events[:]) // after an error Go's scheduler notices the data later
		for i, e := range p.events[:max(n, 0)] {
			found[i] = p.waiters[e.Fd]
		}
	}
	p.mu.Unlock()
	for _, w := range found[:max(n, 0)] {
		if w != nil {
			w.wake()
			woken++
		}
	}
	return woken
}

// add adds w, which has the epoll set fd, to the waiters that Poll wakes. If the kernel refuses fd, for example because the user has
// reached fs.epoll.max_user_watches, only Go's scheduler wakes w, as on other systems.
func (p *Poller) add(w *waiter, fd int) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.set < 0 {
		return
	}
	if unix.EpollCtl(p.set, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLET, Fd: int32(fd)}) == nil {
		p.waiters[int32(fd)] = w
	}
}

// remove removes the waiter with the descriptor fd. The caller closes fd afterwards, which removes fd from the epoll set.
func (p *Poller) remove(fd int) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.waiters, int32(fd))
}

// Close releases the descriptor. Connections of the Poller go on without it.
func (p *Poller) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.set < 0 {
		return nil
	}
	fd := p.set
	p.set = -1
	clear(p.waiters)
	return os.NewSyscallError("close", unix.Close(fd))
}
