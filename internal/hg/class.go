package hg

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"cinnabar/codes"
	"cinnabar/internal/audit"
	"cinnabar/internal/hg/wire"
	"cinnabar/internal/hostquota"
	"cinnabar/internal/na"
	"cinnabar/internal/progress"
)

// ID names an RPC.
type ID uint64

var errClosed = errors.New("the RPC class is closed")

// Default limits, in bytes.
const (
	DefaultMaxOverflow    = 1 << 30
	DefaultOverflowBudget = 4 << 30
)

// Config are the choices of a [Class]. The zero value is C's default.
type Config struct {
	Logger    *slog.Logger      // nil: silent
	Dispatch  Dispatcher        // nil: requests are answered NoEntry
	Checksums wire.ChecksumMode // the layouts of headers that the Class speaks

	NoEager    bool // do not embed the data of small read-only memory in its descriptor (no_bulk_eager)
	NoOverflow bool // refuse payloads that do not fit into a message with Overflow instead of having them pulled (no_overflow)
	NoLoopback bool // refuse calls to the own address (no_loopback)

	// MaxOverflow limits the payload of one request or response that a peer asks this process to pull, in bytes;
	// 0 means DefaultMaxOverflow.
	MaxOverflow int64
	// OverflowBudget limits the memory of all pulled payloads together, in bytes; 0 means DefaultOverflowBudget. The memory of a payload
	// grows with the bytes that have come, and counts until the Request or Call is freed. A request beyond the budget is answered with
	// codes.Again. While the memory of a large payload grows, its bytes exist twice for a moment; that does not count.
	OverflowBudget int64

	// Progress counts the waits that park, and learns the price of their wake-ups; nil: nothing does.
	Progress *progress.Policy

	Clock Clock // measures the ages in errors; nil: errors have no ages

	// Audit counts and logs the refused requests and responses of peers; nil: a Trail of its own, on Logger.
	Audit *audit.Trail
}

// withDefaults returns cfg with default values in place of zero fields.
func (cfg Config) withDefaults() Config {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Audit == nil {
		cfg.Audit = audit.New(cfg.Logger)
	}
	if cfg.MaxOverflow <= 0 {
		cfg.MaxOverflow = DefaultMaxOverflow
	}
	cfg.MaxOverflow = min(cfg.MaxOverflow, math.MaxInt)
	if cfg.OverflowBudget <= 0 {
		cfg.OverflowBudget = DefaultOverflowBudget
	}
	return cfg
}

// Class is HG class and context in one: RPCs and bulk transfers over one endpoint. It is that endpoint's [na.Handler].
type Class struct {
	cfg  Config
	log  *slog.Logger
	tags wire.Tags

	serving chan struct{} // closed by Serve, or by Close without Serve
	serve   sync.Once
	// The following are set by Attach, and constant when serving is closed.
	ep     na.Endpoint
	lender na.Lender       // ep, nil if it lends no memory in pieces
	shared na.SharedMemory // ep, nil if it has no shared memory beside its network
	self   na.Addr
	limits na.Limits

	closed    atomic.Bool
	closing   chan struct{} // closed with closed
	close     sync.Once
	tasks     na.TaskGroup // goroutines that may wait or run the layer above; ordinary messages and calls start none
	count     counters
	flush     flushNotify
	hurried   chan struct{} // closed by Hurry
	hurry     sync.Once
	peers     peers
	unacked   unackedTable
	exposed   exposed
	selfCalls selfCalls

	calls, requests, transfers sync.Pool
}

// New returns a Class that is not attached to an endpoint yet: endpoints want their handler when they are made.
func New(cfg Config) *Class {
	c := &Class{cfg: cfg.withDefaults(), serving: make(chan struct{}), closing: make(chan struct{}), flush: make(flushNotify, 1), hurried: make(chan struct{})}
	c.log = c.cfg.Logger
	c.tags.Start(rand.Uint32())
	c.peers.byAddr = map[string]*peer{}
	c.unacked.byHost = map[hostquota.Host]*hostUnacked{}
	c.exposed.byBase = map[uint64]*Bulk{}
	c.selfCalls.active = map[*Call]struct{}{}
	return c
}

