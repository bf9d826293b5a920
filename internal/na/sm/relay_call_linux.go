package sm

import (
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"cinnabar/internal/hostmem"
	"cinnabar/internal/na"
	"cinnabar/internal/sockio"
)

// relayDial is how long connecting to a peer's socket may take. It is on this host, and the kernel answers for it.
const relayDial = 2 * time.Second

// relayLink is a connection to a peer's relay.
type relayLink struct {
	who identity
	c   *net.UnixConn
	raw syscall.RawConn // c's
}

// linkBuffers keeps memory for as many requests as are under way at once. Connections are more.
var linkBuffers = sync.Pool{New: func() any { return new([]byte) }}

// relayLinks are the connections to peers' relays that no transfer uses at the moment.
type relayLinks struct {
	mu sync.Mutex
	// +checklocks:mu
	idle map[identity][]*relayLink
	// +checklocks:mu
	closed bool
}

// get returns a connection to the peer who: one that is idle, or a new one. Who needs a new one closes those whose other
// end is gone, so that peers that come and go leave nothing.
func (ls *relayLinks) get(who identity) (*relayLink, error) {
	for l := ls.take(who); l != nil; l = ls.take(who) {
		if l.quiet() {
			return l, nil
		}
		_ = l.c.Close() // the other end has, or speaks out of turn
	}
	ls.sweep()
	return dialRelay(who)
}

// take takes one of the idle connections to a peer, nil if there is none.
func (ls *relayLinks) take(who identity) *relayLink {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	list := ls.idle[who]
	if len(list) == 0 {
		return nil
	}
	l := list[len(list)-1]
	ls.keepLocked(who, slices.Delete(list, len(list)-1, len(list)))
	return l
}

// +checklocks:ls.mu
func (ls *relayLinks) keepLocked(who identity, list []*relayLink) {
	if len(list) == 0 {
		delete(ls.idle, who)
		return
	}
	ls.idle[who] = list
}

// sweep closes idle connections that are of no use any more.
func (ls *relayLinks) sweep() {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	for who, list := range ls.idle {
		ls.keepLocked(who, slices.DeleteFunc(list, func(l *relayLink) bool {
			if l.quiet() {
				return false
			}
			_ = l.c.Close() // the other end has, or speaks out of turn
			return true
		}))
	}
}

