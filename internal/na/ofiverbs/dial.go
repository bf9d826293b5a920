package ofiverbs

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"time"

	"cinnabar/internal/audit"
	"cinnabar/internal/hostquota"
	"cinnabar/internal/na"
	"cinnabar/internal/na/ofiaddr"
	"cinnabar/verbs"
)

const (
	// retryFirst and retryMax bound the time between two attempts.
	retryFirst = 2 * time.Millisecond
	retryMax   = 250 * time.Millisecond
	// acceptPause follows a failure to accept.
	acceptPause = 20 * time.Millisecond
	// retryCount and rnrRetry are those of libfabric: 7 is the most, and for the receiver that is not ready it stands for ever.
	retryCount = 7
	rnrRetry   = 7
)

// Causes of events in the audit trail.
const (
	causeShare      = "the host's share of connections, or all of them, are in use"
	causeHandshakes = "too many unfinished handshakes"
	causeDevice     = "the device makes no further connection"
	causeOwnAddress = "a peer says that it is this endpoint"
	causeRequest    = "connection without a valid request"
	causeReplaced   = "another process connects as the peer"
	causePacket     = "malformed or unexpected packet"
	causeSender     = "request with an invalid sender's address"
)

// dialLocked starts an attempt after a pause. False: the endpoint is closed.
//
// +checklocks:p.mu
func (p *peer) dialLocked(pause time.Duration) bool {
	ctx, cancel := context.WithCancel(p.ep.ctx)
	try := &attempt{cancel: cancel}
	if !p.ep.spawn(func() {
		defer cancel()
		if pause == 0 || p.pauseRefused(ctx, try, pause) {
			p.dial(ctx, try)
		}
	}) {
		cancel()
		return false
	}
	p.link, p.try = linkDialing, try
	return true
}

// dial makes a connection, or fails the operations that wait for it. A refusal because of another connection is waited out, since it
// means that a connection of the peer's is on its way; one by its host only if Config says so.
func (p *peer) dial(ctx context.Context, try *attempt) {
	if err := p.account.Take(hostquota.Connections, 1); err != nil {
		p.giveUp(try, na.Unreachable, err)
		return
	}
	begin := time.Now()
	for wait := retryFirst; ; wait = min(2*wait, retryMax) {
		c, process, err := p.connect(ctx)
		if err == nil {
			p.connected(try, c, process)
			return
		}
		retry := p.ep.cfg.DialRetry
		if errors.Is(err, errAlready) {
			retry = p.ep.cfg.DialTimeout
		} else if errors.Is(err, errOtherRXM) {
			retry = 0
		}
		if time.Since(begin)+wait > retry || !p.pauseRefused(ctx, try, wait) {
			p.account.Give(hostquota.Connections, 1)
			p.ep.trace("peer cannot be dialed", p, err)
			p.giveUp(try, na.Unreachable, err)
			return
		}
	}
}

