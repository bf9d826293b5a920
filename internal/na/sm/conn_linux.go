package sm

import (
	"errors"
	"fmt"
	"math/bits"
	"sync"
	"sync/atomic"
	"time"

	"cinnabar/internal/na"
	"cinnabar/internal/peerbook"
	"cinnabar/internal/progress"
	"cinnabar/internal/shm"
)

// conn is a pair of rings in a region, with the doorbells that belong to it. The region is this endpoint's or the peer's.
//
// addr.mu serializes sending. The holder of the receive role (role_linux.go) receives, and the region stays mapped while the role is
// held. The goroutine that leaves the receive role of a failed conn tears it down, because no goroutine touches the region or the
// descriptors afterwards.
type conn struct {
	ep     *Endpoint
	addr   *Addr
	id     int32  // the number of the conn in epoll events
	serial uint64 // the number of the conn in the process, never 0
	reg    *region
	inode  uint64 // of the region's file, 0 if it is not known
	pair   int
	server bool // the region is this endpoint's own, or private
	self   bool // both ends are this endpoint

	rebuilt uint32 // at a client: the region's count of rebuilds when the connection began

	out ring // guarded by addr.mu
	in  ring // used with the receive role
	ext *block

	doorbell  *shm.Doorbell // wakes the peer, nil if it needs none; guarded by addr.mu
	recvEvent int           // eventfd by which the peer wakes this process, -1 if there is none
	pidfd     int           // of the peer's process, -1 if there is none
	pid       int32

	share      share
	idleSince  time.Time    // owned by the poller: the time at which the positions seenAt were seen first, zero if never
	seenAt     uint64       // owned by the poller: the positions of the producers of both rings
	unanswered atomic.Int32 // requests of a client minus the responses to it

	unsignaled  int  // guarded by addr.mu: messages sent before the peer's doorbell came; promote rings for them
	provisional bool // owned by the poller: the peer has sent no datagram so far
	searched    bool // owned by the poller: awaitIdentity has looked for the datagram of the client

	// admission is locked while the receive role passes from the goroutine that asks the program about the client, and while the poller makes the
	// region anew beside that goroutine, which does not use the region before it has the lock. Lock order: before addr.mu.
	admission sync.Mutex
	// asked says that the program is asked about the client, and that the goroutine that asks has the receive role.
	// +checklocks:admission
	asked bool

	role       role
	ending     atomic.Pointer[ending] // set when the peer has left; the conn fails once its messages are delivered
	dead       atomic.Bool
	done       chan struct{}   // closed when dead
	serves     atomic.Bool     // the peer has sent requests
	spins      progress.Source // of drivers
	offended   bool            // used with the receive role: the peer has broken the protocol
	handedOver bool            // another client has the pair; used with the receive role
	scratch    []byte          // used with the receive role: a request, copied out of the region
	tasks      []na.Task
}

// ending is the cause for which a conn fails once all messages of its peer are delivered.
type ending struct {
	kind na.Kind
	err  error
	keep bool // the pair stays taken: its client lives and may still write to it
}

var (
	errReleased = errors.New("the peer has closed the connection")
	errDied     = errors.New("the peer's process has ended")
	errClosing  = errors.New("the peer has closed its endpoint")
	errZero     = errors.New("the region was cut off, and zeros were read as a message")
	errRebuilt  = errors.New("another program has cut off the server's region: its messages are lost")
)

// silent reports whether the peer rings no doorbell, so that the poller must look for its messages.
func (c *conn) silent() bool { return c.recvEvent < 0 && !c.self }

// sleeping writes to the extension whether this side sleeps and wants its doorbell rung. Without an extension it does nothing.
func (c *conn) sleeping(yes bool) {
	if c.ext == nil {
		return
	}
	var v uint32
	if yes {
		v = 1
	}
	var err error // a fault shows at the next receive too
	defer c.reg.Recover(c.reg.Guard(), &err)
	if c.ext.sleep.Load() != v {
		c.ext.sleep.Store(v)
	}
}

// fairShare reports whether a client of this endpoint may take another copy buffer. The unread messages of one client take half of the
// free buffers at most, but at least minShare, so that a client that is stopped does not take them all.
func (c *conn) fairShare() bool {
	n := c.out.waiting()
	return !c.server || c.self || n < minShare || n <= bits.OnesCount64(c.reg.bufferMap.Load())/2
}

const minShare = 4

// send publishes a message and rings the peer's doorbell. It returns false if the ring or the buffers have no room at the moment.
// An error ends the connection. The caller holds addr.mu.
func (c *conn) send(kind uint8, tag uint32, msg []byte) (ok bool, err error) {
	defer c.reg.Recover(c.reg.Guard(), &err)
	if c.out.full() {
		return false, nil
	}
	buffer := 0
	switch {
	case len(msg) == 0:
	case c.ext != nil && len(msg) <= inlineSize:
		buffer = inlineBuffer
		copy(slot(c.ext.out, int(c.out.at)), msg)
	default:
		if !c.fairShare() {
			return false, nil
		}
		if buffer = c.claimBuffer(); buffer < 0 {
			return false, nil
		}
		if err := c.fill(buffer, msg); err != nil {
			releaseBit(c.reg.bufferMap, buffer)
			c.unhold()
			return false, err
		}
	}
	shm.Publish()
	c.out.push(makeDescriptor(tag, len(msg), buffer, kind))
	if kind == typeExpected {
		c.unanswered.Add(-1)
	}
	c.unhold()
	c.ring()
	return true, nil
}

