package sm

import (
	"errors"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"cinnabar/internal/na"
	"cinnabar/internal/progress"
	"cinnabar/internal/rawcall"
	"cinnabar/internal/shm"
	"cinnabar/internal/sockio"
)

// poller makes progress for an endpoint while no caller drives: it looks at all conns, at the socket and the command ring, sends
// messages that have waited for room, and runs tasks. One goroutine at a time is the poller. Its fields belong to that goroutine
// unless said otherwise.
//
// It parks on an epoll set of its own that holds the socket, the receive eventfds and the processes of peers; the set itself is in
// Go's poller, so that a parked poller has no thread.
type poller struct {
	ep  *Endpoint
	set *os.File // the epoll set
	raw syscall.RawConn
	fd  int // of set; any goroutine uses it for epoll_ctl

	state  atomic.Uint32 // pollActive and so on
	parked atomic.Bool
	woken  atomic.Bool // wake was called since the last parking
	// awaited is true while the poller checks at intervals whether servers still exist: since an operation has waited for one, until
	// a whole interval has passed at the end of which none waits. It stays true between calls, because setting and clearing a
	// deadline for each call would wake the poller each time.
	awaited atomic.Bool

	tasks    progress.Tasks[na.Task] // has a lock of its own
	watch    taskWatch
	spins    progress.Source
	rounds   int
	signaled bool // a doorbell has rung
	n        int  // events
	tries    int  // number of calls of fetch in a parking: more than one if there were no events at first
	events   [32]unix.EpollEvent
	due      time.Time // the deadline that set has, zero if none
	ticked   time.Time // the last tick of a busy poller
	step     func(fd uintptr) bool
	wait     time.Duration // between attempts to send the messages that wait for room in a ring

	mu sync.Mutex
	// blocked are the peers with messages that wait for room.
	// +checklocks:mu
	blocked []*Addr
	// blocks is the length of blocked.
	blocks atomic.Int32
}

const (
	pollActive uint32 = iota
	pollInTask
	pollParked
)

// newPoller makes the epoll set.
func newPoller(e *Endpoint) (*poller, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("epoll_create1", err)
	}
	if err := unix.SetNonblock(fd, true); err != nil { // makes os.NewFile hand it to Go's poller
		_ = unix.Close(fd) // the error at hand is the one to return
		return nil, os.NewSyscallError("fcntl", err)
	}
	p := &poller{ep: e, set: os.NewFile(uintptr(fd), "epoll"), fd: fd}
	if p.raw, err = p.set.SyscallConn(); err != nil {
		_ = p.set.Close() // the error at hand is the one to return
		return nil, err
	}
	p.step = p.fetch
	p.watch.poll = p
	p.watch.Init(&p.watch)
	p.spins.Init(e.cfg.Progress, progress.Memory)
	return p, nil
}

// The subject of an event is the high half of its data. The low half is the id of a conn.
const (
	eventSocket int32 = iota
	eventRecv
	eventProcess
	eventNotify
)

// add adds fd to the epoll set.
func (p *poller) add(fd int, events uint32, kind, id int32) error {
	return os.NewSyscallError("epoll_ctl", unix.EpollCtl(p.fd, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: events, Fd: id, Pad: kind}))
}

// setMuted disables or enables wake-ups from a conn's receive eventfd. It cannot fail, because the eventfd stays open while the caller
// has the conn's receive role, and the set stays open while there are conns.
func (p *poller) setMuted(recvEvent int, id int32, yes bool) {
	ev := unix.EpollEvent{Events: recvEvents, Fd: id, Pad: eventRecv}
	if yes {
		ev.Events = 0
	}
	_ = unix.EpollCtl(p.fd, unix.EPOLL_CTL_MOD, recvEvent, &ev)
}

// recvEvents is edge-triggered: each token makes an event, so that tokens need not be read.
const recvEvents = unix.EPOLLIN | unix.EPOLLET

// remove removes fd from the epoll set. Closing fd alone would not, because the other process has the file open too.
func (p *poller) remove(fd int) { _ = unix.EpollCtl(p.fd, unix.EPOLL_CTL_DEL, fd, nil) }

// wake makes a parked poller look at everything again.
func (p *poller) wake() {
	p.woken.Store(true)
	if p.parked.Load() {
		_ = p.set.SetReadDeadline(sockio.Past) // fails only once the set is closed
	}
}

// await makes the poller check at intervals whether servers still exist, because an operation waits for one. It wakes a parked poller
// only if no check is due, so that the poller sets a deadline.
func (p *poller) await() {
	if p.awaited.Load() || p.awaited.Swap(true) {
		return
	}
	if p.parked.Load() {
		p.wake()
	}
}

// checkAwaited ends the checks if no operation waits for a server. The poller calls it at the end of an interval.
func (p *poller) checkAwaited() {
	if !p.awaited.Load() {
		return
	}
	p.awaited.Store(false) // first, because an operation that begins to wait meanwhile sets it again
	if slices.ContainsFunc(p.ep.list(), func(c *conn) bool { return !c.server && c.addr.expected.Len() > 0 }) {
		p.awaited.Store(true)
	}
}

