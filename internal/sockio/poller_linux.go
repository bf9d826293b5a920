package sockio

import (
	"net"
	"os"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"

	"cinnabar/internal/invariants"
	"cinnabar/internal/rawcall"
)

// A Poller wakes the goroutines in [Conn.WaitRead] of the connections that have joined it. It is one epoll set of their sockets. A
// goroutine calls [Poller.Wait] in a loop, and parks there in Go's network poller while nothing arrives. Any goroutine that keeps
// a processor busy may call [Poller.Poll] as well, because Go's scheduler polls the network only when a processor is idle, or every 10 ms.
//
// A nil Poller finds nothing. All methods are safe for concurrent use, but only one goroutine at a time may be in Wait.
type Poller struct {
	file    *os.File // the set, in Go's poller
	fd      int      // its descriptor
	raw     syscall.RawConn
	step    func(fd uintptr) bool
	pending atomic.Int32  // goroutines that an event has woken and that have not run yet
	settles atomic.Bool   // a goroutine is in Settle
	settled chan struct{} // capacity 1: pending may be 0
	// woken is the number of goroutines that the last call of step has woken; it belongs to the goroutine in Wait.
	woken int

	mu invariants.Mutex
	// +checklocks:mu
	closed bool
	// +checklocks:mu
	members map[int32]*member // by the descriptors of their sockets
	// +checklocks:mu
	events [pollEvents]unix.EpollEvent
}

// pollEvents is the largest number of events that one system call returns.
const pollEvents = 64

// NewPoller returns a Poller without connections. It has one descriptor until it is closed.
func NewPoller() (*Poller, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("epoll_create1", err)
	}
	if err := unix.SetNonblock(fd, true); err != nil { // makes os.NewFile hand it to Go's poller
		_ = unix.Close(fd) // the error at hand is the one to return
		return nil, os.NewSyscallError("fcntl", err)
	}
	p := &Poller{file: os.NewFile(uintptr(fd), "epoll"), fd: fd, settled: make(chan struct{}, 1), members: map[int32]*member{}}
	if p.raw, err = p.file.SyscallConn(); err != nil {
		_ = p.file.Close() // the error at hand is the one to return
		return nil, err
	}
	p.step = func(uintptr) bool {
		p.woken = p.Poll()
		return p.woken > 0
	}
	return p, nil
}

// Wait parks until a connection is readable on which a goroutine is in [Conn.WaitRead], and wakes the goroutines of all such
// connections. It returns the number of woken goroutines, or an error that is [os.ErrClosed] after [Poller.Close].
func (p *Poller) Wait() (woken int, err error) {
	if p.raw.Read(p.step) != nil { // it has no deadline, so this is the end
		return 0, os.ErrClosed
	}
	return p.woken, nil
}

// Settle waits until all goroutines that the Poller has woken run, or have run. The goroutine that calls Wait calls Settle before it
// looks again: meanwhile a processor of Go's scheduler that has no other work takes over goroutines that wait for another one, such as
// one with a thread that the kernel does not run at present. Only one goroutine at a time may be in Settle.
func (p *Poller) Settle() {
	for p.pending.Load() > 0 {
		p.settles.Store(true)
		if p.pending.Load() > 0 {
			<-p.settled
		}
	}
}

// ran takes note that a goroutine runs that an event has woken.
func (p *Poller) ran() {
	if p.pending.Add(-1) == 0 && p.settles.Load() && p.settles.Swap(false) {
		select {
		case p.settled <- struct{}{}:
		default:
		}
	}
}

// Poll wakes the goroutines in [Conn.WaitRead] on readable connections, and returns their number. It does not block.
func (p *Poller) Poll() (woken int) {
	if p == nil {
		return 0
	}
	for {
		var found [pollEvents]report
		n := p.take(&found)
		for _, r := range found[:n] {
			if r.of != nil && r.of.event(r.events) {
				woken++
			}
		}
		if n < pollEvents { // otherwise there may be more, for which Go's poller gets no further edge
			return woken
		}
	}
}

