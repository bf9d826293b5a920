package hg

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/datadriven"

	"cinnabar/codes"
	"cinnabar/internal/hg/wire"
	"cinnabar/internal/hostquota"
	"cinnabar/internal/na"
)

// scripted is an endpoint whose operations complete when a script says so.
type scripted struct {
	na.Endpoint // nil: methods that scripts do not need

	mu      sync.Mutex
	log     strings.Builder
	flying  map[string]*na.Op
	buffers map[string][]byte
	frags   map[string][]na.Fragment
	self    scriptAddr
	peer    scriptAddr
	tags    map[string]uint32
}

const (
	scriptRequestRoom  = 3
	scriptResponseRoom = 5
)

func newScripted() *scripted {
	return &scripted{flying: map[string]*na.Op{}, buffers: map[string][]byte{}, frags: map[string][]na.Fragment{}, tags: map[string]uint32{},
		self: scriptAddr{name: "self"}, peer: scriptAddr{name: "peer", gone: make(chan struct{})},
	}
}

func (e *scripted) say(format string, args ...any) {
	e.mu.Lock()
	defer e.mu.Unlock()
	fmt.Fprintf(&e.log, format+"\n", args...)
}

// said returns what has been said since the last time.
func (e *scripted) said() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	s := e.log.String()
	e.log.Reset()
	return s
}

type scriptAddr struct {
	name string
	gone chan struct{}
	host int32 // which it is on

	open    sync.Once
	account *hostquota.Account
}

func (a *scriptAddr) String() string           { return a.name }
func (a *scriptAddr) Equal(other na.Addr) bool { return a == other }
func (a *scriptAddr) Done() <-chan struct{}    { return a.gone }

// Account keeps the account, because the Book refers to it weakly: what is taken and not given back would be forgotten with it.
func (a *scriptAddr) Account() *hostquota.Account {
	a.open.Do(func() { a.account = scriptBook.Account(hostquota.ProcessHost(0, a.host+1)) })
	return a.account
}

var scriptBook = hostquota.NewBook(hostquota.Limits{})

func (e *scripted) Addr() na.Addr { return &e.self }
func (e *scripted) Limits() na.Limits {
	return na.Limits{MaxRequest: 256, MaxResponse: 256, RequestRoom: scriptRequestRoom, ResponseRoom: scriptResponseRoom}
}

func (e *scripted) start(name string, op *na.Op, buf []byte, frags []na.Fragment) {
	op.Begin()
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.flying[name] != nil {
		fmt.Fprintf(&e.log, "%s is in flight already\n", name)
	}
	e.flying[name], e.buffers[name], e.frags[name] = op, buf, frags
}

func (e *scripted) SendRequest(op *na.Op, to na.Addr, tag uint32, msg []byte) {
	h := wire.RequestHeader(msg[scriptRequestRoom:])
	e.say("send request to %v: tag %d, %d bytes, id %d, flags %#02x", to, tag, len(msg)-scriptRequestRoom, h.ID(), h.Flags())
	e.start("send", op, nil, nil)
}

func (e *scripted) RecvExpected(op *na.Op, from na.Addr, tag uint32, buf []byte) {
	e.mu.Lock()
	other, name := e.tags["receive"] == tag && e.flying["receive"] != nil, "receive"
	if e.flying[name] != nil {
		name = "receive2"
	}
	e.tags[name] = tag
	e.mu.Unlock()
	if other {
		e.say("receive from %v: tag %d is in use", from, tag)
		op.Begin()
		op.Finish(0, &na.Error{Kind: na.Invalid, Op: "receive"})
		return
	}
	e.say("receive from %v: tag %d", from, tag)
	e.start(name, op, buf, nil)
}

func (e *scripted) SendExpected(op *na.Op, to na.Addr, tag uint32, msg []byte) {
	b := msg[scriptResponseRoom:]
	if len(b) == wire.AckSize {
		e.say("send ack to %v: tag %d", to, tag)
		e.start("ack", op, nil, nil)
		return
	}
	h := wire.ResponseHeader(b)
	e.say("send response to %v: tag %d, %d bytes, %v, flags %#02x, cookie %d", to, tag, len(b), h.Code(), h.Flags(), h.Cookie())
	e.start("send", op, nil, nil)
}

func (e *scripted) Get(op *na.Op, from na.Addr, frags []na.Fragment) {
	e.say("get from %v: %d bytes", from, len(frags[0].Local))
	e.start("get", op, nil, frags)
}

func (e *scripted) Cancel(op *na.Op) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for name, o := range e.flying {
		if o == op {
			fmt.Fprintf(&e.log, "cancel %s\n", name)
		}
	}
}

func (e *scripted) Drive(na.Addr, *na.Event) {}

type scriptMemory struct {
	e *scripted
	n int
}

