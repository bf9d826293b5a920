package sm

import (
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"math/rand/v2"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"cinnabar/internal/na"
	"cinnabar/internal/shm"
)

// Intervals between attempts to connect to a server that has no free pair or no room in its socket.
const (
	dialShortest = 200 * time.Microsecond
	dialLongest  = 20 * time.Millisecond
)

// commandTimeout is the longest time that one attempt to connect waits for room in a server's socket. Close may wait as long.
const commandTimeout = 20 * time.Millisecond

// again is an error after which dial calls connect again.
type again struct{ error }

func (a again) Unwrap() error { return a.error }

// dial connects an Addr to its peer. If it fails, it completes the operations that wait for the connection with the error.
func (e *Endpoint) dial(a *Addr) {
	t := &attempt{ep: e, addr: a, pair: -1, pidfd: -1}
	end := time.Now().Add(e.cfg.ConnectTimeout)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for wait := dialShortest; ; wait = min(2*wait, dialLongest) {
		select {
		case <-timer.C:
		case <-e.stop:
			t.abandon()
			items, tags := a.stopDialing() // includes operations that began to wait after Close has taken the others
			a.failAll(items, tags, na.Closed, nil)
			return
		}
		err := t.connect()
		if err == nil {
			return
		}
		if !errors.As(err, &again{}) || time.Now().After(end) {
			t.abandon()
			items, tags := a.stopDialing()
			a.failAll(items, tags, na.Unreachable, err)
			return
		}
		if !a.wanted(err) {
			t.abandon()
			return
		}
		if errors.Is(err, errSocketFull) { // this attempt has waited already
			wait = dialShortest
		}
		timer.Reset(wait/2 + rand.N(wait))
	}
}

// SetBeside records the address that the process has in the network beside shared memory. [Endpoint.Reachable] of peers compares it, because
// a process in another container can have the same number, and a region of the same name in another /dev/shm.
func (e *Endpoint) SetBeside(addr string) error {
	e.beside.Store(hashOf(addr))
	if e.region == nil {
		return nil
	}
	return e.region.read(func() { shm.Uint64(e.region.b, offBeside).Store(e.beside.Load()) })
}

// hashOf returns the number in a region that stands for an address. It is not 0.
func hashOf(addr string) uint64 {
	h := fnv.New64a()
	h.Write([]byte(addr))
	return max(1, h.Sum64())
}

// Reachable returns nil if this endpoint could make a connection with the one at a: its region exists, is trusted, belongs to a process
// that lives and listens, and has a place, or there is a connection already. beside is an address in the network
// beside shared memory, which must be that of the same process. The region of a peer of this package has a hash of that address. For any other region
// Reachable calls owns, which returns an error if process pid does not have the address. Reachable changes nothing in the region.
func (e *Endpoint) Reachable(a na.Addr, beside string, owns func(pid int) error) error {
	p, ok := a.(*Addr)
	if !ok || p.ep != e {
		return &na.Error{Kind: na.Invalid, Op: "connect", Err: fmt.Errorf("address %v is not one of this endpoint's", a)}
	}
	t := &attempt{ep: e, addr: p, pair: -1, pidfd: -1}
	defer t.abandon()
	if err := t.try(beside, owns); err != nil {
		return &na.Error{Kind: na.Unreachable, Op: "connect", Addr: p.String(), Err: err}
	}
	return nil
}

// try returns an error if connect would return one before it changes anything, or if the process is not the one at the address beside.
func (t *attempt) try(beside string, owns func(pid int) error) error {
	if err := t.open(); err != nil {
		return err
	}
	if ended(t.pidfd) {
		return fmt.Errorf("its process %d has ended", t.addr.ident.pid)
	}
	if t.closing() {
		return errClosing
	}
	var network uint64
	free := t.addr.conn.Load() != nil
	if err := t.reg.read(func() {
		free = free || t.reg.hasFreePair()
		if t.reg.extended {
			network = shm.Uint64(t.reg.b, offBeside).Load()
		}
	}); err != nil {
		return err
	}
	switch {
	case !free:
		return t.noPair()
	case !t.reg.extended:
		if err := owns(int(t.pid)); err != nil {
			return err
		}
	case network != hashOf(beside):
		return fmt.Errorf("its process %d is not the one at %s", t.pid, beside)
	}
	sock, err := openServerSocket(&t.ep.cfg, t.addr.uri)
	if err != nil {
		return err
	}
	defer closeAll(sock)
	return t.listens(sock)
}

