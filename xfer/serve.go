package xfer

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"cinnabar/internal/audit"
	"cinnabar/internal/hostquota"
	"cinnabar/verbs"
)

// serve answers one request and carries its transfer out.
func (h *host) serve(ctx context.Context, req *verbs.ConnRequest, p *place) (Result, error) {
	start := time.Now()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	if !isLane(req.PrivateData()) { // a lane's transfer has begun
		p.begin(cancel)
	}
	res := Result{Peer: req.RemoteAddr()}
	a, why, err := h.decide(req.PrivateData(), p.account)
	if err != nil {
		return res, h.refuseTransfer(req, err)
	}
	if g := a.lanes.group; g != nil {
		g.enter(a.lanes.ref.lane, cancel)
		if a.lanes.ref.lane == 0 {
			defer h.lanes.remove(g)
		}
	}
	a.solo = a.digest != NoDigest && !a.stream && isSolo(req.LocalAddr(), req.RemoteAddr())
	if a.counted > 0 {
		defer p.account.Give(hostquota.Memory, a.counted)
	}
	l, region, err := h.prepare(&a)
	if err != nil {
		return res, h.refuseTransfer(req, classed(CodeStorage, err))
	}
	res.Protocol, res.Immediate, res.Buffers, res.Chunk, res.Digest = a.protocol, a.imm, a.buffers, a.chunk, a.digest
	var watcher Progress
	if res.Pulled = a.pull; a.pull { // the number of its lanes depends on the file
		watcher, err = h.serveFile(ctx, req, p, l, a, why, &res)
	} else {
		res.Lanes = int(a.lanes.n)
		watcher, err = h.receiveWith(ctx, req, p, l, region, a, why, &res)
	}
	closeResources(l, h.log)
	if a.lanes.ref.lane > 0 {
		return res, h.reportLane(req, &a, err)
	}
	if cause := context.Cause(ctx); err != nil && errors.Is(cause, errGaveWay) {
		err = cause // because err is only a consequence of it
	}
	res.Duration = time.Since(start)
	err = h.report(req, res, err)
	if watcher != nil {
		watcher.Finish(res, err)
	}
	return res, err
}

// decide chooses protocol, form and buffers from the private data of a request,
// and returns the reason for the log. The memory of the buffers is counted for the sender's host.
func (h *host) decide(private []byte, account *hostquota.Account) (a agreement, why string, err error) {
	imm := h.attr.Caps.Has(verbs.CapWriteImm)
	least := minChunk
	var hi hello
	if !isOurs(private) {
		if !imm {
			return a, "", failf(CodeUnsupported, "the receiver's device %s has no write with immediate data, which the paper's program needs", h.attr.Name)
		}
		if h.Protocol == Fast {
			return a, "", failf(CodeUnsupported, "this receiver has the fast protocol only")
		}
		if !h.takesUncompared() {
			return a, "", failf(CodeUnsupported, "this receiver takes digest %s only, and the paper's program has none", h.Digest)
		}
		a = agreement{protocol: Basic, imm: true, digest: NoDigest, buffers: 1, chunk: basicChunk, size: -1}
		why, least = "the sender is a program of the paper", basicChunk
	} else {
		if hi, err = parseHello(private); err != nil {
			return a, "", err
		}
		if hi.join != nil {
			a, why, err = h.chooseLane(&hi)
		} else {
			a, why, err = h.choose(hi, imm)
		}
		if err != nil {
			return a, "", err
		}
	}
	if a.buffers, a.chunk, a.counted = h.take(account, a.buffers, a.chunk, least); a.buffers == 0 {
		_, memory := h.Limits()
		return a, "", failf(CodeBusy, "the receiver's %d bytes for buffers are in use or kept for other hosts; it has more with Receiver.MaxMemory", memory)
	}
	if hi.join == nil {
		h.grantLanes(account, &hi, &a) // last, because a request that is refused gives no lanes back
	}
	return a, why, nil
}

