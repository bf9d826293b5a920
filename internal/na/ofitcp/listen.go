package ofitcp

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"time"

	"cinnabar/internal/na"
)

const (
	// handshakeTime bounds how long a connection may take to send its request.
	handshakeTime = 5 * time.Second
	// maxHalfOpen is how many connections may be sending theirs; beyond it the oldest is closed.
	maxHalfOpen = 1024
	// acceptPause follows a failure to accept, such as a lack of descriptors.
	acceptPause = 20 * time.Millisecond
)

// acceptLoop takes connections until the listener is closed.
func (e *Endpoint) acceptLoop() {
	for {
		tcp, err := e.ln.AcceptTCP()
		switch {
		case err == nil:
			e.admit(tcp)
		case errors.Is(err, net.ErrClosed):
			return
		default:
			if e.mayLog(e.self.Addr()) {
				e.cfg.Logger.Error("connections cannot be accepted", keyError, err)
			}
			if !e.pause(acceptPause) {
				return
			}
		}
	}
}

// pause waits, or returns false when the endpoint is shut down.
func (e *Endpoint) pause(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-e.shut:
		return false
	}
}

// admit has the exchange with a new connection done by a goroutine. If there are too many of them, the one that has
// waited longest gives way: it is more likely to be garbage than the new one.
func (e *Endpoint) admit(tcp *net.TCPConn) {
	e.mu.Lock()
	if len(e.half) >= maxHalfOpen {
		var oldest *net.TCPConn
		for t, n := range e.half {
			if oldest == nil || n < e.half[oldest] {
				oldest = t
			}
		}
		delete(e.half, oldest)
		_ = oldest.Close() // its goroutine notices
	}
	e.halfSeq++
	e.half[tcp] = e.halfSeq
	e.mu.Unlock()
	if !e.spawn(func() { e.handshake(tcp) }) {
		_ = tcp.Close() // nothing was sent
	}
}

// handshake reads a connection request and does what becomes of it.
func (e *Endpoint) handshake(tcp *net.TCPConn) {
	_ = tcp.SetDeadline(time.Now().Add(handshakeTime)) // a closed one needs none
	addr, _ := netip.ParseAddrPort(tcp.RemoteAddr().String())
	from := netip.AddrPortFrom(addr.Addr().Unmap().WithZone(""), addr.Port())
	m, req, err := readRequest(tcp)
	e.mu.Lock()
	delete(e.half, tcp)
	e.mu.Unlock()
	if err != nil {
		e.complain(from, err)
		if req != nil {
			_, _ = tcp.Write(nackOf(req)) // the peer is told if it can be
		}
		_ = tcp.Close()
		return
	}
	p := e.peer(netip.AddrPortFrom(from.Addr(), m.port))
	p.requested(tcp, m, req)
}

// readRequest reads a connection request. With an error, req is not nil if the request is to be refused rather than the
// connection just closed.
func readRequest(r io.Reader) (m cmMessage, req []byte, err error) {
	var b [cmHead + cmMaxData]byte
	if _, err := io.ReadFull(r, b[:cmHead]); err != nil {
		return m, nil, fmt.Errorf("a connection without a request: %w", err)
	}
	m, size := parseCMHead(b[:])
	if size < 0 || m.typ != cmRequest {
		return m, nil, errors.New("a connection that begins with something else than a request of this protocol")
	}
	req = b[:cmHead+size]
	if _, err := io.ReadFull(r, req[cmHead:]); err != nil {
		return m, nil, fmt.Errorf("a connection without a complete request: %w", err)
	}
	if size != cmData {
		return m, req, fmt.Errorf("refused a connection request with %d bytes of data; the native tcp provider sends %d, the peer speaks another protocol, perhaps tcp;ofi_rxm", size, cmData)
	}
	if m.probe != probeLittle {
		return m, req, errors.New("refused a connection request of a peer that is not little endian; Mercury does not support two byte orders in one network")
	}
	m.parseCMData(req)
	if m.port == 0 {
		return m, req, errors.New("refused a connection request with port 0, which can be no peer's")
	}
	return m, req, nil
}

// requested decides about the peer's connection request and carries that out.
func (p *peer) requested(tcp *net.TCPConn, m cmMessage, req []byte) {
	e := p.ep
	defer p.settle()
	try := &attempt{cancel: func() { _ = tcp.Close() }} // ends the answering
	p.mu.Lock()
	v := collide(p.link, e.self, p.addr, p.pid == m.pid)
	var old *conn
	var lost *attempt
	if v == verdictAccept {
		lost = p.try
		old = p.conn.Load()
		p.link, p.try, p.pid = linkAccepting, try, m.pid
		p.activate()
		p.firewalled = m.features&featureFirewall != 0
	}
	p.mu.Unlock()
	e.traceVerdict(p, v)
	if lost != nil {
		lost.abandon()
	}
	if old != nil {
		old.fail(na.Unreachable, errReplaced)
	}
	if v == verdictNack {
		_, _ = tcp.Write(nackOf(req)) // the peer is told if it can be
		_ = tcp.Close()
		return
	}
	answer := m
	answer.typ, answer.version, answer.pid = cmResponse, rdmVersion, e.pid
	answer.features &= featureFirewall
	_, err := tcp.Write(appendCM(nil, answer))
	if err != nil {
		_ = tcp.Close()
		p.notAccepted(try)
		return
	}
	p.accepted(try, v, tcp, m.pid)
}

// errReplaced is the cause of the end of a connection whose peer has made another one.
var errReplaced = errors.New("the peer made a new connection, so it was restarted or has lost this one")

// accepted makes the socket the connection, unless a later request has taken its place.
func (p *peer) accepted(try *attempt, v verdict, tcp *net.TCPConn, pid uint32) {
	sock, err := p.ep.prepare(tcp)
	if err != nil {
		p.notAccepted(try)
		return
	}
	c := newConn(p, sock)
	p.mu.Lock()
	ok := (v == verdictReflect || p.try == try) && p.ep.adopt(c)
	if ok && v == verdictAccept {
		p.upLocked(c, pid)
	}
	p.mu.Unlock()
	if !ok {
		_ = sock.Close() // nobody has used it
		return
	}
	c.start()
}

// notAccepted gives up the answering of a request. What waits for a connection gets an own attempt.
func (p *peer) notAccepted(try *attempt) {
	p.mu.Lock()
	var items []item
	var tags []waiter
	if p.try == try {
		p.link, p.try = linkIdle, nil
		if len(p.waiting) > 0 && !p.dialLocked() {
			items, tags = p.giveUpLocked()
		}
	}
	p.mu.Unlock()
	p.failAll(items, tags, na.Closed, nil)
}
