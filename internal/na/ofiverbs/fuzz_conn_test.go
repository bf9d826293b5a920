package ofiverbs

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"cinnabar/internal/hostquota"
	"cinnabar/internal/na"
	"cinnabar/internal/na/ofiaddr"
	"cinnabar/internal/progress"
	"cinnabar/verbs"
	"cinnabar/verbs/fault"
	"cinnabar/verbs/verbstest/memdev"
)

// FuzzConnection plays scripts against an endpoint on a device that fails as the script asks. A peer connects and is dialed, sends packets
// of all kinds with right and wrong credits and connection numbers, accesses memory, and ends its queue pairs. The endpoint starts and
// cancels operations in between. With every script, an innocent peer is served over its only connection, memory that peers may only read does not
// change, each operation completes once, and nothing is left: no connection, no region, no goroutine, no count in the Book.
//
// parity: Q04
// fuzz:state
func FuzzConnection(f *testing.F) {
	for _, script := range []string{
		"\x00d\x00c\x20q\x00\x05R\x00w\x01r\x01",                       // a connection, credits, a request, its response, one-sided accesses
		"\x00s\x01A\x00c\x20e\x01g\x00p\x00g\x13p\x43T\x10",            // a call to the peer, and transfers
		"\x00d\x00d\x01d\x02d\x00q\x00\x01q\x01\x01v\x00v\x01",         // several processes of one port
		"\x00s\x01s\x02A\x80c\x02c\x02T\xffT\xffT\xff",                 // requests that wait for credits longer than SendTimeout
		"\x00d\x10d\x20d\x40b\x00\x20................................", // requests that are refused, and bytes
		"\x00d\x00c\x01i\x00c\xffm\x00q\x00\x20k\x00\x01",              // too many credits, an immediate, a stale number, a cut packet
		"\x00s\x01A\x00c\x20g\x10z\x00z\x01g\x10E\x00T\x10",            // cancels of transfers, and a queue pair in error
		"\x00H\x01A\x00c\x20G\x00W\x00r\x08e\x01T\x01",                 // late reads of a given-up call
		"\x01\x00\x02\x03\x02s\x01A\x00c\x20g\x00p\x00T\xffT\xff",      // a completion with an error
		"\x02\x01\x02\x08\x00\x02\x03\x02\x01s\x01A\x00c\x20g\x00p\x00T\xffT\xffs\x02A\x00",
		"\x20s\x01A\x08c\x20p\x00p\x03p\x13O\x00T\x10p\x01E\x00",       // writes that are confirmed by reads
		"\x21\x03\x00\x03\x00s\x01A\x08c\x20p\x00p\x03z\x02z\x03T\xff", // and cancels of them on a device that loses a request
		"\x20s\x01A\x04c\x20p\x00T\x10d\xa0c\x20q\x00\x05P\x00v\x00",   // and with a peer that names memory that is not its own
		"\x83\x04\x02\x06\x00\x08\x02\x01\x00\x06\x03\x01\x02d\x00c\x20q\x00\x05g\x10s\x01",
	} {
		f.Add([]byte(script))
	}
	f.Fuzz(func(t *testing.T, script []byte) {
		if len(script) == 0 || len(script) > 1024 {
			return
		}
		synctest.Test(t, func(t *testing.T) { playConnection(t, script) })
	})
}

// playConnection plays a script: its first byte has the number of rules of the fault plan, and the flag closeWithWork.
func playConnection(t *testing.T, script []byte) {
	first := script[0]
	s := &verbsScript{t: t, rest: script[1:], flags: first}
	s.open(s.plan(int(first & 3)))
	for steps := 0; len(s.rest) > 1 && steps < 200 && !t.Failed(); steps++ {
		s.step(s.byte(), s.byte())
	}
	s.end()
}

// Flags of a script.
const (
	closeWithWork = 0x80 // the endpoint is closed while its operations are under way
	withBounces   = 0x40 // the endpoint copies small pieces, although the measurement takes no time here
	withoutStatus = 0x20 // the device does not confirm writes, so the endpoint confirms them by reads of a byte of the peer
)