// fill copies a message to a copy buffer. If the system has no memory for a page of the file, the copy faults although the file is
// whole: send then frees the buffer, because it will try again.
func (c *conn) fill(buffer int, msg []byte) (err error) {
	defer c.reg.Recover(c.reg.Guard(), &err)
	copy(c.reg.buffer(buffer), msg)
	return nil
}

// claimBuffer takes a copy buffer, or returns -1 if none is free. A client of this package first writes the buffer to its word in the
// extension, if there is one, so that the server can free the buffer if the client dies before it has put the buffer into its ring.
func (c *conn) claimBuffer() int {
	holds := c.holds()
	if holds == nil {
		return claimBit(c.reg.bufferMap)
	}
	for range claimTries {
		v := c.reg.bufferMap.Load()
		if v == 0 {
			return -1
		}
		bit := v & -v
		holds.Store(bit)
		if c.reg.bufferMap.CompareAndSwap(v, v&^bit) {
			return bits.TrailingZeros64(bit)
		}
	}
	holds.Store(0)
	return -1
}

// holds returns the word in which a client notes the buffer that it claims, nil if no server reads it.
func (c *conn) holds() *atomic.Uint64 {
	if c.server || c.ext == nil {
		return nil
	}
	return c.ext.holds
}

func (c *conn) unhold() {
	if h := c.holds(); h != nil && h.Load() != 0 {
		h.Store(0)
	}
}

// ring wakes the peer for one message. C's peers take one message for each token, whether they sleep or not.
func (c *conn) ring() {
	switch {
	case c.self:
		if !c.role.claim.Taken() {
			c.ep.poll.wake()
		}
	case c.ext != nil:
		if c.ext.asleep.Load() != 0 && c.ext.asleep.CompareAndSwap(1, 0) {
			c.signalPeer(1)
		}
	case c.doorbell != nil:
		c.signalPeer(1)
	case c.provisional:
		c.unsignaled++
	}
}

// signalPeer adds n to the peer's eventfd, which wakes the peer.
func (c *conn) signalPeer(n int) {
	if c.doorbell != nil {
		progress.Toll()
		c.doorbell.Ring(n)
	}
}

// closeEventfds closes both eventfds.
func (c *conn) closeEventfds() {
	closeAll(c.recvEvent)
	if c.doorbell != nil {
		c.doorbell.Close()
	}
}

// arrival is a message that was taken out of the region.
type arrival struct {
	kind uint8
	tag  uint32
	data []byte          // of an unexpected message: in c.scratch
	to   peerbook.Waiter // of an expected message: the operation that waits for it, if there is one
	n    int             // its length
}

// violation is a breach of the protocol by a peer.
type violation struct{ cause, text string }

func (v *violation) Error() string { return v.text }

// violated returns a violation. cause is a constant, by which violations are counted.
func violated(cause, format string, args ...any) error {
	return &violation{cause, fmt.Sprintf(format, args...)}
}

// Causes of violations.
const (
	causeCommand     = "command"
	causeConnect     = "connection"
	causeCredentials = "command of another process"
	causeDatagram    = "datagram"
	causeDescriptors = "descriptors"
	causeManyFaults  = "faulty commands beyond those described"
	causeMessage     = "message"
	causeUser        = "other user"
)

// take takes the oldest message out of the ring, if there is one, and copies it to its destination. The caller has the receive role.
//
// If take returns an error, m.to is the operation that the message was for, if it was found.
func (c *conn) take(m *arrival) (ok bool, err error) {
	*m = arrival{}
	defer c.reg.Recover(c.reg.Guard(), &err)
	d, at, ok := c.in.peek()
	if !ok {
		return false, nil
	}
	shm.Observe()
	data, err := c.payload(d, at)
	if err != nil {
		return false, err
	}
	*m = arrival{kind: d.kind(), tag: d.tag(), n: len(data)}
	switch d.kind() {
	case typeExpected:
		if w, found := c.addr.expected.Take(m.tag); found {
			m.to = w
			copy(w.Buf, data)
		}
	case typeUnexpected:
		if d == 0 && !c.reg.whole() {
			return false, errZero
		}
		m.data = c.scratch[:copy(c.scratch, data)]
	case typeRebuilt:
		return false, errRebuilt
	case typeEvicted:
		return false, errEvicted
	case typeRefused:
		return false, errRefused
	case typeExpectedOld:
		return false, violated(causeMessage, "a message of type 2: the peer is of Mercury 2.2 or before, and 2.3 and later do not accept its responses")
	default:
		return false, violated(causeMessage, "a message of type %d", d.kind())
	}
	if len(data) > 0 && d.buffer() != inlineBuffer {
		releaseBit(c.reg.bufferMap, d.buffer())
	}
	c.in.advance()
	return true, nil
}

