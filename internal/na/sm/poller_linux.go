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
	"cinnabar/internal/sockio"
)

// poller is what makes progress for an endpoint when nobody drives: it looks at all conns, at the socket and the command
// ring, sends what waited for room, and runs tasks. At any time one goroutine is the poller; its fields are that
// goroutine's unless said otherwise.
//
// It parks on an epoll set of its own that holds the socket, the doorbells and the processes of peers; the set itself is
// in Go's poller, so that a parked poller has no thread.
type poller struct {
	ep  *Endpoint
	set *os.File // the epoll set
	raw syscall.RawConn
	fd  int // of set; used by anybody, for epoll_ctl

	state  atomic.Uint32 // pollActive and so on
	parked atomic.Bool
	woken  atomic.Bool // wake was called since the last parking
	timed  atomic.Bool // the parking ends by itself

	tasks      tasks // guards itself
	offered    bool  // there may be tasks
	spinPolicy spinPolicy
	rounds     int
	heard      bool // a doorbell has rung
	n          int  // events
	tries      int  // how often they were asked for: more than once if there were none
	events     [32]unix.EpollEvent
	due        time.Time // the deadline that set has, zero if none
	ticked     time.Time // the last tick of a busy poller
	step       func(fd uintptr) bool
	wait       time.Duration // between attempts to send the messages that wait for room in a ring

	mu sync.Mutex
	// blocked are the peers with messages that wait for room.
	// +checklocks:mu
	blocked []*Addr
	// blocks is how many there are.
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
		_ = unix.Close(fd) // the error at hand is the one to tell
		return nil, os.NewSyscallError("fcntl", err)
	}
	p := &poller{ep: e, set: os.NewFile(uintptr(fd), "epoll"), fd: fd}
	if p.raw, err = p.set.SyscallConn(); err != nil {
		_ = p.set.Close() // the error at hand is the one to tell
		return nil, err
	}
	p.step = p.fetch
	return p, nil
}

// What an event is about: the high half of its data. The low half is a conn's id.
const (
	eventSocket int32 = iota
	eventRecv
	eventProcess
	eventNotify
)

// add has the epoll set watch fd.
func (p *poller) add(fd int, events uint32, what, id int32) error {
	return os.NewSyscallError("epoll_ctl", unix.EpollCtl(p.fd, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: events, Fd: id, Pad: what}))
}

// setMuted disables or enables wake-ups from a conn's receive eventfd. It stays open while the caller has the conn's receive
// role, and the set while there are conns: so this cannot fail.
func (p *poller) setMuted(recvEvent int, id int32, yes bool) {
	ev := unix.EpollEvent{Events: recvEvents, Fd: id, Pad: eventRecv}
	if yes {
		ev.Events = 0
	}
	_ = unix.EpollCtl(p.fd, unix.EPOLL_CTL_MOD, recvEvent, &ev)
}

// recvEvents are edge-triggered: each token makes an event, so that tokens need not be read.
const recvEvents = unix.EPOLLIN | unix.EPOLLET

// remove undoes add. Closing alone would not do: the other process has the file open too.
func (p *poller) remove(fd int) { _ = unix.EpollCtl(p.fd, unix.EPOLL_CTL_DEL, fd, nil) }

// wake has the poller look at everything again soon, if it is parked.
func (p *poller) wake() {
	p.woken.Store(true)
	if p.parked.Load() {
		_ = p.set.SetReadDeadline(sockio.Past) // fails only once the set is closed
	}
}

// await has the poller look now and then whether servers are still there, since somebody waits for one. Whoever waits for
// the first time in a while wakes it; then it does so for as long as anybody waits.
func (p *poller) await() {
	if p.parked.Load() && !p.timed.Load() {
		p.wake()
	}
}

// run is the poller's goroutine, until the endpoint closes or another one takes over.
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

// revive has another goroutine go on.
func (p *poller) revive(gen uint32) {
	defer p.ep.runners.Done()
	if next, ok := p.tasks.succeed(gen); ok {
		p.startOver(next)
	}
}

// progress is what the poller does. It reports whether that is because the endpoint has ended: then there is no other.
func (p *poller) progress(gen uint32) (last bool) {
	s := spinner{policy: &p.spinPolicy}
	defer s.stop(p.ep)
	for hot := false; ; {
		if p.ep.ended.Load() && !p.offered {
			return true
		}
		got := p.round()
		if p.heard {
			p.heard = false
			p.ep.checkClosing()
		}
		ran, mine := p.runTasks(gen, &s)
		if !mine {
			return false
		}
		switch {
		case got || ran:
			hot = ran || p.ep.busy()
			s.reset()
		case hot && s.spin(p.ep):
		default:
			s.stop(p.ep)
			hot = p.park()
		}
	}
}

