package xfer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"time"

	"cinnabar/verbs"
)

// Sender sends files. Its fields may not be changed while Send runs; any number
// of Sends may run at once. The zero value is ready for use.
type Sender struct {
	Protocol Protocol // Auto: fast if the receiver has it
	Window   int      // buffers to ask the receiver for, at most 1024; 0: 8. Basic has one; a file that fills fewer gets no more
	Chunk    int      // bytes of each, 4 KiB to 1 GiB; 0: the receiver chooses, 512 KiB as a rule, 10 MiB for Basic
	// Digest is the digest of the fast protocol; "": SHA256. A transfer by the basic protocol has none. If Digest is one of Hashes,
	// Send offers the fast protocol only, and fails with CodeUnsupported if the receiver does not have the digest.
	Digest Digest
	Hashes Hashes // digests besides SHA256
	// Lanes is the number of connections over which Send spreads a source that has a Choice, at most [MaxLanes]; 0: 1. The receiver may grant
	// fewer: it has limits of its own, and grants at most one lane for each 4 MiB of the source. Send leaves out a lane that cannot connect. If a lane fails later, the
	// transfer fails.
	Lanes int
	// Timeout bounds the time without progress, after which Send ends the transfer,
	// and the time until the receiver accepts; 0: 30 s. A chunk should take less.
	Timeout time.Duration
	// Progress returns an observer for each transfer; nil: none.
	Progress func() Progress
	// Trace returns a tracer for each transfer; nil: none. Of a transfer of several lanes it gets the steps of the first one.
	Trace  func() Tracer
	Logger *slog.Logger // nil: discard
}

// Send connects to the receiver at addr and sends one file. It returns when the
// receiver has confirmed that the file is stored under its name, or with an
// [*Error]. Send waits for a read of src.Data that blocks even if ctx ends,
// because it writes to memory that is gone when Send returns.
//
// With a receiver that is the paper's program, or on a device that carries no
// private data, the basic protocol is used, and the receiver does not learn the reason
// if the transfer ends early.
func (s *Sender) Send(ctx context.Context, dev *verbs.Device, addr netip.AddrPort, src Source) (Result, error) {
	start := time.Now()
	d := &delivery{Sender: s, dev: dev, addr: addr, src: src, timeout: or(s.Timeout, defaultTimeout), log: s.Logger}
	if d.log == nil {
		d.log = slog.New(slog.DiscardHandler)
	}
	if d.Trace != nil {
		d.tracer = d.Trace()
	}
	d.result.Name, d.result.Peer = src.Name, addr
	if src.Stream != nil {
		d.src.Size = -1
	}
	d.digest = cmp.Or(s.Digest, SHA256)
	err := d.do(ctx)
	d.result.Duration = time.Since(start)
	if err != nil {
		f := asFailure(err)
		err = &Error{Op: "send", Name: src.Name, Peer: addr, Code: f.code, Remote: f.remote, Err: f.err}
	}
	if d.watcher != nil {
		d.watcher.Finish(d.result, err)
	}
	return d.result, err
}

// delivery is one Send.
type delivery struct {
	*Sender
	dev     *verbs.Device
	addr    netip.AddrPort
	src     Source
	digest  Digest // of Sender, or its default
	timeout time.Duration
	log     *slog.Logger
	attr    verbs.DeviceAttr
	result  Result
	tracer  Tracer   // nil: none
	watcher Progress // nil: none, or the transfer has not begun

	pull *FileRequest // the request of a pull (pull.go); nil: src is sent
	// Open of a pull
	makeFile func(ctx context.Context, from netip.AddrPort, name string, meta Meta, size int64) (File, error)
	// This side offers that its file, of a pull, chooses the ranges that cross.
	choosesPull bool
	pullWishes  Wishes // of this side, for its file of a pull
	pullRemove  func(ctx context.Context, path string, directory bool) bool

	group *laneGroup // of the pull, for a further lane; nil otherwise
	lane  laneRef    // the further lane that the delivery carries; number 0: the delivery is the first lane, or the only one
	lanes *sentLanes // of the transfer; nil: it has one lane
	// The receiver has asked for ranges of data on this connection.
	carried bool
}

