package xfer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"cinnabar/internal/audit"
	"cinnabar/verbs"
)

// A pull is a transfer of the fast protocol the other way round: the side that connects receives. It offers this by a bit of the request, sends
// a request in one to four messages REQUEST, and then is the server of fast_server.go. The side that has accepted is the client of fast_client.go.
//
//	puller                         server of files
//	  REQUEST: operation, path ──▶  opens the file
//	                           ◀──  ATTR: mode and time
//	                           ◀──  OPEN: name, size
//	  LAYOUT                   ──▶
//	                           ◀──  writes, CHUNK ... END
//	  CREDIT ... DONE          ──▶
//
// The messages of pulls, beside those of fast_message.go:
//
//	kind     from     length       number        word               count        tail
//	REQUEST  puller   of the tail  of the path   operation          piece, 0..3  a piece of the path, 256 bytes but for the last
//	ATTR     server                time, ns      bits: mode, time   mode
//
// OPEN has the size of the file as number. FAILED answers a request that cannot be met.
//
// The puller is the receiver. If both sides agree that the receiver chooses, OPEN also has the length of the head: word has its low 32 bits, count its
// high 32 bits. OPEN of a pull has no wishes, because by them the server would learn something about other files of the puller. The wishes of the puller's user
// (Puller.Wishes) do not cross. WANT and NOTE are those of fast_message.go, and NOTE has no list of removals.
const (
	fastRequest = 24
	fastAttr    = 25

	requestPiece  = maxFastLen - fastLen
	requestPieces = 4 // for which each connection has receives
)

// longestWork is the time for which a server of files waits for a puller that sends only NOTE, which says that its file is at work; the server's timeout, if that is longer. A
// puller that hangs like that would keep one of the server's places without end.
const longestWork = time.Hour

// MaxRequest is the largest number of bytes of the path of a [FileRequest].
const MaxRequest = requestPieces * requestPiece

// RequestOp is the operation of a request. Its number is part of the wire format.
type RequestOp uint32

// The operations.
const (
	RequestFile RequestOp = 1 + iota // a file, or a directory as package xfer/tree sends it
	RequestList                      // a list of a directory, in the form of package xfer/share
)

// String returns the name of the operation.
func (o RequestOp) String() string {
	switch o {
	case RequestFile:
		return "file"
	case RequestList:
		return "list"
	}
	return fmt.Sprintf("operation %d", uint32(o))
}

// FileRequest is the request of a puller to a server of files.
type FileRequest struct {
	Op RequestOp
	// Path has 1 to [MaxRequest] bytes without NUL. A server gets it as unchecked input of the peer.
	Path string
}

// check refuses requests that the protocol cannot carry.
func (r FileRequest) check() error {
	switch {
	case r.Op != RequestFile && r.Op != RequestList:
		return failf(CodeUnsupported, "%v is not known here", r.Op)
	case r.Path == "":
		return failf(CodeName, "the path is empty; the directory itself is .")
	case len(r.Path) > MaxRequest:
		return failf(CodeName, "the path has %d bytes, and a request carries %d: ask for a directory above it", len(r.Path), MaxRequest)
	}
	for i := range len(r.Path) {
		if r.Path[i] == 0 {
			return failf(CodeName, "the path %q has a NUL", r.Path)
		}
	}
	return nil
}

// appendRequest appends the messages of a request to acts.
func (p *puller) appendRequest(acts []action) []action {
	path := p.request.Path
	for i := 0; i == 0 || len(path) > 0; i++ {
		piece := path[:min(len(path), requestPiece)]
		path = path[len(piece):]
		acts = p.send(acts, fastMessage{kind: fastRequest, number: uint64(len(p.request.Path)), word: uint32(p.request.Op), count: uint32(i), tail: []byte(piece)})
	}
	return acts
}

// requestParts are the pieces of a request that have come.
type requestParts struct {
	r     FileRequest
	total uint64
	n     uint32 // pieces
}

// add takes a piece, and reports whether it was the last.
func (q *requestParts) add(m fastMessage) (whole bool, err error) {
	if q.n == 0 {
		q.total, q.r.Op = m.number, RequestOp(m.word)
	}
	left := q.total - uint64(len(q.r.Path))
	switch {
	case q.total == 0 || q.total > MaxRequest:
		return false, failf(CodeProtocol, "the path of the request is said to have %d bytes; 1 to %d are possible", q.total, MaxRequest)
	case m.number != q.total || RequestOp(m.word) != q.r.Op || m.count != q.n || uint64(len(m.tail)) != min(left, requestPiece):
		return false, failf(CodeProtocol, "piece %d of the request does not fit to those before", m.count)
	}
	q.n++
	q.r.Path += string(m.tail)
	if uint64(len(q.r.Path)) < q.total {
		return false, nil
	}
	return true, q.r.check()
}

