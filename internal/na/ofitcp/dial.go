package ofitcp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"
	"time"

	"cinnabar/internal/hostquota"
	"cinnabar/internal/na"
	"cinnabar/internal/na/ofiaddr"
	"cinnabar/internal/sockio"
	"cinnabar/internal/tlsio"
)

// dialLocked starts an attempt. False: the endpoint is closed.
//
// +checklocks:p.mu
func (p *peer) dialLocked() bool {
	ctx, cancel := context.WithCancel(context.Background())
	try := &attempt{cancel: cancel, done: make(chan struct{})}
	if !p.ep.spawn(func() {
		defer cancel()
		defer close(try.done)
		p.dial(ctx, try)
	}) {
		cancel()
		return false
	}
	p.link, p.try = linkDialing, try
	return true
}

// errNack is the error of a peer's refusal: it has a connection with this endpoint already, or is making one.
var errNack = errors.New("the peer refused the connection: it has one with this endpoint, perhaps by another address of its own, or was making one that did not come about")

// dial makes a connection, or fails the operations that wait for it. A refusal by the peer's endpoint is waited out, since it means
// that a connection of the peer's is on its way; one by its host only if Config says so.
func (p *peer) dial(ctx context.Context, try *attempt) {
	e := p.ep
	if err := e.takeConnection(p.account); err != nil {
		p.dialFailed(try, err)
		return
	}
	begin := time.Now()
	for wait := ofiaddr.RetryFirst; ; wait = min(2*wait, ofiaddr.RetryMax) {
		h, answer, err := p.connect(ctx, try)
		if err == nil {
			p.connected(try, h, answer)
			return
		}
		try.failed.note(err)
		retry := e.cfg.DialRetry
		if errors.Is(err, errNack) {
			retry = e.cfg.DialTimeout
		} else if !errors.Is(err, syscall.ECONNREFUSED) || p.onlyJoins() {
			retry = 0
		}
		if time.Since(begin)+wait > retry || !p.waitNacked(ctx, try, wait) {
			p.account.Give(hostquota.Connections, 1)
			p.dialFailed(try, err)
			return
		}
	}
}

// waitNacked lets time pass before the next attempt, during which any request of the peer's is welcome. False: the
// attempt is over.
func (p *peer) waitNacked(ctx context.Context, try *attempt, d time.Duration) bool {
	if !p.setLink(try, linkNacked) {
		return false
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
	return p.setLink(try, linkDialing)
}

func (p *peer) setLink(try *attempt, s linkState) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.try != try {
		return false
	}
	p.link = s
	return true
}

// connect dials the peer and exchanges connection messages.
func (p *peer) connect(ctx context.Context, try *attempt) (*handshakeConn, cmMessage, error) {
	e := p.ep
	ctx, cancel := context.WithTimeout(ctx, e.cfg.DialTimeout)
	defer cancel()
	to := p.addr
	if p == e.own { // the advertised address may not be reachable from this host
		to = e.local
	}
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: e.local.Addr().AsSlice()}, KeepAlive: -1}
	nc, err := d.DialContext(ctx, "tcp", to.String())
	if err != nil {
		return nil, cmMessage{}, e.explainDial(p, err)
	}
	tcp, ok := nc.(*net.TCPConn)
	if !ok {
		return nil, cmMessage{}, fmt.Errorf("the dialer returned a %T", nc)
	}
	stop := context.AfterFunc(ctx, func() { _ = tcp.SetDeadline(sockio.Past) }) // a closed one needs no deadline
	h := &handshakeConn{tcp: tcp}
	var answer cmMessage
	if err = p.secureClient(h); err == nil {
		err = p.proveToken(h)
	}
	if err == nil {
		answer, err = p.exchange(h.stream(), try)
	}
	if !stop() && err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		_ = tcp.Close() // the error at hand is the one to report
		return nil, answer, err
	}
	return h, answer, nil
}

// explainDial explains a dial's error where the system does not.
func (e *Endpoint) explainDial(p *peer, err error) error {
	if e.local.Addr().IsLoopback() && !p.addr.Addr().IsLoopback() && !errors.Is(err, syscall.ECONNREFUSED) {
		return fmt.Errorf("%w; this endpoint's address is %v, which reaches its own host only: open it on another one", err, e.local.Addr())
	}
	return err
}