// verbsScript is the playing of one script.
type verbsScript struct {
	t     *testing.T
	rest  []byte
	flags byte

	mem      *memdev.Device
	dev      *verbs.Device // of the endpoint; it fails as the plan says
	raw      *verbs.Device // of the peers
	in       *fault.Injector
	book     *hostquota.Book
	e        *Endpoint
	innocent *Endpoint
	to       na.Addr // of e as the innocent peer sees it
	pings    uint32

	pd      *verbs.PD
	ln      *verbs.Listener
	shared  *verbs.MR // memory of the peer
	peer    na.Addr   // as e sees it
	conns   [4]*verbsScriptConn
	damage  byte // changes the next packet, if not 0
	readMem na.Memory
	openMem na.Memory
	fixed   []byte // of readMem

	ops   []*call // na.Op panics if one of them completes twice
	given []lateScript
	mu    sync.Mutex
	// +checklocks:mu
	asked []na.Message // requests of the peer, without data
}

// lateScript is a request with a handle in it.
type lateScript struct {
	tag  uint32
	msg  []byte
	m    na.LateMemory
	sent *call
	held int // calls of the release function that are due
}

// byte takes a byte of the script.
func (s *verbsScript) byte() byte {
	if len(s.rest) == 0 {
		return 0
	}
	b := s.rest[0]
	s.rest = s.rest[1:]
	return b
}

// Statuses of completions and faults of a script.
var (
	scriptStatuses = []verbs.WCStatus{
		verbs.StatusRetryExcErr, verbs.StatusRNRRetryExcErr, verbs.StatusRemAccessErr, verbs.StatusLocLenErr, verbs.StatusGeneralErr,
		verbs.StatusWRFlushErr,
	}
	errScript = errors.New("as the script asked")
)

// plan makes a fault plan of n rules. The queue pair of the innocent peer is the first, and no rule matches it.
func (s *verbsScript) plan(n int) fault.Plan {
	var p fault.Plan
	for range n {
		kind, queue, nth, arg := s.byte(), int(s.byte()), int(s.byte()), int(s.byte())
		r := fault.Rule{Match: fault.Match{Queue: 2 + queue%6, Nth: 1 + nth%40}}
		at := fault.AtSend
		switch kind % 16 {
		case 0:
			r.Do = fault.Status(scriptStatuses[arg%len(scriptStatuses)])
		case 1:
			r.Do = fault.Overrun()
		case 2:
			r.Do = fault.Delay(1 + arg)
		case 3:
			r.Do = fault.Drop()
		case 4:
			r.Do = fault.Disconnect()
		case 5:
			r.Do = fault.NotReady(arg - 1)
		case 6:
			at, r.Do = fault.AtRecv, fault.Status(scriptStatuses[arg%len(scriptStatuses)])
		case 7:
			at, r.Do = fault.AtRecv, fault.Overrun()
		case 8:
			at, r.Do = fault.AtRecv, fault.Delay(1+arg)
		case 9:
			at, r.Do = fault.AtRecv, fault.Drop()
		case 10:
			at, r.Do = fault.AtDial, []fault.Action{fault.Fail(errScript), fault.Refuse(), fault.Ignore(), fault.Reject([]byte{rejectLen, cmVersion, byte(arg)})}[arg%4]
		case 11:
			at, r.Match.Queue = fault.AtRequest, 1
			r.Match.Nth++ // the first is that of the innocent peer
			r.Do = []fault.Action{fault.Fail(errScript), fault.Ignore(), fault.Reject(nil)}[arg%3]
		case 12:
			at, r.Match.Queue, r.Match.Nth, r.Match.Skip, r.Match.Limit = fault.AtRegister, 1, 0, 16+nth%32, 1+arg%16
			r.Do = fault.Fail(errScript)
		case 13:
			at, r.Match.Queue, r.Match.Nth, r.Match.Skip, r.Match.Limit = fault.AtCreateCQ, 0, 0, 1+nth%4, 1+arg%16
			r.Do = fault.Fail(errScript)
		case 14:
			at, r.Match.Queue, r.Match.Nth, r.Match.Skip, r.Match.Limit = fault.AtCreateQP, 1, 0, 1+nth%4, 1+arg%16
			r.Do = fault.Fail(errScript)
		case 15:
			r.Do = fault.Duplicate()
		}
		r.Match.At = at
		p.Rules = append(p.Rules, r)
	}
	return p
}

