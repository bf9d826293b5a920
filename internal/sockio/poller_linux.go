package sockio

import (
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// A Poller looks at many connections at once for data whose readers have not been woken yet. Go's scheduler looks at the
// network only when a processor has nothing else to run, or every 10 ms. A goroutine that keeps a processor busy, such as
// the reader of a connection whose peer sends without pause, calls [Poller.Poll] before it lets others run, so that the
// readers of other connections are among them.
//
// A Poller never blocks and has no goroutine. A nil Poller finds nothing. On systems other than Linux a Poller does nothing.
// All methods are safe for concurrent use.
type Poller struct {
	mu sync.Mutex
	// set is an epoll set of the sets that waiters park on; negative: closed. Its events are edges, because a waiter that
	// was woken needs a while to take its event, and must not be woken again meanwhile.
	// +checklocks:mu
	set int
	// +checklocks:mu
	waiters map[int32]*waiter // by the descriptor of their sets
	// +checklocks:mu
	events [pollEvents]unix.EpollEvent
}

// pollEvents is how many waiters one call of Poll wakes. The next call wakes others.
const pollEvents = 64

// NewPoller returns a Poller without connections. It has one descriptor until it is closed.
func NewPoller() (*Poller, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("epoll_create1", err)
	}
	return &Poller{set: fd, waiters: map[int32]*waiter{}}, nil
}

// Poll wakes goroutines in [Conn.WaitRead] whose connections have something to read, and returns how many.
//
// +checklocksignore: it does not know TryLock.
func (p *Poller) Poll() (woken int) {
	if p == nil || !p.mu.TryLock() { // another goroutine is doing it
		return 0
	}
	var found [pollEvents]*waiter
	n := 0
	if p.set >= 0 {
		n, _ = epollNow(p.set, p.events[:]) // an error finds nothing, and Go's scheduler finds it later
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

// add has Poll look at w, whose set has the descriptor fd. If the kernel refuses that, for example because the user has
// fs.epoll.max_user_watches of them, w goes on without, as on other systems.
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

// remove ends that. The caller closes fd afterwards, which takes it out of the epoll set.
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
