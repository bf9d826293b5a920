package xfer

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"sync"

	"cinnabar/internal/hostquota"
	"cinnabar/verbs"
)

// asksLanes returns the number of lanes for which a request asks; 0: it does not ask.
func (d *delivery) asksLanes() uint8 {
	c := d.src.Choice
	if d.choosesPull && d.Lanes > 1 && d.lane.number == 0 && d.pullWishes&WishDryRun == 0 {
		return uint8(d.Lanes)
	}
	if d.Lanes < 2 || d.lane.number != 0 || c == nil || c.Wishes&WishDryRun != 0 || d.Protocol == Basic || d.src.Stream != nil || d.pull != nil {
		return 0
	}
	return uint8(d.Lanes)
}

// sentLanes are the lanes of a transfer at the sender.
type sentLanes struct {
	d      *delivery // of the first lane
	n      uint8
	size   int64
	shared *sharedProgress
	cancel context.CancelCauseFunc // ends all lanes
	wg     sync.WaitGroup

	mu sync.Mutex
	// lanes beside the first that were given a range
	// +checklocks:mu
	carried int
	// +checklocks:mu
	chunks int64
	// bytes of data that have crossed, without the head
	// +checklocks:mu
	crossed int64
	// the failure of the transfer
	// +checklocks:mu
	failed *failure
	// the first lane has succeeded, so that the others count no more
	// +checklocks:mu
	done bool
}

// newSentLanes prepares the lanes of a transfer; nil if it has one. The context is that of all lanes.
func (d *delivery) newSentLanes(ctx context.Context, a *agreement) (*sentLanes, context.Context) {
	if a.lanes.n < 2 {
		return nil, ctx
	}
	s := &sentLanes{d: d, n: a.lanes.n, size: a.size}
	d.src.share()
	if d.Progress != nil {
		s.shared = &sharedProgress{p: d.Progress()}
	}
	ctx, s.cancel = context.WithCancelCause(ctx)
	return s, ctx
}

// start connects the other lanes.
func (s *sentLanes) start(ctx context.Context, ref laneRef) {
	for lane := uint8(1); lane < s.n; lane++ {
		of := ref
		of.lane = lane
		s.wg.Go(func() { s.carry(ctx, of) })
	}
}

// carry carries one lane beside the first. A lane to which no connection was agreed, or that the receiver ends as busy before it has asked for a range, is left out, because the others carry its part.
func (s *sentLanes) carry(ctx context.Context, ref laneRef) {
	one := *s.d.Sender
	one.Trace = nil
	d := &delivery{Sender: &one, dev: s.d.dev, addr: s.d.addr, digest: s.d.digest, timeout: s.d.timeout, log: s.d.log, lane: ref, lanes: s,
		src: Source{Name: s.d.src.Name, Data: s.d.src.Data, Size: s.size, Choice: &Choice{Must: true}}}
	err := d.do(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.chunks += d.result.Chunks
	if d.carried {
		s.carried++
	}
	switch {
	case err == nil || s.done:
	case d.result.Protocol != Fast, !d.carried && isBusy(asFailure(err)): // it was not agreed, or has no part
		d.log.LogAttrs(ctx, slog.LevelWarn, "lane left out", slog.Int("lane", int(ref.lane)+1), slog.Any("err", err))
	default:
		s.failLocked(laneFailure(ref.lane, s.n, asFailure(err)))
	}
}

// failLocked ends all lanes with the reason of one. The reason may come after its consequences for other lanes.
//
// +checklocks:s.mu
func (s *sentLanes) failLocked(f *failure) {
	if s.failed == nil {
		s.cancel(f)
	}
	if s.failed == nil || f.consequence() < s.failed.consequence() {
		s.failed = f
	}
}

// consequence returns a number that is larger for failures that are more likely the consequence of another lane's: the peer repeats a reason on all lanes, and connections end.
func (f *failure) consequence() int {
	switch {
	case f.remote && f.code == CodeCanceled:
		return 4
	case f.remote:
		return 1
	case f.code == CodeCanceled:
		return 3
	case f.code == CodeLost || f.code == CodeTimeout:
		return 2
	}
	return 0
}

// isBusy reports whether the receiver has given its lack of places as the reason.
func isBusy(f *failure) bool { return f.remote && f.code == CodeBusy }

// hasCarried reports whether the receiver has asked for a range of data on the connection of a machine, beyond the head.
func hasCarried(m machine) bool {
	c, ok := m.(*fastClient)
	return ok && c.choice != nil && c.choice.data > 0
}

// spread returns the function for the session of a lane: it counts the bytes of data that cross on it.
func (s *sentLanes) spread(head int64) func(kept int64) {
	return func(kept int64) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.crossed += s.size - head - kept
	}
}