// Sizes of the memories of a script, in bytes.
const (
	scriptExposed = 4096
	scriptShared  = 3 << 20 // more than one read or write moves
)

// open opens the endpoint, the innocent peer and the hostile one.
func (s *verbsScript) open(p fault.Plan) {
	t := s.t
	var cfg memdev.Config
	if s.flags&withoutStatus != 0 {
		cfg.Without = verbs.CapExactStatus
	}
	s.mem = memdev.Open(cfg)
	var err error
	if s.in, err = fault.New(p); err != nil {
		t.Fatal(err)
	}
	s.dev, s.raw = s.in.Wrap(verbs.NewDevice(s.mem)), verbs.NewDevice(s.mem)
	s.book = hostquota.NewBook(hostquota.Limits{hostquota.Connections: 32, hostquota.Handshakes: 16})
	parked := progress.NewFixed(0) // simulated time stands still while a goroutine spins
	s.e = s.mustOpen(Config{
		Device: s.dev, Listen: true, Handler: handlerFunc(s.request), Quota: s.book, Progress: parked, DialRetry: time.Second, RegCacheBytes: 1 << 20,
	})
	if s.flags&withBounces != 0 {
		s.e.locals.bounce.most = bounceSlot
	}
	s.innocent = s.mustOpen(Config{Device: s.raw, Progress: parked})
	s.to = lookup(t, s.innocent, s.e)
	s.ping()
	if s.pd, err = s.raw.AllocPD(); err != nil {
		t.Fatal(err)
	}
	if s.ln, err = verbs.Listen(s.raw, netip.MustParseAddrPort("127.0.0.1:0")); err != nil {
		t.Fatal(err)
	}
	if s.shared, err = s.pd.RegMR(make([]byte, scriptShared), verbs.LocalWrite|verbs.RemoteRead|verbs.RemoteWrite); err != nil {
		t.Fatal(err)
	}
	if s.peer, err = s.e.Lookup(formatAddr(s.ln.Addr())); err != nil {
		t.Fatal(err)
	}
	s.fixed = bytes.Repeat([]byte{7}, scriptExposed)
	if s.readMem, err = s.e.Register(s.fixed, na.ReadOnly); err != nil {
		t.Fatal(err)
	}
	if s.openMem, err = s.e.Register(make([]byte, scriptExposed), na.ReadWrite); err != nil {
		t.Fatal(err)
	}
}

func (s *verbsScript) mustOpen(cfg Config) *Endpoint {
	cfg.Address = "ofi+verbs://127.0.0.1:0"
	e, err := Open(s.t.Context(), cfg)
	if err != nil {
		s.t.Fatal(err)
	}
	return e
}

// request is the handler of the endpoint: a request of one byte is answered at once, and the others are kept.
func (s *verbsScript) request(m *na.Message) na.Task {
	from, tag := m.From, m.Tag
	if len(m.Data) == 1 {
		return taskFunc(func() { s.e.SendExpected(&newCall().op, from, tag, []byte("ok")) })
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.asked) < 100 {
		s.asked = append(s.asked, na.Message{From: from, Tag: tag})
	}
	return nil
}

// ping calls the endpoint from the innocent peer.
func (s *verbsScript) ping() {
	s.t.Helper()
	s.pings++
	sent, answer := newCall(), newCall()
	s.innocent.RecvExpected(&answer.op, s.to, s.pings, make([]byte, 10))
	s.innocent.SendRequest(&sent.op, s.to, s.pings, request(s.innocent, []byte{1}))
	for _, c := range []*call{answer, sent} {
		if err := c.park(s.t); err != nil {
			s.t.Errorf("call of the innocent peer: %v", err)
		}
	}
	if n := s.innocent.Stats().Connections; n != 1 {
		s.t.Errorf("the innocent peer needed %d connections", n)
	}
}

// start starts an operation of the endpoint.
func (s *verbsScript) start(f func(op *na.Op)) *call {
	c := newCall()
	s.ops = append(s.ops, c)
	f(&c.op)
	return c
}

