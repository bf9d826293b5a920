package xfer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"cinnabar/internal/audit"
	"cinnabar/internal/hostquota"
	"cinnabar/verbs"
)

// File is the destination of a transfer at the receiver. One goroutine at a time calls it. A File may keep the ctx of the Open that made it, and use it in its methods (Receiver.Open).
type File interface {
	io.WriterAt
	// Commit is called when the whole file is written and compared, and gives the file its name.
	Commit() error
	// Discard is called instead of Commit, or after a Commit that failed.
	Discard() error
}

// Receiver takes files from any number of senders at once. Its fields may not be
// changed while it serves.
type Receiver struct {
	// Open is the policy of names and files: it makes the file that a sender
	// announces, or refuses it. The sender receives the text of the error, and the
	// error's [Code] if it wraps one, otherwise [CodeStorage]. from is the address of the sender. The name has 1 to
	// [MaxName] bytes without NUL and is otherwise unchecked input of the peer. The size is -1 if the sender has not sent it.
	// Serve may call Open from several goroutines at once; ServeFirst makes one call at a time. [Dir.Open] is one such policy.
	//
	// ctx ends with the transfer: when the ctx of Serve or ServeFirst ends, when the sender is lost or gives up, after Timeout, and after Commit or Discard at the latest. The File may keep ctx for
	// its own methods, so that a WriteAt or Commit whose storage blocks (a network disk, a queue) returns then; context.Cause(ctx) has the reason. A Commit
	// that is not to be cut short uses context.WithoutCancel(ctx), and so does a Discard, because ctx has ended then. An error that wraps ctx.Err() or context.Cause(ctx) is reported as the reason for the end of ctx. Serve
	// waits for the return of Open and of the File's methods, and discards a file that Open returns after the end of ctx.
	Open func(ctx context.Context, from netip.AddrPort, name string, meta Meta, size int64) (File, error)

	// Files is the policy of pulls: it opens the file of the request of a peer, or refuses it, as Open does. The source has Data and
	// Size, not Stream. Serve closes the closer, unless it is nil, when the transfer is over, also beside an error. ctx ends with the
	// transfer, and the source may keep it for its reads; Serve waits until Files and all reads of the source have returned. Several calls may run at once. If the source has a Choice, pullers may choose ranges (Puller.Choose); only its Head and
	// SumData are used. nil: pulls are refused.
	Files func(ctx context.Context, peer netip.AddrPort, req FileRequest) (Source, io.Closer, error)

	Protocol Protocol // Auto: the protocol that the sender asks for; otherwise only this one
	// Digest is the only digest that the receiver accepts; "": any digest that the receiver has, as the sender asks. If Digest is
	// neither "" nor NoDigest, the receiver refuses the basic protocol, because that has no digest.
	Digest    Digest
	Hashes    Hashes // digests besides SHA256
	MaxWindow int    // buffers for one sender, at most 1024; 0: 64
	MaxChunk  int    // bytes of one buffer, 4 KiB to 1 GiB; 0: 64 MiB
	// MaxConnections is the largest number of transfers at once; 0: 64, or as many as the limit of open descriptors allows. Further
	// connections are refused, but if a connection of the same host has not named its file, the oldest such connection gives way to a transfer. If
	// MaxConnections is 8 or more, one host gets at most 9 in 16 of them, so that a host that connects later finds some free.
	MaxConnections int
	// MaxMemory bounds the buffers of all transfers in bytes; 0: half of the machine's memory, at most 1 GiB. Each place
	// of MaxConnections has a part of a quarter of it; the rest is shared by hosts as the places are. One of several
	// transfers gets a quarter of MaxMemory at most, and no more than its file fills. Near the
	// bound senders get fewer and smaller buffers than they ask for, at least 4 KiB.
	// The paper's program gets its 10 MiB, or is refused.
	MaxMemory int64
	// MaxLanes is the largest number of lanes of one transfer (Sender.Lanes), at most [MaxLanes]; 0: 8. Each lane takes a place of MaxConnections, and buffers, until its transfer ends.
	// The lanes of one host beside the first ones of its transfers get at most a quarter of the places, those of one transfer half of the places that the host could take when it
	// begins, and none the last one: a host with lanes can have fewer transfers at once, but one more when a lane begins. No connection gives way to a lane, and no lane to a connection.
	MaxLanes int
	// Timeout bounds the time without progress, after which the receiver ends a transfer; 0: 30 s. It ends the transfer of a
	// sender that has not named its file 5 s after it was connected in any case.
	Timeout time.Duration
	// Progress returns an observer for each transfer; nil: none.
	Progress func() Progress
	// Trace returns a tracer for each transfer; nil: none. Of a transfer of several lanes it gets the steps of the first one.
	Trace func() Tracer
	// Done is called for each connection request that was served or refused, but for those of further lanes that have the secret of their transfer, by
	// the goroutine that served it; nil: not called.
	Done func(Result, error)
	// Logger takes a line for each file that is stored, and a bounded number of lines for each host about transfers that
	// were accepted, refused or failed; nil: discard. The line at the end of Serve has the numbers of all.
	Logger *slog.Logger
}

