package sm

import (
	"errors"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"cinnabar/internal/na"
	"cinnabar/internal/shm"
)

// maintenance is what the poller does now and then, for a while after something has happened: it gives back what clients have
// left behind that died, and finds out about peers that do not tell.
type maintenance struct {
	opens  atomic.Uint32 // a client has opened the region, or
	deaths atomic.Uint32 // died
	cut    atomic.Bool   // somebody has found the region cut off
	gone   atomic.Bool   // it cannot be made anew

	// The following are the poller's.
	openSeen, deathSeen uint32
	openUntil, until    time.Time
	next                time.Time // for the sweep
	check               time.Time // for the servers
	restore             time.Time // when files are to be restored, zero if they are there
	rebuilt             uint32    // how often the region was made anew

	suspects  uint64 // copy buffers that belonged to nobody at the last sweeps
	sightings int
	lost      [pairWords]uint64 // pairs that were claimed by nobody known at the last sweeps
	lostSeen  int
}

const (
	openTime        = 50 * time.Millisecond // a client that never sleeps has made itself known so long after it opened the region
	maintenanceTime = 3 * time.Second       // after which the state of the region should be settled
	suspectSeen     = 4                     // sweeps after which a copy buffer counts as left behind
)

func (k *maintenance) opened() { k.opens.Add(1) }
func (k *maintenance) died()   { k.deaths.Add(1) }

// interval is for how long the poller may park at most; 0: for ever.
func (e *Endpoint) interval(now time.Time) time.Duration {
	k := &e.maintenance
	if n := k.opens.Load(); n != k.openSeen {
		k.openSeen = n
		k.openUntil, k.until = now.Add(openTime), now.Add(maintenanceTime)
	}
	if n := k.deaths.Load(); n != k.deathSeen {
		k.deathSeen = n
		k.until = now.Add(maintenanceTime)
	}
	var d time.Duration
	switch {
	case e.region == nil:
	case now.Before(k.openUntil):
		d = busyInterval
	case e.notify < 0:
		d = blindInterval
	case now.Before(k.until) || k.suspects != 0 || k.lost != [pairWords]uint64{}:
		d = orphanInterval
	}
	if k.cut.Load() {
		d = shorter(d, time.Microsecond)
	}
	if !k.restore.IsZero() {
		d = shorter(d, max(k.restore.Sub(now), time.Microsecond))
	}
	for _, c := range e.list() {
		switch {
		case c.self:
		case c.silent():
			d = shorter(d, busyInterval)
		case !c.server && c.addr.awaits.Load() > 0:
			d = shorter(d, checkInterval)
		}
	}
	return d
}

// shorter is the shorter of two intervals, of which 0 is the longest.
func shorter(a, b time.Duration) time.Duration {
	if a == 0 || b < a {
		return b
	}
	return a
}

// tick does what is due. The poller calls it when its time is over, and now and then while it has much to do.
func (e *Endpoint) tick(now time.Time) {
	k := &e.maintenance
	if k.cut.Load() {
		e.mend()
	}
	if !k.restore.IsZero() && !now.Before(k.restore) {
		k.restore = time.Time{}
		e.restore()
	}
	if now.Sub(k.check) >= checkInterval {
		k.check = now
		e.checkClosing() // whoever connects while a server closes may not be told
		e.checkServers()
	}
	if e.region != nil && now.Sub(k.next) >= orphanInterval {
		k.next = now
		e.sweepBuffers()
		e.sweepPairs()
		e.noteIdle(now)
		e.makeRoom(now)
	}
}

// checkClosing looks whether servers of this package say that they close, have made their region anew, or have released the
// pair of a connection although this endpoint has not asked for it.
func (e *Endpoint) checkClosing() {
	for _, c := range e.list() {
		if c.server || c.ext == nil {
			continue
		}
		switch closing, rebuilt, released := c.serverState(); {
		case closing:
			e.drainAndEnd(c, &ending{kind: na.Unreachable, err: errClosing})
		case rebuilt:
			c.fail(na.Unreachable, errRebuilt)
		case released:
			e.drainAndEnd(c, &ending{kind: na.Unreachable, err: errReleased})
		}
	}
}

// serverState is what the server says about itself.
func (c *conn) serverState() (closing, rebuilt, released bool) {
	if !c.enter() {
		return false, false, false
	}
	defer c.leave()
	if c.dead.Load() || c.reg.read(func() {
		closing = shm.Uint32(c.reg.b, offClosing).Load() == closingDone
		rebuilt = shm.Uint32(c.reg.b, offRebuilt).Load() != c.rebuilt
		released = c.reg.claimant(c.pair).Load() != asClaimant(c.ep.who)
	}) != nil {
		return false, false, false
	}
	return closing, rebuilt, released
}

// checkServers ends connections to endpoints of living processes that are gone. C's do not tell, but unmap their region
// and remove it. That it is removed says nothing alone: HG_Cleanup in any process does that to living endpoints.
func (e *Endpoint) checkServers() {
	defer e.stats.checks.Add(1)
	for _, c := range e.list() {
		if c.server || c.addr.awaits.Load() == 0 || c.inode == 0 || c.pid == e.who.pid {
			continue
		}
		f, err := lstat(e.cfg.objectPath(c.addr.uri))
		removed := errors.Is(err, fs.ErrNotExist) || err == nil && f.Ino != c.inode
		if removed && !maps(c.pid, c.inode) {
			e.drainAndEnd(c, &ending{kind: na.Unreachable, err: errClosing})
		}
	}
}