// origin returns the latest request of the peer, or one before it.
func (s *verbsScript) origin(back int) (m na.Message, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.asked) == 0 {
		return m, false
	}
	return s.asked[len(s.asked)-1-back%len(s.asked)], true
}

// step plays one operation.
func (s *verbsScript) step(op, arg byte) {
	e, i := s.e, int(arg)%len(s.conns)
	switch op {
	case 'T': // time passes
		time.Sleep(time.Duration(arg) * 50 * time.Millisecond) //nolint:forbidigo // simulated time
	case 'd':
		s.dial(i, arg)
	case 'A':
		s.accept(i, arg)
	case 'v':
		s.close(i)
	case 'E':
		if c := s.conns[i]; c != nil {
			_ = c.qp.Modify(verbs.QPAttr{Mask: verbs.AttrState, State: verbs.StateErr}) // it may be there already
		}
	case 'n': // receives
		if c := s.conns[i]; c != nil {
			c.post(int(arg))
		}
	case 'f':
		_ = s.in.Disconnect(2 + i) // there may be none
	case 'x':
		s.damage = arg
	case 'c', 'C', 'q', 'Q', 'e', 'b', 'm', 'k', 'i', 'w', 'r':
		s.packet(op, arg)

	case 's', 'S':
		tag := uint32(arg)
		if !s.waits(tag) {
			s.start(func(op *na.Op) { e.RecvExpected(op, s.peer, tag, make([]byte, 16)) })
		}
		s.start(func(op *na.Op) { e.SendRequest(op, s.peer, tag, request(e, make([]byte, int(arg)*16))) })
	case 'g', 'p':
		s.transfer(s.peer, op == 'p', arg)
	case 'P', 'O':
		if m, ok := s.origin(i); ok {
			s.transfer(m.From, op == 'P', arg)
		}
	case 'R':
		if m, ok := s.origin(i); ok {
			s.start(func(op *na.Op) { e.SendExpected(op, m.From, m.Tag, make([]byte, int(arg)*16)) })
		}
	case 'z':
		if len(s.ops) > 0 {
			e.Cancel(&s.ops[int(arg)%len(s.ops)].op)
		}
	case 'H':
		s.lend(arg)
	case 'G':
		if len(s.given) > 0 {
			g := &s.given[int(arg)%len(s.given)]
			e.Cancel(&g.sent.op)
			e.GiveUp(s.peer, g.tag, g.msg[e.Limits().RequestRoom:], func() string { return "given up" })
		}
	case 'W':
		if len(s.given) > 0 {
			s.withdraw(int(arg) % len(s.given))
		}
	case 'D':
		if len(s.ops) > 0 {
			e.Drive(s.peer, &s.ops[int(arg)%len(s.ops)].ev)
		}
	}
}

// waits reports whether an operation waits for a response with tag.
func (s *verbsScript) waits(tag uint32) bool {
	p, _ := s.e.resolve(s.peer)
	return p.expected.Has(tag)
}

// transfer starts a read or write of the memory of the peer.
func (s *verbsScript) transfer(to na.Addr, put bool, arg byte) {
	sizes := []int{1, 100, 64 << 10, scriptShared}
	r := &remote{at: s.shared.Remote(), size: scriptShared, access: na.ReadWrite}
	if arg&4 != 0 {
		r.at.RKey++
	}
	n := sizes[arg&3]
	frags := []na.Fragment{{Remote: r, Local: make([]byte, n)}}
	if arg&8 != 0 {
		r.size = uint64(2 * n)
		frags = append(frags, na.Fragment{Remote: r, Offset: uint64(n), Local: make([]byte, n)})
	}
	if arg&16 != 0 {
		r.size *= 2 // beyond the region
		r.at.Addr += scriptShared / 2
	}
	s.start(func(op *na.Op) {
		if put {
			s.e.Put(op, to, frags)
		} else {
			s.e.Get(op, to, frags)
		}
	})
}

