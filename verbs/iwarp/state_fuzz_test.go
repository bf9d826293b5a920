package iwarp_test

import (
	"bytes"
	"io"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"cinnabar/internal/iwarp/ddp"
	"cinnabar/internal/iwarp/mpa"
	"cinnabar/internal/iwarp/rdmap"
	"cinnabar/verbs"
	"cinnabar/verbs/iwarp"
)

// script is the input of FuzzConnection, read byte by byte; beyond its end there are zeros.
type script struct{ b []byte }

func (s *script) end() bool { return len(s.b) == 0 }

func (s *script) byte() byte {
	if s.end() {
		return 0
	}
	v := s.b[0]
	s.b = s.b[1:]
	return v
}

func (s *script) word() uint16 { return uint16(s.byte())<<8 | uint16(s.byte()) }

// Limits of FuzzConnection.
const (
	stateRegion = 8192    // bytes of each region
	stateSteps  = 48      // of one script
	stateHold   = 8 << 10 // Config.HoldLimit
	stateMemory = 64 << 10
)

// stateRig is the device of FuzzConnection, with the connection that must go on being served.
type stateRig struct {
	*side
	around   []byte
	rw       *verbs.MR // may be read, written, and used by atomics; in the middle of around
	ro       *verbs.MR // may be read
	foreign  *verbs.MR // of another domain
	windowed *verbs.MR // peers may use the middle half by a window only
	innocent *side
	source   *verbs.MR // that the innocent peer reads
	listener *verbs.Listener
	base     int // goroutines
	conns    uint64
}

func newStateRig(f testing.TB) *stateRig {
	r := &stateRig{side: newSide(f, iwarp.Config{NoCRC: true, HoldLimit: stateHold, MaxMemory: stateMemory, DeniedLimit: -1}, nil)}
	r.around = make([]byte, 3*stateRegion)
	var err error
	if r.rw, err = r.pd.RegMR(r.around[stateRegion:2*stateRegion], verbs.LocalWrite|verbs.RemoteRead|verbs.RemoteWrite|verbs.RemoteAtomic); err != nil {
		f.Fatal(err)
	}
	closeAtEnd(f, r.rw.Close)
	r.ro = r.regionWith(f, stateRegion, verbs.RemoteRead)
	fill(r.ro.Bytes(), 5)
	pd, err := r.dev.AllocPD()
	if err != nil {
		f.Fatal(err)
	}
	closeAtEnd(f, pd.Close)
	if r.foreign, err = pd.AllocMR(stateRegion, verbs.LocalWrite|verbs.RemoteRead|verbs.RemoteWrite|verbs.RemoteAtomic|verbs.RemoteInvalidate); err != nil {
		f.Fatal(err)
	}
	closeAtEnd(f, r.foreign.Close)
	r.windowed = r.bindable(f, stateRegion)
	if r.listener, err = verbs.Listen(r.dev, netip.MustParseAddrPort("127.0.0.1:0")); err != nil {
		f.Fatal(err)
	}
	closeAtEnd(f, r.listener.Close)

	r.innocent = newSide(f, iwarp.Config{}, nil)
	server := r.another(f)
	connect(f, r.innocent, server, verbs.ConnParam{}, verbs.ConnParam{})
	r.source = r.region(f, 256)
	fill(r.source.Bytes(), 3)
	r.conns = r.dev.Stats()["quota_connections"]
	return r
}

// FuzzConnection has a hostile peer connect to a live device and act by a script: good and bad handshakes, messages with
// good and bad keys, numbers, lengths and CRCs, answers that nothing asked for, Terminates, and ends in the middle of a
// frame, while the program posts receives, sends and reads. The device does not panic nor hang, gives back once each
// request that was posted, holds no more memory than it may, leaves no goroutine, and serves another connection.
//
// parity: Q04
// fuzz:state
func FuzzConnection(f *testing.F) {
	for _, b := range stateSeeds() {
		f.Add(b)
	}
	shared, broken := newStateRig(f), false
	f.Fuzz(func(t *testing.T, data []byte) {
		r := shared
		if broken { // the fuzzer repeats what has failed, and the repetitions must not fail because of what is left of it
			r = newStateRig(t)
		}
		defer func() { broken = broken || t.Failed() }()
		r.base = runtime.NumGoroutine()
		r.run(t, &script{data})
		r.check(t)
	})
}

