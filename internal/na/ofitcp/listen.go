package ofitcp

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"time"

	"cinnabar/internal/audit"
	"cinnabar/internal/hostquota"
	"cinnabar/internal/na"
	"cinnabar/internal/peerbook"
	"cinnabar/internal/tokenproof"
)

const (
	// handshakeTime bounds how long a connection may take to send its request.
	handshakeTime = 5 * time.Second
	// crowd is the number of handshakes from which on the endpoint pauses, because other goroutines and processes need the processors.
	crowd = 4
	// acceptTurn is the number of connections, some 200 µs of work, that a crowded endpoint accepts before it lets other goroutines run
	// and pauses for acceptRest. Both are short because the system hands connections out in the order in which they came, so that a
	// connection of a host with few waits for those of a host with many until all are accepted.
	acceptTurn = 16
	acceptRest = 100 * time.Microsecond
	// setupSpan is the time that set-ups of a crowded endpoint may take together before it pauses for as long.
	setupSpan = 500 * time.Microsecond
	// acceptPause follows a failure to accept, such as a lack of descriptors.
	acceptPause = 20 * time.Millisecond
	// probeTime is how long a connection has to answer a probe when another process connects as its peer.
	probeTime = time.Second
)

// Causes of events in the audit trail.
const (
	causeShare       = "the host's share of connections, or all of them, are in use"
	causeHandshakes  = "too many unfinished handshakes"
	causeDescriptors = "no descriptor is left"
	causeOwnAddress  = "a peer says that it is this endpoint"
	causeTaken       = "the connection of another process as the same peer lives"
	causeGone        = "another process connects as the peer, and the old connection does not answer"
	causeIdle        = "an idle connection gives way to a new one"
	causePlain       = "a peer without TLS"
	causeTLS         = "TLS handshake that failed"
	causeClaim       = "a peer with another certificate has the place of this address"
	causeNoToken     = "a peer without a token"
	causeToken       = "a peer that has not proven the token"
	causeOwnHello    = "a peer passed on a handshake of this endpoint"
	causeTokenHello  = "a peer with a token, which this endpoint has not"
	causeServerToken = "a dialed server that has not proven the token"
	causeAdmit       = "a peer that Config.Admit does not admit"
	causeRequest     = "connection without a valid request"
	causeMessage     = "malformed or unexpected message"
	causeLength      = "request of an invalid length"
	causeSender      = "request with an invalid sender's address"
	causeRead        = "read that is not allowed"
	causeWrite       = "write that is not allowed"
	causeFault       = "memory that is gone, such as that of a truncated file"
	causeUnread      = "answers left unread"
)

// acceptLoop takes connections until the listener is closed.
func (e *Endpoint) acceptLoop() {
	defer e.spare.close()
	for n := 1; ; n++ {
		tcp, err := e.ln.AcceptTCP()
		switch {
		case err == nil:
			e.admit(tcp)
			if n%acceptTurn == 0 && e.crowded() { // because Accept never waits in a flood of connections
				e.yield() // because Go's scheduler looks at the network only when no goroutine can run, and each handshake is one
				e.pause(acceptRest)
			}
			continue
		case errors.Is(err, net.ErrClosed):
			return
		case outOfDescriptors(err):
			e.relieve()
		default:
			e.cfg.Audit.Record(audit.Refused, "connections cannot be accepted", hostquota.Host{}, slog.String(keyError, err.Error()))
		}
		if !e.pause(acceptPause) {
			return
		}
	}
}

// relieve makes room when the process has no descriptor left: an idle connection gives way; without one, the descriptor
// that is kept for this purpose takes a new connection, to close it. Otherwise that connection's peer would take it for
// accepted.
func (e *Endpoint) relieve() {
	if e.evictIdle() {
		return
	}
	e.spare.close()
	defer e.spare.open()
	_ = e.ln.SetDeadline(time.Now().Add(acceptPause)) // the connection may be gone; a closed listener needs none
	tcp, err := e.ln.AcceptTCP()
	_ = e.ln.SetDeadline(time.Time{})
	if err != nil {
		return
	}
	from := remoteAddr(tcp)
	e.cfg.Audit.Record(audit.Refused, causeDescriptors, hostquota.HostOf(from.Addr()), peerAttr(from))
	_ = tcp.Close() // nothing was sent
}

