package sm

import (
	"errors"
	"os"
	"runtime"

	"cinnabar/internal/na"
	"cinnabar/internal/shm"
)

// A program that truncates the file of a region, whoever's, has all those fault who touch what is cut off. The endpoint
// makes its own region anew then, in the same file, so that clients who have it mapped need not map another one:
//
//   - those of this package are told, lose what was under way, and connect anew with their next message;
//   - those in C, which keep all positions in the region, go on with empty rings. What was under way is lost, which they are
//     not told; and one that has touched the region while it was cut off is dead, as it would be with a server in C.

// cutOff tells whether err is that the endpoint's own region, which c leads through, is cut off: it will be made anew, and
// nothing is wrong with the peer.
func (e *Endpoint) cutOff(c *conn, err error) bool {
	if !c.server || c.reg != e.region || e.maintenance.gone.Load() || e.closed.Load() {
		return false
	}
	if !errors.Is(err, shm.ErrFault) && !errors.Is(err, errZero) { // the rest of the page that the file ends in is zeros
		return false
	}
	if !e.maintenance.cut.Swap(true) {
		e.poll.wake()
	}
	return true
}

// mend makes the region anew if it is not what it was. Only the poller does.
func (e *Endpoint) mend() {
	e.maintenance.cut.Store(false) // a goroutine that finds the region cut off from now on sets it again
	if e.region == nil || e.closed.Load() || e.maintenance.gone.Load() {
		return
	}
	path, err := e.regionFile()
	if e.intact(path) {
		return
	}
	e.setMending(true)
	held := e.seize()
	if err == nil {
		err = e.rebuildWhole(path, held)
	}
	e.maintenance.gone.Store(err != nil)
	e.setMending(false)
	for _, c := range held {
		if err != nil {
			c.fail(na.Unreachable, errRebuilt)
		}
		c.leave()
	}
	switch {
	case !e.mayLog(e.own):
	case err != nil:
		e.cfg.Logger.Error("another program has cut off the endpoint's region, which cannot be made anew: open the endpoint again", keyPeer, e.own.String(), keyError, err)
	default:
		e.cfg.Logger.Warn("another program has cut off the endpoint's region; it is made anew, and what was in it is lost", keyPeer, e.own.String())
	}
}

// setMending says that there are to be no new connections of the endpoint to itself. Those with others come about by the
// poller.
func (e *Endpoint) setMending(yes bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.mending = yes
}

// regionFile returns a name of the region's file.
func (e *Endpoint) regionFile() (string, error) {
	for _, path := range [...]string{e.cfg.spareObject(e.own.uri), e.cfg.objectPath(e.own.uri)} {
		if f, err := lstat(path); err == nil && f.Same(e.files.region) {
			return path, nil
		}
	}
	return "", errors.New("its file has no name any more")
}

// intact tells whether the region is whole, as far as its ends tell, and the size of its file, if that has a name.
func (e *Endpoint) intact(path string) (yes bool) {
	if path != "" {
		if st, err := os.Stat(path); err != nil || st.Size() < extendedSize {
			return false
		}
	}
	err := e.region.read(func() {
		_ = shm.Uint64(e.region.b, extendedSize-8).Load() // faults if it is cut off
		yes = e.region.owner() == e.who && e.region.whole()
	})
	return yes && err == nil
}

// seize takes the receive roles of all conns that lead through the endpoint's own region. Those with this endpoint and with
// clients of this package fail, and are torn down when the role is given back: until then they have their doorbells. Those that have
// failed before are left out: another conn may have their Addr by now.
func (e *Endpoint) seize() (held []*conn) {
	for _, c := range e.list() {
		if !c.server || c.reg != e.region {
			continue
		}
		got := c.enter()
		for ; !got && !c.dead.Load(); got = c.enter() { // a driver has it for a moment
			runtime.Gosched()
		}
		if !got {
			continue
		}
		if c.dead.Load() {
			c.leave()
			continue
		}
		held = append(held, c)
		if c.self || c.ext != nil {
			c.ending.Store(&ending{kind: na.Unreachable, err: errRebuilt, keep: true})
			c.fail(na.Unreachable, errRebuilt)
		}
	}
	return held
}

// rebuildTries is how often a region is made anew that is cut off once more meanwhile.
const rebuildTries = 8

// rebuildWhole is rebuild, again if somebody cuts off the region meanwhile.
func (e *Endpoint) rebuildWhole(path string, held []*conn) (err error) {
	for range rebuildTries {
		if err = e.rebuild(path, held); !errors.Is(err, shm.ErrFault) {
			return err
		}
	}
	return err
}

// rebuild makes the region anew. Nobody sends or receives through it meanwhile: the caller has all receive roles, and it takes
// the locks of all peers.
//
// +checklocksignore
func (e *Endpoint) rebuild(path string, held []*conn) error {
	if err := shm.Extend(path, e.files.region, extendedSize); err != nil {
		return err
	}
	taken := e.knownPairs()
	for _, c := range held {
		c.addr.mu.Lock()
		defer c.addr.mu.Unlock()
	}
	e.maintenance.rebuilt++
	return e.region.read(func() {
		e.region.initBut(e.who, startTime("self"), taken)
		shm.Uint32(e.region.b, offRebuilt).Store(e.maintenance.rebuilt)
		if e.refusing.Load() {
			e.region.setClosing(closingRefuses)
		}
		for _, c := range held {
			c.restart()
		}
	})
}

// restart empties a conn of a region that was made anew, or tells the client that its conn has failed: by a message in
// whatever slot it looks next. A client that had a full ring unread does not see it, but looks at offRebuilt now and then.
// The caller has addr.mu.
func (c *conn) restart() {
	switch b := c.reg.rx(c.pair); {
	case c.self:
	case c.ext == nil:
		c.out, c.in = producer(b), consumer(c.reg.tx(c.pair))
	default:
		for i := range ringSlots {
			shm.Uint64(b, offSlots+i*slotSize).Store(uint64(makeDescriptor(0, 0, 0, typeRebuilt)))
		}
		shm.Uint32(b, offProdTail).Store((c.out.at + 1) & ringMask)
		c.signalPeer(1)
	}
}