// stateSeeds are scripts that are mostly good.
func stateSeeds() [][]byte {
	good := []byte{1, 0, 4} // CRC, a good request, receives
	all := bytes.Clone(good)
	seeds := [][]byte{nil, good, {0, 1, 3}, {1, 2, 9}, {2, 3, 0xff, 1}}
	for op := range byte(numStateOps) {
		for _, detail := range [][]byte{{0, 0, 16, 40, 0, 0}, {1, 1, 0, 200, 3, 1}, {2, 0xff, 0xff, 9, 9, 9}, {5, stateRegion / 4 >> 8, 0, 40, 0, 0}} {
			one := append([]byte{op}, detail...)
			seeds = append(seeds, append(bytes.Clone(good), one...))
			all = append(all, one...)
		}
	}
	for _, last := range []byte{101, 99} { // a read of 307 bytes, and a response in three segments, which is right or too short
		seeds = append(seeds, append(bytes.Clone(good), stepSend, 0, 0, 9, 0, stepPostSend, 23, stepReadResponse, 1, 0, 2, 103, 0, 103, 0, last, 0))
	}
	return append(seeds, all)
}

// run plays one script.
func (r *stateRig) run(t *testing.T, s *script) {
	flags := s.byte()
	req := request()
	req.CRC = flags&1 != 0
	req.Setup.PeerToPeer, req.Setup.RTRWrite = flags&2 != 0, flags&2 != 0
	if flags&4 != 0 {
		req.Revision, req.Enhanced, req.Setup = mpa.Revision1, false, mpa.Setup{}
	}
	hello := encodeFrame(t, req)
	kind := s.byte() % 4
	switch kind {
	case 1: // a request that is cut off
		hello = hello[:int(s.byte())%len(hello)]
	case 2: // a request with a wrong bit
		hello[int(s.byte())%len(hello)] ^= 1 << (s.byte() % 8)
	case 3: // anything
		hello = append([]byte(nil), s.b[:min(len(s.b), 64)]...)
	}
	p := dialListener(t, r.listener)
	defer p.tc.Close()
	if _, err := p.tc.Write(hello); err != nil {
		return
	}
	if kind != 0 {
		_ = p.tc.CloseWrite() // the device hears no more than that
		r.reject(t, p)
		return
	}
	c := &stateConn{stateRig: r, t: t, p: p, s: s}
	defer c.close()
	qp := verbs.QPConfig{SendCQ: r.cq, RecvCQ: r.cq, MaxSendWR: 16, MaxRecvWR: 32, MaxSendSGE: 2, MaxRecvSGE: 2, SignalAll: true}
	var err error
	if flags&8 != 0 {
		if c.srq, err = r.pd.CreateSRQ(verbs.SRQConfig{MaxWR: 32, MaxSGE: 2}); err != nil {
			t.Fatal(err)
		}
		qp.SRQ = c.srq
	}
	if c.qp, err = r.pd.CreateQP(qp); err != nil {
		t.Fatal(err)
	}
	if c.queue = c.qp; c.srq != nil {
		c.queue = c.srq
	}
	if c.own, err = r.pd.RegMR(make([]byte, 4096), verbs.LocalWrite|verbs.RemoteWrite|verbs.RemoteInvalidate); err != nil {
		t.Fatal(err)
	}
	for range s.byte() % 16 {
		c.postRecv()
	}
	param := verbs.ConnParam{}
	if flags&16 != 0 {
		param.RNRRetry = 1
	}
	request, err := r.listener.Accept(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	if c.conn, err = request.Accept(testContext(t), c.qp, param); err != nil {
		t.Fatal(err)
	}
	if c.window, err = r.pd.AllocMW(verbs.MWType2); err != nil {
		t.Fatal(err)
	}
	c.bind()
	c.play(req.CRC)
	c.finish()
}

// reject waits until the device has closed the connection of a peer, and rejects its request if that was good after all.
func (r *stateRig) reject(t *testing.T, p *peer) {
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		_, _ = io.Copy(io.Discard, p.tc) // a reset ends it too
	}()
	eventually(t, "the handshake is over", func() bool {
		if r.dev.Stats()["quota_connections"] > r.conns {
			req, err := r.listener.Accept(testContext(t))
			if err != nil {
				t.Fatal(err)
			}
			if err := req.Reject(nil); err != nil {
				t.Fatal(err)
			}
		}
		select {
		case <-gone:
			return true
		default:
			return false
		}
	})
}

// stateConn is the connection of one script.
type stateConn struct {
	*stateRig
	t      *testing.T
	p      *peer
	s      *script
	qp     *verbs.QP
	srq    *verbs.SRQ // nil: the queue pair has receives of its own
	queue  receiver
	conn   *verbs.Conn
	own    *verbs.MR // goes with the connection; peers may revoke its key
	window verbs.MemoryWindow
	closed bool // own is closed
	recvs  int  // posted
	sends  int
	back   int
	out    []byte
}