// noPair is the error of a region in which all pairs are taken.
func (t *attempt) noPair() error { return fmt.Errorf("all %d places of %s are taken", pairs-1, t.addr) }

// listens returns an error if the process of the server does not read its socket any more.
func (t *attempt) listens(sock int) error {
	if refused, _ := probeServer(sock); refused {
		return fmt.Errorf("its process does not listen any more: %s refuses", t.ep.cfg.socketPath(t.addr.uri))
	}
	return nil
}

// wanted records the cause for which connecting takes time, and reports whether any operation still waits for the connection. If not,
// dial ends.
func (a *Addr) wanted(cause error) bool {
	a.mu.Lock()
	a.connectErr = cause
	yes := len(a.waiting) > 0
	if !yes {
		a.dialing = false
	}
	a.mu.Unlock()
	if !yes {
		a.settle()
	}
	return yes
}

// attempt is the state of connecting to a server.
type attempt struct {
	ep    *Endpoint
	addr  *Addr
	reg   *region
	pid   int32
	pidfd int
	pair  int
	inode uint64
}

// connect does those steps of connecting that have not succeeded yet. If its error is an [again], the caller calls it once more later.
func (t *attempt) connect() error {
	if t.reg == nil {
		if err := t.open(); err != nil {
			return err
		}
	}
	if ended(t.pidfd) {
		return fmt.Errorf("its process %d has ended", t.addr.ident.pid)
	}
	if t.closing() {
		return errClosing
	}
	if err := t.claim(); err != nil {
		return err
	}
	return t.announce()
}

// open maps the region of the server and checks it.
func (t *attempt) open() error {
	e, a := t.ep, t.addr
	path := e.cfg.objectPath(a.uri)
	m, err := shm.Open(path, regionSize, extendedSize)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("no endpoint listens there: there is no %s", path)
	}
	if err != nil {
		return err
	}
	if err := t.examine(newRegion(m)); err != nil {
		closeAll(t.pidfd)
		t.pidfd = -1
		_ = m.Close() // it was only read
		return err
	}
	return nil
}

// examine checks that a region is that of the endpoint that addr names, that other users have not made it and cannot change it, and
// that its process lives and is the one that has made it.
func (t *attempt) examine(r *region) (err error) {
	f := r.File()
	if err := checkFile(r.Name(), f, sharedWrite); err != nil {
		return err
	}
	if err := r.check(t.addr.ident); err != nil {
		return err
	}
	t.pid = t.addr.ident.pid
	var started uint64
	if err := r.read(func() {
		if t.pid == 0 {
			t.pid = r.owner().pid
		}
		if r.extended {
			started = shm.Uint64(r.b, offStarted).Load()
		}
	}); err != nil {
		return err
	}
	// The process is opened first, so that later checks by its number are about that process if it still lives in the end.
	if t.pidfd, err = openProcess(t.pid); err != nil {
		return err
	}
	if err := checkProcess(t.pid, started); err != nil {
		return fmt.Errorf("%s is not of the process that it names: %w", r.Name(), err)
	}
	t.reg, t.inode = r, f.Ino
	t.addr.identify(f.UID, 0) // the owner of the file, because the kernel attaches no credentials to the messages of a server
	return nil
}

// openProcess returns a descriptor of a process, which is readable when the process ends. It returns -1 without an error if the kernel
// has no such descriptors.
func openProcess(pid int32) (int, error) {
	if pid <= 0 {
		return -1, fmt.Errorf("process %d: numbers of processes are positive", pid)
	}
	fd, err := unix.PidfdOpen(int(pid), 0)
	switch {
	case errors.Is(err, unix.ESRCH):
		return -1, fmt.Errorf("%w: there is no process %d", errDied, pid)
	case errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENFILE), errors.Is(err, unix.ENOMEM):
		return -1, fmt.Errorf("%w: process %d: %w", errNoDescriptors, pid, err)
	case err != nil:
		return -1, nil
	}
	return fd, nil
}