func (d *delivery) do(ctx context.Context) (err error) {
	if err := d.check(); err != nil {
		return err
	}
	if d.attr, err = d.dev.Query(); err != nil {
		return err
	}
	if limit := messageLimit(&d.attr); int64(d.Chunk) > limit {
		return failf(CodeTooLarge, "chunks of %d bytes are over the limit of %d of a port of device %s (PortAttr.MaxMsgSize)", d.Chunk, limit, d.attr.Name)
	}
	if need := helloLen + len(d.digest); d.digest.named() && d.attr.MaxPrivateData < need {
		return failf(CodeUnsupported, "device %s carries %d bytes of private data; a request with digest %s has %d", d.attr.Name, d.attr.MaxPrivateData, d.digest, need)
	}
	if (d.src.Stream != nil || d.pull != nil) && d.attr.MaxPrivateData < helloLen {
		return failf(CodeUnsupported, "device %s carries %d bytes of private data; a request for a stream, or to receive, has %d", d.attr.Name, d.attr.MaxPrivateData, helloLen)
	}
	l, err := newResources(d.dev, or(d.Window, defaultBuffers), false, d.offersChoice())
	if err != nil {
		return err
	}
	defer closeResources(l, d.log)
	return d.sendWith(ctx, l)
}

// check refuses settings that can never work.
func (d *delivery) check() error {
	if err := d.checkStream(); err != nil {
		return err
	}
	if d.src.Size < 0 && d.src.Stream == nil {
		return failf(CodeSource, "the source's size is %d", d.src.Size)
	}
	if c := d.src.Choice; c != nil && (c.Head < 0 || c.Head > d.src.Size) {
		return failf(CodeSource, "the head of the source is said to have %d bytes, and the source %d", c.Head, d.src.Size)
	}
	if d.Protocol > Fast {
		return failf(CodeUnsupported, "%v does not exist", d.Protocol)
	}
	if err := d.Hashes.check(); err != nil {
		return err
	}
	if !d.Hashes.has(d.digest) {
		return d.Hashes.unknown(d.digest, "sender")
	}
	if d.Protocol == Basic && d.digest.named() {
		return failf(CodeUnsupported, "digest %s is for the fast protocol; the basic protocol has no digest", d.digest)
	}
	if d.Timeout < 0 {
		return failf(CodeOther, "the timeout is %v; it must be positive, or 0 for %v", d.Timeout, defaultTimeout)
	}
	if err := checkRange("the number of lanes", int64(d.Lanes), 1, MaxLanes, "lanes"); err != nil {
		return err
	}
	if err := checkRange("the window", int64(d.Window), 1, maxBuffers, "buffers"); err != nil {
		return err
	}
	if err := checkRange("the chunk size", int64(d.Chunk), minChunk, maxChunk, "bytes"); err != nil {
		return err
	}
	return checkWireName(d.src.Name)
}

