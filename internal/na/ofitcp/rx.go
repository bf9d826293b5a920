package ofitcp

import (
	"errors"
	"fmt"
	"sync"
	"syscall"

	"cinnabar/internal/hostmem"
	"cinnabar/internal/na"
	"cinnabar/internal/sockio"
)

const (
	// stageBytes is how much of the stream is read at a time while no large payload is expected: less than the size
	// from which sockio announces a call to the scheduler, which costs time.
	stageBytes = 16<<10 - 64
	// readBytes is about how much one call reads, which bounds for how long memory is in use.
	readBytes = 2 << 20
	// bulkRead is the number of bytes that one read takes from the next message while the peer sends large payloads. Few bytes of a payload
	// then pass through the stage, and a typical response or request still needs only one read.
	bulkRead = 1 << 10
	// bulkMessages is the number of small messages after a large payload for which the reader expects another large payload.
	bulkMessages = 16
	// rxVectors is how many pieces of memory one read fills.
	rxVectors = 60
)

// stage is a buffer for the stream. A connection has one only while there is something in it.
type stage [stageBytes]byte

var stages = sync.Pool{New: func() any { return new(stage) }}

// rxState is the receiving half of a connection. Only the goroutine that holds the read role uses it.
//
// Small messages are read into the stage, many at a time, and handled there. If a payload is larger, or belongs into memory of an operation,
// only the bytes that came together with its header pass through the stage: the rest is read into its memory directly. The same read takes
// only bulkRead bytes of the messages behind it, so that few bytes of the next payload pass through the stage.
type rxState struct {
	stage *stage // nil while there is nothing in it
	r, w  int    // unhandled bytes in stage
	bulk  int    // number of further small messages of which only bulkRead bytes are read at a time

	m    message
	body bool   // m's payload is under way
	left uint64 // of it
	sink sink   // where it goes

	reading *transfer // read is filling its memory

	iov     int        // sinkWrite: the next byte goes to conn.writeTo[iov]
	iovOff  uint64     // there
	request []byte     // sinkRequest: memory for the payload
	got     int        // bytes in request, or of an expected message that is read straight
	kick    bool       // something is to be written
	corked  bool       // parse collects small replies and sends them together
	handed  bool       // a request went to the handler, which has made no task of it
	in      na.Message // the request that the handler gets
	tasks   []na.Task
	plan    [][]byte
	ended   []ended
}

// sink is where a payload goes that is not handled in the stage.
type sink uint8

const (
	sinkNone    sink = iota // nowhere
	sinkRead                // to local memory: the answer to the oldest read
	sinkWrite               // to registered memory
	sinkDirect              // to the buffer of an expected message
	sinkRequest             // to memory for one request
)

// receive reads once and handles the bytes that have come, with the read role. It reports whether something has come.
func (c *conn) receive() bool {
	if c.dead.Load() || c.pauseReading() {
		return false
	}
	n, err := c.read()
	if err != nil {
		if c.localFault(err) {
			return true
		}
		c.nothingCame(err)
		return false
	}
	c.rxBytes.Add(uint64(n))
	c.spend(n)
	c.touch()
	shared.heard(c)
	c.spins.Answered()
	c.arrived(n)
	c.parse()
	if c.rx.corked {
		c.rx.corked = false
		c.uncork()
	}
	c.finishReceived()
	return true
}

// localFault gives up the oldest transfer, because the kernel could not fill its local memory, and reports whether the connection goes on:
// the bytes are still to be read then, and go nowhere, because a fault takes none of them off the stream.
func (c *conn) localFault(err error) bool {
	rx := &c.rx
	if !c.sock.kernelCopies() || !rx.body || rx.sink != sinkRead || !errors.Is(err, syscall.EFAULT) {
		return false
	}
	c.filled(0)
	c.mu.Lock()
	var t *transfer
	if c.down == nil && c.reads.len() > 0 {
		t = c.reads.at(0).t
	}
	if t != nil {
		err = &na.Error{Kind: na.Invalid, Op: t.name(), Addr: c.peer.String(), Err: fmt.Errorf("%w: %w", hostmem.ErrFault, err)}
		rx.ended = c.giveUpLocked(t, err, rx.ended)
		rx.kick = true // because a part of it may be in the batch
	}
	c.mu.Unlock()
	c.finishReceived()
	return t != nil
}