// Limits returns the limits that Serve applies: MaxConnections and MaxMemory, or their defaults on this machine.
func (r *Receiver) Limits() (connections int, memory int64) {
	m := hostquota.Machine()
	return or(r.MaxConnections, int(min(mostConnections, m.DefaultConnections(transferFiles)))),
		or(r.MaxMemory, max(min(mostMemory, m.DefaultMemory()), mostConnections*minChunk))
}

// Serve takes transfers until ctx ends or the listener is closed. It returns
// when all transfers are over: nil after the end of ctx, which cancels them, but
// for a Commit under way, which it waits for. No sender can end it.
func (r *Receiver) Serve(ctx context.Context, l *verbs.Listener) error {
	connections, _ := r.Limits()
	h, err := r.newHost(l, connections)
	if err != nil {
		return err
	}
	defer h.logCounts()
	return h.serveAll(ctx, l, func(req *verbs.ConnRequest, p *place) {
		_, _ = h.serve(ctx, req, p) // the results go to Receiver.Done
	})
}

// serveAll calls serve for each request on a goroutine of its own, until ctx ends or the listener is closed. It waits for all
// these calls before it returns.
func (h *host) serveAll(ctx context.Context, l *verbs.Listener, serve func(*verbs.ConnRequest, *place)) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	for {
		req, err := h.accept(ctx, l)
		if err != nil {
			return err
		}
		if req == nil {
			return nil
		}
		p, err := h.enter(req)
		if err != nil {
			_ = h.refuseTransfer(req, err) // Done receives the error
			continue
		}
		wg.Go(func() {
			p.wait()
			defer p.leave()
			serve(req, p)
		})
	}
}

// ServeFirst serves requests as Serve does, with one call of Open at a time, until Open has made a file for one of them. ServeFirst then refuses all other requests, ends
// those under way, waits for their ends and for the chosen transfer, and returns the result of that. Silent and refused senders
// therefore do not delay the first one that sends. Done receives the results of the others. If ctx ends before Open has made a
// file, the error has the class [CodeCanceled].
func (r *Receiver) ServeFirst(ctx context.Context, l *verbs.Listener) (Result, error) {
	connections, _ := r.Limits()
	h, err := r.newHost(l, connections)
	if err != nil {
		return Result{}, err
	}
	defer h.logCounts()
	accepting, stop := context.WithCancel(ctx)
	defer stop()
	h.first = &first{stop: stop, turn: make(chan struct{}, 1), under: map[*verbs.ConnRequest]context.CancelCauseFunc{}}
	err = h.serveAll(accepting, l, func(req *verbs.ConnRequest, p *place) {
		h.first.serve(ctx, h, req, p)
	})
	res, ferr, ok := h.first.outcome()
	switch {
	case ok:
		return res, ferr
	case err == nil:
		err = &Error{Op: "receive", Code: CodeCanceled, Err: context.Cause(ctx)}
	}
	return Result{}, err
}

// hostOf returns the host that a request is counted for.
func hostOf(req *verbs.ConnRequest) hostquota.Host {
	if a := req.RemoteAddr().Addr(); a.IsValid() {
		return hostquota.HostOf(a)
	}
	return hostquota.HostOf(netip.IPv6Unspecified()) // one host for all that have no address, because the zero Host is unlimited
}

// ServeOne serves one connection request and returns the result of its transfer.
func (r *Receiver) ServeOne(ctx context.Context, l *verbs.Listener) (Result, error) {
	h, err := r.newHost(l, 1)
	if err != nil {
		return Result{}, err
	}
	req, err := h.accept(ctx, l)
	if err != nil {
		return Result{}, err
	}
	if req == nil {
		return Result{}, &Error{Op: "receive", Code: CodeCanceled, Err: context.Cause(ctx)}
	}
	return h.serve(ctx, req, &place{of: &h.places, account: h.book.Account(hostOf(req))})
}