// sendWith connects and sends with the objects of l. It returns when l is not in use any more.
func (d *delivery) sendWith(ctx context.Context, l *resources) error {
	if err := d.connect(ctx, l); err != nil {
		return err
	}
	agreed, err := d.agree(l.conn.PrivateData())
	if c := d.src.Choice; err == nil && c != nil && c.Must && !agreed.chooses {
		err = failf(CodeUnsupported, "the receiver takes whole files and trees only; it cannot ask for parts")
	}
	if err == nil {
		err = l.allocate(localBuffers(&agreed), agreed.chunk, d.access())
	}
	if err != nil {
		l.disconnect(ctx, disconnectLimit)
		return err
	}
	d.result.Protocol, d.result.Immediate, d.result.Buffers, d.result.Chunk = agreed.protocol, agreed.imm, agreed.buffers, agreed.chunk
	d.result.Digest = agreed.digest
	agreed.solo = agreed.digest != NoDigest && !agreed.stream && isSolo(l.conn.LocalAddr(), l.conn.RemoteAddr())
	d.log.LogAttrs(ctx, slog.LevelInfo, "sending", agreementAttrs(d.src.Name, d.addr, &agreed, "")...)
	if d.pull != nil {
		return d.pullWith(ctx, l, agreed)
	}
	first := d.lanes == nil
	if first {
		d.lanes, ctx = d.newSentLanes(ctx, &agreed)
		d.result.Lanes = int(agreed.lanes.n)
	}
	do, stop := d.readWith(ctx, l, &agreed)
	m := d.machine(agreed)
	s := newSession(l, m, agreed, d.Hashes, do)
	s.timeout, s.trace = d.timeout, d.tracer
	switch {
	case d.lanes != nil:
		s.progress, s.spread = d.lanes.shared.observer(d.lane.lane), d.lanes.spread(d.src.Choice.Head)
	case d.Progress != nil:
		s.progress = d.Progress()
	}
	if err = d.postRest(s); err == nil {
		err = d.open(s)
	}
	if err == nil {
		s.begin(d.result, true)
		if first && d.lanes != nil {
			d.lanes.start(ctx, agreed.lanes.ref)
		}
		d.result, err = s.run(ctx)
	}
	stop()
	s.close(ctx)
	d.carried = hasCarried(m) // the session does not use it any more
	if first {
		err = d.lanes.join(&d.result, err)
		d.watcher = s.observer()
	}
	return err
}

// readWith returns the job of the worker that reads the source, and the function that ends a read that waits.
func (d *delivery) readWith(ctx context.Context, l *resources, a *agreement) (do func(action) event, stop func()) {
	if d.src.Stream == nil {
		r := &reader{src: d.src, buf: l.data.Bytes(), chunk: a.chunk, checked: a.protocol == Fast, sum: d.Hashes.sumHash(a.digest)}
		return r.do, func() {}
	}
	r := &streamReader{pump: startPump(d.src.Stream), buf: l.data.Bytes(), chunk: a.chunk, pulse: min(pulse, d.timeout/watchdogChecks)}
	return func(act action) event {
		ev := r.do(act)
		if ev.err != nil && ctx.Err() != nil { // because the end of ctx is the reason for the end of many a source
			ev.err = &failure{code: CodeCanceled, err: context.Cause(ctx)}
		}
		return ev
	}, r.pump.stop
}

// access returns the access that the peer has to the data buffers.
func (d *delivery) access() verbs.Access {
	if d.pull != nil {
		return verbs.RemoteWrite
	}
	return 0
}

// localBuffers returns the number of this side's buffers. A basic client has two for a file of several chunks, where the receiver has
// one.
func localBuffers(a *agreement) int {
	if a.protocol == Fast {
		return a.buffers
	}
	if a.size <= int64(a.chunk) {
		return 1
	}
	return basicBuffers
}

// connect posts the first receive, then dials: steps 2 and 3 of the paper.
func (d *delivery) connect(ctx context.Context, l *resources) (err error) {
	if d.tracer != nil {
		d.tracer(Step{Op: OpPostReceive, Slot: none, Entries: 1})
	}
	if err := l.postReceive(0); err != nil {
		return err
	}
	return d.dial(ctx, l, d.hello())
}

// dial makes the connection of l with a request that has this private data.
func (d *delivery) dial(ctx context.Context, l *resources, private []byte) (err error) {
	limited, cancel := context.WithTimeout(ctx, d.timeout)
	defer cancel()
	l.conn, err = verbs.Dial(limited, l.qp, d.addr, verbs.ConnParam{PrivateData: private, Timeout: d.timeout})
	if rejected, ok := errors.AsType[*verbs.RejectedError](err); ok {
		if v, ok := parseRefusal(rejected.PrivateData); ok {
			return d.refused(v)
		}
	}
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return &failure{code: CodeCanceled, err: context.Cause(ctx)}
	case errors.Is(err, context.DeadlineExceeded):
		return failf(CodeTimeout, "no connection to %v within %v: %w", d.addr, d.timeout, err)
	}
	if e, ok := err.(*verbs.Error); ok && e.Op == "dial "+d.addr.String() && e.Kind == nil && e.Detail == "" { //nolint:errorlint // a wrapped one has text of its own around it
		err = e.Err // because the text around it has the operation and the address
	}
	return failf(CodeLost, "cannot connect to %v: %w", d.addr, err)
}

