package sm

import (
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"cinnabar/internal/na"
)

// relayDial is how long connecting to a peer's socket may take. It is on this host, and the kernel answers for it.
const relayDial = 2 * time.Second

// relayLink is a connection to a peer's relay.
type relayLink struct {
	who identity
	c   *net.UnixConn
	buf []byte
}

// relayLinks are the connections to peers' relays that no transfer uses at the moment.
type relayLinks struct {
	mu sync.Mutex
	// +checklocks:mu
	idle map[identity][]*relayLink
	// +checklocks:mu
	closed bool
}

// get returns a connection to the peer who: one that is idle, or a new one.
func (ls *relayLinks) get(who identity) (*relayLink, error) {
	ls.mu.Lock()
	list := ls.idle[who]
	if n := len(list); n > 0 {
		l := list[n-1]
		list[n-1] = nil
		ls.idle[who] = list[:n-1]
		ls.mu.Unlock()
		return l, nil
	}
	ls.mu.Unlock()
	return dialRelay(who)
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
	pid, err := trusted(c)
	if err == nil && pid != who.pid {
		err = fmt.Errorf("process %d listens where process %d should", pid, who.pid)
	}
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return &relayLink{who: who, c: c}, nil
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

// forget closes the idle connections to a peer that is gone.
func (ls *relayLinks) forget(who identity) {
	ls.mu.Lock()
	list := ls.idle[who]
	delete(ls.idle, who)
	ls.mu.Unlock()
	for _, l := range list {
		_ = l.c.Close() // nothing is under way
	}
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
	h := relayHead{access: na.ReadOnly, segments: len(b.remote), bytes: int(b.bytes)}
	if put {
		h.access = na.WriteOnly
	}
	l.buf = appendRelayHead(l.buf[:0], h)
	for _, r := range b.remote {
		l.buf = appendSegment(l.buf, segment{uint64(r.Base), uint64(r.Len)})
	}
	want := h.bytes
	if put {
		want = 0
		for _, s := range b.slices {
			n := len(l.buf)
			l.buf = append(l.buf, make([]byte, len(s))...)
			copyExposed(l.buf[n:], s)
		}
	}
	if _, err := l.c.Write(l.buf); err != nil {
		return err
	}
	return l.answer(b, want)
}

// answer reads the answer to a request and puts its bytes, which are want, where b says.
func (l *relayLink) answer(b *batch, want int) error {
	var head [relayAnswer]byte
	if _, err := io.ReadFull(l.c, head[:]); err != nil {
		return err
	}
	status, n, err := parseRelayAnswer(head[:], want)
	if err != nil {
		return err
	}
	l.buf = room(l.buf, n)
	if _, err := io.ReadFull(l.c, l.buf); err != nil {
		return err
	}
	if status == relayRefused {
		return refusal(l.buf)
	}
	data := l.buf
	for _, s := range b.slices {
		if len(data) == 0 {
			break // a put
		}
		copyExposed(s, data[:len(s)])
		data = data[len(s):]
	}
	return nil
}

// interrupt ends the request under way, from another goroutine. The connection is of no use afterwards.
func (l *relayLink) interrupt() {
	_ = l.c.SetDeadline(time.Unix(1, 0)) // fails if it is closed, which is as good
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

// relay moves what is left of t over a connection to its peer.
func (t *transfer) relay(links *relayLinks) error {
	l, err := links.get(t.to.who)
	if err != nil {
		return &na.Error{Kind: na.Unreachable, Err: &noRelayError{err}}
	}
	t.link.Store(l) // before check: end stores the other way round
	err = t.relayOver(l)
	if _, fine := errors.AsType[refusal](err); fine || err == nil {
		t.link.Store(nil)
		links.put(l)
		return err
	}
	_ = l.c.Close() // it is broken or interrupted
	links.forget(t.to.who)
	if stopped := t.check(); stopped != nil {
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
			if _, ok := err.(refusal); ok {
				kind = na.Denied
			}
			return &na.Error{Kind: kind, Err: err}
		}
		t.done += b.bytes
	}
	return nil
}