// choose answers a hello.
func (h *host) choose(hi hello, imm bool) (a agreement, why string, err error) {
	a = agreement{negotiated: true, digest: hi.digest, size: int64(hi.size), meta: hi.meta, buffers: 1}
	if hi.stream || hi.pull {
		a.stream, a.pull, a.size = hi.stream, hi.pull, -1
	}
	fast, basic := (hi.fast || hi.stream || hi.pull) && h.Protocol != Basic, hi.basic && h.Protocol != Fast && h.takesUncompared()
	switch {
	case hi.pull && (h.Files == nil || h.first != nil):
		return a, "", failf(CodeUnsupported, "this receiver has no files to pull, which a server of files has (cinnabar serve-files)")
	case !h.Hashes.has(hi.digest):
		return a, "", h.Hashes.unknown(hi.digest, "receiver")
	case h.Digest != "" && hi.digest != h.Digest && fast:
		return a, "", failf(CodeUnsupported, "this receiver takes digest %s only, and the sender asks for %s", h.Digest, hi.digest)
	case !fast && hi.basic && !h.takesUncompared():
		return a, "", failf(CodeUnsupported, "this receiver takes digest %s only, and the basic protocol, which the sender offers, has none", h.Digest)
	case fast:
		a.protocol, why = Fast, "both sides have it"
		a.chooses = hi.choice && !hi.stream // because a stream has no ranges to choose from
		h.size(&a, &hi)
		return a, why, nil
	case basic:
		a.protocol, a.digest, why = Basic, NoDigest, "both sides have write with immediate data"
		a.imm = hi.imm && imm
		switch {
		case !imm:
			why = "the receiver's device lacks write with immediate data"
		case !hi.imm:
			why = "the sender's device lacks write with immediate data"
		}
	default:
		return a, "", failf(CodeUnsupported, "the sender offers no protocol that this receiver takes (%v)", h.Protocol)
	}
	a.chunk = h.chunk(or(int64(hi.chunk), basicChunk))
	a.fit()
	return a, why, nil
}

// size chooses the buffers of the fast protocol.
func (h *host) size(a *agreement, hi *hello) {
	a.buffers = min(or(int(hi.buffers), defaultBuffers), or(h.MaxWindow, defaultMaxWindow))
	a.chunk = h.chunk(or(int64(hi.chunk), defaultChunk))
	a.fit()
}

// chunk returns the length of a buffer for which a sender asks, within the limits of this side.
func (h *host) chunk(asked int64) int {
	most := min(int64(or(h.MaxChunk, defaultMaxChunk)), messageLimit(&h.attr))
	return int(max(min(asked, most), minChunk))
}

// fit reduces the buffers to the size of the file: a chunk that is larger
// than the file becomes as small as that, in steps of the smallest one, and buffers
// without a chunk are left out.
func (a *agreement) fit() {
	if a.size < 0 { // it is not known
		return
	}
	if int64(a.chunk) > a.size {
		a.chunk = min(a.chunk, max((int(a.size)+minChunk-1)/minChunk, 1)*minChunk)
	}
	if chunks := a.size / int64(a.chunk); int64(a.buffers) > chunks { // one may be short
		a.buffers = int(max(chunks+min(a.size%int64(a.chunk), 1), 1))
	}
}

// prepare makes the objects of a transfer with its buffers: step 3 without the receives.
func (h *host) prepare(a *agreement) (*resources, verbs.RemoteAddr, error) {
	l, err := newResources(h.dev, a.buffers, a.protocol == Basic && a.imm, a.chooses)
	if err != nil {
		return nil, verbs.RemoteAddr{}, err
	}
	access := verbs.RemoteWrite
	if a.pull {
		access = 0 // the buffers are read into, and written to the puller's
	}
	if err := l.allocate(a.buffers, a.chunk, access); err != nil {
		return nil, verbs.RemoteAddr{}, errors.Join(err, l.close())
	}
	return l, l.data.Remote(), nil
}