// join waits for the ends of the other lanes, after the end of the first one, and returns the result and the error of the transfer.
func (s *sentLanes) join(res *Result, err error) error {
	if s == nil {
		return err
	}
	s.mu.Lock()
	if err != nil {
		s.failLocked(asFailure(err))
	} else {
		s.done = true
		s.cancel(failf(CodeCanceled, "the transfer is complete"))
	}
	s.mu.Unlock()
	s.wg.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	res.Chunks += s.chunks
	res.Lanes = s.carried + 1
	if err != nil {
		return s.failed
	}
	res.Kept = s.size - s.d.src.Choice.Head - s.crossed
	s.shared.advance(res.Kept)
	return nil
}

// share allows several goroutines to read a source that has a Choice.
func (s *Source) share() {
	if s.Concurrent {
		return
	}
	lock := &sync.Mutex{}
	s.Data = lockedReader{s.Data, lock}
	c := *s.Choice
	if c.SumData != nil {
		c.SumData = lockedReader{c.SumData, lock}
	}
	s.Choice = &c
}

// lockedReader is a source that one goroutine at a time reads.
type lockedReader struct {
	io.ReaderAt
	mu *sync.Mutex
}

// ReadAt implements [io.ReaderAt].
func (r lockedReader) ReadAt(b []byte, offset int64) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.ReaderAt.ReadAt(b, offset)
}

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

// enter takes a place for a request. The request for a further lane must have the secret of its transfer before it may take one.
func (h *host) enter(req *verbs.ConnRequest) (*place, error) {
	account, private := h.book.Account(hostOf(req)), req.PrivateData()
	if !isLane(private) {
		p, err := h.places.enter(account)
		if err != nil {
			return nil, failf(CodeBusy, "%w", err)
		}
		return p, nil
	}
	hi, err := parseHello(private)
	if err == nil {
		_, err = h.groupOf(hi.join)
	}
	if err != nil {
		return nil, err
	}
	return h.places.enterLane(account)
}

// groupOf returns the transfer that the request for a further lane names, which must be under way and have the secret of the request.
func (h *host) groupOf(ref *laneRef) (*laneGroup, error) {
	g, over := h.lanes.find(ref)
	switch {
	case g == nil:
		return nil, failf(CodeProtocol, "the request is for a lane of a transfer that this receiver does not have, or has the wrong secret")
	case over:
		return nil, failf(CodeBusy, "the transfer of this lane has ended")
	}
	return g, nil
}