// The steps of a script.
const (
	stepWrite = iota
	stepSend
	stepRun
	stepImmediate
	stepRead
	stepAtomic
	stepReadResponse
	stepAtomicResponse
	stepTerminate
	stepRaw
	stepHeader
	stepPostRecv
	stepPostSend
	stepCloseRegion
	stepFlush
	stepWindow
	stepCut
	numStateOps
)

// play sends the messages of the script. Bytes of the peer go out together, up to the next step of the program's, which finds
// all of them processed.
func (c *stateConn) play(crc bool) {
	reply := c.p.readFrame()
	c.p.crc = reply.CRC
	_ = crc
	go func() { _, _ = io.Copy(io.Discard, c.p.tc) }() // answers; it ends with the connection
	for range stateSteps {
		if c.s.end() {
			break
		}
		if !c.step() {
			break
		}
	}
	c.flush()
}

// flush sends the bytes that have been put together.
func (c *stateConn) flush() {
	if len(c.out) > 0 {
		_, _ = c.p.tc.Write(c.out) // the device may have had enough of it
		c.out = c.out[:0]
	}
}

// settle waits until the device has read everything, or reads no more.
func (c *stateConn) settle() {
	c.flush()
	var wc [16]verbs.WC
	for end := time.Now().Add(20 * time.Millisecond); time.Now().Before(end); {
		n, err := c.cq.Poll(wc[:])
		if err != nil {
			c.t.Fatal(err)
		}
		c.back += n
		if n == 0 {
			break
		}
	}
	if _, held, _ := iwarp.Held(c.dev); held > stateHold+(64<<10)+4096 {
		c.t.Errorf("%d bytes are held, the limit is %d", held, stateHold)
	}
	if n := c.dev.Stats()["quota_memory"]; n > stateMemory {
		c.t.Errorf("%d bytes are counted, the limit is %d", n, stateMemory)
	}
}

func (c *stateConn) add(h ddp.Header, payload []byte) { c.out = append(c.out, c.p.fpdu(h, payload)...) }

// target is a region, by key and address, that a message names.
func (c *stateConn) target() (key uint32, addr uint64) {
	which := c.s.byte()
	mr := [...]*verbs.MR{c.rw, c.rw, c.ro, c.foreign, c.own, c.rw, c.rw, c.rw}[which%8]
	key, addr = mr.RKey(), mr.Remote().Addr
	if which%8 == 5 {
		key, addr = c.window.RKey(), c.windowed.Remote().Addr
	}
	switch which >> 4 {
	case 1:
		key ^= 1
	case 2:
		key = 0
	case 3:
		key = mr.LKey()
	case 4:
		addr = ^uint64(0) - 7
	case 5:
		addr = mr.SGE(0, 0).Addr
	case 6: // the ends of the window
		addr += stateRegion/4 - 1
	case 7:
		addr += 3*stateRegion/4 - 8
	}
	return key, addr + uint64(c.s.word()%(stateRegion+64))
}

// body is the payload of a message.
func (c *stateConn) body() []byte {
	return bytes.Repeat([]byte{0xee}, int(c.s.byte())*int(1+c.s.byte()%8))
}