// errNoDescriptors refuses a connection, because the end of a process without a descriptor would not be noticed.
var errNoDescriptors = errors.New("no file descriptor is left: raise the limit of open files (ulimit -n)")

// ended reports whether the process of a pidfd has ended.
func ended(pidfd int) bool {
	if pidfd < 0 {
		return false
	}
	fds := [1]unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}
	n, err := unix.Poll(fds[:], 0)
	return err == nil && n > 0
}

// closing reports whether the server accepts no new clients, or its region faults.
func (t *attempt) closing() (yes bool) {
	err := t.reg.read(func() { yes = t.reg.isClosing() })
	return yes || err != nil
}

// claim takes a pair of rings and empties it.
func (t *attempt) claim() (err error) {
	if t.pair >= 0 {
		return nil
	}
	defer t.reg.Recover(t.reg.Guard(), &err)
	if t.pair = t.reg.claimPair(); t.pair < 0 {
		return again{t.noPair()}
	}
	if t.reg.extended {
		t.reg.claimant(t.pair).Store(asClaimant(t.ep.ident))
	}
	// Messages of the previous client in the rings would count as messages to or from this one.
	in, out := consumer(t.reg.rx(t.pair)), consumer(t.reg.tx(t.pair))
	t.reg.drain(&in)
	t.reg.drain(&out)
	return nil
}

// announce sends the command by which the server connects. The connection can be used from then on.
func (t *attempt) announce() error {
	e := t.ep
	sock, err := openServerSocket(&e.cfg, t.addr.uri)
	if err != nil {
		return err
	}
	defer closeAll(sock)
	absent := sock < 0
	if err := t.listens(sock); err != nil {
		return err
	}
	c := &conn{
		ep: e, addr: t.addr, reg: t.reg, pair: t.pair, pid: t.pid, pidfd: t.pidfd, inode: t.inode, recvEvent: -1,
		done: make(chan struct{}), scratch: make([]byte, bufferSize),
	}
	c.role.held.Store(true) // because only the attempt may tear c down until the server has the command
	if err := c.attach(); err != nil {
		return err
	}
	var version uint8
	if !absent {
		if err := c.makeEventfds(); err != nil {
			return again{err}
		}
		if t.reg.extended {
			version = extensionVersion
			c.extend()
			if err := t.reg.read(func() { c.rebuilt = shm.Uint32(t.reg.b, offRebuilt).Load() }); err != nil {
				c.closeEventfds()
				return err
			}
		}
	}
	if !e.addConn(c) {
		c.closeEventfds()
		return errClosing
	}
	if err := c.watchFDs(); err != nil {
		e.withdraw(c)
		return err
	}
	cmd := makeCommand(e.ident, t.pair, commandReserved, version)
	if err := t.send(c, sock, cmd); err != nil {
		e.withdraw(c)
		return err
	}
	t.reg, t.pair, t.pidfd = nil, -1, -1
	c.sleeping(true)
	c.probeMemory()
	t.addr.connected(c)
	if t.addr.expected.Len() > 0 {
		e.poll.await() // because the poller may have ended its checks while the connection did not exist
	}
	return nil
}

// attach sets the conn's ends of the rings.
func (c *conn) attach() (err error) {
	defer c.reg.Recover(c.reg.Guard(), &err)
	tx, rx := c.reg.tx(c.pair), c.reg.rx(c.pair)
	if c.server {
		tx, rx = rx, tx
	}
	if c.self {
		rx = tx
	}
	c.out, c.in = producer(tx), consumer(rx)
	return nil
}

// extend sets the part of the extension for the pair.
func (c *conn) extend() { c.ext = newBlock(c.reg.b, c.pair, c.server) }

