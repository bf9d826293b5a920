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

// maintenance is the state of the poller's periodic work. For a while after a client has opened the region or died, the poller
// sweeps the region for buffers and pairs of dead clients, and checks for servers that have ended without a message.
type maintenance struct {
	opens  atomic.Uint32 // number of times that a client has opened the region
	deaths atomic.Uint32 // number of clients that have died
	cut    atomic.Bool   // the region's file was found cut off
	gone   atomic.Bool   // the region cannot be made anew

	// The poller owns the following.
	openSeen, deathSeen uint32
	openUntil           time.Time // end of openTime since a client last opened the region
	lookUntil           time.Time // end of maintenanceTime since a client last opened the region
	until               time.Time // end of maintenanceTime since a client last died
	next                time.Time // last sweep
	check               time.Time // last check of the servers
	restore             time.Time // when the poller restores removed files; zero: none is missing
	rebuilt             uint32    // number of times that the region was made anew

	suspects  uint64            // copy buffers without a known owner at each of the last sweeps
	sightings int               // number of these sweeps
	lost      [pairWords]uint64 // claimed pairs without a known client at each of the last sweeps
	lostSeen  int               // number of these sweeps
}

const (
	openTime        = 50 * time.Millisecond // within this time after its opening of the region a client without doorbells has announced itself
	maintenanceTime = 3 * time.Second       // for how long an opening or a death makes the poller sweep
	suspectSeen     = 4                     // number of sweeps after which a copy buffer counts as left behind
)

func (k *maintenance) opened() { k.opens.Add(1) }
func (k *maintenance) died()   { k.deaths.Add(1) }

// interval returns the limit of the poller's next parking; 0: none.
func (e *Endpoint) interval(now time.Time) time.Duration {
	k := &e.maintenance
	if n := k.opens.Load(); n != k.openSeen {
		k.openSeen = n
		k.openUntil, k.lookUntil = now.Add(openTime), now.Add(maintenanceTime)
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
	case now.Before(k.lookUntil):
		d = lookInterval
	}
	if k.cut.Load() {
		d = shorter(d, time.Microsecond)
	}
	if !k.restore.IsZero() {
		d = shorter(d, max(k.restore.Sub(now), time.Microsecond))
	}
	if slices.ContainsFunc(e.list(), (*conn).silent) {
		d = shorter(d, busyInterval)
	}
	return d
}

// shorter returns the shorter of two limits, where 0 means no limit.
func shorter(a, b time.Duration) time.Duration {
	if a == 0 || b < a {
		return b
	}
	return a
}

// tick does the periodic work that is due. The poller calls it after a parking that reached its limit, and at intervals while it
// is busy.
func (e *Endpoint) tick(now time.Time) {
	k := &e.maintenance
	if k.cut.Load() {
		e.recoverRegion()
	}
	if !k.restore.IsZero() && !now.Before(k.restore) {
		k.restore = time.Time{}
		e.restore()
	}
	if now.Sub(k.check) >= checkInterval {
		k.check = now
		e.checkClosing() // because a client that connects while a server closes may get no message about that
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

// checkClosing ends the connections to servers of this package that have closed, have made their region anew, or have released
// the connection's pair without a request of this endpoint.
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

// serverState returns the state that the server has written to the region: closing, made anew since the connection began, pair
// released.
func (c *conn) serverState() (closing, rebuilt, released bool) {
	if !c.enter() {
		return false, false, false
	}
	defer c.leave()
	if c.dead.Load() || c.reg.read(func() {
		closing = shm.Uint32(c.reg.b, offClosing).Load() == closingDone
		rebuilt = shm.Uint32(c.reg.b, offRebuilt).Load() != c.rebuilt
		released = c.reg.claimant(c.pair).Load() != asClaimant(c.ep.ident)
	}) != nil {
		return false, false, false
	}
	return closing, rebuilt, released
}

// checkServers ends the connections to endpoints that have closed in processes that live on. An endpoint in C sends no message
// when it closes, but unmaps its region and removes the file. A removed file alone proves nothing, because HG_Cleanup in any
// process removes the files of living endpoints.
func (e *Endpoint) checkServers() {
	defer e.stats.checks.Add(1)
	for _, c := range e.list() {
		if c.server || c.addr.expected.Len() == 0 || c.inode == 0 || c.pid == e.ident.pid {
			continue
		}
		f, err := lstat(e.cfg.objectPath(c.addr.uri))
		removed := errors.Is(err, fs.ErrNotExist) || err == nil && f.Ino != c.inode
		if removed && !maps(c.pid, c.inode) {
			e.drainAndEnd(c, &ending{kind: na.Unreachable, err: errClosing})
		}
	}
}

// maps reports whether a process has the file with that inode mapped. It returns true if the kernel refuses to say. The fifth field
// of each line of /proc/PID/maps is an inode.
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

// sweepBuffers frees the copy buffers of clients that have died between the claim of a buffer and its entry into their ring. The
// region does not record the owner of a claimed buffer, so a buffer counts as left behind if several sweeps in a row find it in no
// ring while no client is stopped.
func (e *Endpoint) sweepBuffers() {
	k := &e.maintenance
	if k.deaths.Load() == 0 { // not deathSeen, because only a poller that parks updates that
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

// inRings returns the set of copy buffers that are in the rings of clients, or that clients of this package are filling.
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

// buffersIn returns the set of copy buffers in a ring.
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

// anyStopped reports whether the process of any client is stopped, because a stopped client may be about to write to a copy buffer.
func (e *Endpoint) anyStopped() bool {
	return slices.ContainsFunc(e.list(), func(c *conn) bool {
		return c.server && !c.self && stopped(c.pid)
	})
}

// stopped reports whether a process is stopped, by a signal or a debugger.
func stopped(pid int32) bool {
	fields := statFields(strconv.Itoa(int(pid)))
	return len(fields) > 0 && (fields[0] == "T" || fields[0] == "t")
}

// sweepPairs frees the pairs of clients that have died between the claim of a pair and their announcement. A pair without a known
// client is one of these if no process besides those of known clients has the region mapped.
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
	// A search through all processes is expensive. It becomes rarer while it finds a process, because a living client may have
	// claimed a pair without announcing itself.
	if k.lostSeen++; k.lostSeen <= suspectSeen || k.lostSeen&(k.lostSeen-1) != 0 && k.lostSeen%1024 != 0 || e.mappedElsewhere() {
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

// knownPairs returns the set of pairs of known clients and of this endpoint.
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

// mappedElsewhere reports whether any process has the region mapped more often than it has connections. It returns true if /proc
// cannot be read.
func (e *Endpoint) mappedElsewhere() bool {
	known := map[string]int{strconv.Itoa(os.Getpid()): 1} // number of mappings that each process may have
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