// lend sends a request with a handle of new memory in it.
func (s *verbsScript) lend(arg byte) {
	e, tag := s.e, 1000+uint32(len(s.given))
	access := na.ReadOnly
	if arg&1 != 0 {
		access = na.ReadWrite
	}
	m, err := e.Register(make([]byte, 64), access)
	if err != nil {
		return // the plan has refused it
	}
	msg := request(e, m.AppendHandle([]byte("arguments")))
	late, _ := m.(na.LateMemory)
	s.start(func(op *na.Op) { e.RecvExpected(op, s.peer, tag, make([]byte, 16)) })
	sent := s.start(func(op *na.Op) { e.SendRequest(op, s.peer, tag, bytes.Clone(msg)) })
	s.given = append(s.given, lateScript{tag: tag, msg: msg, m: late, sent: sent})
}

// withdraw closes the memory of a request, as the engine does.
func (s *verbsScript) withdraw(i int) {
	g := &s.given[i]
	g.m.Withdraw(func() func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		g := &s.given[i]
		g.held++
		return func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.given[i].held--
		}
	})
	g.m.Close()
}

// verbsScriptConn is a queue pair of the hostile peer.
type verbsScriptConn struct {
	s     *verbsScript
	cq    *verbs.CQ
	qp    *verbs.QP
	mr    *verbs.MR // the first half has the receives, the second one the packet that is sent
	vc    *verbs.Conn
	index uint32 // that the endpoint has given
}

// Numbers of the queue pairs of the hostile peer.
const (
	scriptReceives = 64
	scriptBuffer   = headerLen + defaultMessage
	scriptOut      = scriptReceives * scriptBuffer
)

// queue makes a queue pair in place i.
func (s *verbsScript) queue(i int) *verbsScriptConn {
	s.close(i)
	c := &verbsScriptConn{s: s}
	var err error
	if c.cq, err = s.raw.CreateCQ(4 * scriptReceives); err != nil {
		s.t.Fatal(err)
	}
	if c.qp, err = s.pd.CreateQP(verbs.QPConfig{SendCQ: c.cq, MaxSendWR: scriptReceives, MaxRecvWR: scriptReceives}); err != nil {
		s.t.Fatal(err)
	}
	if c.mr, err = s.pd.RegMR(make([]byte, scriptOut+eagerLimit+2*headerLen), verbs.LocalWrite); err != nil {
		s.t.Fatal(err)
	}
	s.conns[i] = c
	return c
}

func (c *verbsScriptConn) post(n int) {
	for i := range min(n, scriptReceives) {
		wr := verbs.RecvWR{ID: uint64(i), SGL: []verbs.SGE{c.mr.SGE(i*scriptBuffer, scriptBuffer)}}
		if _, err := c.qp.PostRecv([]verbs.RecvWR{wr}); err != nil {
			return // the queue is full
		}
	}
}

// close ends the connection in place i.
func (s *verbsScript) close(i int) {
	c := s.conns[i]
	if c == nil {
		return
	}
	s.conns[i] = nil
	for _, o := range []interface{ Close() error }{c.qp, c.mr, c.cq} {
		if err := o.Close(); err != nil {
			s.t.Error(err)
		}
	}
}

// dial connects as a process that arg names, with a valid request or a damaged one.
func (s *verbsScript) dial(i int, arg byte) {
	c := s.queue(i)
	if arg&4 == 0 {
		c.post(scriptReceives)
	}
	r := cmRequest{port: s.ln.Addr().Port(), flow: flowOn, eager: eagerLimit, receives: scriptReceives, id: connID{index: rawIndex, process: uint32(arg&3) + 1}}
	if arg&8 != 0 {
		r.flow = flowOff
	}
	if arg&16 != 0 {
		r.port = s.e.self.Port()
	}
	private := appendRequest(nil, r)
	if arg&32 != 0 {
		private = appendExtension(private, s.shared.Remote())
	}
	if arg&128 != 0 {
		private = appendExtension(private, verbs.RemoteAddr{RKey: 1, Addr: 2})
	}
	if arg&64 != 0 {
		private[int(s.byte())%len(private)] ^= s.byte()
	}
	if r, err := parseRequest(private); err == nil && r.port == s.innocent.self.Port() {
		s.close(i) // a process of the same host can take the place of another one
		return
	}
	ctx, cancel := context.WithTimeout(s.t.Context(), time.Second)
	defer cancel()
	var err error
	if c.vc, err = verbs.Dial(ctx, c.qp, s.e.self, verbs.ConnParam{PrivateData: private, RNRRetry: rnrRetry}); err != nil {
		s.close(i)
		return
	}
	if a, err := parseAccept(c.vc.PrivateData()); err != nil {
		s.t.Errorf("the endpoint accepts with % x: %v", c.vc.PrivateData(), err)
	} else {
		c.index = a.id.index
	}
}

