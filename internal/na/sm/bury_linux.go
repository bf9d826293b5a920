package sm

import (
	"errors"
	"time"

	"golang.org/x/sys/unix"
)

// tryBury does the last things for a conn that has failed, unless somebody still receives from it: he does it then. The
// receive role is never given back.
func (c *conn) tryBury() {
	if !c.enter() {
		return
	}
	for _, t := range c.tasks { // their requests have been accepted
		c.ep.runTask(t)
	}
	c.tasks = nil
	if c.server {
		c.buryServer()
	} else {
		c.buryClient()
	}
	c.ep.buried(c)
}

// buryServer gives the client's pair to others. When the whole endpoint closes the region is left as it is, since clients
// may still read their answers in it.
func (c *conn) buryServer() {
	e := c.ep
	if c.ear >= 0 {
		e.poll.remove(c.ear)
	}
	c.closeBells()
	if p := c.parting.Load(); !c.self && !e.closed.Load() && p != nil && p.keep {
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
		r.releasePair(c.pair)
	})
	if p := c.parting.Load(); c.offended || p != nil && errors.Is(p.err, errDied) {
		e.care.died()
	}
}

// buryClient tells the server that its pair is free, after it has thrown away what is unread.
func (c *conn) buryClient() {
	e := c.ep
	e.mu.Lock()
	delete(e.byID, c.id)
	e.mu.Unlock()
	for _, fd := range [...]int{c.ear, c.pidfd} {
		if fd >= 0 {
			e.poll.remove(fd)
		}
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
	if c.bell == nil {
		_ = c.reg.read(func() { _ = c.reg.commands.push(cmd) }) // best effort: nobody could be told of a failure
		c.letGo()
		return
	}
	uri := c.addr.uri
	err := e.sendTo(uri, cmd)
	c.letGo()
	if errors.Is(err, unix.EAGAIN) && !e.spawn(func() { e.farewell(uri, cmd) }) {
		e.farewell(uri, cmd) // Close waits for the burial
	}
}

// letGo closes what a client's conn has.
func (c *conn) letGo() {
	c.closeBells()
	closeAll(c.pidfd)
	_ = c.reg.Close() // nobody touches it any more
}

// farewellLimit is for how long a server is given to read its socket.
const farewellLimit = 2 * time.Second

// sendTo sends a command without descriptors to a server's socket, if that is a trusted user's.
func (e *Endpoint) sendTo(uri string, cmd command) error {
	sock, err := openServerSocket(&e.cfg, uri)
	if err != nil || sock < 0 {
		return err
	}
	defer closeAll(sock)
	return e.sendCommand(pathOf(sock), cmd)
}

// farewell repeats the last command to a server until it is taken.
func (e *Endpoint) farewell(uri string, cmd command) {
	end := time.NewTimer(farewellLimit)
	defer end.Stop()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-end.C:
			return
		case <-tick.C:
		}
		if err := e.sendTo(uri, cmd); !errors.Is(err, unix.EAGAIN) {
			return
		}
	}
}

// withdraw takes back a conn that no server has heard of. Its region and process stay the attempt's, which has its receive
// role, so that nobody has buried it even if Close has made it fail.
func (e *Endpoint) withdraw(c *conn) {
	if c.dead.CompareAndSwap(false, true) {
		close(c.done)
	}
	e.dropConn(c)
	for _, fd := range [...]int{c.ear, c.pidfd} {
		if fd >= 0 {
			e.poll.remove(fd)
		}
	}
	c.closeBells()
	e.mu.Lock()
	delete(e.byID, c.id)
	e.mu.Unlock()
	e.buried(c)
}