// localAddr returns the IP address of this host's end of a connection.
func localAddr(tcp *net.TCPConn) netip.Addr {
	a, _ := tcp.LocalAddr().(*net.TCPAddr)
	if a == nil {
		return netip.Addr{}
	}
	return a.AddrPort().Addr().Unmap().WithZone("")
}

// remoteAddr returns the address of a connection's other end.
func remoteAddr(tcp *net.TCPConn) netip.AddrPort {
	a, _ := tcp.RemoteAddr().(*net.TCPAddr)
	if a == nil {
		return netip.AddrPort{}
	}
	from := a.AddrPort()
	return netip.AddrPortFrom(from.Addr().Unmap().WithZone(""), from.Port())
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

// admit enters a new connection into the table of half-open connections and starts its handshake, now or when it is its turn.
func (e *Endpoint) admit(tcp *net.TCPConn) {
	from := remoteAddr(tcp)
	h := &halfOpen{account: e.cfg.Quota.Account(hostquota.HostOf(from.Addr())), tcp: tcp, from: from, end: tcp}
	if !e.enterHalf(h) {
		e.cfg.Audit.Record(audit.Refused, causeHandshakes, h.account.Host(), peerAttr(from))
		_ = tcp.Close() // nothing was sent
		return
	}
	if !e.arrive(h) {
		e.startHandshake(h)
	}
}

// startHandshake starts the handshake of h on a goroutine of its own.
func (e *Endpoint) startHandshake(h *halfOpen) {
	if !e.spawn(func() { e.handshake(h) }) {
		e.leaveHalf(h)
		_ = h.tcp.Close() // nothing was sent
	}
}

// handshake reads a connection request, sets up a connection, and accepts or refuses it.
func (e *Endpoint) handshake(h *halfOpen) {
	tcp, from := h.tcp, h.from
	defer e.leaveHalf(h)
	began := time.Now()
	_ = tcp.SetDeadline(began.Add(handshakeTime)) // a closed one needs none
	hc := &handshakeConn{tcp: tcp}
	var m cmMessage
	var req []byte
	cause, err := causeTLS, e.secureServer(hc, h)
	if errors.Is(err, errPlainClient) {
		cause = causePlain
	}
	if err == nil {
		cause, err = e.verifyToken(hc)
	}
	if err == nil {
		cause = causeRequest
		m, req, err = readRequest(hc.stream())
	}
	if errors.Is(err, errTokenHello) {
		cause = causeTokenHello
		_, _ = hc.stream().Write(tokenproof.NoToken()) // the peer sees it if it can
	}
	var reason uint32
	refuse := func(event audit.Event, cause string, err error) {
		e.stats.complaints.Add(1)
		e.cfg.Audit.Record(event, cause, h.account.Host(), peerAttr(from), errorAttr(err))
		if req != nil {
			_, _ = hc.stream().Write(markedNack(req, reason)) // the peer sees it if it can
		}
		_ = tcp.Close()
	}
	if err != nil {
		event := audit.Broken
		if cause != causeRequest {
			event = audit.Refused
		}
		refuse(event, cause, err)
		return
	}
	addr := netip.AddrPortFrom(from.Addr(), m.port)
	account := h.account
	if own := m.sameProcess(e.pid, e.id.with(e.self, "")); own {
		addr, account = e.self, e.own.account
	} else if addr == e.self {
		refuse(audit.Refused, causeOwnAddress, nil)
		return
	} else if err := e.admitPeer(h, hc, began); err != nil {
		reason = cmNotAdmitted
		refuse(audit.Refused, causeAdmit, err)
		return
	}
	local := localAddr(tcp)
	s := e.beginSetup(account)
	defer func() {
		e.leaveHalf(h) // before s.end, which may pause
		s.end()
	}()
	sock, cause, err := e.setUp(hc, req, account)
	if err != nil {
		refuse(audit.Refused, cause, err)
		return
	}
	e.mu.Lock()
	in := h.at != nil
	h.end = sock
	e.mu.Unlock()
	if !in || !e.assignPeer(&caller{addr: addr, local: local, sock: sock, m: m, req: req, account: account, setup: s}) {
		account.Give(hostquota.Connections, 1)
		_ = sock.Close() // the peer sees that
	}
}

// setUp counts a connection and prepares its socket. On failure it also returns the cause for the audit trail.
func (e *Endpoint) setUp(h *handshakeConn, req []byte, account *hostquota.Account) (sock *socket, cause string, err error) {
	if err := e.takeConnection(account); err != nil {
		return nil, causeShare, err
	}
	if sock, err = e.prepareIn(h, req); err != nil {
		account.Give(hostquota.Connections, 1)
		return nil, causeDescriptors, err
	}
	return sock, "", nil
}

// readRequest reads a connection request. With an error, req is not nil if the request is to be refused rather than the
// connection just closed.
func readRequest(r io.Reader) (m cmMessage, req []byte, err error) {
	var b [cmHead + cmMaxData]byte
	n, err := io.ReadAtLeast(r, b[:cmLen], cmHead) // a request with less data is refused, so that nothing behind it is lost
	if err != nil {
		return m, nil, fmt.Errorf("a connection without a request: %w", err)
	}
	m, size := parseCMHead(b[:])
	if tokenproof.IsHello(b[:]) {
		return m, nil, errTokenHello
	}
	if size < 0 || m.typ != cmRequest {
		return m, nil, errors.New("a connection that begins with something else than a request of this protocol")
	}
	req = b[:cmHead+size]
	if _, err := io.ReadFull(r, req[min(n, len(req)):]); err != nil {
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

// caller is the sender of a connection request that has been read.
type caller struct {
	addr    netip.AddrPort // its host, and the port that it says it listens on
	local   netip.Addr     // the address of this host that it connected to
	sock    *socket
	m       cmMessage
	req     []byte // m as it came
	account *hostquota.Account
	setup   *setup // ended before assignPeer waits for another process

	answered bool // bytes of a response were written
}

// refuse sends a refusal, unless bytes of a response were written: the peer would take the refusal for a message of the connection.
// The caller of refuse closes the socket.
func (k *caller) refuse() { k.refuseBy(nackOf(k.req)) }

// refuseBy is refuse with the bytes of the refusal.
func (k *caller) refuseBy(nack []byte) {
	if !k.answered {
		_, _ = k.sock.TryWritev([][]byte{nack}) // the peer sees it if it can
	}
}

// assignPeer decides which peer the caller is, and makes its connection that peer's. It returns false if it refuses the
// caller.
//
// An address that has no connection is the caller's. If another process has a connection as the same peer, that one is
// probed by means of the kernel (see [sockio.Conn.Answers]). One that does not answer is replaced. If it answers, both
// processes live, and one of them is an impostor, or both are behind one address translator: then the first one keeps the
// address. The second one gets a peer object of its own if it has sent an identity, as Go peers do. A process in C sends
// none and is refused.
//
// One process may connect to several addresses of this endpoint. It takes them for several peers and makes a connection to each.
// Each connection has a peer object of its own here, because a response must travel over the connection of its request. A Go
// process sends another identity to each address that it dials. A process in C sends only its process number: a second connection
// with the same number is accepted if it reached another address of this host, and refused if it reached the same address,
// because it has then crossed a connection attempt of this endpoint. (Upstream refuses both.)
func (e *Endpoint) assignPeer(k *caller) bool {
	if !e.claims(k) {
		e.cfg.Audit.Record(audit.Refused, causeClaim, k.account.Host(), slog.String(keyPeer, e.scheme+k.addr.String()))
		k.refuseBy(markedNack(k.req, cmTaken))
		return false
	}
	for range 4 { // each connection that does not answer is one less
		p := e.peerOf(k)
		v, old := p.requested(k)
		if v == verdictBeside {
			v, old = e.twin(k).requested(k)
		}
		if v == verdictTaken {
			k.setup.end()
			if e.answers(old) {
				if k.m.id.isZero() || old != nil && !old.sock.Identity().Same(k.sock.Identity()) {
					e.cfg.Audit.Record(audit.Refused, causeTaken, k.account.Host(), slog.String(keyPeer, p.str))
					k.refuse()
					return false
				}
				if v, old = e.twin(k).requested(k); v == verdictTaken { // cannot be: twins of one identity are one process
					k.refuse()
					return false
				}
			} else {
				e.cfg.Audit.Record(audit.Replaced, causeGone, k.account.Host(), slog.String(keyPeer, p.str))
				old.fail(na.Unreachable, errReplaced)
				continue
			}
		}
		if v == verdictNack {
			k.refuse()
			k.setup.end()
			if old != nil && !e.answers(old) {
				old.fail(na.Unreachable, errReplaced) // the process has lost it, and will ask again
			}
		}
		return v != verdictNack
	}
	k.refuse()
	return false
}

// answers reports whether a connection lives, as far as the kernel can find out in probeTime. Where it cannot, a
// connection lives until keep-alive ends it. A connection that is being made counts as living.
func (e *Endpoint) answers(c *conn) bool {
	if c == nil {
		return true
	}
	if c.dead.Load() {
		return false
	}
	c.probing.Lock() // the probe changes the socket's options and restores them
	defer c.probing.Unlock()
	ok, err := c.sock.Answers(probeTime, e.shut)
	return ok || err != nil
}

// peerOf returns the peer that a caller means: the one of its address, or one that its identity has already.
func (e *Endpoint) peerOf(k *caller) *peer {
	if !e.proven(k) {
		return e.twin(k)
	}
	if !k.m.id.isZero() {
		if p := e.peers.Find(peerKey{addr: k.addr, id: k.m.id}); p != nil && p.conn.Load() != nil {
			return p
		}
	}
	return e.peerAt(peerKey{addr: k.addr})
}

// requested decides about the connection request of a caller that may be the peer, and carries that out. It returns the
// connection that is in the way of a request that is taken or refused.
func (p *peer) requested(k *caller) (verdict, *conn) {
	e := p.ep
	defer p.settle()
	try := &attempt{cancel: func() { _ = k.sock.Close() }} // ends the answering
	p.mu.Lock()
	v := collide(p.link, e.self, p.addr, k.m.sameProcess(p.pid, p.id))
	if v == verdictNack && !p.twin && k.m.id.isZero() && p.link >= linkAccepting && p.local.IsValid() && p.local != k.local {
		v = verdictBeside
	}
	old := p.conn.Load()
	if v == verdictNack || v == verdictTaken || v == verdictBeside {
		p.mu.Unlock()
		e.traceVerdict(p, v)
		return v, old
	}
	var lost *attempt
	if v == verdictAccept {
		lost = p.try
		p.link, p.try, p.pid, p.id, p.local = linkAccepting, try, k.m.pid, k.m.id, k.local
		p.activate()
		p.firewalled = p.firewalled && p.twin || k.m.features&featureFirewall != 0
	}
	p.mu.Unlock()
	e.traceVerdict(p, v)
	if lost != nil {
		lost.abandon()
	}
	answer := k.m
	answer.typ, answer.version, answer.pid = cmResponse, rdmVersion, e.pid
	answer.features &= featureFirewall
	if !answer.id.isZero() {
		answer.id = e.id.with(p.addr, "")
	}
	n, err := k.sock.TryWritev([][]byte{appendCM(nil, answer)})
	k.answered = n > 0
	if err != nil || n != cmLen || !p.accepted(try, v, k) {
		p.notAccepted(try)
		return verdictNack, nil
	}
	return v, nil
}

// errReplaced is the cause by which a connection ends after its peer has made another one.
var errReplaced = errors.New("the peer made a new connection and does not answer on this one, so it was restarted or has lost it")

// accepted makes the socket the connection, unless a later request has taken its place.
func (p *peer) accepted(try *attempt, v verdict, k *caller) bool {
	c := newConn(p, k.sock, k.account)
	c.inbound = true
	p.mu.Lock()
	ok := (v == verdictReflect || p.try == try) && p.ep.adopt(c)
	if ok && v == verdictAccept {
		p.upLocked(c, &k.m)
	}
	p.mu.Unlock()
	if ok {
		p.ep.cfg.Audit.Count(audit.Accepted, "by request of a peer")
		c.start()
	}
	return ok
}

// notAccepted gives up the answering of a request. Operations that wait for a connection get an own attempt.
func (p *peer) notAccepted(try *attempt) {
	p.mu.Lock()
	var items []item
	var tags []peerbook.Waiter
	if p.try == try {
		p.link, p.try = linkIdle, nil
		if len(p.waiting) > 0 && !p.dialLocked() {
			items, tags = p.giveUpLocked()
		}
	}
	p.mu.Unlock()
	p.failAll(items, tags, na.Closed, nil)
}

// peerAttr is the attribute of a line in the log about a connection's other end.
func peerAttr(a netip.AddrPort) slog.Attr { return slog.String(keyPeer, a.String()) }

// errorAttr is the attribute of a log line that carries an error.
func errorAttr(err error) slog.Attr {
	if err == nil {
		return slog.Attr{}
	}
	return slog.String(keyError, err.Error())
}
