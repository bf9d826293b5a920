package xfer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"time"

	"cinnabar/verbs"
)

// File is where a receiver puts what comes. One goroutine at a time calls it.
type File interface {
	io.WriterAt
	// Commit is called when all is written and compared: the file gets its name.
	Commit() error
	// Discard is called instead of Commit, or after a Commit that failed.
	Discard() error
}

// Receiver takes files from any number of senders at once. Its fields may not be
// changed while it serves.
type Receiver struct {
	// Open is the policy of names and files: it makes the file that a sender
	// announces, or refuses it, and its error's text is told to the sender, with the
	// error's [Code] if it wraps one, otherwise [CodeStorage]. The name has 1 to
	// [MaxName] bytes without NUL and is otherwise whatever a peer may say. The size is -1 if the sender did not tell. [Dir.Open] is one such policy.
	Open func(name string, meta Meta, size int64) (File, error)

	Protocol   Protocol // Auto: what the sender wants; otherwise nothing else
	MaxWindow  int      // buffers for one sender, at most 1024; 0: 64
	MaxChunk   int      // bytes of one buffer, 4 KiB to 1 GiB; 0: 64 MiB
	MaxClients int      // transfers at once; 0: 64; more are refused
	// MaxMemory bounds the buffers of all transfers in bytes; 0: 1 GiB. One of several
	// transfers gets a quarter of it at most, and no more than its file fills. Near the
	// bound senders get fewer and smaller buffers than they ask for, at least 4 KiB.
	// The paper's program gets its 10 MiB, or is refused.
	MaxMemory int64
	// Timeout is for how long nothing may move before a transfer is given up; 0: 30 s.
	Timeout time.Duration
	// Progress is asked for an observer of each transfer; nil: none.
	Progress func() Progress
	// Trace is asked for a tracer of each transfer; nil: none.
	Trace func() Tracer
	// Done is told about each connection request that was served or refused, from
	// the goroutine that served it; nil: nobody is.
	Done   func(Result, error)
	Logger *slog.Logger // nil: discard
}

// Serve takes transfers until ctx ends or the listener is closed. It returns
// when all transfers are over: nil after the end of ctx, which cancels them, but
// for a Commit under way, which it waits for. No sender can end it.
func (r *Receiver) Serve(ctx context.Context, l *verbs.Listener) error {
	clients := or(r.MaxClients, defaultMaxClients)
	h, err := r.newHost(l, max(clients, 1))
	if err != nil {
		return err
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	slots := make(chan struct{}, clients)
	for {
		req, err := h.accept(ctx, l)
		if err != nil {
			return err
		}
		if req == nil {
			return nil
		}
		select {
		case slots <- struct{}{}:
			wg.Go(func() {
				defer func() { <-slots }()
				_, _ = h.serve(ctx, req) // Done is told
			})
		default:
			_ = h.refuse(req, failf(CodeBusy, "%d transfers are under way; try again later", cap(slots))) // Done is told
		}
	}
}

// ServeOne takes one connection request and returns how its transfer went.
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
	return h.serve(ctx, req)
}

// host is one Serve.
type host struct {
	*Receiver
	dev     *verbs.Device
	attr    verbs.DeviceAttr
	timeout time.Duration
	log     *slog.Logger
	budget  budget
}

// newHost prepares to serve so many transfers at once.
func (r *Receiver) newHost(l *verbs.Listener, clients int) (*host, error) {
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
	var err error
	h.attr, err = h.dev.Query()
	for _, c := range []error{err,
		checkRange("MaxWindow", int64(r.MaxWindow), 1, maxBuffers, "buffers"),
		checkRange("MaxChunk", int64(r.MaxChunk), minChunk, maxChunk, "bytes"),
		checkRange("MaxClients", int64(r.MaxClients), 1, 1<<20, "transfers"),
		checkRange("MaxMemory", r.MaxMemory, minChunk, 1<<62, "bytes"),
	} {
		if c != nil {
			f := asFailure(c)
			return nil, &Error{Op: "receive", Code: f.code, Err: f.err}
		}
	}
	memory := or(r.MaxMemory, defaultMaxMemory)
	if memory/minChunk < int64(clients) {
		return nil, &Error{Op: "receive", Code: CodeTooLarge, Err: fmt.Errorf("MaxMemory of %d bytes is too little for %d transfers at once; %d bytes each are the least", memory, clients, minChunk)}
	}
	h.budget = newBudget(memory, clients)
	return h, nil
}