// chooseLane answers the request for a further lane.
func (h *host) chooseLane(hi *hello) (a agreement, why string, err error) {
	g, err := h.groupOf(hi.join)
	switch {
	case err != nil:
		return a, "", err
	case hi.digest != g.digest:
		return a, "", failf(CodeProtocol, "the request of lane %d has digest %s, and the transfer %s", int(hi.join.lane)+1, hi.digest, g.digest)
	}
	if err := g.claim(hi.join.lane); err != nil {
		return a, "", err
	}
	a = agreement{negotiated: true, protocol: Fast, chooses: true, digest: g.digest, size: g.agreed, pull: g.pull, lanes: lanesAgreed{ref: *hi.join, group: g}}
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

// makeFile makes the file of a transfer, for its first lane if it has several. ctx is that of the file.
func (h *host) makeFile(ctx context.Context, req *verbs.ConnRequest, name string, a *agreement) (File, error) {
	g := a.lanes.group
	f, err := h.first.open(ctx, req, g != nil, func() (File, error) { return h.Open(ctx, req.RemoteAddr(), name, a.meta, a.size) })
	if err != nil || g == nil || f == nil {
		return f, err
	}
	return g.open(ctx, name, f), nil
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

// In a pull of several lanes the puller connects the lanes, and as the receiver of ADR 0057 it also divides the file among them, by its laneGroup. A further lane sends the REQUEST of
// the first one again, because the side that connects speaks first, and the server answers with the same name and size. A lane that ends before it has a part does not end the pull.

// pullLanes returns the group of a pull at the puller, and the context of its lanes with the function that ends them. The group is nil if one lane was granted. For a further lane
// the function does nothing, because the first lane ends the others.
func (d *delivery) pullLanes(ctx context.Context, a *agreement) (g *laneGroup, lanes context.Context, end context.CancelCauseFunc) {
	if d.group != nil {
		return d.group, ctx, func(error) {}
	}
	if a.lanes.n < 2 {
		return nil, ctx, func(error) {}
	}
	of := *a
	of.pull, of.size = true, -1
	g = newLaneGroup(a.lanes.n, &of)
	g.ref = a.lanes.ref
	if d.Progress != nil {
		g.shared = &sharedProgress{p: d.Progress()}
	}
	ctx, end = context.WithCancelCause(ctx)
	g.enter(0, end)
	return g, ctx, end
}

// spreadPull returns the part that the first lane of a pull has in the file f, and connects the other lanes, each by a goroutine of wg. It returns f itself if the file is too small
// for several lanes. ofFile is the context of the file.
func (d *delivery) spreadPull(ctx, ofFile context.Context, g *laneGroup, s *session, m *puller, name string, f File, wg *sync.WaitGroup) File {
	n := lanesFor(int64(g.lanes), m.size-m.choice.head)
	if n < 2 {
		return f
	}
	g.mu.Lock()
	g.size, g.lanes = m.size, uint8(n)
	g.mu.Unlock()
	spread := g.open(ofFile, name, f)
	s.setLanes(int(n))
	for lane := uint8(1); lane < g.lanes; lane++ {
		ref := g.ref
		ref.lane = lane
		wg.Go(func() { d.carryPull(ctx, g, ref) })
	}
	return spread
}

// carryPull carries one lane of a pull beside the first. A lane that fails before the server has opened the file for it is left out, because the others carry its part.
func (d *delivery) carryPull(ctx context.Context, g *laneGroup, ref laneRef) {
	one := *d.Sender
	next := &delivery{Sender: &one, dev: d.dev, addr: d.addr, src: d.src, digest: d.digest, timeout: d.timeout, log: d.log, pull: d.pull, choosesPull: true, lane: ref, group: g}
	if err := next.do(ctx); err != nil && g.leavesOut(ref.lane) {
		d.log.LogAttrs(ctx, slog.LevelWarn, "lane left out", slog.Int("lane", int(ref.lane)+1), slog.Any("err", err))
	}
}

// leavesOut reports whether a pull goes on without a lane that has failed.
func (g *laneGroup) leavesOut(lane uint8) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.failed == nil && !g.done && g.opened>>lane&1 == 0
}

// joinPull makes the file of a lane of a pull beside the first.
func (g *laneGroup) joinPull(lane uint8, name string, m *puller, chunks func() int64) (File, error) {
	g.mu.Lock()
	size := g.size
	g.mu.Unlock()
	if m.size != size {
		why := failf(CodeProtocol, "lane %d is for a file of %d bytes, and the pull for one of %d", int(lane)+1, m.size, size)
		g.fail(laneFailure(lane, g.lanes, why)) // because a lane that has not joined would be left out
		return nil, why
	}
	return g.join(lane, name, chunks)
}

// reason returns the failure of a transfer of which the first lane has ended with err: that of another lane if err is only a consequence of it.
func (g *laneGroup) reason(err error) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if err != nil && g.failed != nil && g.failed.consequence() < asFailure(err).consequence() {
		return g.failed
	}
	return err
}