func (e *scripted) Register(mem []byte, _ na.Access) (na.Memory, error) {
	e.say("expose %d bytes", len(mem))
	return &scriptMemory{e, len(mem)}, nil
}
func (m *scriptMemory) AppendHandle(b []byte) []byte { return append(b, byte(m.n)) }
func (m *scriptMemory) Revoke()                      {}
func (m *scriptMemory) Close()                       { m.e.say("revoke %d bytes", m.n) }

func (e *scripted) ParseHandle(b []byte) (na.RemoteMemory, error) { return numbered255{}, nil }

type numbered255 struct{}

func (numbered255) Len() uint64 { return 255 }

func (e *scripted) Shutdown()                   {}
func (e *scripted) Close(context.Context) error { return nil }

// complete ends an operation: "send", "send err=unreachable", "receive data", ...
func (e *scripted) complete(t *testing.T, d *datadriven.TestData) {
	name := d.CmdArgs[0].Key
	e.mu.Lock()
	op, buf, frags := e.flying[name], e.buffers[name], e.frags[name]
	delete(e.flying, name)
	e.mu.Unlock()
	if op == nil {
		t.Fatalf("%s: %s is not in flight", d.Pos, name)
	}
	var err error
	var kind string
	if d.MaybeScanArgs(t, "err", &kind) {
		err = &na.Error{Kind: kindNamed(t, kind), Op: name}
	}
	var n int
	switch {
	case d.HasArg("response"):
		n = copy(buf, scriptResponse(t, d))
	case d.HasArg("ack"):
		n = wire.AckSize
	case d.HasArg("n"):
		d.ScanArgs(t, "n", &n)
	case name == "get" && err == nil:
		for _, f := range frags {
			n += len(f.Local)
		}
	}
	op.Finish(int64(n), err)
}

func kindNamed(t *testing.T, name string) na.Kind {
	for k := na.Unreachable; k <= na.NotAvailable; k++ {
		if strings.ReplaceAll(k.String(), " ", "-") == name {
			return k
		}
	}
	t.Fatalf("no kind %q", name)
	return 0
}

// scriptResponse makes a response: response=code, more=length of an overflow, or size=length of the payload.
func scriptResponse(t *testing.T, d *datadriven.TestData) []byte {
	var code, more, size int
	d.ScanArgs(t, "response", &code)
	d.MaybeScanArgs(t, "more", &more)
	d.MaybeScanArgs(t, "size", &size)
	f := wire.Response{Code: codes.Code(code)}
	b := make([]byte, wire.FormShort.Size()+size)
	if more > 0 {
		f.Flags = wire.FlagMoreData
		b = wire.AppendLent(b, more, (&scriptMemory{n: more}).AppendHandle, nil)
	}
	wire.PutResponse(b, f)
	return b
}

// TestCallMachine runs the scripts of testdata/machines/call_*.
func TestCallMachine(t *testing.T) {
	datadriven.Walk(t, "testdata/machines/call", func(t *testing.T, path string) {
		synctest.Test(t, func(t *testing.T) {
			ep := newScripted()
			c := New(Config{})
			c.Attach(ep)
			c.Serve()
			c.tags.Start(0)
			s := &callScript{ep: ep, c: c}
			datadriven.RunTest(t, path, s.run)
			s.end(t)
		})
	})
}

// end closes a class and checks that nothing is left.
func (s *callScript) end(t *testing.T) {
	if err := s.c.Close(context.Background()); err != nil {
		t.Error(err)
	}
	if st := s.c.Stats(); st.CallsActive != 0 || st.RequestsActive != 0 || st.TransfersActive != 0 || st.OverflowBytes != 0 {
		t.Errorf("left over: %+v", st)
	}
}

type callScript struct {
	ep *scripted
	c  *Class
	k  *Call
	r  *Request

	responded chan error
}

func (s *callScript) CallDone(k *Call) {
	if err := k.Err(); err != nil {
		s.ep.say("done: %v", err)
	} else {
		s.ep.say("done: %d bytes", len(k.Output()))
	}
}

func (s *callScript) run(t *testing.T, d *datadriven.TestData) string {
	switch d.Cmd {
	case "start":
		var size int
		d.MaybeScanArgs(t, "size", &size)
		s.k = s.c.NewCall()
		s.k.Notify(s)
		to := na.Addr(&s.ep.peer)
		if d.HasArg("self") {
			to = s.ep.Addr()
		}
		s.k.Start(to, 7, CallOptions{OneWay: d.HasArg("oneway")}, make([]byte, size))
	case "complete":
		s.ep.complete(t, d)
	case "cancel":
		s.k.Cancel()
	case "expire":
		s.k.abort(codes.Timeout, context.DeadlineExceeded)
	case "miss-ack":
		seq := s.k.state.load().sequence()
		s.k.missAck(seq)
	case "pass": // longer than anything waits
		elapse(time.Hour)
	case "free":
		s.k.Free()
	default:
		t.Fatalf("unknown command %s", d.Cmd)
	}
	synctest.Wait() // memory is closed elsewhere
	return s.ep.said()
}