// report is an event of the kernel. Its member is nil if the connection has left the Poller.
type report struct {
	of     *member
	events uint32
}

// take takes events from the set, stores them in found, and returns their number.
func (p *Poller) take(found *[pollEvents]report) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return 0
	}
	n, err := rawcall.Events(p.fd, p.events[:])
	if err != nil {
		return 0 // EINTR, which epoll_wait without a time does not return
	}
	for i, e := range p.events[:n] {
		found[i] = report{p.members[e.Fd], e.Events}
	}
	return n
}

// Close releases the descriptor and ends Wait. The connections that have joined must be closed before.
func (p *Poller) Close() error {
	p.mu.Lock()
	closed := p.closed
	p.closed = true
	clear(p.members)
	p.mu.Unlock()
	if closed {
		return nil
	}
	return p.file.Close() // waits for Wait, which needs the lock
}

// member is the place of one connection in a Poller. The goroutine in WaitRead arms it for one event and parks on note.
//
// If many connections have traffic, the system call that arms a member for each message costs a tenth of the time of a call. Therefore
// there are standing members: the kernel reports each arrival of bytes for them (EPOLLET), and park makes a system call only if bytes
// may be unread that the kernel reported before.
type member struct {
	poller  *Poller
	fd      int  // the socket's descriptor, if entered
	entered bool // the socket is in the set; this and fd are set by the goroutine in WaitRead
	note    chan struct{}

	mu invariants.Mutex
	// armed is true from arm until the event is reported or no longer wanted.
	// +checklocks:mu
	armed bool
	// parked is true while the goroutine is in park.
	// +checklocks:mu
	parked bool
	// reported is true from an event that woke the parked goroutine until that goroutine runs; it counts in Poller.pending.
	// +checklocks:mu
	reported bool
	// standing is true if the kernel reports all further arrivals, and not only the one for which m was armed.
	// +checklocks:mu
	standing bool

	stand   atomic.Bool   // the next park makes m standing
	events  atomic.Uint64 // number of events that the kernel has reported
	ended   atomic.Bool   // the kernel has reported the end of the stream or an error, and will not report it again after all bytes were read
	drained atomic.Uint64 // value of events before the latest read, if that read took all bytes of the socket; otherwise, and after Doubt, undrained
}

// undrained is a value that member.events does not reach.
const undrained = ^uint64(0)

// join makes p the Poller; p may be nil.
func (m *member) join(p *Poller) {
	if p != nil {
		m.poller, m.note = p, make(chan struct{}, 1)
	}
}

// enter adds the socket to the Poller's set, unless it is there, and reports whether it is there now. If the kernel refuses it, for
// example because the user has reached fs.epoll.max_user_watches, the connection waits by itself, like one without a Poller.
func (m *member) enter(sock syscall.RawConn) bool {
	p := m.poller
	if p == nil || m.entered {
		return p != nil
	}
	fd := -1
	if sock.Control(func(s uintptr) { fd = int(s) }) != nil {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || unix.EpollCtl(p.fd, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLONESHOT, Fd: int32(fd)}) != nil {
		m.poller = nil
		return false
	}
	p.members[int32(fd)] = m
	m.fd, m.entered = fd, true
	return true
}

// event is called after the kernel has reported an event. It wakes the goroutine and returns true, unless the goroutine has left WaitRead
// meanwhile. Settle does not wait for a goroutine that runs already, because the goroutine may wait for others in its ready function.
func (m *member) event(events uint32) (wanted bool) {
	if events&^unix.EPOLLIN != 0 {
		m.ended.Store(true)
	}
	m.events.Add(1)
	m.mu.Lock()
	wanted = m.armed
	m.armed = false
	if wanted && m.parked {
		m.reported = true
		m.poller.pending.Add(1)
	}
	m.mu.Unlock()
	if wanted {
		m.wake()
	}
	return wanted
}