// servedLanes is the part of a laneGroup at a server of files: the source, which all lanes read.
type servedLanes struct {
	request FileRequest
	source  Source
	spread  bool // the source is open, and large enough for several lanes
	closed  bool // no further lane may read the source
	readers int  // lanes beside the first that read the source
}

// spreadServed lets the other lanes read the source of the first one, and returns the number of lanes that the size allows; 1 if the source is too small for several.
func (g *laneGroup) spreadServed(r FileRequest, src *Source) int {
	n := lanesFor(int64(g.lanes), src.Size-src.Choice.Head)
	if n < 2 {
		return 1
	}
	src.share()
	g.mu.Lock()
	defer g.mu.Unlock()
	g.size, g.head = src.Size, src.Choice.Head
	g.served.request, g.served.source, g.served.spread = r, *src, true
	return int(n)
}

// openServed returns the source for a lane beside the first. The first lane closes the source after all closers of openServed were called.
func (g *laneGroup) openServed(lane uint8, r FileRequest) (Source, io.Closer, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	v := &g.served
	switch {
	case !v.spread || r != v.request:
		return Source{}, nil, failf(CodeProtocol, "lane %d asks for another file than the first lane of its pull, or before that one is open, or for a file that is too small for several lanes", int(lane)+1)
	case v.closed || g.done || g.failed != nil:
		return Source{}, nil, failf(CodeBusy, "the transfer of this lane has ended")
	}
	v.readers++
	src := v.source
	src.Choice = &Choice{SumData: src.Choice.SumData}
	return src, laneReader{g}, nil
}

// laneReader is the use of a served source by a lane beside the first.
type laneReader struct{ g *laneGroup }

// Close implements [io.Closer].
func (r laneReader) Close() error {
	r.g.mu.Lock()
	defer r.g.mu.Unlock()
	r.g.served.readers--
	r.g.changed.Broadcast()
	return nil
}

// endServed notes the end of a lane at a server of files. If a lane fails of which data was asked for, all lanes fail with its reason. If the first lane succeeds, the others end.
func (g *laneGroup) endServed(lane uint8, c *fastClient, chunks int64, err error) {
	data := int64(0)
	if c.choice != nil {
		data = c.choice.data
	}
	g.mu.Lock()
	delete(g.cancels, lane)
	g.data += data
	g.chunks[lane] = chunks
	if lane > 0 && data > 0 {
		g.carried |= 1 << lane
	}
	if lane == 0 && err == nil {
		g.done = true
		for _, cancel := range g.cancels {
			cancel(failf(CodeCanceled, "the transfer is complete"))
		}
	}
	lanes := g.lanes
	g.mu.Unlock()
	switch f := asFailure(err); {
	case err == nil, lane > 0 && data == 0:
	case lane > 0:
		g.fail(laneFailure(lane, lanes, f))
	default:
		g.fail(f)
	}
}

// joinServed completes the result of a pull at a server of files after the first lane has ended with err, and returns the error of the pull. It waits until no other lane reads the
// source. This takes no longer than one read and the end of a connection, because endServed has ended all lanes.
func (g *laneGroup) joinServed(res *Result, err error) error {
	g.mu.Lock()
	v := &g.served
	v.closed = true
	for v.readers > 0 {
		g.changed.Wait()
	}
	spread := v.spread
	g.mu.Unlock()
	if !spread {
		return err
	}
	if g.result(res, err); err == nil {
		g.shared.advance(res.Kept)
	}
	return g.reason(err)
}