// run is the goroutine of the poller. It ends when the endpoint closes or another goroutine becomes the poller.
func (p *poller) run(gen uint32) {
	over := false
	defer func() {
		if !over { // a task has ended the goroutine with runtime.Goexit
			p.revive(gen)
		}
	}()
	last := p.progress(gen)
	over = true
	p.ep.runners.Done()
	if last {
		close(p.ep.pollEnd)
	}
}

// revive starts another goroutine as the poller.
func (p *poller) revive(gen uint32) {
	defer p.ep.runners.Done()
	if next, ok := p.tasks.Ended(gen); ok {
		p.startPoller(next)
	}
}

// progress makes progress until the endpoint has ended, or another goroutine has become the poller. It returns true in the first case.
func (p *poller) progress(gen uint32) (last bool) {
	s := p.spins.Spin(false)
	defer s.End()
	for hot := gen > 0; ; { // a goroutine of a later generation spins at first, because it has replaced one that is in a task of a new request
		if p.ep.ended.Load() && p.tasks.Waiting() == 0 {
			return true
		}
		got := p.round()
		if p.signaled {
			p.signaled = false
			p.ep.checkClosing()
		}
		ran, mine := p.runTasks(gen, &s)
		if !mine {
			return false
		}
		switch {
		case got || ran:
			hot = ran || p.ep.busy()
			s.Found()
			p.ep.handOver()
		case hot && s.Vain():
			shm.Pause(1)
		default:
			s.End()
			if !hot || !p.ep.expects() || !s.Begin() {
				hot = p.park()
			}
		}
	}
}

// busy reports whether messages are likely to come soon on conns that no driver has claimed: requests, or responses.
func (e *Endpoint) busy() bool {
	return slices.ContainsFunc(e.list(), func(c *conn) bool {
		return !c.role.claim.Taken() && (c.serves.Load() || c.addr.expected.Len() > 0)
	})
}

// expects reports whether the poller goes on looking after the end of a spin, because an operation waits for a message.
func (e *Endpoint) expects() bool {
	return e.cfg.Progress.Mode() == progress.Latency && slices.ContainsFunc(e.list(), func(c *conn) bool { return c.addr.expected.Len() > 0 })
}

// eventRounds is the number of rounds of spinning between two looks at the epoll set.
const eventRounds = 128

// round looks at everything once and reports whether there was a message, a command, or room for waiting messages.
func (p *poller) round() (got bool) {
	e := p.ep
	for _, c := range e.list() {
		if c.polled() && p.visit(c) {
			got = true
		}
	}
	if p.rounds++; p.rounds%eventRounds == 0 {
		p.look()
		p.tick(time.Now())
	}
	if e.drainCommands(commandBatch) {
		got = true
	}
	if p.blocks.Load() > 0 && p.unblock() {
		got = true
	}
	return got
}

// visit receives from one conn.
func (p *poller) visit(c *conn) bool {
	if c.provisional && !c.searched {
		p.ep.awaitIdentity(c)
	}
	if !c.enter() {
		return false
	}
	n := c.receive(receiveBatch)
	if n > 0 {
		c.spins.Answered()
		c.operations()
	}
	if len(c.tasks) > 0 {
		p.tasks.Offer(c.tasks)
		clear(c.tasks)
		c.tasks = c.tasks[:0]
	}
	c.leave()
	return n > 0
}

// looks bounds the batches of events that are taken in a row, because peers may cause events without end.
const looks = 4

// look takes events without waiting.
func (p *poller) look() {
	for range looks {
		n, err := rawcall.Events(p.fd, p.events[:])
		if err != nil || n <= 0 {
			return
		}
		p.dispatch(p.events[:n])
		if n < len(p.events) { // no more events: the socket alone has another event whenever a client has sent a command
			return
		}
	}
}

// dispatch handles events. A token only sets signaled, because round looks at all conns anyway.
func (p *poller) dispatch(events []unix.EpollEvent) {
	for i := range events {
		switch ev := &events[i]; ev.Pad {
		case eventRecv:
			p.signaled = true
		case eventSocket:
			p.ep.readSocket()
		case eventProcess:
			p.ep.processEnded(ev.Fd)
		case eventNotify:
			p.ep.readNotify()
		}
	}
}

