package flow

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"

	"cinnabar/internal/audit"
	"cinnabar/internal/hostquota"
	"cinnabar/verbs"
)

const (
	// mostAnswered is how many requests are answered, or answered and not accepted, at a time. A host gets a share of them.
	mostAnswered = 64
	// mostParked is how many further requests wait until one of those is done. A host gets a share of them, too.
	mostParked = 256
)

// Listener accepts connections. It answers requests before Accept is called, several at a time, because the answer to a slow peer
// takes up to 10 s, and other peers must not wait for it. No host gets all places.
type Listener struct {
	l     *verbs.Listener
	cfg   Config
	trail *audit.Trail
	book  *hostquota.Book
	each  int64         // bytes of memory of one connection
	ready chan accepted // results of Accept

	ctx  context.Context // ends with Close
	stop context.CancelFunc
	wg   sync.WaitGroup // serve and answers
	over chan struct{}  // closed when serve has ended
	err  error          // why it has ended; written before over is closed

	mu sync.Mutex
	// +checklocks:mu
	parked []parked // the oldest first
	// +checklocks:mu
	closed bool
}

// accepted is a connection, or the error of its set-up.
type accepted struct {
	c   *Conn
	err error
}

// parked is a request that waits, because its host has its share of those that are answered.
type parked struct {
	req     *verbs.ConnRequest
	account *hostquota.Account
}

// Listen listens on addr; port 0 picks one. cfg is the Config of each accepted connection. Unless cfg has a PD, each has a
// protection domain of its own, and a peer has no access to the memory of other connections.
func Listen(dev *verbs.Device, addr netip.AddrPort, cfg Config) (*Listener, error) {
	full, err := cfg.filled()
	if err != nil {
		return nil, err
	}
	if most, each := full.MaxMemory, full.memory(); most < each {
		return nil, fmt.Errorf("flow: Config.MaxMemory is %d, and one connection holds %d bytes; lower Config.Bytes, Records or Inline, or raise MaxMemory", most, each)
	}
	vl, err := verbs.Listen(dev, addr)
	if err != nil {
		return nil, err
	}
	l := &Listener{
		l: vl, cfg: cfg, trail: audit.New(cfg.Logger), ready: make(chan accepted), over: make(chan struct{}),
		book: hostquota.NewBook(hostquota.Limits{hostquota.Handshakes: mostAnswered, hostquota.Queued: mostParked, hostquota.Memory: full.MaxMemory}),
		each: full.memory(),
	}
	l.ctx, l.stop = context.WithCancel(context.Background())
	l.wg.Go(l.serve)
	return l, nil
}

// Addr returns where the listener listens.
func (l *Listener) Addr() netip.AddrPort { return l.l.Addr() }

// Accept returns the next connection. Peers that do not speak the protocol are rejected and logged; no call of Accept returns an
// error for them.
func (l *Listener) Accept(ctx context.Context) (*Conn, error) {
	select {
	case a := <-l.ready:
		return a.c, a.err
	case <-l.over:
		return nil, l.err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// serve takes requests until the listener is closed or fails for good.
func (l *Listener) serve() {
	defer close(l.over)
	for {
		req, err := l.l.Accept(l.ctx)
		switch {
		case err == nil:
			l.take(req)
		case l.ctx.Err() != nil:
			l.err = fmt.Errorf("flow: accept: %w", verbs.ErrClosed)
			return
		case errors.Is(err, verbs.ErrClosed) || errors.Is(err, verbs.ErrDeviceRemoved):
			l.err = err
			return
		default:
			l.deliver(accepted{err: err})
		}
	}
}

// take starts the answer to a request, or parks the request if its host has used up its share of answers under way. It
// rejects the request if too many are parked.
func (l *Listener) take(req *verbs.ConnRequest) {
	p := parked{req, l.book.Account(hostquota.HostOf(req.RemoteAddr().Addr()))}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed { // Close has rejected those that were parked, and would not see this one
		l.wg.Go(func() { _ = req.Reject(nil) }) // the peer may be gone
		return
	}
	if l.startLocked(p) {
		return
	}
	if err := p.account.Take(hostquota.Queued, 1); err != nil {
		l.trail.Record(audit.Refused, "too many requests to connect wait", p.account.Host(), slog.Any("error", err))
		l.wg.Go(func() { _ = req.Reject(nil) }) // the peer may be gone
		return
	}
	l.parked = append(l.parked, p)
}

// startLocked starts the answer to a request if its host has a place, and reports whether it has.
//
// +checklocks:l.mu
func (l *Listener) startLocked(p parked) bool {
	if p.account.Take(hostquota.Handshakes, 1) != nil {
		return false
	}
	l.wg.Go(func() {
		l.answer(p)
		p.account.Give(hostquota.Handshakes, 1)
		l.startParked()
	})
	return true
}

// startParked starts the answers to those parked requests for which there is a place now.
func (l *Listener) startParked() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return
	}
	rest := l.parked[:0]
	for _, p := range l.parked {
		if l.startLocked(p) {
			p.account.Give(hostquota.Queued, 1)
		} else {
			rest = append(rest, p)
		}
	}
	clear(l.parked[len(rest):])
	l.parked = rest
}

