package hg

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"

	"cinnabar/codes"
	"cinnabar/internal/audit"
	"cinnabar/internal/hg/wire"
	"cinnabar/internal/hostquota"
	"cinnabar/internal/na"
)

// ID names an RPC.
type ID uint64

var errClosed = errors.New("the RPC class is closed")

// Class is HG class and context in one: RPCs and bulk transfers over one endpoint. It is that endpoint's [na.Handler].
type Class struct {
	cfg  Config
	log  *slog.Logger
	tags wire.Tags

	attached chan struct{} // closed by Attach, or by Close without Attach
	attach   sync.Once
	// The following are set by Attach and constant afterwards.
	ep     na.Endpoint
	self   na.Addr
	limits na.Limits

	closed    atomic.Bool
	closing   chan struct{} // closed with closed
	close     sync.Once
	tasks     na.Runners // for what may wait or runs the layer above, but never for a message or call that has nothing special
	count     counters
	flush     flush
	hurried   chan struct{} // closed by Hurry
	hurry     sync.Once
	peers     peers
	owed      owed
	exposed   exposed
	selfCalls selfCalls

	calls, requests, transfers sync.Pool
}

// New returns a Class that is not attached to an endpoint yet: endpoints want their handler when they are made.
func New(cfg Config) *Class {
	c := &Class{cfg: cfg.withDefaults(), attached: make(chan struct{}), closing: make(chan struct{}), flush: make(flush, 1), hurried: make(chan struct{})}
	c.log = c.cfg.Logger
	c.tags.Start(rand.Uint32())
	c.peers.byAddr = map[string]*peer{}
	c.owed.byHost = map[hostquota.Host]*owing{}
	c.exposed.byBase = map[uint64]*Bulk{}
	c.selfCalls.active = map[*Call]struct{}{}
	return c
}

// MinMessage is the least that an endpoint must offer for requests and responses, in bytes: headers and the descriptor of
// an overflow fit.
const MinMessage = 256

// Attach gives the Class its endpoint, once; it must be the one that has the Class as handler. Other methods must not be
// called before. Requests that come before wait for it. It panics if the endpoint's messages are shorter than MinMessage.
func (c *Class) Attach(ep na.Endpoint) {
	limits := ep.Limits()
	if limits.MaxRequest < MinMessage || limits.MaxResponse < MinMessage {
		panic("hg: messages of the endpoint are too short")
	}
	c.attach.Do(func() {
		c.ep, c.self, c.limits = ep, ep.Addr(), limits
		close(c.attached)
	})
}

// Endpoint returns what Attach has been given.
func (c *Class) Endpoint() na.Endpoint { return c.ep }

// Request takes a message from the network. It implements [na.Handler].
func (c *Class) Request(m *na.Message) na.Task {
	<-c.attached
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
		if d := c.cfg.Dispatch; d == nil || !d.Known(ID(f.ID)) {
			c.refuseUnknown(r)
			return nil
		}
		r.pullInput(payload)
		return nil
	}
	r.takeInput(payload)
	return c.dispatch(r)
}

// refuseUnknown answers a request for an RPC that is not registered. It does not fetch the input.
func (c *Class) refuseUnknown(r *Request) {
	c.log.Debug("request for an RPC that is not registered", "peer", r.from.String(), "id", uint64(r.f.ID))
	if !r.OneWay() {
		_ = r.Fail(codes.NoEntry) // the completion counts its outcome
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

// rejectRequest drops a message, or answers it if its sender can be told.
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

// Shutdown stops taking requests. What is under way goes on, and so do calls.
func (c *Class) Shutdown() { c.ep.Shutdown() }

// Close ends all calls, responses and transfers with Canceled, closes the endpoint and waits for the goroutines of both;
// for those that run the layer above, only until ctx is done, whose error it then returns. Close may be called again.
func (c *Class) Close(ctx context.Context) error {
	c.close.Do(func() {
		c.closed.Store(true)
		close(c.closing)
	})
	c.attach.Do(func() { close(c.attached) }) // for who waits in Request
	c.selfCalls.cancelAll()
	var err error
	if c.ep != nil {
		err = c.ep.Close(ctx)
	}
	return errors.Join(err, c.tasks.Wait(ctx))
}