// TestRequestMachine runs the scripts of testdata/machines/request.
func TestRequestMachine(t *testing.T) {
	datadriven.Walk(t, "testdata/machines/request", func(t *testing.T, path string) {
		synctest.Test(t, func(t *testing.T) {
			ep := newScripted()
			s := &callScript{ep: ep, responded: make(chan error)}
			s.c = New(Config{Dispatch: s, MaxOverflow: 250, OverflowBudget: 300})
			s.c.Attach(ep)
			s.c.Serve()
			s.c.tags.Start(0)
			datadriven.RunTest(t, path, s.runRequest)
			s.end(t)
		})
	})
}

// Unknown implements [Dispatcher].
func (s *callScript) Unknown(ID) codes.Code { return 0 }

func (s *callScript) Dispatch(r *Request) na.Task {
	s.r = r
	s.ep.say("dispatch id %d: %d bytes, one-way %v", r.ID(), len(r.Input()), r.OneWay())
	return nil
}

func (s *callScript) runRequest(t *testing.T, d *datadriven.TestData) string {
	switch d.Cmd {
	case "message":
		if task := s.c.Request(&na.Message{From: &s.ep.peer, Tag: 3, Data: scriptRequest(t, d)}); task != nil {
			t.Fatal("a task")
		}
	case "respond":
		s.respond(t, d)
	case "fail":
		s.report(s.r.Fail(codes.Busy))
	case "expect-responded":
		s.report(<-s.responded)
	case "call": // a call to the same peer that has the tag of the request
		s.c.tags.Start(2)
		s.k = s.c.NewCall()
		s.k.Notify(s)
		s.k.Start(&s.ep.peer, 8, CallOptions{}, nil)
	case "complete":
		s.ep.complete(t, d)
	case "pass": // longer than anything waits
		elapse(time.Hour)
	case "free":
		s.r.Free()
	case "free-call":
		s.k.Free()
	case "stats":
		st := s.c.Stats()
		return fmt.Sprintf("requests %d, unsent %d, overflow bytes %d, sent %d, failed %d, dropped %d, refused %d, unheard %d\n", st.RequestsActive,
			st.ResponsesUnsent, st.OverflowBytes, st.ResponsesSent, st.ResponsesFailed, st.RequestsDropped, st.RequestsRefused, st.RequestsUnheard)
	default:
		t.Fatalf("unknown command %s", d.Cmd)
	}
	synctest.Wait() // requests with overflow are dispatched elsewhere
	return s.ep.said()
}

func (s *callScript) report(err error) {
	if err != nil {
		s.ep.say("error: %v", err)
	}
}

// respond answers; with "wait" the answer is expected to wait for an ack, and goes on on another goroutine.
func (s *callScript) respond(t *testing.T, d *datadriven.TestData) {
	var size int
	d.MaybeScanArgs(t, "size", &size)
	ctx, r := context.Background(), s.r
	if d.HasArg("canceled") {
		canceled, cancel := context.WithCancelCause(ctx)
		cancel(errors.New("handler is told to stop"))
		ctx = canceled
	}
	if !d.HasArg("wait") {
		s.report(r.Respond(ctx, make([]byte, size)))
		return
	}
	go func() { s.responded <- r.Respond(ctx, make([]byte, size)) }()
}

// scriptRequest makes a request: size=length of the payload, more=length of an overflow, oneway, flags=hex.
func scriptRequest(t *testing.T, d *datadriven.TestData) []byte {
	var size, more, cookie int
	d.MaybeScanArgs(t, "size", &size)
	d.MaybeScanArgs(t, "more", &more)
	d.MaybeScanArgs(t, "cookie", &cookie)
	f := wire.Request{ID: 9, Cookie: uint8(cookie)}
	if d.HasArg("checksums") {
		f.Form = wire.FormLong
	}
	b := make([]byte, f.Form.Size()+size)
	if more > 0 {
		f.Flags |= wire.FlagMoreData
		b = wire.AppendLent(b, more, (&scriptMemory{n: more}).AppendHandle, nil)
	}
	if d.HasArg("oneway") {
		f.Flags |= wire.FlagNoResponse
	}
	if d.HasArg("strange") {
		f.Flags |= 0x40
	}
	wire.PutRequest(b, f)
	if i := slices.IndexFunc(d.CmdArgs, func(a datadriven.CmdArg) bool { return a.Key == "protocol" }); i >= 0 {
		b[1] = 4
	}
	return b
}