// accept answers the next connection request of the endpoint.
func (s *verbsScript) accept(i int, arg byte) {
	ctx, cancel := context.WithTimeout(s.t.Context(), time.Second)
	defer cancel()
	req, err := s.ln.Accept(ctx)
	if err != nil {
		return // the endpoint dials nothing
	}
	m, err := parseRequest(req.PrivateData())
	if err != nil {
		s.t.Errorf("the endpoint asks with % x: %v", req.PrivateData(), err)
	}
	a := appendAccept(nil, cmAccept{id: connID{index: rawIndex, process: uint32(arg&3) + 1}, flow: flowOn})
	switch arg >> 4 {
	case 1:
		_ = req.Reject(appendReject(nil, rejectAlready)) // the endpoint may have given up
		return
	case 2:
		_ = req.Reject(appendReject(nil, rejectRefused)) // likewise
		return
	case 3:
		a[offAcceptFlow] = byte(flowOff)
	case 4:
		a[int(s.byte())%len(a)] ^= s.byte()
	}
	if arg&8 != 0 {
		a = appendExtension(a, s.shared.Remote())
	} else if arg&4 != 0 {
		a = appendExtension(a, verbs.RemoteAddr{RKey: 1, Addr: 2})
	}
	c := s.queue(i)
	if arg>>4 != 8 {
		c.post(scriptReceives)
	}
	c.index = m.id.index
	if c.vc, err = req.Accept(ctx, c.qp, verbs.ConnParam{PrivateData: a, RNRRetry: rnrRetry}); err != nil {
		s.close(i) // the endpoint has given up
	}
}

// packet sends a packet over the connection that arg names, or accesses memory.
func (s *verbsScript) packet(op, arg byte) {
	c := s.conns[int(arg)%len(s.conns)]
	switch op {
	case 'c', 'C': // arg is the number of credits, over the first connection
		c = s.conns[0]
	}
	var next byte
	if op == 'q' || op == 'Q' || op == 'b' || op == 'k' {
		next = s.byte()
	}
	if c == nil {
		return
	}
	body := append(ofiaddr.Append(nil, s.ln.Addr()), make([]byte, int(next)*16)...)
	p := append(make(packet, headerLen), body...)
	p.putRequest(c.index, uint32(arg), len(body))
	wr := verbs.SendWR{Op: verbs.OpSend}
	switch op {
	case 'c':
		p = p[:headerLen]
		p.putCredit(c.index, int(arg))
	case 'C':
		p = p[:headerLen]
		p.putCredit(c.index, int(arg)<<10)
	case 'e':
		p = append(p[:headerLen], make([]byte, int(arg>>4))...)
		p.putExpected(c.index, uint32(arg), int(arg>>4))
	case 'b':
		n := min(int(next), len(s.rest))
		p = bytes.Clone(s.rest[:n])
		s.rest = s.rest[n:]
	case 'm':
		binary.LittleEndian.PutUint64(p[offConnID:], uint64(c.index)+1+uint64(arg))
	case 'k':
		p = p[:int(next)%len(p)]
	case 'i':
		wr.Op, wr.Imm = verbs.OpSendImm, uint32(arg)
	case 'w', 'r':
		wr.Op = verbs.OpWrite
		if op == 'r' {
			wr.Op = verbs.OpRead
		}
		wr.Remote = s.target(arg)
		p = make(packet, 32)
	}
	if s.damage > 0 && len(p) > 0 {
		p[int(s.damage)%len(p)] ^= s.damage
		s.damage = 0
	}
	copy(c.mr.Bytes()[scriptOut:], p)
	wr.SGL = []verbs.SGE{c.mr.SGE(scriptOut, len(p))}
	_, _ = c.qp.PostSend([]verbs.SendWR{wr}) // the queue may be full, or in error
	synctest.Wait()
	var wcs [16]verbs.WC
	for n := 1; n > 0; {
		n, _ = c.cq.Poll(wcs[:])
	}
}