// payload returns the bytes of the message of a descriptor, which a peer has written. The peer may change them at any time.
func (c *conn) payload(d descriptor, at int) ([]byte, error) {
	n, i := d.len(), d.buffer()
	switch {
	case n == 0:
		return nil, nil
	case i == inlineBuffer && c.ext != nil:
		if n > inlineSize {
			return nil, violated(causeMessage, "a message of %d bytes in a slot of %d", n, inlineSize)
		}
		return slot(c.ext.in, at)[:n], nil
	case n > bufferSize:
		return nil, violated(causeMessage, "a message of %d bytes; a copy buffer has %d", n, bufferSize)
	case i >= buffers:
		return nil, violated(causeMessage, "copy buffer %d; there are %d", i, buffers)
	case c.reg.bufferMap.Load()>>i&1 != 0:
		return nil, violated(causeMessage, "a message in copy buffer %d, which is free", i)
	}
	return c.reg.buffer(i)[:n], nil
}

// ready reports whether a message waits, or receive would return an error. The caller has the receive role.
func (c *conn) ready() (yes bool) {
	var err error
	defer func() { yes = yes || err != nil }() // receive reports the error
	defer c.reg.Recover(c.reg.Guard(), &err)
	return !c.in.empty()
}

// receiveBatch is the number of messages that the poller takes from one conn before it turns to others.
const receiveBatch = 32

// receive takes at most limit messages out of the ring, completes operations, and gathers tasks in c.tasks. It returns the number of
// messages. The caller has the receive role.
func (c *conn) receive(limit int) (n int) {
	var m arrival
	for n < limit && !c.dead.Load() {
		ok, err := c.take(&m)
		if err != nil {
			c.receiveFailed(err)
			if op := m.to.Op; op != nil {
				op.Finish(0, &na.Error{Kind: na.Unreachable, Op: "receive", Addr: c.addr.String(), Err: err})
			}
			return n + 1
		}
		if !ok {
			if p := c.ending.Load(); p != nil && n == 0 {
				c.fail(p.kind, p.err)
			}
			return n
		}
		n++
		c.deliver(&m)
	}
	return n
}

// receiveFailed handles an error of take. Only the last case is a fault of the peer.
func (c *conn) receiveFailed(err error) {
	switch {
	case c.ep.cutOff(c, err):
	case !c.server && (errors.Is(err, errEvicted) || errors.Is(err, errRefused)): // the server has ended the connection
		c.fail(na.Unreachable, err)
	case !c.server && (errors.Is(err, errRebuilt) || errors.Is(err, errZero) || errors.Is(err, shm.ErrFault)): // another program has cut off the region
		c.fail(na.Unreachable, err)
	default:
		c.offend(err)
	}
}

// deliver completes the operation that waits for the message, or hands a request to the handler.
func (c *conn) deliver(m *arrival) {
	if m.kind == typeUnexpected {
		c.request(m)
		return
	}
	w := m.to
	if w.Op == nil {
		c.ep.stats.unmatched.Add(1)
		return
	}
	if m.n > len(w.Buf) {
		w.Op.Finish(0, &na.Error{Kind: na.Truncated, Op: "receive", Addr: c.addr.String(), Err: fmt.Errorf("%d bytes for a buffer of %d", m.n, len(w.Buf))})
		return
	}
	w.Op.Finish(int64(m.n), nil)
}

func (c *conn) request(m *arrival) {
	e := c.ep
	if !e.takesRequests() {
		e.stats.dropped.Add(1)
		return
	}
	if !c.serves.Load() {
		c.serves.Store(true)
	}
	c.unanswered.Add(1)
	msg := &c.role.message
	*msg = na.Message{From: c.addr, Tag: m.tag, Data: m.data}
	if t := e.cfg.Handler.Request(msg); t != nil {
		c.tasks = append(c.tasks, t)
	} else {
		e.handed.Store(true)
	}
	*msg = na.Message{}
}

// offend ends the connection with a peer that has broken the protocol. The pair stays taken while the peer lives, because the peer may
// still write to it.
func (c *conn) offend(err error) {
	left := c.ending.Load() != nil // a peer that has left does not write to its pair any more
	c.offended = true
	c.ending.Store(&ending{kind: na.Unreachable, err: err, keep: !left})
	if !c.self {
		c.ep.reportViolation(c.addr, err)
	}
	c.fail(na.Unreachable, err)
}

// fail ends the connection: all operations that wait for the peer complete, and the next operation connects anew. The caller must not
// hold addr.mu.
func (c *conn) fail(kind na.Kind, err error) {
	if !c.dead.CompareAndSwap(false, true) {
		return
	}
	c.ep.trace("connection lost", c.addr, err)
	items, tags := c.addr.detach(c)
	close(c.done)
	c.addr.failAll(items, tags, kind, err)
	c.ep.dropConn(c)
	c.tryTearDown()
}