// answer answers a request and hands the connection to Accept.
func (l *Listener) answer(p parked) {
	c, err := l.connect(l.ctx, p)
	if _, full := errors.AsType[*hostquota.LimitError](err); full {
		l.trail.Record(audit.Refused, "memory of connections", p.account.Host(), slog.String("peer", p.req.RemoteAddr().String()), slog.Any("error", err))
		return
	}
	if errors.Is(err, ErrPeer) {
		l.trail.Record(audit.Refused, "the peer does not speak the protocol", p.account.Host(), slog.String("peer", p.req.RemoteAddr().String()), slog.Any("error", err))
		return
	}
	if l.ctx.Err() == nil || c != nil {
		l.deliver(accepted{c, err})
	}
}

// deliver hands a result to Accept, or ends the connection if the listener is closed before.
func (l *Listener) deliver(a accepted) {
	select {
	case l.ready <- a:
	case <-l.ctx.Done():
		if a.c != nil {
			a.c.Abort(ErrClosed)
			_ = a.c.Close() // the program has not seen it
		}
	}
}

// connect accepts a request.
func (l *Listener) connect(ctx context.Context, w parked) (*Conn, error) {
	req := w.req
	peer, err := parseHello(req.PrivateData())
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%w: %w", ErrPeer, err), req.Reject(nil))
	}
	if err := w.account.Take(hostquota.Memory, l.each); err != nil {
		return nil, errors.Join(fmt.Errorf("%w (Config.MaxMemory)", err), req.Reject(nil))
	}
	c, err := newConn(l.l.Device(), l.cfg)
	if err != nil {
		w.account.Give(hostquota.Memory, l.each)
		return nil, errors.Join(err, req.Reject(nil))
	}
	c.account = w.account
	p := l.cfg.Param
	p.PrivateData = c.hello()
	limited, cancel := context.WithTimeout(ctx, cmp.Or(p.Timeout, answerLimit))
	defer cancel()
	conn, err := req.Accept(limited, c.qp, p)
	if err != nil {
		if ctx.Err() == nil {
			err = fmt.Errorf("%w: %w", ErrPeer, err) // it was gone before it was answered
		}
		return nil, errors.Join(err, c.release())
	}
	if err := c.begin(conn, peer, false); err != nil {
		return nil, errors.Join(err, conn.Disconnect(limited), c.release())
	}
	return c, nil
}

// Close ends the listener, and the connections that Accept has not returned. Those that it has returned go on.
func (l *Listener) Close() error {
	l.stop()
	err := l.l.Close()
	l.mu.Lock()
	l.closed = true
	waiting := l.parked
	l.parked = nil
	l.mu.Unlock()
	for _, p := range waiting {
		p.account.Give(hostquota.Queued, 1)
		_ = p.req.Reject(nil) // the listener's end has rejected it, unless the device is slow
	}
	l.wg.Wait()
	return err
}