// host is one Serve.
type host struct {
	*Receiver
	dev     *verbs.Device
	attr    verbs.DeviceAttr
	timeout time.Duration
	log     *slog.Logger
	trail   *audit.Trail
	book    *hostquota.Book
	places  places
	share   int64  // bytes for the buffers of each place
	most    int64  // largest number of bytes for the buffers of one transfer
	first   *first // set by ServeFirst; nil: all requests are served
	lanes   *laneBook
	names   namesUnder
}

// newHost prepares to serve so many transfers at once.
func (r *Receiver) newHost(l *verbs.Listener, connections int) (*host, error) {
	if r.Open == nil {
		return nil, &Error{Op: "receive", Code: CodeOther, Err: errors.New("Receiver.Open is nil; it says where files go")}
	}
	if r.Timeout < 0 {
		return nil, &Error{Op: "receive", Code: CodeOther, Err: fmt.Errorf("Receiver.Timeout is %v; it must be positive, or 0 for %v", r.Timeout, defaultTimeout)}
	}
	h := &host{Receiver: r, dev: l.Device(), timeout: or(r.Timeout, defaultTimeout), log: r.Logger}
	if h.log == nil {
		h.log = slog.New(slog.DiscardHandler)
	}
	h.trail = audit.New(r.Logger)
	var err error
	h.attr, err = h.dev.Query()
	for _, c := range []error{err, r.checkDigests(),
		checkRange("MaxWindow", int64(r.MaxWindow), 1, maxBuffers, "buffers"),
		checkRange("MaxChunk", int64(r.MaxChunk), minChunk, maxChunk, "bytes"),
		checkRange("MaxConnections", int64(r.MaxConnections), 1, 1<<20, "transfers"),
		checkRange("MaxLanes", int64(r.MaxLanes), 1, MaxLanes, "lanes"),
		checkRange("MaxMemory", r.MaxMemory, minChunk, 1<<62, "bytes"),
	} {
		if c != nil {
			f := asFailure(c)
			return nil, &Error{Op: "receive", Code: f.code, Err: f.err}
		}
	}
	_, memory := r.Limits()
	if memory/minChunk < int64(connections) {
		return nil, &Error{Op: "receive", Code: CodeTooLarge, Err: fmt.Errorf("MaxMemory of %d bytes is too little for %d transfers at once; %d bytes each are the least", memory, connections, minChunk)}
	}
	h.divide(memory, int64(connections))
	h.lanes = newLaneBook(int64(connections))
	return h, nil
}

// checkDigests refuses digests that no transfer can have.
func (r *Receiver) checkDigests() error {
	switch err := r.Hashes.check(); {
	case err != nil:
		return err
	case r.Digest != "" && !r.Hashes.has(r.Digest):
		return r.Hashes.unknown(r.Digest, "receiver")
	case r.Protocol == Basic && !r.takesUncompared():
		return failf(CodeUnsupported, "Receiver.Digest is %s, and the basic protocol has no digest", r.Digest)
	}
	return nil
}

// takesUncompared reports whether the receiver takes files without a digest.
func (r *Receiver) takesUncompared() bool { return r.Digest == "" || r.Digest == NoDigest }

// The pause after a request that could not be taken, which keeps a lasting
// failure (no file descriptors, say) from eating the processor.
const (
	minPause = 5 * time.Millisecond
	maxPause = time.Second
)

// accept returns the next request for a transfer, nil when ctx has ended. It answers those of Ping, before they take a place, because a receiver whose
// places are all in use is alive.
func (h *host) accept(ctx context.Context, l *verbs.Listener) (*verbs.ConnRequest, error) {
	for {
		req, err := h.next(ctx, l)
		if req == nil || !isPing(req.PrivateData()) {
			return req, err
		}
		h.reject(req, errPing)
	}
}