// nothingCame ends the use of memory after a vain read, and the connection if there will be no other.
func (c *conn) nothingCame(err error) {
	if c.rx.body {
		c.filled(0)
		c.finishReceived()
	}
	if !errors.Is(err, sockio.ErrWouldBlock) {
		c.broke(err)
	}
}

// read reads once, into the stage or straight into the payload's place.
func (c *conn) read() (int, error) {
	rx := &c.rx
	if rx.stage == nil {
		rx.stage, _ = stages.Get().(*stage)
		rx.r, rx.w = 0, 0
	}
	if !rx.body {
		end := min(stageBytes, rx.w+int(c.role.turn.Load()))
		if rx.w == 0 {
			end = min(end, c.expectedHeader())
		}
		return c.sock.TryReadv(append(rx.plan[:0], rx.stage[rx.w:end])) // own memory
	}
	rx.plan = c.planBody(rx.plan[:0])
	n, err := c.guarded(c.sock.TryReadv, rx.plan)
	if n > 0 && uint64(n) < rx.left && rx.sink != sinkRequest && rx.sink != sinkNone && c.sock.kernelCopies() {
		c.sock.Doubt() // because the read may have ended before a page without memory (truncated file, full disk)
	}
	clear(rx.plan)
	return n, err
}

// expectedHeader returns the number of bytes to read into an empty stage. It is hardly more than a header if the payload of the next message
// probably belongs into other memory.
func (c *conn) expectedHeader() int {
	switch {
	case c.readsOut.Load() > 0:
		return baseLen
	case c.rx.bulk > 0:
		return bulkRead
	}
	return stageBytes
}

// largePayload is the least size in bytes of a payload after which the reader expects further large payloads (bulkMessages).
const largePayload = 32 << 10

// planBody lists the memory that the rest of the payload belongs to, and marks it as in use; and behind it, if that is
// all, the stage. The stage is empty.
func (c *conn) planBody(p [][]byte) [][]byte {
	rx := &c.rx
	want := min(rx.left, readBytes)
	switch rx.sink {
	case sinkRead:
		p = c.planRead(p, want)
	case sinkWrite:
		p = c.planWrite(p, want)
	case sinkDirect:
		p = c.planDirect(p, want)
	case sinkRequest:
		p = append(p, rx.request[rx.got:])
	case sinkNone:
	}
	if len(p) == 0 { // the payload goes nowhere
		return append(p, rx.stage[:min(want, stageBytes)])
	}
	var n uint64
	for _, b := range p {
		n += uint64(len(b))
	}
	if n == rx.left {
		behind := stageBytes
		if rx.m.payload >= largePayload {
			behind = bulkRead
		}
		p = append(p, rx.stage[:behind])
	}
	return p
}

func (c *conn) planRead(p [][]byte, want uint64) [][]byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.down != nil || c.reads.at(0).t == nil {
		return p
	}
	r := c.reads.at(0)
	r.t.reading = true
	c.rx.reading = r.t
	return r.t.local(p, r.frag, r.off, want, rxVectors)
}

func (c *conn) planWrite(p [][]byte, want uint64) [][]byte {
	off := c.rx.iovOff
	for i := c.rx.iov; want > 0; i++ {
		if a := &c.writeTo[i]; a.m.late.kept { // a late write is discarded
			if left := min(want, a.n-off, stageBytes); len(p) == 0 && left > 0 {
				return append(p, c.rx.stage[:left])
			}
			if len(p) > 0 {
				return p
			}
			off = 0
			continue
		}
		b := c.writeTo[i].bytes()[off:]
		b = b[:min(want, uint64(len(b)))]
		p = append(p, b)
		want -= uint64(len(b))
		off = 0
	}
	return p
}