// step does one step; false ends the script.
func (c *stateConn) step() bool {
	s, p := c.s, c.p
	switch s.byte() % numStateOps {
	case stepWrite:
		key, addr := c.target()
		c.segments(tagged(rdmap.OpWrite, key, addr))
	case stepSend:
		op := []rdmap.Opcode{rdmap.OpSend, rdmap.OpSendSE, rdmap.OpSendInvalidate, rdmap.OpSendSEInvalidate}[s.byte()%4]
		h := p.untagged(op)
		if op.Invalidates() {
			h.Rsvd, _ = c.target()
		}
		c.segments(h)
	case stepRun: // of equal small messages, which are read ahead
		n, size := s.byte()%32, int(s.byte()%64)
		for range n {
			c.add(p.untagged(rdmap.OpSend), make([]byte, size))
		}
	case stepImmediate:
		op := []rdmap.Opcode{rdmap.OpImmediate, rdmap.OpImmediateSE}[s.byte()%2]
		c.add(p.untagged(op), append([]byte{0, 0, 0, 9}, [][]byte{{0, 0, 0, 0}, []byte("SIMD"), {1}}[s.byte()%3]...))
	case stepRead:
		key, addr := c.target()
		size := uint32(s.word())
		for range 1 + s.byte()%20 {
			c.add(p.untagged(rdmap.OpReadRequest), rdmap.AppendReadRequest(nil, rdmap.ReadRequest{SinkSTag: 1, Size: size, SourceSTag: key, SourceTO: addr}))
		}
	case stepAtomic:
		key, addr := c.target()
		c.add(p.untagged(rdmap.OpAtomicRequest), rdmap.AppendAtomicRequest(nil, rdmap.AtomicRequest{
			Op: rdmap.AtomicOp(s.byte() % 5), RequestID: 1, STag: key, TO: addr &^ uint64(s.byte()%8), AddSwap: 1, AddSwapMask: ^uint64(0), Compare: uint64(s.byte()), CompareMask: ^uint64(0)}))
	case stepReadResponse:
		key := c.own.LKey()
		if s.byte()%4 == 0 {
			key++
		}
		c.segments(tagged(rdmap.OpReadResponse, key, c.own.Remote().Addr+uint64(s.byte())))
	case stepAtomicResponse:
		c.add(p.untagged(rdmap.OpAtomicResponse), rdmap.AppendAtomicResponse(nil, rdmap.AtomicResponse{RequestID: uint32(s.byte() % 4), Original: 1}))
	case stepTerminate:
		h := p.untagged(rdmap.OpTerminate)
		b := rdmap.AppendTerminate(nil, rdmap.Cause(s.word()).Terminate())
		c.add(h, b[:len(b)-int(s.byte())%len(b)])
	case stepRaw:
		n := min(int(s.byte()), len(s.b))
		c.out = append(c.out, s.b[:n]...)
		s.b = s.b[n:]
	case stepHeader: // a header with any field, before a payload
		b := make([]byte, ddp.UntaggedHeaderLen)
		for i := range b {
			b[i] = s.byte()
		}
		h, n := ddp.ParseHeader(b)
		if n <= 0 {
			return true
		}
		if s.byte()%2 == 0 && !h.Tagged && h.QN < 4 {
			h.MSN = p.msns.Next(h.QN)
		}
		c.add(h, c.body())
	case stepPostRecv:
		c.settle()
		for range 1 + s.byte()%8 {
			c.postRecv()
		}
	case stepPostSend:
		c.settle()
		c.postSend()
	case stepCloseRegion:
		c.settle()
		c.closeOwn()
	case stepWindow:
		c.settle()
		c.rebind()
	case stepFlush:
		c.settle()
	case stepCut:
		if len(c.out) == 0 {
			c.add(p.untagged(rdmap.OpSend), c.body())
		}
		c.out = c.out[:len(c.out)-int(s.byte())%len(c.out)]
		return false
	}
	if len(c.out) > 1<<20 {
		c.flush()
	}
	return true
}

// segments sends a message in one to three segments, and breaks a rule about them now and then.
func (c *stateConn) segments(h ddp.Header) {
	shape := c.s.byte()
	n := 1 + int(shape%3)
	for i := range n {
		b := c.body()
		h.Last = i == n-1 && shape&8 == 0
		at := len(c.out)
		g := h
		switch shape >> 5 {
		case 1:
			g.MSN++
		case 2:
			g.MO += 3
		case 3:
			g.TO += 5
		}
		c.add(g, b)
		if shape&16 != 0 {
			c.out[at+int(c.s.byte())%(len(c.out)-at)] ^= 1
		}
		h = h.Advance(len(b))
	}
}

func (c *stateConn) postRecv() {
	k := c.recvs % 8
	if n, _ := c.queue.PostRecv([]verbs.RecvWR{{ID: 1, SGL: []verbs.SGE{c.own.SGE(256*k, int(c.s.byte())), c.own.SGE(2048+256*k, int(c.s.byte()))}}}); n == 1 {
		c.recvs++
	}
}

func (c *stateConn) postSend() {
	k := int(c.s.byte())
	wr := verbs.SendWR{ID: 2, Op: []verbs.Opcode{verbs.OpSend, verbs.OpWrite, verbs.OpRead, verbs.OpFetchAdd, verbs.OpSendImm, verbs.OpWriteImm, verbs.OpSendInvalidate}[k%7],
		SGL: []verbs.SGE{c.own.SGE(0, 8)}, Remote: verbs.RemoteAddr{Addr: 8, RKey: 8}, Flags: verbs.SendFlags(k>>4) & verbs.Fence}
	if wr.Op == verbs.OpRead {
		wr.SGL[0].Length = uint32(8 + 13*k) // so that a response may have several segments
	}
	if n, _ := c.qp.PostSend([]verbs.SendWR{wr}); n == 1 {
		c.sends++
	}
}

