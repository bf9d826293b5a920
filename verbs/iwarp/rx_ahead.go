package iwarp

import (
	"runtime/debug"
	"sync"
)

// Small messages that come one by one cost two system calls each if they are read into place: for the head, and for the rest. In a run of small
// Sends, a read between two FPDUs therefore reads ahead: it takes all bytes that have come, up to aheadLen, into a buffer. The FPDUs in these
// bytes are then processed like others, with copies in the place of system calls.

const (
	aheadMax = 256 // bytes of payload of the largest Send that counts as small
	aheadRun = 16  // small Sends in a row before the first read ahead
	// aheadLen is the number of bytes of the longest read ahead. It is less than the size from which on sockio makes the system call with a
	// notice to the scheduler, which takes a fifth of the time of a vain read.
	aheadLen = 15 << 10
)

// aheadBuffers are shared by all connections, because a connection needs a buffer only from a read until the bytes of that read are processed.
var aheadBuffers = sync.Pool{New: func() any { return new([aheadLen]byte) }}

// ahead is the state of a connection's reads ahead.
type ahead struct {
	small  int             // number of Sends, each one FPDU of at most aheadMax bytes, since the last other Send or longer FPDU
	unread []byte          // bytes that were read ahead, or in a run after a wrong guess, and are not processed
	buf    *[aheadLen]byte // the buffer of the present read, or the one with the bytes of unread; nil: none, or moveUnread has made unread
}

// due reports whether more small messages probably come.
func (a *ahead) due() bool { return a.small >= aheadRun }

// room returns the memory for a read ahead.
func (a *ahead) room() []byte {
	if a.buf == nil {
		a.buf, _ = aheadBuffers.Get().(*[aheadLen]byte)
	}
	return a.buf[:]
}

// giveBack ends the use of the buffer if nothing is unread.
func (a *ahead) giveBack() {
	if len(a.unread) > 0 {
		return
	}
	a.unread = nil
	if a.buf != nil {
		aheadBuffers.Put(a.buf)
		a.buf = nil
	}
}

// placed takes an FPDU with size bytes of payload into account.
func (a *ahead) placed(size int) {
	if size > aheadMax {
		a.small = 0
	}
}

// note takes a complete message of queue 0 into account. whole is true if the message was one FPDU.
func (a *ahead) note(whole bool) {
	if a.small++; !whole {
		a.small = 0
	}
}

// readAhead reads from the socket into the buffer. full reports whether there may be more.
//
// +checklocks:c.rxMu
func (c *conn) readAhead() (n int, full bool, err error) {
	r := &c.rx
	room := r.ahead.room()
	r.plan = append(r.plan[:0], room)
	if n, err = c.read(r.plan); err == nil {
		r.ahead.unread = room[:n]
	}
	return n, n == len(room), err
}

// readUnread reads by plan bytes that were read ahead; false means that the memory in the plan is not there.
//
// +checklocks:c.rxMu
func (c *conn) readUnread(plan [][]byte) (total int, there bool) {
	a := &c.rx.ahead
	if !c.rx.placed { // the head, which lies in our memory
		n := copy(plan[0], a.unread)
		a.unread = a.unread[n:]
		c.rxStats.staged += uint64(n)
		return n, true
	}
	defer unguard(debug.SetPanicOnFault(true), &there)
	for _, b := range plan {
		n := copy(b, a.unread)
		a.unread = a.unread[n:]
		total += n
	}
	c.rxStats.staged += uint64(total)
	return total, true
}