// MinMessage is the least that an endpoint must offer for requests and responses, in bytes: headers and the descriptor of
// an overflow fit.
const MinMessage = 256

// Attach gives the Class its endpoint, once; it must be the one that has the Class as handler. Other methods but Close must not be
// called before, and Attach not after Close. It panics if the endpoint's messages are shorter than MinMessage.
func (c *Class) Attach(ep na.Endpoint) {
	limits := ep.Limits()
	if limits.MaxRequest < MinMessage || limits.MaxResponse < MinMessage {
		panic("hg: messages of the endpoint are too short")
	}
	c.ep, c.self, c.limits = ep, ep.Addr(), limits
	c.shared, _ = ep.(na.SharedMemory)
	c.lender, _ = ep.(na.Lender)
}

// Serve lets the requests of peers in, after Attach. Earlier requests wait for it, because the layer above registers its handlers
// between Attach and Serve. The endpoint may receive no messages while a request waits.
func (c *Class) Serve() { c.serve.Do(func() { close(c.serving) }) }

// Endpoint returns the endpoint that was passed to Attach.
func (c *Class) Endpoint() na.Endpoint { return c.ep }

// Request takes a message from the network. It implements [na.Handler].
func (c *Class) Request(m *na.Message) na.Task {
	<-c.serving
	if c.ep == nil || c.closed.Load() {
		return nil
	}
	c.count.requestsRecvd.Add(1)
	if err := roomForResponse(m.From.Account()); err != nil {
		c.count.requestsDropped.Add(1)
		c.refused(m.From, "responses are not read", err)
		return nil
	}
	f, payload, bad := wire.ParseRequest(m.Data, c.cfg.Checksums)
	if bad != nil {
		c.rejectRequest(m, f, bad)
		return nil
	}
	r := c.newRequest(m.From, m.Tag, f)
	r.probe = wire.IsProbe(m.Data)
	if f.Flags&wire.FlagMoreData != 0 {
		c.count.requestsExtra.Add(1)
		if code := c.unknown(ID(f.ID)); code != codes.Code(0) {
			c.refuseUnknown(r, code)
			return nil
		}
		r.pullInput(payload)
		return nil
	}
	r.takeInput(payload)
	return c.dispatch(r)
}

// unknown returns 0 if an RPC is registered, and otherwise the code for its callers.
func (c *Class) unknown(id ID) codes.Code {
	if c.cfg.Dispatch == nil {
		return codes.NoEntry
	}
	return c.cfg.Dispatch.Unknown(id)
}

// refuseUnknown answers a request for an RPC that is not registered. It does not fetch the input.
func (c *Class) refuseUnknown(r *Request, code codes.Code) {
	c.log.Debug("request for an RPC that is not registered", "peer", r.from.String(), "id", r.f.ID)
	if !r.OneWay() {
		_ = r.Fail(code) // the completion counts its outcome
	}
	r.Free()
}

// roomForResponse returns an error if the host of a peer leaves so many responses unread that it gets no more: it has its
// share of those that may wait for the network.
func roomForResponse(a *hostquota.Account) error {
	held := a.Used(hostquota.Unsent)
	if held == 0 || a.Host().IsZero() {
		return nil
	}
	b := a.Book()
	limit := b.Limit(hostquota.Unsent)
	if limit == 0 || hostquota.Grants(limit, b.Used(hostquota.Unsent)+1, held+1) {
		return nil
	}
	return &unreadError{held, limit, a.Host()}
}

// unreadError is the error of a request that is dropped because its host leaves too many responses unread. Its text is formatted
// only for the log, because a host may send a million such requests a second.
type unreadError struct {
	held, limit int64
	host        hostquota.Host
}

// Error implements error.
func (e *unreadError) Error() string {
	return fmt.Sprintf("%d responses of %d wait for %v, which does not read them", e.held, e.limit, e.host)
}