// pauseRefused lets time pass before the next attempt, during which any request of the peer's is welcome. False: the attempt is over.
func (p *peer) pauseRefused(ctx context.Context, try *attempt, d time.Duration) bool {
	if !p.setLink(try, linkRefused) {
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

var (
	// errAlready is the error of a refusal by a peer that has a connection with this endpoint, or is making one.
	errAlready = errors.New("the peer refused the connection: it has one with this endpoint, or was making one that did not come about")
	// errRefused is the error of a refusal by a peer to which the request is not acceptable.
	errRefused = errors.New("the peer refused the connection: its libfabric has other settings (FI_OFI_RXM_BUFFER_SIZE), or it takes no more connections")
)

// connect makes one attempt. The caller has counted the connection.
func (p *peer) connect(ctx context.Context) (*conn, uint32, error) {
	e := p.ep
	ctx, cancel := context.WithTimeout(ctx, e.cfg.DialTimeout)
	defer cancel()
	c, err := newConn(p, p.account)
	if err != nil {
		return nil, 0, err
	}
	flow := cmRequest{port: e.self.Port(), flow: flowOn, eager: eagerLimit, receives: uint32(e.shape.receives), id: c.id()}
	c.vc, err = verbs.Dial(ctx, c.qp, p.addr, verbs.ConnParam{PrivateData: appendExtension(appendRequest(nil, flow), e.byteMR.Remote()), RetryCount: retryCount, RNRRetry: rnrRetry})
	if err != nil {
		return nil, 0, errors.Join(explainDial(ctx, err), c.release())
	}
	a, err := parseAccept(c.vc.PrivateData())
	if err != nil {
		return nil, 0, errors.Join(fmt.Errorf("the peer's answer to the connection request: %w", err), c.release())
	}
	if err := c.confirmBy(parseExtension(c.vc.PrivateData(), acceptLen)); err != nil {
		return nil, 0, errors.Join(err, c.release())
	}
	c.begin(a.id.index, a.flow, false)
	return c, a.id.process, nil
}

// explainDial returns the error of an attempt in terms of this protocol.
func explainDial(ctx context.Context, err error) error {
	rejected, ok := errors.AsType[*verbs.RejectedError](err)
	switch {
	case ok:
		switch parseReject(rejected.PrivateData) {
		case rejectAlready:
			return errAlready
		case rejectRefused:
			return errRefused
		case rejectNone:
			return fmt.Errorf("%w; it may have given up a request of its own at this moment", err)
		}
	case ctx.Err() != nil && context.Cause(ctx) != nil:
		return fmt.Errorf("no connection in time: %w", err)
	}
	return err
}

// connected makes c the connection, unless the attempt was given up meanwhile.
func (p *peer) connected(try *attempt, c *conn, process uint32) {
	p.mu.Lock()
	ok := p.try == try && p.ep.adopt(c)
	if ok {
		p.upLocked(c, process)
	}
	p.mu.Unlock()
	if !ok {
		p.ep.trace("connection given up", p, c.release())
		p.account.Give(hostquota.Connections, 1)
		return
	}
	c.flush()
}

// acceptLoop answers connection requests until the listener is closed.
func (e *Endpoint) acceptLoop() {
	for {
		req, err := e.ln.Accept(e.ctx)
		switch {
		case err == nil:
			e.admit(req)
		case e.ctx.Err() != nil || errors.Is(err, verbs.ErrClosed) || errors.Is(err, verbs.ErrDeviceRemoved):
			return
		default:
			e.cfg.Audit.Record(audit.Refused, "connections cannot be accepted", hostquota.Host{}, errorAttr(err))
			timer := time.NewTimer(acceptPause)
			select {
			case <-timer.C:
			case <-e.ctx.Done():
			}
			timer.Stop()
		}
	}
}

// admit answers a connection request on a goroutine of its own, because the answer may wait for the peer.
func (e *Endpoint) admit(req *verbs.ConnRequest) {
	account := e.cfg.Quota.Account(hostquota.HostOf(req.RemoteAddr().Addr()))
	refuse := func() { _ = req.Reject(appendReject(nil, rejectRefused)) } // the peer may be gone
	if err := account.Take(hostquota.Handshakes, 1); err != nil {
		e.cfg.Audit.Record(audit.Refused, causeHandshakes, account.Host(), slog.String(keyPeer, req.RemoteAddr().String()), errorAttr(err))
		if !e.spawn(refuse) {
			refuse()
		}
		return
	}
	if !e.spawn(func() {
		e.answer(req, account)
		account.Give(hostquota.Handshakes, 1)
	}) {
		account.Give(hostquota.Handshakes, 1)
		refuse()
	}
}

// answer accepts or refuses a connection request.
func (e *Endpoint) answer(req *verbs.ConnRequest, account *hostquota.Account) {
	from := req.RemoteAddr()
	refuse := func(reason rejectReason, event audit.Event, cause string, err error) {
		if cause != "" {
			e.cfg.Audit.Record(event, cause, account.Host(), slog.String(keyPeer, from.String()), errorAttr(err))
		}
		_ = req.Reject(appendReject(nil, reason)) // the peer may be gone
	}
	m, err := parseRequest(req.PrivateData())
	if err != nil {
		refuse(rejectRefused, audit.Broken, causeRequest, err)
		return
	}
	addr := netip.AddrPortFrom(from.Addr().Unmap().WithZone(""), m.port)
	p := e.peer(addr)
	if own := m.id.process == e.process; own && p == e.own {
		account = p.account
	} else if p == e.own {
		refuse(rejectRefused, audit.Refused, causeOwnAddress, nil)
		return
	}
	if err := account.Take(hostquota.Connections, 1); err != nil {
		refuse(rejectRefused, audit.Refused, causeShare, err)
		return
	}
	ctx, cancel := context.WithTimeout(e.ctx, e.cfg.DialTimeout)
	defer cancel()
	try := &attempt{cancel: cancel}
	v, old := p.requested(try, m.id.process)
	if v == verdictRefuse {
		account.Give(hostquota.Connections, 1)
		refuse(rejectAlready, audit.Refused, "", nil)
		return
	}
	if old != nil {
		e.cfg.Audit.Record(audit.Replaced, causeReplaced, account.Host(), slog.String(keyPeer, p.str))
		old.fail(na.Unreachable, errReplaced)
	}
	c, err := newConn(p, account)
	if err == nil {
		if err = c.confirmBy(parseExtension(req.PrivateData(), requestLen)); err != nil {
			err = errors.Join(err, c.release())
		}
	}
	if err != nil {
		refuse(rejectRefused, audit.Refused, causeDevice, err)
	} else {
		a := appendExtension(appendAccept(nil, cmAccept{id: c.id(), receives: uint32(e.shape.receives), flow: flowOn}), e.byteMR.Remote())
		if c.vc, err = req.Accept(ctx, c.qp, verbs.ConnParam{PrivateData: a, RetryCount: retryCount, RNRRetry: rnrRetry}); err != nil {
			e.trace("connection request given up", p, errors.Join(err, c.release()))
		}
	}
	if err != nil {
		account.Give(hostquota.Connections, 1)
		p.notAccepted(try, v)
		return
	}
	c.begin(m.id.index, m.flow, true)
	if p.accepted(try, v, c, m.id.process) {
		e.cfg.Audit.Count(audit.Accepted, "by request of a peer")
		c.flush()
		return
	}
	e.trace("connection given up", p, c.release())
	account.Give(hostquota.Connections, 1)
}

// verdict is the decision about a connection request.
type verdict uint8

const (
	verdictAccept  verdict = iota // it becomes the connection; an own attempt, or an old connection, is given up
	verdictRefuse                 // there is another connection, or an own attempt that survives
	verdictReflect                // it is this endpoint's own: it becomes the receiving end beside the dialing one
)

// errReplaced is the cause by which a connection ends after its peer has made another one.
var errReplaced = errors.New("another process has connected as the same peer, so the peer was restarted")

// requested decides about a connection request of p (rxm_process_connreq). Of two attempts that cross, the one of the higher address
// survives. Beside an existing connection the same process asks again only because its request was on its way before; another process
// is the peer after a restart. In that case requested also returns the old connection, which the caller ends.
func (p *peer) requested(try *attempt, process uint32) (verdict, *conn) {
	e := p.ep
	p.mu.Lock()
	defer p.mu.Unlock()
	if p == e.own {
		if p.link != linkDialing { // another process of this host, which has learned the number of this one from an acceptance
			return verdictRefuse, nil
		}
		return verdictReflect, nil
	}
	var old *conn
	switch p.link {
	case linkDialing:
		if ofiaddr.Compare(p.addr, e.self) < 0 {
			return verdictRefuse, nil
		}
	case linkAccepting, linkUp:
		if process == p.process {
			return verdictRefuse, nil
		}
		old = p.conn.Load()
	case linkIdle, linkRefused:
	}
	if p.try != nil {
		p.try.cancel()
	}
	p.link, p.try, p.process = linkAccepting, try, process
	p.activate()
	return verdictAccept, old
}

// accepted makes c the connection, unless a later request has taken its place.
func (p *peer) accepted(try *attempt, v verdict, c *conn, process uint32) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if v == verdictAccept && p.try != try || !p.ep.adopt(c) {
		return false
	}
	if v == verdictAccept {
		p.upLocked(c, process)
	}
	return true
}

// notAccepted gives up the answering of a request. Operations that wait for a connection get an own attempt.
func (p *peer) notAccepted(try *attempt, v verdict) {
	if v == verdictReflect {
		return
	}
	var unsent []item
	p.mu.Lock()
	if p.try == try {
		p.link, p.try = linkIdle, nil
		if len(p.waiting) > 0 && !p.dialLocked(0) {
			unsent, p.waiting = p.waiting, nil
		}
	}
	p.mu.Unlock()
	failItems(p, unsent, na.Closed, nil)
	p.settle()
}