// quiet tells whether the other end of a connection is there and says nothing, as it must while no request is under way.
func (l *relayLink) quiet() bool {
	var got error
	err := l.raw.Control(func(fd uintptr) {
		var one [1]byte
		_, _, got = unix.Recvfrom(int(fd), one[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
	})
	return err == nil && got == unix.EAGAIN
}

// dialRelay connects to a peer's relay, and makes sure that it is that peer's.
func dialRelay(who identity) (*relayLink, error) {
	nc, err := net.DialTimeout("unix", relayName(who), relayDial)
	if err != nil {
		return nil, err
	}
	c, ok := nc.(*net.UnixConn)
	if !ok {
		return nil, errors.Join(errors.New("not a Unix socket"), nc.Close())
	}
	raw, err := c.SyscallConn()
	if err == nil {
		err = listens(c, who)
	}
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return &relayLink{who: who, c: c, raw: raw}, nil
}

// listens returns an error unless it is a peer's process that c leads to.
func listens(c *net.UnixConn, who identity) error {
	pid, err := trusted(c)
	if err == nil && pid != who.pid {
		err = fmt.Errorf("process %d listens where process %d should", pid, who.pid)
	}
	return err
}

// put gives back a connection over which no request is under way.
func (ls *relayLinks) put(l *relayLink) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if ls.closed {
		_ = l.c.Close() // nothing is under way
		return
	}
	if ls.idle == nil {
		ls.idle = make(map[identity][]*relayLink)
	}
	ls.idle[l.who] = append(ls.idle[l.who], l)
}

// close closes the idle connections; those in use are closed when they are given back.
func (ls *relayLinks) close() {
	ls.mu.Lock()
	idle := ls.idle
	ls.idle, ls.closed = nil, true
	ls.mu.Unlock()
	for _, list := range idle {
		for _, l := range list {
			_ = l.c.Close() // nothing is under way
		}
	}
}

// refusal is what the peer says against a request. The connection is good for others.
type refusal string

func (r refusal) Error() string { return "the peer refuses: " + string(r) }

// move moves what b says, relayBytes of it at most.
func (l *relayLink) move(b *batch, put bool) error {
	buf, _ := linkBuffers.Get().(*[]byte)
	defer linkBuffers.Put(buf)
	h := relayHead{access: needed(put), segments: len(b.remote), bytes: int(b.bytes)}
	*buf = appendRequest((*buf)[:0], h, b)
	if put {
		*buf = appendSlices(*buf, b.slices)
	}
	if _, err := l.c.Write(*buf); err != nil {
		return err
	}
	if put {
		return l.answer(buf, nil, 0)
	}
	return l.answer(buf, b.slices, h.bytes)
}

// appendRequest appends a request without the bytes of a put.
func appendRequest(buf []byte, h relayHead, b *batch) []byte {
	buf = appendRelayHead(buf, h)
	for _, r := range b.remote {
		buf = appendSegment(buf, segment{uint64(r.Base), uint64(r.Len)})
	}
	return buf
}

// appendSlices appends the bytes of local memory.
func appendSlices(buf []byte, slices [][]byte) []byte {
	for _, s := range slices {
		n := len(buf)
		buf = append(buf, make([]byte, len(s))...)
		hostmem.CopyExposed(buf[n:], s)
	}
	return buf
}

// answer reads the answer to a request into buf, and puts its bytes, which are want, into slices.
func (l *relayLink) answer(buf *[]byte, slices [][]byte, want int) error {
	var head [relayAnswer]byte
	if _, err := io.ReadFull(l.c, head[:]); err != nil {
		return err
	}
	status, n, err := parseRelayAnswer(head[:], want)
	if err != nil {
		return err
	}
	*buf = room(*buf, n)
	data := *buf
	if _, err := io.ReadFull(l.c, data); err != nil {
		return err
	}
	if status == relayRefused {
		return refusal(data)
	}
	for _, s := range slices {
		hostmem.CopyExposed(s, data[:len(s)])
		data = data[len(s):]
	}
	return nil
}

// interrupt ends the request under way, from another goroutine. The connection is of no use afterwards.
func (l *relayLink) interrupt() {
	_ = l.c.SetDeadline(sockio.Past) // fails if it is closed, which is as good
}

// noRelayError says that a peer has no relay, as C's have none.
type noRelayError struct{ err error }

func (e *noRelayError) Error() string {
	return "the peer has no socket for its memory: " + e.err.Error()
}
func (e *noRelayError) Unwrap() error { return e.err }

// attachRefused tells whether err is the kernel's refusal of cross-memory attach.
func attachRefused(err error) bool {
	_, ok := errors.AsType[*AttachError](err)
	return ok
}

// relay moves what is left of t over a connection to its peer. If that has nothing to connect to, the kernel's refusal
// remains, which says what would help.
func (t *transfer) relay(links *relayLinks) error {
	if err := t.check(); err != nil {
		return err
	}
	l, err := links.get(t.to.who)
	if err != nil {
		return t.noRelay(err)
	}
	t.to.relayed.Store(true)
	t.hold(l) // before check: end does it the other way round
	err = t.relayOver(l)
	return t.letGo(links, l, err)
}

// letGo ends the use of a connection, over which t has come to err, and returns what is to be said of it.
func (t *transfer) letGo(links *relayLinks, l *relayLink, err error) error {
	t.hold(nil)
	_, fine := errors.AsType[refusal](err)
	fine = fine || err == nil
	stopped := t.check()
	if fine && t.stop.Load() == 0 { // else it may have been interrupted, for whoever used it next
		links.put(l)
		return err
	}
	_ = l.c.Close() // it is broken or interrupted
	if !fine && stopped != nil {
		return stopped
	}
	return err
}

// relayOver moves what is left of t over l.
func (t *transfer) relayOver(l *relayLink) error {
	b, _ := batches.Get().(*batch)
	defer b.free()
	b.relayed = true
	for t.done < t.total {
		if err := t.check(); err != nil {
			return err
		}
		b.reset()
		t.fill(b, relayBytes)
		if err := l.move(b, t.put); err != nil {
			kind := na.Unreachable
			if _, ok := errors.AsType[refusal](err); ok {
				kind = na.Denied
			}
			return &na.Error{Kind: kind, Err: err}
		}
		t.done += b.bytes
		t.op.Progress.Add(int64(b.bytes))
	}
	return nil
}