// receiveWith accepts the request and carries the transfer out with the objects of l. It returns
// when l is not in use any more.
func (h *host) receiveWith(ctx context.Context, req *verbs.ConnRequest, p *place, l *resources, region verbs.RemoteAddr, a agreement, why string, res *Result) (watcher Progress, err error) {
	var blocking interruptible
	ofFile, end := context.WithCancelCause(ctx)
	defer end(nil)
	endName := func() {}
	var s *session
	store := &storer{buf: l.data.Bytes(), chunk: a.chunk,
		make: func(name string) (File, error) {
			if err := p.named(); err != nil {
				return nil, err
			}
			if a.lanes.ref.lane > 0 {
				return blocking.keep(a.lanes.group.join(a.lanes.ref.lane, name, s.chunks))
			}
			f, over, err := h.names.open(ofFile, name, func() (File, error) { return h.makeFile(ofFile, req, name, &a) })
			if err == nil {
				endName = over // the worker has stopped when it is called
			}
			return blocking.keep(f, err)
		}}
	if a.chooses {
		store.offer = &Offer{Size: a.size, NewHash: h.Hashes.sumHash(a.digest)}
	}
	s = newSession(l, h.machine(a, l, region), a, h.Hashes, endingWith(ofFile, store.do))
	s.timeout, s.opening, s.endFile = h.timeout, openTimeout, end
	if a.protocol == Fast {
		s.steps = store.steps
	}
	if h.Trace != nil && a.lanes.ref.lane == 0 {
		s.trace = h.Trace()
	}
	switch g := a.lanes.group; {
	case g != nil:
		s.progress, s.spread = g.shared.observer(a.lanes.ref.lane), func(int64) {}
	case h.Progress != nil:
		s.progress = h.Progress()
	}
	if err = h.connect(ctx, req, s); err == nil {
		h.trail.Record(audit.Accepted, a.protocol.String(), hostOf(req), agreementAttrs("", req.RemoteAddr(), &a, why)...)
		s.begin(*res, false)
		*res, err = s.run(ctx)
	}
	if g := a.lanes.group; g != nil {
		g.end(a.lanes.ref.lane, res.Chunks, err)
		if a.lanes.ref.lane == 0 {
			g.result(res, err)
			err = g.reason(err)
		}
	}
	end(endOf(err)) // because close waits for the worker, and so for Open and the file's methods
	blocking.interrupt()
	s.close(ctx)
	derr := store.discard()
	endName()
	if derr != nil {
		h.log.LogAttrs(ctx, slog.LevelWarn, "incomplete file not removed", slog.String("file", res.Name), slog.Any("err", derr))
	}
	return s.observer(), err
}

// connect posts the receives, then accepts: steps 3 and 4 begin with it.
func (h *host) connect(ctx context.Context, req *verbs.ConnRequest, s *session) (err error) {
	receives := 1
	if s.agreed.protocol == Fast {
		receives = s.res.receives
	}
	for slot := range receives {
		if err := s.receive(slot); err != nil {
			h.reject(req, err)
			return err
		}
	}
	var private []byte
	if s.agreed.negotiated {
		private = appendAnswer(nil, answer{protocol: s.agreed.protocol, imm: s.agreed.imm, choice: s.agreed.chooses, digest: s.agreed.digest,
			chunk: uint32(s.agreed.chunk), buffers: uint16(s.agreed.buffers), lanes: s.agreed.lanes.n, transfer: s.agreed.lanes.ref})
	}
	ctx, cancel := context.WithTimeout(ctx, min(h.timeout, openTimeout))
	defer cancel()
	s.res.conn, err = req.Accept(ctx, s.res.qp, verbs.ConnParam{PrivateData: private})
	if err != nil {
		return failf(CodeLost, "cannot accept the connection: %w", err)
	}
	return nil
}

func (h *host) machine(a agreement, l *resources, region verbs.RemoteAddr) machine {
	if a.protocol == Fast {
		return newFastServer(a, region)
	}
	return &basicServer{agreement: a, buf: l.data.Bytes(), region: region}
}