// leaveWait sets armed and parked to false. The goroutine in WaitRead calls it.
func (m *member) leaveWait() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.armed, m.parked = false, false
}

// run ends the parking, and the count of an event that was reported.
func (m *member) run() {
	m.mu.Lock()
	reported := m.reported
	m.parked, m.reported = false, false
	m.mu.Unlock()
	if reported {
		m.poller.ran()
	}
}

// wake ends the present or next parking. It does nothing without a Poller.
func (m *member) wake() {
	select { // a send to a nil channel is never ready
	case m.note <- struct{}{}:
	default:
	}
}

// park waits for bytes, for the end of the stream, or for wake.
func (m *member) park() error {
	if err := m.arm(); err != nil {
		m.run()
		return err
	}
	<-m.note
	m.run()
	return nil
}

// arm makes the kernel report bytes that the socket has, or else the next bytes that come.
func (m *member) arm() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	was := m.armed
	m.armed, m.parked = true, true // before the system call, because the kernel may report the event before the call returns
	switch stand := m.stand.Load(); {
	case stand && m.standing && !m.ended.Load() && m.drained.Load() == m.events.Load():
		return nil // all bytes that were reported have been read
	case stand:
		m.standing = true
		return m.set(readEvents | unix.EPOLLET)
	case was && !m.standing:
		return nil
	}
	m.standing = false
	return m.set(readEvents | unix.EPOLLONESHOT)
}

// setStanding sets stand to on. setStanding(false) also sets standing to false at once, because the bytes of a connection that a goroutine
// reads without WaitRead would needlessly wake the goroutine in [Poller.Wait].
func (m *member) setStanding(on bool) {
	m.stand.Store(on)
	m.mu.Lock()
	defer m.mu.Unlock()
	if on || !m.standing {
		return
	}
	m.standing = false
	var events uint32
	if m.armed {
		events = readEvents
	}
	if m.set(events|unix.EPOLLONESHOT) != nil {
		m.wake() // park tries again, and returns the error
	}
}

// read records a read that began when events had the value before. all reports whether it took all bytes of the socket.
func (m *member) read(before uint64, all bool) {
	if !m.stand.Load() {
		return // the first arm of a standing member makes the system call in any case
	}
	if !all {
		before = undrained
	}
	m.drained.Store(before)
}

// disarm disarms the socket, so that arriving bytes wake no goroutine. A standing member stays armed in the kernel, and event ignores them.
func (m *member) disarm() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	was := m.armed && !m.standing
	m.armed, m.parked = false, false
	if !was {
		return nil
	}
	return m.set(unix.EPOLLONESHOT)
}

// readEvents are the events of bytes and of the end of a stream.
const readEvents = unix.EPOLLIN | unix.EPOLLRDHUP

// set sets the events that the kernel reports.
func (m *member) set(events uint32) error {
	return os.NewSyscallError("epoll_ctl", unix.EpollCtl(m.poller.fd, unix.EPOLL_CTL_MOD, m.fd, &unix.EpollEvent{Events: events, Fd: int32(m.fd)}))
}

// leave takes m out of the Poller. The caller closes the socket afterwards, which removes it from the epoll set.
func (m *member) leave() {
	if p := m.poller; p != nil && m.entered {
		p.mu.Lock()
		delete(p.members, int32(m.fd))
		p.mu.Unlock()
	}
}

// waitMember parks on the member of d until ready returns true or the connection is closed.
func (d *direct) waitMember(ready func() bool) error {
	m := &d.member
	defer m.leaveWait()
	for {
		if d.closed.Load() {
			return net.ErrClosed
		}
		if ready() && !d.closed.Load() {
			return m.disarm()
		}
		if err := m.park(); err != nil && !d.closed.Load() {
			return err
		}
	}
}
