package rmem

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"sync"
	"time"

	"cinnabar/codec"
	"cinnabar/codec/hgproc"
	"cinnabar/internal/audit"
	"cinnabar/internal/hostmem"
	"cinnabar/internal/hostquota"
	"cinnabar/rmem/internal/link"
)

// plans encode requests and responses on networks that are not an engine's.
var plans = sync.OnceValue(func() (p struct{ request, response codec.Plan }) {
	for _, t := range []struct {
		to   *codec.Plan
		from reflect.Type
	}{{&p.request, reflect.TypeFor[request]()}, {&p.response, reflect.TypeFor[response]()}} {
		plan, err := hgproc.Codec{}.Plan(t.from)
		if err != nil {
			panic(err) // the types are ours
		}
		*t.to = plan
	}
	return p
})

func init() { link.Rmem = network{} }

// network is the value of link.Rmem: the part of this package that serves other networks.
type network struct{}

// NewClient makes a client of the server at the other end of t. If it returns an error, it has closed t.
func (network) NewClient(ctx context.Context, t link.Transport) (*Client, error) {
	w := transportWire{t}
	c := &Client{srv: server{wire: w}, done: make(chan struct{})}
	var hello response
	err := t.Receive(ctx, hello.decode)
	if err == nil {
		err = hello.meaning()
	}
	if err != nil {
		return nil, errors.Join(c.srv.error("dial", 0, err), t.Close(ErrClosed))
	}
	c.session, c.maxRegionSize = hello.Session, hello.Limit
	c.stop = func() { _ = t.Close(ErrClosed) } // an error of a connection that has ended is no news
	go func() {
		<-t.Done()
		close(c.done)
	}()
	return c, nil
}

// decode decodes a response of another network.
func (r *response) decode(b []byte) error {
	if _, err := plans().response.Decode(b, r); err != nil {
		return fmt.Errorf("%w: %w", ErrProtocol, err)
	}
	return nil
}

// transportWire is a connection of another network.
type transportWire struct{ link.Transport }

func (w transportWire) handle(id uint64) Handle { return Handle{Server: w.Server(), ID: id} }

func (w transportWire) ask(ctx context.Context, q *request) (*response, error) {
	var r response
	if op(q.Op) == opBye {
		return &r, nil // the end of the connection ends the session
	}
	b, err := plans().request.Append(nil, q)
	if err != nil {
		return nil, err
	}
	if err := w.Exchange(ctx, b, r.decode); err != nil {
		return nil, err
	}
	return &r, nil
}

func (w transportWire) reach(r *response) (reachable, error) {
	if r.Addr == 0 || r.Addr+uint64(r.Size) < r.Addr {
		return nil, ErrProtocol
	}
	return w.Remote(r.Addr, r.Key), nil
}

// NewLender makes the part of a server that is the same on all networks. register returns the registration of a region's memory.
// The second result is cfg with defaults for zeros.
func (network) NewLender(cfg Config, register func([]byte) link.Memory) (link.Lender[Stats], Config, error) {
	cfg, err := cfg.filled()
	if err != nil {
		return nil, cfg, err
	}
	cfg.Strict = false
	return &networkLender{lender: newLender(cfg, func(size int64, wipe bool) (memory, error) { return newRegistered(size, wipe, register) })}, cfg, nil
}

// networkLender is a lender with the methods of link.Lender.
type networkLender struct{ lender }

func (l *networkLender) NewSession(peer string, h hostquota.Host) link.Session {
	return &networkSession{l: &l.lender, by: l.callerOf(peer, h)}
}

func (l *networkLender) Revoke(id uint64) bool { return l.revoke(id) }

func (l *networkLender) Stats() Stats { return l.stats() }

func (l *networkLender) Close() { l.closeAll() } // sessions end with their connections

// networkSession is a client on another network.
type networkSession struct {
	l  *lender
	by *caller
	id uint64  // 0 before Begin, and if the server has refused the client
	q  request // the last
}

func (s *networkSession) Account() *hostquota.Account { return s.by.account }

func (s *networkSession) Begin(conn any) (b []byte, ok bool, err error) {
	s.by.conn = conn
	var hello response
	s.id, ok = s.l.open(&hello, s.by)
	b, err = plans().response.Append(nil, &hello)
	return b, ok, err
}

func (s *networkSession) Decode(b []byte) error {
	s.q = request{}
	if _, err := plans().request.Decode(b, &s.q); err != nil {
		return fmt.Errorf("%w: %w", link.ErrUnreadable, err)
	}
	s.q.Session = s.id // a connection is a client, so the session in the request is ignored
	return nil
}

func (s *networkSession) Serve() (b []byte, delay time.Duration, done func(), err error) {
	q, r := &s.q, response{}
	delay, done = s.l.answer(q, &r, s.by, func() {
		switch {
		case op(q.Op) == opCopy:
			s.l.copyHere(q, &r)
		case op(q.Op) == opRead || op(q.Op) == opWrite || !s.l.serve(q, &r, s.by):
			r.Status = uint32(statusServer)
		}
	})
	b, err = plans().response.Append(nil, &r)
	return b, delay, done, err
}

func (s *networkSession) End(broken error) {
	s.l.closeSession(s.id, "its connection has ended")
	if broken != nil {
		s.l.trail.Record(audit.Broken, "connection ended", s.by.account.Host(), slog.Any("error", broken))
	}
}

// copyHere copies between regions of this server.
func (l *lender) copyHere(q *request, r *response) {
	to, from := l.use(r, q), l.source(r, q)
	if to != nil && from != nil {
		copyWithin(r, to, from, q)
	}
}

// registered is memory that clients reach over another network.
type registered struct {
	link.Memory
	buf    []byte
	mapped bool // buf is not of the Go heap
}

// newRegistered makes memory. Memory that is to be wiped is of the heap, because it is wiped after Close.
func newRegistered(size int64, wipe bool, register func([]byte) link.Memory) (memory, error) {
	m := &registered{mapped: size >= mapped && !wipe}
	if m.mapped {
		var err error
		if m.buf, err = hostmem.Map(int(size)); err != nil {
			return nil, err
		}
	} else {
		m.buf = heapMemory(size)
	}
	m.Memory = register(m.buf)
	return m, nil
}

func (m *registered) Bytes() []byte { return m.buf }

func (m *registered) describe(r *response, by *caller) (err error) {
	r.Addr, r.Key, err = m.Locate(by.conn)
	return err
}

// Close ends the registrations for all connections, and then gives up the memory.
func (m *registered) Close() error {
	err := m.Memory.Close()
	if m.mapped {
		err = errors.Join(err, hostmem.Unmap(m.buf))
	}
	return err
}