// Puller pulls files from a [Receiver] that has Files. Its fields may not be changed while Pull runs; any number of Pulls may run at once.
type Puller struct {
	// Open makes the file, as that of a [Receiver] does, with a ctx that ends with the pull. from is the address of the server. The name is that of the server's source: unchecked
	// input of the peer, which need not be the last element of the path.
	Open func(ctx context.Context, from netip.AddrPort, name string, meta Meta, size int64) (File, error)

	Window int // buffers to ask the server for, at most 1024; 0: 8
	Chunk  int // bytes of each, 4 KiB to 1 GiB; 0: the server chooses, 512 KiB as a rule
	Digest Digest
	Hashes Hashes // digests besides SHA256
	// Choose lets the file choose the ranges that cross, if it is a [Chooser], the request is one for a file, and the server has this part of the protocol. Then a
	// pull that was cut goes on where it stopped, if the file's directory has kept the received part (DirOptions.KeepFor). The server gets no sums of this side's bytes: it
	// learns which ranges the file asks for.
	Choose bool
	// Wishes are the wishes of this side's user. They need Choose, and the file obeys them:
	//
	//	WishUpdate    leaves out files of which this side has one with the size and time of the server's
	//	WishChecksum  leaves out files of which this side has one with the size and contents of the server's
	//	WishDelete    removes entries of a directory that the server does not have, at the end of the pull (tree.DirOptions.AllowDelete)
	//	WishDryRun    with WishDelete: Pull lists these entries, stores nothing and succeeds. The server reports a cancelled transfer
	//
	// The wishes do not cross. From the ranges that the file asks for the server learns which of its files this side has, and with WishChecksum also which blocks of them are equal.
	// If the server does not let pullers choose, all bytes cross; with WishDelete or WishDryRun, Pull fails with [CodeUnsupported] instead.
	Wishes Wishes
	// Remove is called for each entry that a pull with WishDelete lists, and reports whether it may be removed. The path is as that of [Choice.Remove], but its names are those of this
	// side. The goroutine that calls the file's methods calls Remove, so a Remove that blocks, for example to ask a person, delays the pull. ctx ends when the pull ends; Pull waits for Remove to return. nil: everything may be removed.
	Remove func(ctx context.Context, path string, directory bool) bool
	// Lanes is the number of connections over which Pull spreads the file of a request, at most [MaxLanes]; 0: 1. More than one need Choose. The server may grant fewer; servers of
	// earlier versions grant one. Pull connects at most one lane for each 4 MiB, and leaves out a lane that the server refuses or that cannot connect. If a lane fails later, the
	// pull fails.
	Lanes int
	// Timeout bounds the time without progress, after which Pull ends the transfer, and the time until the server accepts; 0: 30 s.
	Timeout  time.Duration
	Progress func() Progress // returns an observer for each transfer; nil: none
	Logger   *slog.Logger    // nil: discard
}

// Pull connects to the server of files at addr and receives the file or the list of req. It returns when the file has its name, or with an [*Error]. When ctx
// ends, the ctx of Open ends too. Pull still waits for Open, or for a method of the File that runs, to return.
func (p *Puller) Pull(ctx context.Context, dev *verbs.Device, addr netip.AddrPort, req FileRequest) (Result, error) {
	start := time.Now()
	s := &Sender{Protocol: Fast, Window: p.Window, Chunk: p.Chunk, Lanes: p.Lanes, Digest: p.Digest, Hashes: p.Hashes, Timeout: p.Timeout, Progress: p.Progress, Logger: p.Logger}
	d := &delivery{Sender: s, dev: dev, addr: addr, src: Source{Name: "."}, timeout: or(p.Timeout, defaultTimeout), log: p.Logger, pull: &req, makeFile: p.Open,
		choosesPull: p.Choose && req.Op == RequestFile, pullWishes: p.Wishes, pullRemove: p.Remove}
	if d.log == nil {
		d.log = slog.New(slog.DiscardHandler)
	}
	d.result.Name, d.result.Peer, d.result.Pulled = req.Path, addr, true
	d.digest = cmp.Or(p.Digest, SHA256)
	err := req.check()
	switch {
	case err != nil:
	case p.Open == nil:
		err = failf(CodeOther, "Puller.Open is nil; it says where files go")
	case p.Wishes&^(WishUpdate|WishChecksum|WishDelete|WishDryRun) != 0:
		err = failf(CodeUnsupported, "Puller.Wishes is %#x, of which some bits are no wishes", uint32(p.Wishes))
	case p.Lanes > 1 && !d.choosesPull:
		err = failf(CodeUnsupported, "Puller.Lanes is %d; several lanes need Puller.Choose and the request of a file", p.Lanes)
	case p.Wishes != 0 && !d.choosesPull:
		err = failf(CodeUnsupported, "Puller.Wishes is %#x; wishes need Puller.Choose and the request of a file", uint32(p.Wishes))
	}
	if err == nil {
		err = d.do(ctx)
	}
	d.result.Duration = time.Since(start)
	if err != nil {
		f := asFailure(err)
		err = &Error{Op: "pull", Name: req.Path, Peer: addr, Code: f.code, Remote: f.remote, Err: f.err}
	}
	if d.watcher != nil {
		d.watcher.Finish(d.result, err)
	}
	return d.result, err
}

