package sm

import (
	"errors"
	"time"

	"golang.org/x/sys/unix"

	"cinnabar/internal/shm"
)

// tryTearDown tears a failed conn down and keeps its receive role for good. If another goroutine has the receive role,
// tryTearDown does nothing, because that goroutine tears the conn down when it leaves the role.
func (c *conn) tryTearDown() {
	if !c.enter() {
		return
	}
	for _, t := range c.tasks { // handlers of requests that were accepted
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

// tearDownServer frees the client's pair for other clients. When the whole endpoint closes it leaves the region unchanged, because
// clients may still read their responses in it.
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

// freePair frees the pair of a conn that is torn down.
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
	if c.self || c.handedOver || e.closed.Load() {
		return
	}
	r := c.reg
	_ = r.read(func() { // a region that faults has no pairs
		if !c.offended { // the rings of a peer that broke the protocol may name buffers of other clients
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

// tearDownClient discards the unread messages and sends the server the command that releases the pair.
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
		c.releaseResources()
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
		c.releaseResources()
		return
	}
	cmd := makeCommand(e.ident, c.pair, commandReleased, 0)
	if c.doorbell == nil {
		_ = c.reg.read(func() { _ = c.reg.commands.push(cmd) }) // best effort: no caller waits for the result
		c.releaseResources()
		return
	}
	uri, region := c.addr.uri, c.reg.File()
	err := e.sendRelease(uri, region, cmd, 0)
	c.releaseResources()
	if errors.Is(err, errSocketFull) && !e.spawn(func() { e.repeatRelease(uri, region, cmd) }) {
		e.repeatRelease(uri, region, cmd) // on this goroutine, because the endpoint is closing; Close waits for the teardown
	}
}

// releaseResources closes the descriptors and the region of a client's conn.
func (c *conn) releaseResources() {
	c.closeEventfds()
	closeAll(c.pidfd)
	_ = c.reg.Close() // an error would lose no data
}

// releaseLimit bounds the time for which a client repeats the release of a pair while the server's socket has no room.
const releaseLimit = 2 * time.Second

// sendRelease sends the command that releases a pair to the socket of the server at uri. It sends nothing if the socket is not that
// of a trusted user, or if region is no longer the server's: a later server of the same name would apply the command to another
// connection of this client. It waits up to limit for room in the socket, and its error is errSocketFull if there was none.
func (e *Endpoint) sendRelease(uri string, region shm.File, cmd command, limit time.Duration) error {
	sock, err := openServerSocket(&e.cfg, uri)
	if err != nil || sock < 0 {
		return err
	}
	defer closeAll(sock)
	// A server publishes its region before it binds its socket, and removes the region before the socket. So if the region of that
	// name is still the old server's after the socket was opened, the socket is the old server's too.
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
	for end := time.Now().Add(releaseLimit); time.Now().Before(end); { // sendRelease checks each time that the name is still this server's
		if err := e.sendRelease(uri, region, cmd, commandTimeout); !errors.Is(err, errSocketFull) {
			return
		}
	}
}

// withdraw removes a conn that was not announced to its server. The attempt to connect calls it and keeps the region and the
// descriptor of the process. Because the attempt has the conn's receive role, no other goroutine has torn the conn down, even if
// Close has made it fail.
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