// refused returns the failure that the receiver has sent with its refusal.
func (d *delivery) refused(v errorMessage) *failure {
	f := v.failure()
	if f.code == CodeUnsupported && d.digest.named() {
		f.err = fmt.Errorf("%w; this sender insists on digest %s, which not all receivers have: use %s", cmp.Or[error](f.err, f.code), d.digest, SHA256)
	}
	if f.code == CodeUnsupported && d.src.Stream != nil {
		f.err = fmt.Errorf("%w; receivers of earlier versions take no stream of unknown length: store it in a file, and send that", cmp.Or[error](f.err, f.code))
	}
	return f
}

// hello is the private data of the request, nil if the device cannot carry it.
func (d *delivery) hello() []byte {
	if d.attr.MaxPrivateData < helloLen {
		return nil
	}
	stream, pull := d.src.Stream != nil, d.pull != nil
	if d.lane.number != 0 {
		return appendHello(nil, hello{imm: d.attr.Caps.Has(verbs.CapWriteImm), digest: d.digest, chunk: uint32(d.chunk()), buffers: uint16(or(d.Window, defaultBuffers)), join: &d.lane})
	}
	return appendHello(nil, hello{
		basic: d.Protocol != Fast && !d.digest.named() && !stream && !pull, fast: d.Protocol != Basic && !stream && !pull, stream: stream, pull: pull, imm: d.attr.Caps.Has(verbs.CapWriteImm), digest: d.digest,
		choice: d.offersChoice(), lanes: d.asksLanes(),
		chunk: uint32(d.chunk()), buffers: uint16(or(d.Window, defaultBuffers)), size: uint64(max(d.src.Size, 0)), meta: d.src.Meta,
	})
}

// offersChoice reports whether the request says that the receiver may choose the ranges that cross.
func (d *delivery) offersChoice() bool {
	return d.choosesPull || d.src.Choice != nil && d.Protocol != Basic
}

// chunk is the size of buffer to ask for. 0 leaves it to the receiver, unless the device cannot send messages as long as the
// chunks that receivers choose.
func (d *delivery) chunk() int {
	if limit := messageLimit(&d.attr); d.Chunk == 0 && limit < defaultChunk {
		return int(limit)
	}
	return d.Chunk
}

// agree takes the parameters of the transfer from the answer's private data.
func (d *delivery) agree(private []byte) (agreement, error) {
	imm := d.attr.Caps.Has(verbs.CapWriteImm)
	a := agreement{protocol: Basic, imm: true, digest: NoDigest, buffers: 1,
		chunk: min(or(d.Chunk, basicChunk), basicChunk, int(messageLimit(&d.attr))), size: d.src.Size}
	if !isOurs(private) {
		switch {
		case d.digest.named():
			return a, failf(CodeUnsupported, "the receiver has the basic protocol only, which has no digest; this sender insists on digest %s", d.digest)
		case d.Protocol == Fast || d.src.Stream != nil:
			return a, failf(CodeUnsupported, "the receiver has the basic protocol only")
		case !imm:
			return a, failf(CodeUnsupported, "the receiver takes writes with immediate data only, which device %s lacks", d.attr.Name)
		}
		return a, nil
	}
	ans, err := parseAnswer(private)
	if err != nil {
		return a, err
	}
	a = agreement{protocol: ans.protocol, imm: ans.imm, negotiated: true, chooses: ans.choice, digest: ans.digest,
		buffers: int(ans.buffers), chunk: int(ans.chunk), size: d.src.Size, meta: d.src.Meta, stream: d.src.Stream != nil,
		lanes: lanesAgreed{n: ans.lanes, ref: ans.transfer}}
	if a.protocol == Basic { // chunks of the basic protocol may be shorter than the buffer, if this side's device sends shorter messages only
		a.chunk = min(a.chunk, int(messageLimit(&d.attr)))
	}
	return a, d.checkAnswer(&a, imm)
}