// pullWith carries the transfer out on the connection of l.
func (d *delivery) pullWith(ctx context.Context, l *resources, a agreement) error {
	if !a.chooses && d.pullWishes&(WishDelete|WishDryRun) != 0 {
		l.disconnect(ctx, disconnectLimit)
		return failf(CodeUnsupported, "the server sends whole files and trees only, so that this side cannot find the entries that the server does not have: pull without WishDelete and WishDryRun")
	}
	m := &puller{fastServer: newFastServer(a, l.data.Remote()), request: *d.pull, wishes: d.pullWishes}
	var blocking interruptible
	lane := d.lane.lane
	g, ctx, endLanes := d.pullLanes(ctx, &a)
	ofFile, end := context.WithCancelCause(ctx)
	defer end(nil)
	var others sync.WaitGroup
	var s *session
	store := &storer{buf: l.data.Bytes(), chunk: a.chunk, removals: &localRemovals{}}
	if d.pullRemove != nil {
		store.removals.may = func(path string, directory bool) bool { return d.pullRemove(ofFile, path, directory) }
	}
	store.make = func(name string) (File, error) {
		if store.offer != nil {
			store.offer.Size = m.size
		}
		if lane > 0 {
			return blocking.keep(g.joinPull(lane, name, m, s.chunks))
		}
		f, err := d.makeFile(ofFile, d.addr, name, m.meta, m.size)
		if g != nil && err == nil && f != nil {
			f = d.spreadPull(ctx, ofFile, g, s, m, name, f, &others)
		}
		return blocking.keep(f, err)
	}
	if a.chooses {
		store.offer = &Offer{NewHash: d.Hashes.sumHash(a.digest)}
	}
	s = newSession(l, m, a, d.Hashes, endingWith(ofFile, store.do))
	s.timeout, s.steps, s.endFile = d.timeout, store.steps, end
	switch {
	case g != nil:
		s.progress = g.shared.observer(lane)
	case d.Progress != nil:
		s.progress = d.Progress()
	}
	if lane > 0 {
		s.spread = func(int64) {}
	}
	err := d.postRest(s)
	if err == nil {
		s.begin(d.result, false)
		d.result, err = s.run(ctx)
	}
	if g != nil {
		g.end(lane, d.result.Chunks, err)
	}
	endLanes(endOf(err))
	end(endOf(err)) // because close waits for the worker, and so for Open and the file's methods
	blocking.interrupt()
	s.close(ctx)
	if others.Wait(); g != nil && lane == 0 && g.innerFile() != nil {
		g.result(&d.result, err)
		err = g.reason(err)
	}
	if derr := store.discard(); derr != nil {
		err = errors.Join(err, fmt.Errorf("remove the incomplete file: %w", derr))
	}
	d.watcher = s.observer()
	return err
}

// puller receives the file of its request: it sends the request, learns name, size and metadata, and is the server of the fast protocol then.
type puller struct {
	*fastServer
	request FileRequest
	wishes  Wishes // of this side's user
	meta    Meta
	knows   bool // ATTR has come
}

func (p *puller) awaits() string {
	if p.state == fastAwaitsOpen {
		return "the server to open the file"
	}
	return p.fastServer.awaits()
}

// fileSize is the size that the server has sent, for the observer.
func (p *puller) fileSize() int64 { return p.size }

