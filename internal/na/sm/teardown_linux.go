package sm

import (
	"errors"
	"time"

	"golang.org/x/sys/unix"

	"cinnabar/internal/shm"
)

// tryTearDown tears a failed conn down, unless a goroutine has its receive role: that one does it when it leaves. The
// receive role is never given back.
func (c *conn) tryTearDown() {
	if !c.enter() {
		return
	}
	for _, t := range c.tasks { // their requests have been accepted
		c.ep.runTask(t)
	}
	c.tasks = nil
	if c.server {
		c.tearDownServer()
	} else {
		c.tearDownClient()
	}
	c.ep.tornDown(c)
}

// tearDownServer gives the client's pair to others. When the whole endpoint closes the region is left as it is, since clients
// may still read their answers in it.
func (c *conn) tearDownServer() {
	e := c.ep
	if c.recvEvent >= 0 {
		e.poll.remove(c.recvEvent)
	}
	c.closeEventfds()
	if p := c.ending.Load(); !c.self && !e.closed.Load() && p != nil && p.keep {
		e.cfg.Logger.Debug("a pair is kept from use until its client has ended", keyPeer, c.addr.String())
		return
	}
	e.freePair(c)
}

// freePair gives a pair back that nobody uses.
func (e *Endpoint) freePair(c *conn) {
	e.mu.Lock()
	mine := e.pairs[c.pair] == c
	if mine {
		e.pairs[c.pair] = nil
	}
	delete(e.byID, c.id)
	e.mu.Unlock()
	if !mine {
		return
	}
	c.share.give()
	if c.pidfd >= 0 {
		e.poll.remove(c.pidfd)
		closeAll(c.pidfd)
	}
	if c.self || e.closed.Load() {
		return
	}
	r := c.reg
	_ = r.read(func() { // a region that faults has no pairs
		if !c.offended { // else its rings may name buffers of others
			tx, rx := consumer(r.tx(c.pair)), consumer(r.rx(c.pair))
			r.drain(&tx)
			r.drain(&rx)
		}
		resetRing(r.tx(c.pair), ringSlots)
		resetRing(r.rx(c.pair), ringSlots)
		if r.extended {
			k := newBlock(r.b, c.pair, true)
			k.sleep.Store(0)
			k.asleep.Store(0)
			k.holds.Store(0)
		}
		r.giveUpPair(c.pair)
	})
	if p := c.ending.Load(); c.offended || p != nil && errors.Is(p.err, errDied) {
		e.maintenance.died()
	}
}

// tearDownClient tells the server that its pair is free, after it has thrown away what is unread.
func (c *conn) tearDownClient() {
	e := c.ep
	e.mu.Lock()
	delete(e.byID, c.id)
	e.mu.Unlock()
	for _, fd := range [...]int{c.recvEvent, c.pidfd} {
		if fd >= 0 {
			e.poll.remove(fd)
		}
	}
	if p := c.ending.Load(); p != nil && errors.Is(p.err, errReleased) { // the pair may be another client's by now
		c.letGo()
		return
	}
	died := ended(c.pidfd)
	_ = c.reg.read(func() { // a region that faults has nothing in it
		c.reg.drain(&c.in)
		if h := c.holds(); h != nil {
			h.Store(0)
		}
	})
	if died {
		c.letGo()
		return
	}
	cmd := makeCommand(e.who, c.pair, commandReleased, 0)
	if c.doorbell == nil {
		_ = c.reg.read(func() { _ = c.reg.commands.push(cmd) }) // best effort: nobody could be told of a failure
		c.letGo()
		return
	}
	uri, region := c.addr.uri, c.reg.File()
	err := e.sendRelease(uri, region, cmd, 0)
	c.letGo()
	if errors.Is(err, errSocketFull) && !e.spawn(func() { e.repeatRelease(uri, region, cmd) }) {
		e.repeatRelease(uri, region, cmd) // Close waits for the teardown
	}
}

// letGo closes what a client's conn has.
func (c *conn) letGo() {
	c.closeEventfds()
	closeAll(c.pidfd)
	_ = c.reg.Close() // nobody touches it any more
}

// releaseLimit is for how long a server is given to read its socket.
const releaseLimit = 2 * time.Second

// sendRelease sends the command that releases a pair to the socket of the server at uri, if that is a trusted user's and
// the server is still the one whose region the connection led through. Another server of the same name would take the
// command for the release of a connection that this client has with it by now. If there is no room in the socket it waits for
// that, limit long at most; the error then is errSocketFull.
func (e *Endpoint) sendRelease(uri string, region shm.File, cmd command, limit time.Duration) error {
	sock, err := openServerSocket(&e.cfg, uri)
	if err != nil || sock < 0 {
		return err
	}
	defer closeAll(sock)
	// A server publishes its region before it binds its socket, and removes it before the socket. So a socket that was opened
	// while the region of that name was the old server's is the old server's too.
	if !e.isNamed(uri, region) {
		return nil
	}
	err = e.sendCommand(pathOf(sock), cmd)
	switch {
	case !errors.Is(err, unix.EAGAIN):
		return err
	case limit == 0:
		return errSocketFull
	}
	return awaitRoom(pathOf(sock), limit, cmd)
}

// isNamed reports whether region has one of the names of the region of uri.
func (e *Endpoint) isNamed(uri string, region shm.File) bool {
	for _, path := range [...]string{e.cfg.objectPath(uri), e.cfg.spareObject(uri)} {
		if f, err := lstat(path); err == nil && f.Same(region) {
			return true
		}
	}
	return false
}

// repeatRelease sends the release of a pair again until the server has room for it, for releaseLimit at most.
func (e *Endpoint) repeatRelease(uri string, region shm.File, cmd command) {
	for end := time.Now().Add(releaseLimit); time.Now().Before(end); { // another server may take the name meanwhile
		if err := e.sendRelease(uri, region, cmd, dialPatience); !errors.Is(err, errSocketFull) {
			return
		}
	}
}

// withdraw takes back a conn that no server has heard of. Its region and process stay the attempt's, which has its receive
// role, so that nobody has torn it down even if Close has made it fail.
func (e *Endpoint) withdraw(c *conn) {
	if c.dead.CompareAndSwap(false, true) {
		close(c.done)
	}
	e.dropConn(c)
	for _, fd := range [...]int{c.recvEvent, c.pidfd} {
		if fd >= 0 {
			e.poll.remove(fd)
		}
	}
	c.closeEventfds()
	e.mu.Lock()
	delete(e.byID, c.id)
	e.mu.Unlock()
	e.tornDown(c)
}