// The pause after a request that could not be taken, which keeps a lasting
// failure (no file descriptors, say) from eating the processor.
const (
	minPause = 5 * time.Millisecond
	maxPause = time.Second
)

// accept returns the next request, nil when ctx has ended. Failures of single
// requests are logged and passed over.
func (h *host) accept(ctx context.Context, l *verbs.Listener) (*verbs.ConnRequest, error) {
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
		h.log.LogAttrs(ctx, slog.LevelWarn, "connection request failed", slog.Any("err", err))
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

// reject tells the peer why its request is refused. The answer is a few bytes on
// a connection that has carried nothing yet, so it does not block.
func (h *host) reject(req *verbs.ConnRequest, why error) {
	data := appendRefusal(nil, verdictOf(why), min(h.attr.MaxPrivateData, maxRefusal))
	if err := req.Reject(data); err != nil {
		h.log.LogAttrs(context.Background(), slog.LevelDebug, "refusal not delivered", slog.Any("err", err))
	}
}

// maxRefusal is what every transport carries with a refusal: rdma_cm leaves
// 148 bytes of InfiniBand's REJ.
const maxRefusal = 148

// report tells log and program how a request ended, and returns the error.
func (h *host) report(req *verbs.ConnRequest, res Result, why error) error {
	level, text := slog.LevelInfo, "received"
	var err error
	if why != nil {
		f := asFailure(why)
		err = &Error{Op: "receive", Name: res.Name, Peer: req.RemoteAddr(), Code: f.code, Remote: f.remote, Err: f.err}
		level, text = slog.LevelWarn, "transfer failed"
	}
	h.log.LogAttrs(context.Background(), level, text, slog.String("file", res.Name), slog.String("peer", req.RemoteAddr().String()),
		slog.Int64("bytes", res.Size), slog.Duration("took", res.Duration), slog.Any("err", err))
	if h.Done != nil {
		h.Done(res, err)
	}
	return err
}

// budget is the memory that is left for buffers. A transfer may take what it
// wants up to a part of the whole, as long as a share stays for each one that may
// come yet.
type budget struct {
	share int64 // bytes that are kept for each
	most  int64 // bytes that one may have

	mu sync.Mutex
	// bytes
	// +checklocks:mu
	left int64
	// transfers that may come yet
	// +checklocks:mu
	free int
}

// newBudget divides memory among so many transfers. A quarter of it is kept
// for those that have not come; each has room for one smallest buffer at least.
func newBudget(memory int64, clients int) budget {
	n := int64(clients)
	return budget{share: max(memory/n/4, minChunk), most: memory / min(n, maxShare), left: memory, free: clients}
}

// take reserves memory for so many buffers, fewer if there is not enough, or
// smaller ones, but not below least bytes, if one is too many already. It returns 0
// if that does not help. A buffer of least bytes is granted whatever one transfer
// may have, if it is there.
func (b *budget) take(buffers, chunk, least int) (int, int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	most := min(b.left-b.share*int64(b.free-1), max(b.most, int64(least)))
	for int64(buffers)*int64(chunk) > most && buffers > 1 {
		buffers /= 2
	}
	for int64(chunk) > most && chunk/2 >= least {
		chunk /= 2
	}
	if int64(buffers)*int64(chunk) > most {
		return 0, 0
	}
	b.left -= int64(buffers) * int64(chunk)
	b.free--
	return buffers, chunk
}

// give takes back what a transfer had.
func (b *budget) give(n int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.left += n
	b.free++
}
