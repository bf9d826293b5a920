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
	// acceptPause follows a failure to accept.
	acceptPause = 20 * time.Millisecond
	// retryCount and rnrRetry are those of libfabric: 7 is the most, and for the receiver that is not ready it stands for ever.
	retryCount = 7
	rnrRetry   = 7
)

// Causes of events in the audit trail.
const (
	causeShare      = "the host's share of connections, or all of them, are in use"
	causeIdle       = "an idle connection gives way to a new one"
	causeHandshakes = "too many unfinished handshakes"
	causeDevice     = "the device makes no further connection"
	causeOwnAddress = "a peer says that it is this endpoint"
	causeFirewalled = "this endpoint accepts no connections"
	causeAdmit      = "a peer that Config.Admit does not admit"
	causeRequest    = "connection without a valid request"
	causeReplaced   = "another process connects as the peer, and the device of the peer does not answer"
	causeTaken      = "the connection of another process as the same peer lives"
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
	if err := p.ep.takeConnection(p.account); err != nil {
		p.giveUp(try, na.Unreachable, err)
		return
	}
	begin := time.Now()
	for wait := ofiaddr.RetryFirst; ; wait = min(2*wait, ofiaddr.RetryMax) {
		c, process, err := p.connect(ctx)
		if err == nil {
			p.connected(try, c, process)
			return
		}
		retry := p.ep.cfg.DialRetry
		if errors.Is(err, errAlready) {
			retry = p.ep.cfg.DialTimeout
		} else if errors.Is(err, errOtherRXM) || errors.Is(err, verbs.ErrDeviceRemoved) || p.onlyJoins() {
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
	errRefused = errors.New("the peer refused the connection: its libfabric has other settings (FI_OFI_RXM_BUFFER_SIZE), it accepts none, or it has no room for more")
)

// connect makes one attempt. The caller has counted the connection.
func (p *peer) connect(ctx context.Context) (*conn, uint32, error) {
	e := p.ep
	ctx, cancel := context.WithTimeout(ctx, e.cfg.DialTimeout)
	defer cancel()
	c, err := e.makeConn(ctx, p, p.account, false)
	if err != nil {
		return nil, 0, err
	}
	id := c.id()
	if p == e.own {
		id.process = e.ownProcess
	}
	flow := cmRequest{port: e.self.Port(), flow: flowOn, eager: eagerLimit, receives: uint32(e.shape.receives), id: id}
	c.vc, err = verbs.Dial(ctx, c.qp, p.addr, verbs.ConnParam{PrivateData: appendExtension(appendRequest(nil, flow), e.byteMR.Remote()), RetryCount: retryCount, RNRRetry: rnrRetry})
	if err != nil {
		return nil, 0, errors.Join(explainDial(ctx, err), c.release())
	}
	c.origin.id = c.vc.Identity()
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
		case e.ctx.Err() != nil || errors.Is(err, verbs.ErrClosed):
			return
		case errors.Is(err, verbs.ErrDeviceRemoved):
			e.cfg.Logger.Error("the device was removed; this endpoint accepts no further connections, and its operations fail", "device", e.attr.Name, keyError, err)
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
	if p == e.own && m.id.process == e.ownProcess {
		account = p.account
	} else if p == e.own {
		refuse(rejectRefused, audit.Refused, causeOwnAddress, nil)
		return
	} else if e.cfg.Firewalled {
		refuse(rejectRefused, audit.Refused, causeFirewalled, nil)
		return
	} else if err := e.cfg.Admit.Admit(e.ctx, account.Host(), req.Identity()); err != nil {
		refuse(rejectRefused, audit.Refused, causeAdmit, err)
		return
	}
	if err := e.takeConnection(account); err != nil {
		refuse(rejectRefused, audit.Refused, causeShare, err)
		return
	}
	ctx, cancel := context.WithTimeout(e.ctx, e.cfg.DialTimeout)
	defer cancel()
	try := &attempt{cancel: cancel}
	v, old := p.requested(try, m.id.process)
	for ; v == verdictTaken; v, old = p.requested(try, m.id.process) { // each connection that does not answer is one less
		if old.answers(ctx) || ctx.Err() != nil {
			account.Give(hostquota.Connections, 1)
			refuse(rejectAlready, audit.Refused, causeTaken, nil)
			return
		}
		e.cfg.Audit.Record(audit.Replaced, causeReplaced, account.Host(), slog.String(keyPeer, p.str))
		old.fail(na.Unreachable, errReplaced)
	}
	if v == verdictRefuse {
		account.Give(hostquota.Connections, 1)
		refuse(rejectAlready, audit.Refused, "", nil)
		if old != nil && !old.answers(ctx) && ctx.Err() == nil {
			old.fail(na.Unreachable, errForgotten) // the process will ask again
		}
		return
	}
	c, err := e.makeConn(ctx, p, account, m.flow != flowOff)
	if err == nil {
		if err = c.confirmBy(parseExtension(req.PrivateData(), requestLen)); err != nil {
			err = errors.Join(err, c.release())
		}
	}
	if err != nil {
		refuse(rejectRefused, audit.Refused, causeDevice, err)
	} else {
		a := appendExtension(appendAccept(nil, cmAccept{id: c.id(), receives: uint32(c.shape.window), flow: flowOn}), e.byteMR.Remote())
		if c.vc, err = req.Accept(ctx, c.qp, verbs.ConnParam{PrivateData: a, RetryCount: retryCount, RNRRetry: rnrRetry}); err != nil {
			e.trace("connection request given up", p, errors.Join(err, c.release()))
		}
	}
	if err != nil {
		account.Give(hostquota.Connections, 1)
		p.notAccepted(try, v)
		return
	}
	c.origin.id = c.vc.Identity()
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
	verdictAccept  verdict = iota // it becomes the connection; an own attempt is given up
	verdictRefuse                 // there is another connection, or an own attempt that survives
	verdictReflect                // it is this endpoint's own: it becomes the receiving end beside the dialing one
	verdictTaken                  // another process has a connection as the same peer
)

// errReplaced is the cause by which a connection ends after its peer has made another one.
var errReplaced = errors.New("another process has connected as the same peer, and the device of the peer does not answer on this connection, so the peer was restarted")

// errForgotten is the cause of the end of a connection that the peer does not have any more.
var errForgotten = errors.New("the peer has asked for another connection, and its device does not answer on this one")

// requested decides about a connection request of p (rxm_process_connreq). Of two attempts that cross, the one of the higher address
// survives. If a connection exists, a further request of the same process was sent before that connection was made, or because the process has
// lost it. A request of another process comes from the peer after a restart, or from an impostor. Unlike libfabric, this endpoint ends the
// existing connection if the peer's device does not answer on it, and only then. Therefore requested returns that connection with verdictTaken
// and verdictRefuse.
func (p *peer) requested(try *attempt, process uint32) (verdict, *conn) {
	e := p.ep
	p.mu.Lock()
	defer p.mu.Unlock()
	if p == e.own {
		if p.link != linkDialing { // this endpoint has given the attempt up in the meantime
			return verdictRefuse, nil
		}
		return verdictReflect, nil
	}
	switch p.link {
	case linkDialing:
		if ofiaddr.Compare(p.addr, e.self) < 0 {
			return verdictRefuse, nil
		}
	case linkAccepting, linkUp:
		c := p.conn.Load()
		if process == p.process {
			return verdictRefuse, c
		}
		if c != nil && !c.dead.Load() {
			return verdictTaken, c
		}
	case linkIdle, linkRefused:
	}
	if p.try != nil {
		p.try.cancel()
	}
	p.link, p.try, p.process = linkAccepting, try, process
	p.activate()
	return verdictAccept, nil
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