// exchange sends a connection request, in one write since upstream reads it in one, and reads the answer.
func (p *peer) exchange(rw io.ReadWriter, try *attempt) (cmMessage, error) {
	e := p.ep
	if !try.sent.CompareAndSwap(attemptQuiet, attemptSent) {
		return cmMessage{}, errors.New("given up in favour of a connection of the peer's")
	}
	defer try.sent.CompareAndSwap(attemptSent, attemptQuiet)
	req := cmMessage{typ: cmRequest, version: rdmVersion, port: e.self.Port(), pid: e.pid, id: e.id.with(p.addr, p.name), probe: probeLittle}
	if e.cfg.Firewalled {
		req.features = featureFirewall
	}
	if _, err := rw.Write(appendCM(nil, req)); err != nil {
		return cmMessage{}, fmt.Errorf("connection request: %w", err)
	}
	var b [cmLen]byte
	if _, err := io.ReadFull(rw, b[:cmHead]); err != nil {
		return cmMessage{}, fmt.Errorf("answer to the connection request: %w", err)
	}
	m, size := parseCMHead(b[:])
	switch {
	case size < 0 || m.typ != cmResponse && m.typ != cmNack:
		return m, errors.New("the peer's answer to the connection request is none of this protocol")
	case m.typ == cmNack:
		return m, refusalOf(m.mark) // its data is ours
	case size != cmData:
		return m, errors.New("the peer speaks another protocol than that of the native tcp provider, perhaps tcp;ofi_rxm")
	case m.probe != probeLittle:
		return m, errors.New("the peer's byte order is not little endian, which Mercury does not support in one network")
	}
	if _, err := io.ReadFull(rw, b[cmHead:]); err != nil {
		return m, fmt.Errorf("answer to the connection request: %w", err)
	}
	m.parseCMData(b[:])
	return m, nil
}

// connected makes the dialed socket the connection, unless the attempt was given up meanwhile.
func (p *peer) connected(try *attempt, h *handshakeConn, answer cmMessage) {
	local := localAddr(h.tcp)
	sock, err := p.ep.prepare(h)
	if err != nil {
		_ = h.tcp.Close() // the error at hand is the one to report
		p.account.Give(hostquota.Connections, 1)
		p.dialFailed(try, err)
		return
	}
	c := newConn(p, sock, p.account)
	p.mu.Lock()
	ok := p.try == try && p.ep.adopt(c)
	if ok {
		p.local = local
		p.upLocked(c, &answer)
	}
	p.mu.Unlock()
	if !ok {
		p.account.Give(hostquota.Connections, 1)
		_ = sock.Close() // it was not used
		return
	}
	c.start()
}

// dialFailed fails the operations that wait, unless the attempt was given up meanwhile.
func (p *peer) dialFailed(try *attempt, err error) {
	p.mu.Lock()
	if p.try != try {
		p.mu.Unlock()
		return
	}
	items, tags := p.giveUpLocked()
	p.mu.Unlock()
	p.ep.trace("peer cannot be dialed", p, err)
	p.failAll(items, tags, na.Unreachable, err)
}

// prepareIn is prepare for a connection after its request has been read. It gets the descriptors that waiting takes, too,
// because a connection that is answered must not fail for want of them. If none is left, an idle connection gives way.
func (e *Endpoint) prepareIn(h *handshakeConn, req []byte) (*socket, error) {
	sock, err := e.prepare(h)
	if outOfDescriptors(err) && e.evictIdle() {
		sock, err = e.prepare(h)
	}
	if err != nil {
		return nil, err
	}
	ready := func() bool { return true }
	err = sock.WaitRead(ready)
	if outOfDescriptors(err) && e.evictIdle() {
		err = sock.WaitRead(ready)
	}
	if err != nil {
		_, _ = sock.TryWritev([][]byte{nackOf(req)}) // the peer sees it if it can
		_ = sock.Close()                             // the error at hand is the one to report
		return nil, err
	}
	return sock, nil
}

// prepare sets the options of a socket and takes it over. After an error the socket is the caller's still, or closed.
func (e *Endpoint) prepare(h *handshakeConn) (*socket, error) {
	tcp := h.tcp
	_ = tcp.SetDeadline(time.Time{}) // sockio does not use the socket's deadlines
	if k := e.cfg.KeepAlive; k > 0 {
		cfg := net.KeepAliveConfig{Enable: true, Idle: wholeSeconds(k / 2), Interval: wholeSeconds(k / 4), Count: 2}
		if err := tcp.SetKeepAliveConfig(cfg); err != nil {
			return nil, fmt.Errorf("keep-alive of %v: %w", k, err)
		}
	} else if e.cfg.Listener != nil {
		_ = tcp.SetKeepAlive(false) // a Listener that Open has not made turns it on; a dead connection stays closed
	}
	sock, err := sockio.New(tcp)
	if err != nil {
		return nil, err
	}
	sock.Join(e.poller) // here, because Close may close the socket of a handshake at any time from now on
	if d := e.cfg.SendTimeout; d > 0 {
		if err := sock.SetUserTimeout(d); err != nil && !errors.Is(err, errors.ErrUnsupported) {
			_ = sock.Close() // the error at hand is the one to report
			return nil, err
		}
	}
	if h.tls != nil {
		h.tls.Attach(sock)
	}
	return &socket{tlsio.Stream{Conn: sock, TLS: h.tls}}, nil
}

// wholeSeconds rounds up to whole seconds, because the system's options hold no fractions.
func wholeSeconds(d time.Duration) time.Duration {
	return max(time.Second, (d + time.Second - 1).Truncate(time.Second))
}