// target returns an address of the endpoint's memory, or beside it.
func (s *verbsScript) target(arg byte) verbs.RemoteAddr {
	m := s.openMem
	switch {
	case arg&4 != 0:
		m = s.readMem
	case arg&8 != 0 && len(s.given) > 0:
		m, _ = s.given[len(s.given)-1].m.(na.Memory)
	}
	r, err := parseHandle(m.AppendHandle(nil))
	if err != nil {
		s.t.Fatal(err)
	}
	if arg&16 != 0 {
		r.at.Addr += r.size - 8 // the end of the access lies behind the region
	}
	if arg&32 != 0 {
		r.at.RKey += uint32(arg)
	}
	return r.at
}

// end ends all, and checks that nothing is left.
func (s *verbsScript) end() {
	t := s.t
	for i := range s.conns {
		s.close(i)
	}
	must := func(what string, err error) {
		if err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	must("listener", s.ln.Close())
	if s.flags&closeWithWork == 0 {
		for _, c := range s.ops {
			s.e.Cancel(&c.op)
		}
		s.completed()
		s.ping()
		for i := range s.given {
			s.withdraw(i)
		}
		s.settled("connections and memory", func() bool {
			return len(s.e.connections()) == 1 && s.book.Used(hostquota.Connections) == 1 && s.book.Used(hostquota.Handshakes) == 0 &&
				s.book.Used(hostquota.Memory) == 0 && len(s.e.active.List()) == 1
		})
		s.innocentConn()
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	must("endpoint", s.e.Close(ctx))
	s.completed()
	must("innocent endpoint", s.innocent.Close(ctx))
	for i := range (hostquota.Limits{}) {
		if r := hostquota.Resource(i); s.book.Used(r) != 0 {
			t.Errorf("%d of %v are counted in the end", s.book.Used(r), r)
		}
	}
	s.mu.Lock()
	for i := range s.given {
		if n := s.given[i].held; n != 0 {
			t.Errorf("memory %d is held %d times", i, n)
		}
	}
	s.mu.Unlock()
	if bytes.Count(s.fixed, []byte{7}) != len(s.fixed) {
		t.Error("memory that may only be read has changed")
	}
	must("memory of the peer", s.shared.Close())
	must("domain of the peer", s.pd.Close())
	must("device of the endpoint", s.dev.Close())
	must("device of the peers", s.raw.Close())
}

// completed checks that all operations are over, or complete within the limits of the endpoint.
func (s *verbsScript) completed() {
	s.settled("operations", func() bool {
		for _, c := range s.ops {
			if !c.ev.IsSet() {
				return false
			}
		}
		return true
	})
}

// settled waits until cond holds, in simulated time.
func (s *verbsScript) settled(text string, cond func() bool) {
	s.t.Helper()
	for range 180 {
		synctest.Wait()
		if cond() {
			return
		}
		time.Sleep(time.Second) //nolint:forbidigo // simulated time
	}
	var left []string
	for i, c := range s.ops {
		if !c.ev.IsSet() {
			left = append(left, fmt.Sprint(i))
		}
	}
	s.t.Errorf("after 3 minutes %s are left: operations %v, %d connections, %d active peers, used %v", text, left, len(s.e.connections()),
		len(s.e.active.List()), []int64{s.book.Used(hostquota.Connections), s.book.Used(hostquota.Handshakes), s.book.Used(hostquota.Memory)})
}

// innocentConn checks that all entries of the queues of the only connection are free.
func (s *verbsScript) innocentConn() {
	for _, c := range s.e.connections() {
		c.mu.Lock()
		if !c.sentLocked() || len(c.moves.free) != c.ep.shape.oneSided || len(c.queue) != c.head || c.credits > maxCredits {
			s.t.Errorf("the connection of the innocent peer has %d free slots of %d, %d unsignaled packets, %d of %d transfers, %d queued messages and %d credits",
				len(c.free), c.ep.shape.slots, c.silent, len(c.moves.free), c.ep.shape.oneSided, len(c.queue)-c.head, c.credits)
		}
		c.mu.Unlock()
	}
}