func (p *puller) step(ev event, acts []action) []action {
	switch {
	case ev.kind == evConnected:
		p.out.reset()
		return p.appendRequest(acts)
	case p.state == fastAwaitsOpen && ev.kind == evReceived:
		p.out.reset()
		return p.answered(ev, acts)
	case ev.kind == evWanted && ev.err == nil && ev.want.Last && p.wishes&WishDryRun != 0:
		p.out.reset()
		return p.end(p.send(acts, failedMessage(failf(CodeCanceled, "the puller has asked for the list of removals only"))), nil)
	default:
		return p.fastServer.step(ev, acts)
	}
}

// answered processes a message of the server before the file is made.
func (p *puller) answered(ev event, acts []action) []action {
	m, err := fastReceived(ev, "server")
	if err != nil {
		return p.refuse(acts, err)
	}
	switch {
	case m.kind == fastFailed:
		return p.end(acts, peerFailure(m))
	case m.kind == fastAttr && !p.knows:
		p.knows = true
		p.meta = parseAttr(m)
		return append(acts, action{kind: actReceive, slot: ev.slot})
	case m.kind == fastOpen && p.knows:
		if m.number > 1<<63-1 {
			return p.refuse(acts, failf(CodeProtocol, "the file is said to have %d bytes", m.number))
		}
		p.size, p.limit = int64(m.number), int64(m.number)
		if p.choice != nil { // as in OPEN of a sender, with the wishes of this side
			m.number, m.word = uint64(m.word)|uint64(m.count)<<32, uint32(p.wishes)
		}
		return p.open(m, append(acts, action{kind: actReceive, slot: ev.slot}))
	}
	return p.refuse(acts, failf(CodeProtocol, "the server sent %s while this side waited for %s", fastNames[m.kind], p.awaits()))
}

// attrMessage is the message with the metadata of a file.
func attrMessage(meta Meta) fastMessage {
	known, nanos := metaFields(meta)
	return fastMessage{kind: fastAttr, number: uint64(nanos), word: uint32(known), count: uint32(meta.Mode.Perm())}
}

// parseAttr reads the metadata of a file.
func parseAttr(m fastMessage) Meta { return metaOf(uint16(m.word), int64(m.number), m.count) }

// pullServer sends the file that a puller asks for: it takes the request, opens the file, and is the client of the fast protocol then.
//
//	wait for the request    the puller speaks first
//	opening                 the file is opened, then ATTR and OPEN are sent
//	sending                 see fastClient
type pullServer struct {
	*fastClient
	phase pullPhase
	parts requestParts
	// src is set by the disk's worker before evOpened, and read after it.
	src Source
}

type pullPhase uint8

const (
	pullAwaitsRequest pullPhase = iota
	pullOpening
	pullSending
)

func (p *pullServer) awaits() string {
	switch p.phase {
	case pullAwaitsRequest:
		return "the request"
	case pullOpening:
		return "the file to be opened"
	default:
		return p.fastClient.awaits()
	}
}

// fileSize is the size of the file, for the observer.
func (p *pullServer) fileSize() int64 { return p.src.Size }

func (p *pullServer) step(ev event, acts []action) []action {
	p.out.reset()
	if p.phase == pullSending {
		return p.fastClient.step(ev, acts)
	}
	switch ev.kind {
	case evReceived:
		return p.requested(ev, acts)
	case evOpened:
		if ev.err != nil {
			return p.abort(acts, ev.err)
		}
		p.phase = pullSending
		p.name, p.size = p.src.Name, p.src.Size
		open := fastMessage{kind: fastOpen, number: uint64(p.size), tail: []byte(p.name)}
		if p.chooses {
			p.setChoice(p.src.Choice, p.src.Size)
			open.word, open.count = uint32(p.size), uint32(p.size>>32)
		}
		acts = p.send(acts, attrMessage(p.src.Meta), none)
		return p.send(acts, open, none)
	case evEnded:
		return p.end(acts, lostFailure(ev.err, p.awaits()))
	case evStopped:
		return p.abort(acts, ev.err)
	default:
		return acts
	}
}

// requested processes a message of the puller before the file is opened.
func (p *pullServer) requested(ev event, acts []action) []action {
	m, err := fastReceived(ev, "puller")
	switch {
	case err != nil:
		return p.abort(acts, err)
	case m.kind == fastFailed:
		return p.end(acts, peerFailure(m))
	case m.kind != fastRequest || p.phase != pullAwaitsRequest:
		return p.abort(acts, failf(CodeProtocol, "the puller sent %s while the server waited for %s", fastNames[m.kind], p.awaits()))
	}
	acts = append(acts, action{kind: actReceive, slot: ev.slot})
	whole, err := p.parts.add(m)
	if err != nil {
		return p.abort(acts, err)
	}
	if !whole {
		return acts
	}
	p.phase = pullOpening
	return append(acts, action{kind: actOpen, msg: p.out.sent(append(p.out.room(), p.parts.r.Path...))})
}