// rejectRequest drops a malformed request, or answers it if bad.Answer is set.
func (c *Class) rejectRequest(m *na.Message, f wire.Request, bad *wire.Error) {
	c.count.requestsDropped.Add(1)
	c.cfg.Audit.Record(audit.Broken, "malformed request", hostOf(m.From), peerAttrs(m.From, bad)...)
	if bad.Answer && f.Flags&wire.FlagNoResponse == 0 {
		r := c.newRequest(m.From, m.Tag, f)
		_ = r.Fail(bad.Code) // the completion counts its outcome
		r.Free()
	}
}

// dispatch hands a complete request to the layer above.
func (c *Class) dispatch(r *Request) na.Task {
	if c.cfg.Dispatch == nil {
		if !r.OneWay() {
			_ = r.Fail(codes.NoEntry) // the completion counts its outcome
		}
		r.Free()
		return nil
	}
	return c.cfg.Dispatch.Dispatch(r)
}

// dispatchElsewhere is dispatch for requests that do not come straight from the network: their task gets a goroutine.
func (c *Class) dispatchElsewhere(r *Request) {
	if t := c.dispatch(r); t != nil {
		c.tasks.Run(t)
	}
}

// flushNotify wakes Flush when the last unsent response has been sent. It has room for one token, which stays there while no goroutine
// waits, so that a wake is cheap.
type flushNotify chan struct{}

func (f flushNotify) wake() {
	select {
	case f <- struct{}{}:
	default:
	}
}

// Flush returns when the network has taken all responses, or has failed to: at a moment when [Class.Unsent] is 0. It
// returns the cause of ctx's end if that comes first. It does not end while new responses are made all the time.
func (c *Class) Flush(ctx context.Context) error {
	for c.Unsent() > 0 {
		select {
		case <-c.flush:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	c.flush.wake() // other calls of Flush may wait
	return nil
}

// hurryTime stands for ackTime after Hurry.
const hurryTime = 2 * time.Second

// Hurry is called before Close: from now on a response that does not fit into a message is lent for two seconds and the time that its size
// takes, instead of a minute, because a caller that has given up does not report it and would delay the end. Hurry may be called again.
func (c *Class) Hurry() { c.hurry.Do(func() { close(c.hurried) }) }

// Shutdown drops the requests that come from now on. Requests that are being handled go on, and so do calls.
func (c *Class) Shutdown() { c.ep.Shutdown() }

// Close ends all calls, responses and transfers with Canceled, closes the endpoint and waits for the goroutines of both. It waits for
// those that run the layer above until ctx is done at most, and then returns the error of ctx. Close may be called again.
func (c *Class) Close(ctx context.Context) error {
	c.close.Do(func() {
		c.closed.Store(true)
		close(c.closing)
	})
	c.Serve() // wakes goroutines that wait in Request
	c.selfCalls.cancelAll()
	var err error
	if c.ep != nil {
		err = c.ep.Close(ctx)
	}
	return errors.Join(err, c.tasks.Wait(ctx))
}

// hostOf returns the host that a peer is counted for.
func hostOf(a na.Addr) hostquota.Host { return a.Account().Host() }

// peerAttrs are the attributes of log lines about a peer.
func peerAttrs(a na.Addr, err error) []slog.Attr {
	return []slog.Attr{slog.String("peer", a.String()), slog.Any("error", err)}
}

// refused counts a refusal of a peer, and logs it at the limited rate for its host. cause is a constant.
func (c *Class) refused(from na.Addr, cause string, err error) {
	c.cfg.Audit.Record(audit.Refused, cause, hostOf(from), peerAttrs(from, err)...)
}

// warn logs a problem with a peer that is not about security, at the limited rate for its host.
func (c *Class) warn(peer na.Addr, problem string, err error) {
	suppressed, ok := audit.Allow(hostOf(peer))
	if ok {
		c.log.Warn(problem, "peer", peer.String(), "error", err, "suppressed", suppressed)
	}
}
