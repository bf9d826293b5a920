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

// relayDial bounds the connecting to a peer's socket, which is on this host, so that the kernel answers.
const relayDial = 2 * time.Second

// relayLink is a connection to a peer's relay.
type relayLink struct {
	ident identity
	c     *net.UnixConn
	raw   syscall.RawConn // c's
}

// linkBuffers keeps memory for the requests that are under way at once, which are fewer than the connections.
var linkBuffers = sync.Pool{New: func() any { return new([]byte) }}

// relayLinks are the connections to peers' relays that no transfer uses at the moment.
type relayLinks struct {
	mu sync.Mutex
	// +checklocks:mu
	idle map[identity][]*relayLink
	// +checklocks:mu
	closed bool
}

// get returns a connection to the peer ident: an idle one, or a new one. Before it makes a new one it closes the idle connections with
// closed peers, so that peers that come and go leave no connections.
func (ls *relayLinks) get(ident identity) (*relayLink, error) {
	for l := ls.take(ident); l != nil; l = ls.take(ident) {
		if l.quiet() {
			return l, nil
		}
		_ = l.c.Close() // the peer has closed it, or has sent bytes without a request
	}
	ls.sweep()
	return dialRelay(ident)
}

// take takes one of the idle connections to a peer, nil if there is none.
func (ls *relayLinks) take(ident identity) *relayLink {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	list := ls.idle[ident]
	if len(list) == 0 {
		return nil
	}
	l := list[len(list)-1]
	ls.keepLocked(ident, slices.Delete(list, len(list)-1, len(list)))
	return l
}

// +checklocks:ls.mu
func (ls *relayLinks) keepLocked(ident identity, list []*relayLink) {
	if len(list) == 0 {
		delete(ls.idle, ident)
		return
	}
	ls.idle[ident] = list
}

// sweep closes idle connections that are of no use any more.
func (ls *relayLinks) sweep() {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	for ident, list := range ls.idle {
		ls.keepLocked(ident, slices.DeleteFunc(list, func(l *relayLink) bool {
			if l.quiet() {
				return false
			}
			_ = l.c.Close() // the peer has closed it, or has sent bytes without a request
			return true
		}))
	}
}

// quiet reports whether a connection is open and has no bytes to read, as must be while no request is under way.
func (l *relayLink) quiet() bool {
	var got error
	err := l.raw.Control(func(fd uintptr) {
		var one [1]byte
		_, _, got = unix.Recvfrom(int(fd), one[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
	})
	return err == nil && got == unix.EAGAIN
}

// dialRelay connects to a peer's relay, and makes sure that it is that peer's.
func dialRelay(ident identity) (*relayLink, error) {
	nc, err := net.DialTimeout("unix", relayName(ident), relayDial)
	if err != nil {
		return nil, err
	}
	c, ok := nc.(*net.UnixConn)
	if !ok {
		return nil, errors.Join(errors.New("not a Unix socket"), nc.Close())
	}
	raw, err := c.SyscallConn()
	if err == nil {
		err = listens(c, ident)
	}
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return &relayLink{ident: ident, c: c, raw: raw}, nil
}

// listens returns an error unless the peer's process is at the other end of c.
func listens(c *net.UnixConn, ident identity) error {
	pid, err := trusted(c)
	if err == nil && pid != ident.pid {
		err = fmt.Errorf("process %d listens where process %d should", pid, ident.pid)
	}
	return err
}

// put returns a connection without a request under way to the idle ones.
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
	ls.idle[l.ident] = append(ls.idle[l.ident], l)
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

// refusal is the text by which the peer refuses a request. The connection can be used for others.
type refusal string

func (r refusal) Error() string { return "the peer refuses: " + string(r) }

// move moves the memory of b, which has at most relayBytes.
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

// interrupt ends the request under way, from another goroutine. The connection cannot be used afterwards.
func (l *relayLink) interrupt() {
	_ = l.c.SetDeadline(sockio.Past) // fails if it is closed, which is as good
}

// noRelayError is the error of a transfer to a peer without a relay, such as all endpoints of C.
type noRelayError struct{ err error }

func (e *noRelayError) Error() string {
	return "the peer has no socket for its memory: " + e.err.Error()
}
func (e *noRelayError) Unwrap() error { return e.err }

// attachRefused reports whether err is the kernel's refusal of cross-memory attach.
func attachRefused(err error) bool {
	_, ok := errors.AsType[*AttachError](err)
	return ok
}

// relay moves the rest of t over a connection to its peer's relay. If the peer has none, it returns the kernel's refusal, because that
// names the remedy.
func (t *transfer) relay(links *relayLinks) error {
	if err := t.check(); err != nil {
		return err
	}
	l, err := links.get(t.to.ident)
	if err != nil {
		return t.noRelay(err)
	}
	t.to.relayed.Store(true)
	t.setLink(l) // before relayOver calls check, because end sets stop before it reads the link
	err = t.relayOver(l)
	return t.finishLink(links, l, err)
}

// finishLink ends the use of a connection, over which the transfer has ended with err, and returns the error of the transfer.
func (t *transfer) finishLink(links *relayLinks, l *relayLink, err error) error {
	t.setLink(nil)
	_, fine := errors.AsType[refusal](err)
	fine = fine || err == nil
	stopped := t.check()
	if fine && t.stop.Load() == 0 { // a connection that was interrupted would fail in its next use
		links.put(l)
		return err
	}
	_ = l.c.Close() // it is broken or interrupted
	if !fine && stopped != nil {
		return stopped
	}
	return err
}

// relayOver moves the rest of t over l.
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