// park waits until an event, a wake-up, or the deadline. It reports whether the cause was a message or a command, after which spinning
// may pay.
func (p *poller) park() bool {
	p.tick(time.Now())
	p.look()
	if p.signaled || p.tasks.Waiting() > 0 || p.arm() { // look may have found the last requests of a client that has left
		return true
	}
	p.state.Store(pollParked)
	p.parked.Store(true)
	p.setDeadline()
	if p.woken.Swap(false) {
		p.unpark()
		return true
	}
	p.n, p.tries = 0, 0
	p.spins.Park()
	err := p.raw.Read(p.step)
	p.unpark()
	if p.tries > 1 {
		p.ep.cfg.Progress.Woken(0)
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		p.due = sockio.Past
		woken := p.woken.Swap(false)
		if !woken {
			p.checkAwaited()
		}
		p.look()
		p.ep.tick(time.Now())
		return woken
	}
	if p.n > 0 {
		p.spins.Answered()
	}
	p.dispatch(p.events[:p.n])
	return p.n > 0
}

func (p *poller) unpark() {
	p.parked.Store(false)
	p.state.Store(pollActive)
}

// tick does the periodic work of the endpoint, because a busy poller does not park until its deadline.
func (p *poller) tick(now time.Time) {
	if now.Sub(p.ticked) >= tickInterval {
		p.ticked = now
		p.ep.tick(now)
	}
}

// fetch takes events. Go's poller calls it at the beginning of a parking, and again when the set is readable.
func (p *poller) fetch(fd uintptr) bool {
	n, err := rawcall.Events(int(fd), p.events[:])
	p.n = max(n, 0)
	p.tries++
	return n > 0 || err != nil && !errors.Is(err, unix.EINTR)
}

// arm asks peers to ring their doorbells, and reports whether a message or command came in the meantime.
func (p *poller) arm() bool {
	for _, c := range p.ep.list() {
		if !c.polled() || !c.enterOrMiss() {
			continue
		}
		c.sleeping(true)
		ready := !c.dead.Load() && (c.ready() || c.ending.Load() != nil)
		c.leave()
		if ready {
			return true
		}
	}
	return p.ep.commandsWaiting()
}

// Intervals of the work for which the poller gets no event.
const (
	busyInterval   = time.Millisecond       // looks at conns of peers that send no wake-up
	checkInterval  = time.Second            // looks for closed endpoints of living processes
	roomShortest   = 20 * time.Microsecond  // attempts to send messages that wait for room,
	roomLongest    = time.Millisecond       // which become rarer
	blindInterval  = 20 * time.Millisecond  // looks at the command ring if inotify does not report new clients
	orphanInterval = 250 * time.Millisecond // looks for copy buffers and pairs that a dead client has left, after a death or while one is left
	lookInterval   = time.Second            // the same looks after a client has opened the region, as long as no look finds any
	tickInterval   = 10 * time.Millisecond  // the periodic work of a poller that does not park
)

// interval returns the time limit of the next parking; 0: no limit.
func (p *poller) interval(now time.Time) time.Duration {
	d := p.ep.interval(now)
	if p.awaited.Load() {
		d = shorter(d, checkInterval)
	}
	if p.blocks.Load() > 0 {
		p.wait = min(max(2*p.wait, roomShortest), roomLongest)
		room := p.wait/2 + rand.N(p.wait) // so that several clients do not try at the same moments
		if d == 0 || room < d {
			d = room
		}
	}
	return d
}

// setDeadline sets the deadline of the parking. It keeps a deadline that is at most half the interval too early, because setting one
// is expensive.
func (p *poller) setDeadline() {
	now := time.Now()
	d := p.interval(now)
	if d == 0 {
		if !p.due.IsZero() {
			p.due = time.Time{}
			_ = p.set.SetReadDeadline(time.Time{}) // fails only once the set is closed
		}
		return
	}
	if left := p.due.Sub(now); left > d/2 && left <= d {
		return
	}
	p.due = now.Add(d)
	_ = p.set.SetReadDeadline(p.due) // fails only once the set is closed
}

// block records that messages to a wait for room. Any goroutine may call it.
func (p *poller) block(a *Addr) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !slices.Contains(p.blocked, a) {
		p.blocked = append(p.blocked, a)
		p.blocks.Add(1)
		p.wake()
	}
}

// unblock sends messages that wait for room, as far as there is room, and reports whether it sent any.
func (p *poller) unblock() (sent bool) {
	p.mu.Lock()
	list := slices.Clone(p.blocked)
	p.mu.Unlock()
	now := time.Now()
	for _, a := range list {
		some, left := a.flush()
		sent = sent || some
		if items := a.overdue(now, p.ep.cfg.SendTimeout); items != nil {
			a.failAll(items, nil, na.Unreachable, errNoRoom)
			left = false
		}
		if !left {
			p.clear(a)
		}
	}
	if sent {
		p.wait = 0
	}
	return sent
}

// clear removes a from the blocked peers, unless messages wait again.
func (p *poller) clear(a *Addr) {
	a.mu.Lock()
	defer a.mu.Unlock()
	waits := len(a.waiting) > 0 && a.conn.Load() != nil
	p.mu.Lock()
	defer p.mu.Unlock()
	if i := slices.Index(p.blocked, a); i >= 0 && !waits {
		p.blocked = slices.Delete(p.blocked, i, i+1)
		p.blocks.Add(-1)
	}
}