// next returns the next request, nil when ctx has ended. Failures of single
// requests are logged and passed over.
func (h *host) next(ctx context.Context, l *verbs.Listener) (*verbs.ConnRequest, error) {
	for pause := minPause; ; pause = min(2*pause, maxPause) {
		req, err := l.Accept(ctx)
		switch {
		case err == nil:
			return req, nil
		case ctx.Err() != nil:
			return nil, nil
		case errors.Is(err, verbs.ErrClosed):
			return nil, &Error{Op: "receive", Code: CodeOther, Err: err}
		}
		h.trail.Record(audit.Refused, "connection request failed", hostquota.Host{}, slog.Any("err", err))
		wait := time.NewTimer(pause)
		select {
		case <-wait.C:
		case <-ctx.Done():
			wait.Stop()
		}
	}
}

// refuse rejects a request and reports it.
func (h *host) refuse(req *verbs.ConnRequest, why error) error {
	h.reject(req, why)
	return h.report(req, Result{Peer: req.RemoteAddr()}, why)
}

// reject refuses a request and sends the error to the peer. The answer is a few bytes on
// a connection that has carried nothing yet, so it does not block.
func (h *host) reject(req *verbs.ConnRequest, why error) {
	data := appendRefusal(nil, errorMessageOf(why), min(h.attr.MaxPrivateData, maxRefusal))
	if err := req.Reject(data); err != nil {
		h.log.LogAttrs(context.Background(), slog.LevelDebug, "refusal not delivered", slog.Any("err", err))
	}
}

// maxRefusal is the size of private data, in bytes, that every transport carries with a refusal:
// rdma_cm leaves 148 bytes of InfiniBand's REJ.
const maxRefusal = 148

// report logs the end of a request, calls Done, and returns the error.
func (h *host) report(req *verbs.ConnRequest, res Result, why error) error {
	var err error
	attrs := []slog.Attr{slog.String("file", res.Name), slog.String("peer", req.RemoteAddr().String()),
		slog.Int64("bytes", res.Size), slog.Duration("took", res.Duration)}
	if why == nil { // each line has cost its sender a file
		h.log.LogAttrs(context.Background(), slog.LevelInfo, doneWord[res.Pulled], attrs...)
	} else {
		f := asFailure(why)
		err = &Error{Op: opWord[res.Pulled], Name: res.Name, Peer: req.RemoteAddr(), Code: f.code, Remote: f.remote, Err: f.err}
		event, cause := f.code.event(), f.code.cause()
		if errors.Is(f.err, errGaveWay) {
			event, cause = audit.Evicted, "no file was named"
		}
		h.trail.Record(event, cause, hostOf(req), append(attrs, slog.Any("err", err))...)
	}
	if h.Done != nil && !h.first.is(req) {
		h.Done(res, err)
	}
	return err
}

// The words of a receiver for transfers that a puller has asked for, and for the others.
var (
	opWord   = map[bool]string{true: "serve", false: "receive"}
	doneWord = map[bool]string{true: "served", false: "received"}
)

// logCounts logs how often each event had each cause.
func (h *host) logCounts() {
	var attrs []slog.Attr
	for _, c := range h.trail.Counts() {
		attrs = append(attrs, slog.Uint64(c.Event.String()+": "+c.Cause, c.N))
	}
	h.log.LogAttrs(context.Background(), slog.LevelInfo, "receiver ends", attrs...)
}

// divide makes the book of a receiver with so much memory and so many places. Each place has a share of a quarter of the
// memory, enough for one smallest buffer at least. So a host that has a place has buffers, however much others took.
func (h *host) divide(memory, places int64) {
	h.share = max(memory/places/4, minChunk)
	if places == 1 {
		h.share = memory
	}
	h.most = memory / min(places, maxShare)
	h.book = hostquota.NewBook(hostquota.Limits{
		hostquota.Connections: places,
		hostquota.Memory:      max(memory-places*h.share, 1), // 0 would be no limit
	})
}

// take reserves memory for so many buffers, fewer if there is not enough, or
// smaller ones, but not below least bytes, if one is too many already. It returns 0 buffers
// if that does not help. A buffer of least bytes is granted beyond the limit of one transfer,
// if there is memory. The last result is how many bytes were counted for the host, beyond the share of its place.
func (h *host) take(a *hostquota.Account, buffers, chunk, least int) (int, int, int64) {
	most := max(h.most, int64(least))
	for {
		n := int64(buffers) * int64(chunk)
		extra := max(n-h.share, 0)
		switch {
		case n <= most && (extra == 0 || a.Take(hostquota.Memory, extra) == nil):
			return buffers, chunk, extra
		case buffers > 1:
			buffers /= 2
		case chunk/2 >= least:
			chunk /= 2
		default:
			return 0, 0, 0
		}
	}
}