// pulled does the jobs of the disk for a server of files. One goroutine uses it.
type pulled struct {
	m      *pullServer
	open   func(FileRequest) (Source, io.Closer, error)
	reader reader
	closer io.Closer     // of the source; nil: nothing to close
	spread func(*Source) // shares the open source with the further lanes; nil: there are none
}

func (p *pulled) do(a action) event {
	if a.kind != actOpen {
		return p.reader.do(a)
	}
	src, closer, err := p.open(p.m.parts.r)
	p.closer = closer
	if err == nil {
		switch {
		case src.Stream != nil || src.Size < 0 || src.Data == nil:
			err = failf(CodeSource, "the server's Files returned a source that has no size")
		case src.Choice != nil && (src.Choice.Head < 0 || src.Choice.Head > src.Size):
			err = failf(CodeSource, "the source of the server's Files has Choice.Head %d; it must be 0 to its Size, %d", src.Choice.Head, src.Size)
		default:
			err = checkWireName(src.Name)
		}
	}
	if err != nil {
		return event{kind: evOpened, err: classed(CodeSource, err)}
	}
	src.Choice = choiceOfPuller(&src)
	if p.spread != nil {
		p.spread(&src)
	}
	p.m.src, p.reader.src = src, src
	return event{kind: evOpened}
}

// choiceOfPuller returns the choice that a puller has from a source. If the source has no Choice, the head is the whole source, so the puller chooses nothing. The result has no
// Wishes and no Remove, because a server may not ask the puller to compare or remove other files.
func choiceOfPuller(src *Source) *Choice {
	if src.Choice == nil {
		return &Choice{Head: src.Size}
	}
	return &Choice{Head: src.Choice.Head, SumData: src.Choice.SumData}
}

// close closes the source. The worker has stopped.
func (p *pulled) close() error {
	if p.closer == nil {
		return nil
	}
	return p.closer.Close()
}

// serveFile accepts the request of a puller and carries the transfer out with the objects of l. It returns when l is not in use any more.
func (h *host) serveFile(ctx context.Context, req *verbs.ConnRequest, p *place, l *resources, a agreement, why string, res *Result) (watcher Progress, err error) {
	m := &pullServer{fastClient: newFastClient(a, "", nil)}
	g, lane := a.lanes.group, a.lanes.ref.lane
	ofSource, end := context.WithCancelCause(ctx)
	defer end(nil)
	var s *session
	work := &pulled{m: m, reader: reader{buf: l.data.Bytes(), chunk: a.chunk, checked: true, sum: h.Hashes.sumHash(a.digest)},
		open: func(r FileRequest) (Source, io.Closer, error) {
			if err := p.named(); err != nil {
				return Source{}, nil, err
			}
			if lane > 0 {
				return g.openServed(lane, r)
			}
			return h.Files(ofSource, req.RemoteAddr(), r)
		}}
	if g != nil && lane == 0 {
		work.spread = func(src *Source) {
			n := g.spreadServed(m.parts.r, src)
			h.lanes.settle(g, n)
			if n > 1 {
				s.setLanes(n)
			}
		}
	}
	s = newSession(l, m, a, h.Hashes, endingWith(ofSource, work.do))
	s.timeout, s.opening = h.timeout, openTimeout
	if a.chooses && lane == 0 { // the others end with it
		s.working = max(longestWork, h.timeout)
	}
	if h.Trace != nil && lane == 0 {
		s.trace = h.Trace()
	}
	switch {
	case g != nil:
		s.progress = g.shared.observer(lane)
	case h.Progress != nil:
		s.progress = h.Progress()
	}
	if lane > 0 {
		s.spread = func(int64) {}
	}
	if err = h.connect(ctx, req, s); err == nil {
		h.trail.Record(audit.Accepted, "pull", hostOf(req), agreementAttrs("", req.RemoteAddr(), &a, why)...)
		s.begin(*res, false)
		*res, err = s.run(ctx)
	}
	if g != nil {
		g.endServed(lane, m.fastClient, res.Chunks, err)
	}
	end(endOf(err)) // because close waits for the worker, and so for Files and the reads of the source
	s.close(ctx)
	if g != nil && lane == 0 {
		err = g.joinServed(res, err)
	}
	if cerr := work.close(); cerr != nil {
		h.log.LogAttrs(ctx, slog.LevelWarn, "source not closed", slog.String("file", res.Name), slog.Any("err", cerr))
	}
	return s.observer(), err
}
