package iwarp

import (
	"math"
	"net/netip"
	"slices"
	"time"

	"cinnabar/verbs"
)

// Held returns the messages that the connections of dev hold for want of a receive, and their
// bytes, and reports whether one of the connections is not read for it.
func Held(dev *verbs.Device) (messages, bytes int, stalled bool) {
	d := dev.Driver().(*device)
	for _, c := range d.connections() {
		c.rxMu.Lock()
		messages += len(c.rx.held)
		bytes += c.rx.heldBytes
		stalled = stalled || c.rx.stalled
		c.rxMu.Unlock()
	}
	return messages, bytes, stalled
}

// connections returns the connections that are not over to the last goroutine.
func (d *device) connections() []*conn {
	d.mu.Lock()
	defer d.mu.Unlock()
	var list []*conn
	for c := range d.conns {
		list = append(list, c)
	}
	return list
}

// LockInput keeps the connections of dev from processing input and held messages until the result is called, but for the one to
// remote.
//
// +checklocksignore: it does not follow the list.
func LockInput(dev *verbs.Device, remote netip.AddrPort) (unlock func()) {
	var locked []*conn
	for _, c := range dev.Driver().(*device).connections() {
		if c.remote != remote {
			c.rxMu.Lock()
			locked = append(locked, c)
		}
	}
	return func() { unlockInput(locked) }
}

// +checklocksignore: see LockInput.
func unlockInput(locked []*conn) {
	for _, c := range locked {
		c.rxMu.Unlock()
	}
}

// Seated reports whether a goroutine sleeps in Park, and reads the connection of dev.
func Seated(dev *verbs.Device) bool {
	for _, c := range dev.Driver().(*device).connections() {
		if c.qp.sendCQ.asleep.Load() == c || c.qp.recvCQ.asleep.Load() == c {
			return true
		}
	}
	return false
}

// TakeSeat makes the first step of Park for the only connection of dev, the taking of the seat. park makes the other steps.
func TakeSeat(dev *verbs.Device) (park func() bool, ok bool) {
	c := dev.Driver().(*device).connections()[0]
	return func() bool { return c.readInSeat(c.qp.recvCQ, nil) }, c.takeSeat()
}

// KeepUntilPeerCloses keeps the only connection of dev, which has ended, until its peer closes it.
func KeepUntilPeerCloses(dev *verbs.Device) { dev.Driver().(*device).connections()[0].linger.Stop() }

// Ended reports whether the peer of a connection of dev has ended its stream while
// messages were held.
func Ended(dev *verbs.Device) bool {
	for _, c := range dev.Driver().(*device).connections() {
		c.rxMu.Lock()
		eof := c.rx.eof
		c.rxMu.Unlock()
		if eof {
			return true
		}
	}
	return false
}

// MSS returns the size of TCP's segments on the connection of dev.
func MSS(dev *verbs.Device) int { return dev.Driver().(*device).connections()[0].sock.MSS() }

// MULPDU returns the largest ULPDU that the connection of dev sends.
func MULPDU(dev *verbs.Device) int {
	c := dev.Driver().(*device).connections()[0]
	c.txMu.Lock()
	defer c.releaseTx()
	return c.tx.mulpdu
}

// Scratch returns the capacity of the memory for headers and small payloads of the connection of dev, and the largest one.
func Scratch(dev *verbs.Device) (size, most int) {
	c := dev.Driver().(*device).connections()[0]
	c.txMu.Lock()
	defer c.releaseTx()
	return cap(c.tx.scratch), scratchBytes
}

// Entries returns the numbers of entries of the send queue and of its completion queue that the connection of dev has memory for.
func Entries(dev *verbs.Device) (send, completion int) {
	q := dev.Driver().(*device).connections()[0].qp
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.sq.ring), ringLen(q.sendCQ)
}

// SetMULPDU makes the connection of dev believe that TCP's segments were of another size when it last looked.
func SetMULPDU(dev *verbs.Device, n int) {
	c := dev.Driver().(*device).connections()[0]
	c.txMu.Lock()
	defer c.releaseTx()
	c.tx.mulpdu = n
}

// FixMULPDU sets the MULPDU of the connection of dev, and stops the measurements that would change the MULPDU.
func FixMULPDU(dev *verbs.Device, n int) {
	c := dev.Driver().(*device).connections()[0]
	c.txMu.Lock()
	defer c.releaseTx()
	c.tx.mulpdu, c.tx.measure = n, math.MaxUint64
}

// Age makes the connections of dev look idle for d longer than they are.
func Age(dev *verbs.Device, d time.Duration) {
	v := dev.Driver().(*device)
	now := time.Now()
	v.scan.mu.Lock()
	defer v.scan.mu.Unlock()
	v.scan.last, v.scan.searched = time.Time{}, [2]time.Time{}
	v.sampleLocked(now)
	for _, c := range v.scan.conns {
		c.activity.since = c.activity.since.Add(-d)
	}
	v.scan.last = time.Time{}
}