func (c *conn) planDirect(p [][]byte, want uint64) [][]byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	d := &c.direct
	if d.op == nil {
		return p
	}
	d.busy = true
	return append(p, d.buf[c.rx.got:uint64(c.rx.got)+want])
}

// arrived takes n bytes into account that read has read.
func (c *conn) arrived(n int) {
	rx := &c.rx
	if !rx.body {
		rx.w += n
		return
	}
	k := min(uint64(n), rx.left)
	c.filled(k)
	rx.left -= k
	rx.r, rx.w = 0, n-int(k)
}

// filled moves on by n bytes of payload that are in their place, and ends the use of that place.
func (c *conn) filled(n uint64) {
	rx := &c.rx
	switch rx.sink {
	case sinkRead:
		c.filledRead(n)
	case sinkWrite:
		for n > 0 {
			a := &c.writeTo[rx.iov]
			if left := a.n - rx.iovOff; n >= left {
				n -= left
				rx.iov, rx.iovOff = rx.iov+1, 0
				continue
			}
			rx.iovOff += n
			n = 0
		}
	case sinkDirect:
		c.filledDirect(n)
	case sinkRequest:
		rx.got += int(n)
	case sinkNone:
	}
}

// filledRead ends the reader's use of a transfer's memory. The transfer may have been given up meanwhile.
func (c *conn) filledRead(n uint64) {
	rx := &c.rx
	c.mu.Lock()
	defer c.mu.Unlock()
	if t := rx.reading; t != nil {
		rx.reading = nil
		t.reading = false
		if t.over() {
			t.ended = true
			rx.ended = append(rx.ended, ended{t: t})
			return
		}
	}
	if c.reads.len() == 0 { // the connection has ended
		return
	}
	if r := c.reads.at(0); r.t != nil {
		r.frag, r.off = r.t.advance(r.frag, r.off, n)
		r.t.op.Progress.Add(int64(n))
	}
}

func (c *conn) filledDirect(n uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	d := &c.direct
	c.rx.got += int(n)
	d.busy = false
	if d.op != nil && d.err != nil {
		c.rx.ended = append(c.rx.ended, ended{op: d.op, err: d.err})
		*d = directRecv{}
	}
}

// finishReceived writes answers and completes the operations of messages that have come, without a lock. The answers go first: a completion may
// close memory that one of them reads, which waits for it.
func (c *conn) finishReceived() {
	if c.rx.kick {
		c.rx.kick = false
		c.kick()
	}
	for i := 0; i < len(c.rx.ended); i++ {
		e := c.rx.ended[i]
		c.rx.ended[i] = ended{}
		c.finish(e)
	}
	c.rx.ended = c.rx.ended[:0]
}

// unstage gives the stage away if there is nothing in it.
func (c *conn) unstage() {
	rx := &c.rx
	if rx.stage != nil && rx.r == rx.w {
		stages.Put(rx.stage)
		rx.stage, rx.r, rx.w = nil, 0, 0
	}
}

// abortRx lets go of the memory that a dead connection's reader uses, unless it has the role: then it does so itself.
func (c *conn) abortRx() {
	if !c.role.held.CompareAndSwap(false, true) {
		return
	}
	c.letGo()
	c.role.held.Store(false)
}

// letGo lets go of registered memory, with the read role.
func (c *conn) letGo() {
	rx := &c.rx
	if rx.body && rx.sink == sinkWrite {
		c.exitWrite()
	}
	rx.body, rx.request = false, nil
	if rx.stage != nil {
		stages.Put(rx.stage)
		rx.stage, rx.r, rx.w = nil, 0, 0
	}
}