// makeEventfds makes both eventfds of a client. The one that the server reads is a semaphore, because servers in C take the tokens one
// by one.
func (c *conn) makeEventfds() error {
	flags := unix.EFD_NONBLOCK | unix.EFD_CLOEXEC
	doorbell, err := unix.Eventfd(0, flags|unix.EFD_SEMAPHORE)
	if err != nil {
		return fmt.Errorf("eventfd: %w", err)
	}
	recvEvent, err := unix.Eventfd(0, flags)
	if err != nil {
		closeAll(doorbell)
		return fmt.Errorf("eventfd: %w", err)
	}
	c.doorbell, c.recvEvent = shm.NewDoorbell(doorbell), recvEvent
	return nil
}

// watchFDs adds the receive eventfd and the descriptor of the peer's process to the poller's epoll set.
func (c *conn) watchFDs() error {
	if c.recvEvent >= 0 {
		if err := c.ep.poll.add(c.recvEvent, recvEvents, eventRecv, c.id); err != nil {
			return err
		}
	}
	if c.pidfd >= 0 {
		return c.ep.poll.add(c.pidfd, unix.EPOLLIN|unix.EPOLLONESHOT, eventProcess, c.id)
	}
	return nil
}

// probeServer is [probeSocket] for a socket that openServerSocket has opened.
func probeServer(sock int) (refused, absent bool) {
	if sock < 0 {
		return false, true
	}
	return probeSocket(pathOf(sock))
}

// send sends the command to the socket, or into the command ring if the server has no socket because it never sleeps.
func (t *attempt) send(c *conn, sock int, cmd command) (err error) {
	if c.doorbell == nil {
		defer t.reg.Recover(t.reg.Guard(), &err)
		if err := t.reg.commands.push(cmd); err != nil {
			return again{err}
		}
		return nil
	}
	err = t.ep.sendCommand(pathOf(sock), cmd, c.doorbell.FD(), c.recvEvent)
	if errors.Is(err, unix.EAGAIN) {
		err = awaitRoom(pathOf(sock), commandTimeout, cmd, c.doorbell.FD(), c.recvEvent)
	}
	switch {
	case err == nil:
		return nil
	case errors.Is(err, errSocketFull), errors.Is(err, unix.ETOOMANYREFS), errors.Is(err, unix.ENOBUFS), errors.Is(err, unix.EINTR):
		return again{fmt.Errorf("%s does not read its socket: %w", t.addr, err)}
	default:
		return fmt.Errorf("send to %s: %w", t.ep.cfg.socketPath(t.addr.uri), err)
	}
}

// connected makes c the connection of a, leaves c's receive role, and sends the messages that wait.
func (a *Addr) connected(c *conn) {
	a.mu.Lock()
	a.dialing, a.connectErr = false, nil
	a.last.Store(c)
	lost := c.dead.Load() // Close was faster, and has not seen the operations that wait
	if !lost {
		a.conn.Store(c)
	}
	n := len(a.waiting)
	a.mu.Unlock()
	if lost {
		c.leave()
		items, tags := a.stopDialing()
		a.failAll(items, tags, na.Closed, nil)
		return
	}
	a.activateConn()
	c.leave()
	a.ep.poll.wake() // because it may have been woken for c while this goroutine had the role, and some peers ring no doorbell
	if n == 0 {
		return
	}
	if _, left := a.flush(); left {
		a.mu.Lock()
		a.ep.poll.block(a)
		a.mu.Unlock()
	}
}

// activateConn enters a into the set of active peers because it has a connection.
func (a *Addr) activateConn() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.activate()
}

// abandon frees the resources of the attempt.
func (t *attempt) abandon() {
	if t.reg == nil {
		return
	}
	if t.pair >= 0 {
		_ = t.reg.read(func() { t.reg.giveUpPair(t.pair) }) // a region that faults has no pairs
	}
	_ = t.reg.Close() // no other goroutine uses it
	closeAll(t.pidfd)
	t.reg, t.pair, t.pidfd = nil, -1, -1
}

func itoa(n int) string { return strconv.Itoa(n) }