// busy tells whether more messages are to be expected soon that nobody drives for: requests, or answers.
func (e *Endpoint) busy() bool {
	return slices.ContainsFunc(e.list(), func(c *conn) bool {
		return c.role.claim.Load() == 0 && (c.serves.Load() || c.addr.awaits.Load() > 0)
	})
}

// eventRounds is after how many rounds of spinning the epoll set is looked at.
const eventRounds = 128

// round looks at everything once and reports whether something had come.
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
	if !c.enter() {
		return false
	}
	n := c.receive(receiveBatch)
	if len(c.tasks) > 0 {
		p.tasks.offer(c.tasks)
		p.offered = true
		clear(c.tasks)
		c.tasks = c.tasks[:0]
	}
	c.leave()
	return n > 0
}

// looks bounds how many batches of events are taken in a row: somebody may cause them without end.
const looks = 4

// look takes events without waiting.
func (p *poller) look() {
	for range looks {
		n, err := unix.EpollWait(p.fd, p.events[:], 0)
		if err != nil || n <= 0 {
			return
		}
		p.dispatch(p.events[:n])
		if n < len(p.events) { // the socket alone would always be there again while clients send commands
			return
		}
	}
}

// dispatch handles events. Tokens need no more than a note, since all conns are looked at anyway.
func (p *poller) dispatch(events []unix.EpollEvent) {
	for i := range events {
		switch ev := &events[i]; ev.Pad {
		case eventRecv:
			p.heard = true
		case eventSocket:
			p.ep.readSocket()
		case eventProcess:
			p.ep.processEnded(ev.Fd)
		case eventNotify:
			p.ep.readNotify()
		}
	}
}

// park waits until something comes. It reports whether that was a message or a command, after which spinning may pay.
func (p *poller) park() bool {
	p.tick(time.Now())
	p.look()
	if p.heard || p.offered || p.arm() { // a client that has left may have sent requests before
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
	err := p.raw.Read(p.step)
	p.unpark()
	if p.tries > 1 {
		p.ep.stats.parks.Add(1)
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		p.due = sockio.Past
		woken := p.woken.Swap(false)
		p.look()
		p.ep.tick(time.Now())
		return woken
	}
	p.dispatch(p.events[:p.n])
	return p.n > 0
}

func (p *poller) unpark() {
	p.parked.Store(false)
	p.state.Store(pollActive)
}

// tick does what is due, which a poller that never parks for long would not come to otherwise.
func (p *poller) tick(now time.Time) {
	if now.Sub(p.ticked) >= tickInterval {
		p.ticked = now
		p.ep.tick(now)
	}
}

// fetch is called by Go's poller: first to see whether there are events already.
func (p *poller) fetch(fd uintptr) bool {
	n, err := unix.EpollWait(int(fd), p.events[:], 0)
	p.n = max(n, 0)
	p.tries++
	return n > 0 || err != nil && err != unix.EINTR
}

// arm asks for doorbells, and reports whether something has come meanwhile.
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

// Intervals of what nobody tells the poller about.
const (
	busyInterval   = time.Millisecond       // looks at conns of peers that ring no doorbell
	checkInterval  = time.Second            // whether endpoints of living processes are gone
	roomShortest   = 20 * time.Microsecond  // attempts to send what waits for room,
	roomLongest    = time.Millisecond       // which become rarer
	blindInterval  = 20 * time.Millisecond  // looks at the command ring if the kernel does not tell of new clients
	orphanInterval = 250 * time.Millisecond // looks at copy buffers that a client has left behind
	tickInterval   = 10 * time.Millisecond  // all of these while the poller has much to do
)

// interval is for how long to park at most; 0: for ever.
func (p *poller) interval(now time.Time) time.Duration {
	d := p.ep.interval(now)
	if p.blocks.Load() > 0 {
		p.wait = min(max(2*p.wait, roomShortest), roomLongest)
		room := p.wait/2 + rand.N(p.wait) // so that several clients do not try at the same moments
		if d == 0 || room < d {
			d = room
		}
	}
	return d
}

// setDeadline sets when the parking ends. A deadline that is set already and due a bit earlier or later will do.
func (p *poller) setDeadline() {
	now := time.Now()
	d := p.interval(now)
	p.timed.Store(d > 0)
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

// block notes that a peer has messages that wait for room. Anybody calls it.
func (p *poller) block(a *Addr) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !slices.Contains(p.blocked, a) {
		p.blocked = append(p.blocked, a)
		p.blocks.Add(1)
		p.wake()
	}
}

// unblock sends what waits for room, as far as there is, and reports whether there was.
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

// clear takes a off the list, unless something waits again.
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