// bind binds the window to the middle half of its region.
func (c *stateConn) bind() {
	c.postWindow(verbs.SendWR{ID: 4, Op: verbs.OpBindMW, MW: c.window, MWAccess: verbs.RemoteRead | verbs.RemoteWrite,
		SGL: []verbs.SGE{c.windowed.SGE(stateRegion/4, stateRegion/2)}})
}

// rebind revokes the key of the window, binds the window, both or neither, and may then close it.
func (c *stateConn) rebind() {
	choice := c.s.byte()
	if choice&1 != 0 {
		c.postWindow(verbs.SendWR{ID: 5, Op: verbs.OpLocalInv, InvKey: c.window.RKey()})
	}
	if choice&2 != 0 {
		c.bind()
	}
	if choice&12 == 12 {
		if err := c.window.Close(); err != nil {
			c.t.Error(err)
		}
	}
}

func (c *stateConn) postWindow(wr verbs.SendWR) {
	if n, _ := c.qp.PostSend([]verbs.SendWR{wr}); n == 1 {
		c.sends++
	}
}

// closeOwn closes the connection's region, on which requests may be posted.
func (c *stateConn) closeOwn() {
	if c.own != nil && !c.closed {
		c.closed = true
		if err := c.own.Close(); err != nil {
			c.t.Error(err)
		}
	}
}

// finish ends the peer's stream, receives until the connection is over, and counts the completions.
func (c *stateConn) finish() {
	t := c.t
	_ = c.p.tc.CloseWrite() // it may be gone
	var wc [16]verbs.WC
	empty := verbs.RecvWR{ID: 3, SGL: []verbs.SGE{c.rw.SGE(4096, 4096)}}
	end := time.Now().Add(patience)
	for over := false; !over; runtime.Gosched() {
		select {
		case <-c.conn.Done():
			over = true
		default:
			if n, _ := c.queue.PostRecv([]verbs.RecvWR{empty}); n == 1 {
				c.recvs++
			}
		}
		n, err := c.cq.Poll(wc[:])
		if err != nil {
			t.Fatal(err)
		}
		c.back += n
		if time.Now().After(end) {
			t.Fatal("the connection does not end")
		}
	}
	if c.srq == nil {
		for ; c.back < c.recvs+c.sends; c.back++ {
			c.wait(t)
		}
	}
	if n, err := c.cq.Poll(wc[:]); c.srq == nil && n != 0 || err != nil {
		t.Errorf("a completion too many: %+v, error %v", wc[0], err)
	}
}

// close closes what the script has made.
func (c *stateConn) close() {
	if c.qp != nil {
		if err := c.qp.Close(); err != nil {
			c.t.Error(err)
		}
	}
	if c.srq != nil {
		if err := c.srq.Close(); err != nil {
			c.t.Error(err)
		}
	}
	c.closeOwn()
	if c.window != nil {
		if err := c.window.Close(); err != nil {
			c.t.Error(err)
		}
	}
	c.p.tc.Close()
}

// check compares memory and counts with those that a script may leave, and has the innocent connection read.
func (r *stateRig) check(t *testing.T) {
	eventually(t, "the connection's goroutines and counts are gone", func() bool {
		s := r.dev.Stats()
		return runtime.NumGoroutine() <= r.base && s["quota_connections"] == r.conns && s["quota_memory"] == 0 && s["quota_handshakes"] == 0
	})
	if !zero(r.around[:stateRegion]) || !zero(r.around[2*stateRegion:]) || !zero(r.foreign.Bytes()) ||
		!zero(r.windowed.Bytes()[:stateRegion/4]) || !zero(r.windowed.Bytes()[3*stateRegion/4:]) {
		t.Fatal("memory outside of the region has changed")
	}
	want := make([]byte, 256)
	fill(want, 3)
	dst := r.innocent.region(t, 256)
	r.innocent.send(t, verbs.SendWR{ID: 1, Op: verbs.OpRead, Flags: verbs.Signaled, SGL: []verbs.SGE{dst.SGE(0, 256)}, Remote: r.source.Remote()})
	r.innocent.want(t, 1, verbs.WCRead, verbs.StatusSuccess)
	if !bytes.Equal(dst.Bytes(), want) {
		t.Fatal("the innocent connection reads wrong bytes")
	}
	ro := make([]byte, stateRegion)
	fill(ro, 5)
	if !bytes.Equal(r.ro.Bytes(), ro) {
		t.Fatal("a region that may only be read has changed")
	}
}