// SetLeastIdle sets for how long a connection must have been idle before it gives way.
func SetLeastIdle(dev *verbs.Device, d time.Duration) { dev.Driver().(*device).leastIdle = d }

// SetSharedStall sets for how long a message in a shared receive may go on without progress.
func SetSharedStall(dev *verbs.Device, d time.Duration) { dev.Driver().(*device).sharedStall = d }

// SetLeastStay sets for how long a handshake may go on before it gives way.
func SetLeastStay(dev *verbs.Device, d time.Duration) {
	dev.Driver().(*device).handshakes.leastStay = d
}

// Evict ends the only connection of dev as if it had been chosen for being idle, and reports whether it has.
func Evict(dev *verbs.Device) bool {
	d := dev.Driver().(*device)
	return d.evict(d.connections()[0])
}

// Read reads the input of the only connection of dev, and returns the number of bytes that have come. over says that the connection reads no more,
// and stalled that it does not before a receive is posted.
func Read(dev *verbs.Device) (n uint64, over, stalled bool) {
	list := dev.Driver().(*device).connections()
	if len(list) == 0 {
		return 0, true, false
	}
	c := list[0]
	c.rxMu.Lock()
	c.receiveLocked(false)
	n, over, stalled = c.rxStats.bytes, c.over(), c.rx.stalled
	c.rxMu.Unlock()
	c.afterRx()
	return n, over, stalled
}

// MoveUnreadAfter acts as if the connection of dev to remote had read bytes into mem by a wrong guess, and moves them after between. guesses is false,
// and between is not called, if exposure.begin refuses the watch.
func MoveUnreadAfter(dev *verbs.Device, remote netip.AddrPort, mem []byte, between func()) (guesses bool) {
	list := dev.Driver().(*device).connections()
	c := list[slices.IndexFunc(list, func(c *conn) bool { return c.remote == remote })]
	c.rxMu.Lock()
	w := &c.rx.run.watch
	if guesses = exposed.begin(w, spanOf(mem)); guesses {
		between()
		c.moveUnread([][]byte{mem}, len(mem))
		c.rx.ahead.unread = nil // no FPDU is in it
		exposed.end(w)
	}
	c.rxMu.Unlock()
	c.teardownIfFailed()
	return guesses
}

// OnMove makes each connection call f when the connection moves bytes after a wrong guess: before the move with false, and after the move with true, before
// the connection looks for writers. The caller opens devices after OnMove, and calls end when they are closed.
func OnMove(f func(moved bool)) (end func()) {
	onMove = f
	return func() { onMove = nil }
}

// RegionState returns a function that reports whether region of dev is closed, and the number of uses of its memory.
func RegionState(dev *verbs.Device, region *verbs.MR) func() (closed bool, users int64) {
	m := dev.Driver().(*device).keys.byLocal(region.LKey())
	return func() (bool, int64) { return m.users.Closed(), m.users.Users() }
}

// BeginWrite acts as if a Write of a peer to n bytes at off of region was being stored until end is called.
func BeginWrite(dev *verbs.Device, region *verbs.MR, off, n int) (end func()) {
	m := dev.Driver().(*device).keys.byRemote(region.RKey())
	exposed.beginWrite(m, spanOf(m.buf[off:off+n]))
	return func() { exposed.endWrite(m) }
}

// Limits of a watch.
const (
	LongestWalk = longestWalk
	MostLooks   = mostLooks
)

// Exposure is an exposure of its own.
type Exposure struct{ e exposure }

// ExposedRegion is a region of an Exposure.
type ExposedRegion struct {
	e *exposure
	m *mr
}

// Add adds a region of b.
func (x *Exposure) Add(b []byte, access verbs.Access) *ExposedRegion {
	r := &ExposedRegion{&x.e, &mr{buf: b, access: access}}
	x.e.add(r.m)
	return r
}

// Drop drops the region.
func (r *ExposedRegion) Drop() { r.e.drop(r.m) }

// BeginWrite begins to write to b, which is in the region.
func (r *ExposedRegion) BeginWrite(b []byte) { r.e.beginWrite(r.m, spanOf(b)) }

// EndWrite ends a write.
func (r *ExposedRegion) EndWrite() { r.e.endWrite(r.m) }

// Watch begins to watch b; ok is false if exposure.begin refuses the watch. end ends that, and reports whether a write to b has begun since.
func (x *Exposure) Watch(b []byte) (end func() (reached bool), ok bool) {
	w := &watch{}
	return func() bool {
		defer x.e.end(w)
		return x.e.reached(w)
	}, x.e.begin(w, spanOf(b))
}

// OnTurn makes x call f once: before x counts its next watch, or after the next write has loaded the number of watches, if the write comes first.
func (x *Exposure) OnTurn(f func()) {
	x.e.watching.onTurn = func() {
		x.e.watching.onTurn = nil
		f()
	}
}

// Exposed returns the numbers of regions of all devices that peers may read or write, and of system calls with guesses that are under way.
func Exposed() (regions, calls int) {
	exposed.mu.Lock()
	defer exposed.mu.Unlock()
	return len(exposed.regions), len(exposed.watches)
}
