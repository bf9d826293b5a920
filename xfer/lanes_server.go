package xfer

import (
	"context"
	"fmt"
	"log/slog"
	"sync"

	"cinnabar/internal/hostquota"
	"cinnabar/verbs"
)

// grantLanes grants lanes to a transfer, if its sender asks for them.
func (h *host) grantLanes(account *hostquota.Account, hi *hello, a *agreement) {
	if hi.lanes < 2 || a.protocol != Fast || !a.chooses || h.attr.MaxPrivateData < answerLen+MaxDigestLen+laneRefLen {
		return
	}
	g := h.lanes.grant(account, min(int64(hi.lanes), int64(or(h.MaxLanes, defaultLanes))), a)
	if g == nil {
		return
	}
	if h.Progress != nil {
		g.shared = &sharedProgress{p: h.Progress()}
	}
	a.lanes = lanesAgreed{n: g.lanes, ref: g.ref, group: g}
}

// chooseLane answers the request for a further lane.
func (h *host) chooseLane(hi *hello) (a agreement, why string, err error) {
	g, over := h.lanes.find(hi.join)
	switch {
	case g == nil:
		return a, "", failf(CodeProtocol, "the request is for a lane of a transfer that this receiver does not have, or has another secret than it")
	case over:
		return a, "", failf(CodeBusy, "the transfer of this lane has ended")
	case hi.digest != g.digest:
		return a, "", failf(CodeProtocol, "the request of lane %d has digest %s, and the transfer %s", hi.join.lane, hi.digest, g.digest)
	}
	if err := g.claim(hi.join.lane); err != nil {
		return a, "", err
	}
	a = agreement{negotiated: true, protocol: Fast, chooses: true, digest: g.digest, size: g.size, lanes: lanesAgreed{ref: *hi.join, group: g}}
	h.size(&a, hi)
	return a, "a lane of a transfer", nil
}

// refuseTransfer refuses a request and reports it. A lane with the secret of its transfer is refused without a report, because the transfer goes on without it.
func (h *host) refuseTransfer(req *verbs.ConnRequest, why error) error {
	if b := req.PrivateData(); isLane(b) {
		if hi, err := parseHello(b); err == nil {
			if g, _ := h.lanes.find(hi.join); g != nil {
				h.reject(req, why)
				return why
			}
		}
	}
	return h.refuse(req, why)
}

// makeFile makes the file of a transfer, for its first lane if it has several.
func (h *host) makeFile(req *verbs.ConnRequest, name string, a *agreement) (File, error) {
	g := a.lanes.group
	f, err := h.first.open(req, g != nil, func() (File, error) { return h.open(req.RemoteAddr(), name, a.meta, a.size) })
	if err != nil || g == nil || f == nil {
		return f, err
	}
	return g.open(name, f), nil
}

// reportLane logs the end of a lane beside the first, and returns the error. The report about the transfer is that of the first lane.
func (h *host) reportLane(req *verbs.ConnRequest, a *agreement, err error) error {
	if err != nil {
		h.log.LogAttrs(context.Background(), slog.LevelDebug, "lane ended", slog.String("peer", req.RemoteAddr().String()), slog.Int("lane", int(a.lanes.ref.lane)+1), slog.Any("err", err))
	}
	return err
}

// sharedProgress is the observer of a transfer of several lanes. Its methods may be called on nil, which observes nothing.
type sharedProgress struct {
	mu sync.Mutex
	// +checklocks:mu
	p Progress
	// Start was called, and Finish was
	// +checklocks:mu
	started, finished bool
}

// observer returns the observer of one lane; nil for a nil *sharedProgress.
func (s *sharedProgress) observer(lane uint8) Progress {
	switch {
	case s == nil:
		return nil
	case lane == 0:
		return firstLaneProgress{s}
	}
	return laneProgress{s}
}

// advance adds bytes of a lane. Those after the end of the transfer are not observed.
func (s *sharedProgress) advance(n int64) {
	if s == nil || n <= 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.started && !s.finished {
		s.p.Advance(n)
	}
}

// laneProgress is the observer of a lane beside the first.
type laneProgress struct{ *sharedProgress }

// Start implements [Progress]. The first lane begins the transfer.
func (l laneProgress) Start(Result) {}

// Advance implements [Progress].
func (l laneProgress) Advance(n int64) { l.advance(n) }

// Finish implements [Progress]. The first lane ends the transfer.
func (l laneProgress) Finish(Result, error) {}

// firstLaneProgress is the observer of the first lane.
type firstLaneProgress struct{ *sharedProgress }

// Start implements [Progress].
func (l firstLaneProgress) Start(res Result) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.started = true
	l.p.Start(res)
}

// Advance implements [Progress].
func (l firstLaneProgress) Advance(n int64) { l.advance(n) }

// Finish implements [Progress].
func (l firstLaneProgress) Finish(res Result, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.finished = true
	l.p.Finish(res, err)
}

// laneFailure returns a failure with the number of the lane that has it. The reason of the peer has that already, and a cancelled context concerns all lanes.
func laneFailure(lane, lanes uint8, f *failure) *failure {
	if f.remote || f.code == CodeCanceled {
		return f
	}
	return &failure{code: f.code, remote: f.remote, err: fmt.Errorf("lane %d of %d: %w", lane+1, lanes, f)}
}