// checkAnswer refuses an answer that goes beyond the request.
func (d *delivery) checkAnswer(a *agreement, imm bool) error {
	most, chunk := or(d.Window, defaultBuffers), or(d.Chunk, basicChunk)
	switch {
	case a.protocol == Basic:
		most = 1
	case a.lanes.n > 1 || d.lane.number != 0: // because the receiver chooses the number of lanes too, each of which has these buffers
		chunk = or(d.Chunk, defaultChunk)
	}
	switch {
	case d.Protocol != Auto && a.protocol != d.Protocol, a.stream && a.protocol != Fast, a.protocol == Basic && (a.imm && !imm || d.digest.named()), a.protocol == Fast && a.digest != d.digest:
		return failf(CodeProtocol, "the receiver chose %v with digest %v; digest %v was asked for", a.protocol, a.digest, d.digest)
	case a.chooses && (!d.offersChoice() || a.protocol != Fast):
		return failf(CodeProtocol, "the peer accepts a choice of ranges that this side did not offer")
	case d.lane.number != 0 && !a.chooses:
		return failf(CodeProtocol, "the peer accepts lane %d without the choice of ranges of its first lane", int(d.lane.lane)+1)
	case a.lanes.n > 1 && (a.lanes.n > d.asksLanes() || !a.chooses || a.lanes.ref.number == 0):
		return failf(CodeProtocol, "the receiver grants %d lanes; %d were asked for", a.lanes.n, d.asksLanes())
	case a.buffers < 1 || a.buffers > most:
		return failf(CodeProtocol, "the receiver grants %d buffers, %d were asked for", a.buffers, most)
	case a.chunk < minChunk || int64(a.chunk) > messageLimit(&d.attr) || a.chunk > chunk:
		return failf(CodeProtocol, "the receiver grants buffers of %d bytes; %d to %d are in order", a.chunk, minChunk, chunk)
	}
	return nil
}

func (d *delivery) machine(a agreement) machine {
	if a.protocol == Fast {
		return newFastClient(a, d.src.Name, d.src.Choice)
	}
	return &basicClient{agreement: a, name: d.src.Name}
}

// postRest posts the receives for credits, before the first message that could
// provoke one. The basic protocol has one receive, which is posted.
func (d *delivery) postRest(s *session) error {
	if s.agreed.protocol == Basic {
		return nil
	}
	for slot := 1; slot < s.res.receives; slot++ {
		if err := s.receive(slot); err != nil {
			return classed(CodeLost, err)
		}
	}
	return nil
}

// open makes a write of no bytes, which no program notices, where the receiver
// sends first and the device forbids that (RFC 5044 section 7.1.2): the basic
// protocol with immediates has no message that could do it, since the paper's program
// counts its receives. A connection that was set up as peer-to-peer (RFC 6581) could
// do without, but a device may be configured not to offer that.
func (d *delivery) open(s *session) error {
	if !s.agreed.imm || !d.attr.Caps.Has(verbs.CapActiveFirst) {
		return nil
	}
	s.res.stage(verbs.SendWR{ID: idWrite, Op: verbs.OpWrite}, nil, 0, 0)
	if err := s.res.flush(); err != nil {
		return classed(CodeLost, err)
	}
	return nil
}

// agreementAttrs returns the log's attributes of a transfer that begins.
func agreementAttrs(name string, peer netip.AddrPort, a *agreement, why string) []slog.Attr {
	form := "write and send"
	if a.imm {
		form = "write with immediate"
	}
	return []slog.Attr{slog.String("file", name), slog.String("peer", peer.String()),
		slog.String("protocol", a.protocol.String()), slog.String("form", form), slog.String("reason", why),
		slog.Int("buffers", a.buffers), slog.Int("chunk", a.chunk), slog.String("digest", a.digest.String())}
}