// maps tells whether a process has a file mapped, as far as the kernel lets one see: whether that is so if it does not.
// The fifth field of each line of /proc/PID/maps is an inode.
func maps(pid int32, inode uint64) bool {
	b, err := os.ReadFile("/proc/" + itoa(int(pid)) + "/maps")
	if err != nil || len(b) == 0 {
		return true
	}
	want := strconv.FormatUint(inode, 10)
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) > 4 && f[4] == want {
			return true
		}
	}
	return false
}

// sweepBuffers gives back copy buffers that were claimed by clients that have died before the buffer was in their ring.
// Nothing in the region tells whose a claimed buffer is, so one counts as left behind if it is in no ring for a while in
// which no client is stopped.
func (e *Endpoint) sweepBuffers() {
	k := &e.maintenance
	if k.deathSeen == 0 {
		return
	}
	var lost uint64
	if e.region.read(func() { lost = ^e.region.bufferMap.Load() &^ e.inRings() }) != nil {
		return
	}
	if k.sightings == 0 {
		k.suspects = lost
	}
	k.suspects &= lost
	if k.suspects == 0 {
		k.sightings = 0
		return
	}
	if k.sightings++; k.sightings <= suspectSeen || e.anyStopped() {
		return
	}
	for i := range buffers {
		if k.suspects>>i&1 != 0 {
			_ = e.region.read(func() { e.region.freeBuffer(i) }) // a region that faults has no buffers
		}
	}
	k.suspects, k.sightings = 0, 0
}

// inRings is the set of copy buffers that are in the rings of clients, or that clients of this package are filling.
func (e *Endpoint) inRings() (set uint64) {
	for _, c := range e.list() {
		if !c.server {
			continue
		}
		for _, b := range [...][]byte{e.region.tx(c.pair), e.region.rx(c.pair)} {
			set |= buffersIn(b)
		}
		if c.ext != nil {
			set |= c.ext.holds.Load()
		}
	}
	return set
}

// buffersIn is the set of copy buffers in a ring.
func buffersIn(b []byte) (set uint64) {
	from, to := shm.Uint32(b, offConsTail).Load()&ringMask, shm.Uint32(b, offProdHead).Load()&ringMask
	for ; from != to; from = (from + 1) & ringMask {
		d := descriptor(shm.Uint64(b, offSlots+int(from)*slotSize).Load())
		if d.buffered() {
			set |= 1 << d.buffer()
		}
	}
	return set
}

// anyStopped tells whether the process of any client is stopped: it may be about to write to a copy buffer.
func (e *Endpoint) anyStopped() bool {
	return slices.ContainsFunc(e.list(), func(c *conn) bool {
		return c.server && !c.self && stopped(c.pid)
	})
}

// stopped tells whether a process is stopped, by a signal or a debugger.
func stopped(pid int32) bool {
	fields := statFields(strconv.Itoa(int(pid)))
	return len(fields) > 0 && (fields[0] == "T" || fields[0] == "t")
}

// sweepPairs gives back pairs that were claimed by clients that have died before they made themselves known. That is so
// if no process but known ones has the region mapped.
func (e *Endpoint) sweepPairs() {
	k := &e.maintenance
	var lost [pairWords]uint64
	if e.region.read(func() {
		for w := range pairWords {
			lost[w] = ^e.region.pairMap(w).Load()
		}
	}) != nil {
		return
	}
	known := e.knownPairs()
	none := true
	for w := range pairWords {
		lost[w] &^= known[w]
		if k.lostSeen > 0 {
			lost[w] &= k.lost[w]
		}
		none = none && lost[w] == 0
	}
	k.lost = lost
	if none {
		k.lostSeen = 0
		return
	}
	// Looking at all processes costs much: it becomes rarer while it does not help, because a client lives that has claimed
	// a pair and not said so.
	if k.lostSeen++; k.lostSeen <= suspectSeen || k.lostSeen&(k.lostSeen-1) != 0 && k.lostSeen%1024 != 0 || e.strangersMap() {
		return
	}
	_ = e.region.read(func() { // a region that faults has no pairs
		for p := range pairs {
			if lost[p/64]>>(p%64)&1 != 0 {
				resetRing(e.region.tx(p), ringSlots)
				resetRing(e.region.rx(p), ringSlots)
				e.region.giveUpPair(p)
			}
		}
	})
	k.lost, k.lostSeen = [pairWords]uint64{}, 0
}

// knownPairs is the set of pairs that belong to somebody.
func (e *Endpoint) knownPairs() (set [pairWords]uint64) {
	set[ownPair/64] |= 1 << (ownPair % 64)
	e.mu.Lock()
	defer e.mu.Unlock()
	for p, c := range e.pairs {
		if c != nil {
			set[p/64] |= 1 << (p % 64)
		}
	}
	return set
}

// strangersMap tells whether a process has the region mapped more often than it has connections, or whether that cannot be
// told.
func (e *Endpoint) strangersMap() bool {
	known := map[string]int{strconv.Itoa(os.Getpid()): 1} // how often each process has it mapped
	for _, c := range e.list() {
		if c.server && !c.self {
			known[strconv.Itoa(int(c.pid))]++
		}
	}
	list, err := os.ReadDir("/proc")
	if err != nil {
		return true
	}
	path := e.cfg.objectPath(e.own.uri)
	for _, f := range list {
		n := f.Name()
		if n[0] < '0' || n[0] > '9' {
			continue
		}
		b, err := os.ReadFile("/proc/" + n + "/maps")
		if err == nil && strings.Count(string(b), path) > known[n] {
			return true
		}
	}
	return false
}
