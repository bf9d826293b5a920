package iwarp_test

import (
	"bytes"
	"errors"
	"io"
	"math/bits"
	"testing"

	"cinnabar/internal/iwarp/ddp"
	"cinnabar/internal/iwarp/rdmap"
	"cinnabar/verbs"
	"cinnabar/verbs/iwarp"
)

// The tests of this file, rfc5041_test.go and rfc7306_test.go are those that the
// indexes of internal/iwarp/testdata name for rules that the device keeps; other
// tests of this package keep the rest.

// opened returns a device whose passive side has been opened by a peer: it may send.
func opened(t *testing.T, cfg iwarp.Config) (*side, *peer) {
	t.Helper()
	s := newSide(t, cfg, nil)
	p := acceptRaw(t, s, request(), verbs.ConnParam{})
	p.open()
	p.barrier()
	return s, p
}

// allOperations are a request of each kind, on 8 bytes of mr.
func allOperations(mr *verbs.MR) []verbs.SendWR {
	sgl := []verbs.SGE{mr.SGE(0, 8)}
	remote := verbs.RemoteAddr{Addr: 0x1000, RKey: 0x77}
	wrs := []verbs.SendWR{
		{Op: verbs.OpSend, SGL: sgl},
		{Op: verbs.OpSend, SGL: sgl, Flags: verbs.Solicited},
		{Op: verbs.OpWrite, SGL: sgl, Remote: remote},
		{Op: verbs.OpRead, SGL: sgl, Remote: remote},
		{Op: verbs.OpSendInvalidate, SGL: sgl, InvKey: 0x99},
		{Op: verbs.OpSendInvalidate, SGL: sgl, InvKey: 0x99, Flags: verbs.Solicited},
		{Op: verbs.OpWriteImm, SGL: sgl, Remote: remote, Imm: 1},
		{Op: verbs.OpSendImm, SGL: sgl, Imm: 2},
		{Op: verbs.OpFetchAdd, SGL: sgl, Remote: remote},
		{Op: verbs.OpCompareSwap, SGL: sgl, Remote: remote},
		{Op: verbs.OpWrite, SGL: sgl, Remote: remote},
		{Op: verbs.OpSend},
	}
	for i := range wrs {
		wrs[i].ID = uint64(i)
		wrs[i].Flags |= verbs.Signaled
	}
	return wrs
}

// onWire are the messages that allOperations makes, in order.
var onWire = []rdmap.Opcode{
	rdmap.OpSend, rdmap.OpSendSE, rdmap.OpWrite, rdmap.OpReadRequest, rdmap.OpSendInvalidate, rdmap.OpSendSEInvalidate,
	rdmap.OpWrite, rdmap.OpImmediate, rdmap.OpImmediate, rdmap.OpSend, rdmap.OpAtomicRequest, rdmap.OpAtomicRequest,
	rdmap.OpWrite, rdmap.OpSend,
}

// TestRFC5040_4_1_InvalidateSTagZero: the Invalidate STag is zero in all messages
// but those that invalidate.
func TestRFC5040_4_1_InvalidateSTagZero(t *testing.T) {
	s, p := opened(t, iwarp.Config{})
	s.send(t, allOperations(s.region(t, 8))...)
	p.operations(t, func(h ddp.Header, op rdmap.Opcode) {
		want := uint32(0)
		if op.Invalidates() {
			want = 0x99
		}
		if h.Rsvd != want {
			t.Errorf("%v: Invalidate STag %#x, want %#x", op, h.Rsvd, want)
		}
	})
}

// operations reads the messages of allOperations from the wire.
func (p *peer) operations(t *testing.T, check func(h ddp.Header, op rdmap.Opcode)) {
	t.Helper()
	for _, op := range onWire {
		h, _ := p.expect(op)
		check(h, op)
	}
}

// TestRFC5040_4_4_SinkSTagCopied: the requester's STag and offset come back as they were.
func TestRFC5040_4_4_SinkSTagCopied(t *testing.T) {
	s, p := opened(t, iwarp.Config{})
	mr := s.region(t, 64)
	for _, sink := range []struct {
		stag uint32
		to   uint64
	}{{0, 0}, {^uint32(0), ^uint64(0) - 63}, {mr.RKey(), mr.Remote().Addr}, {1, 1}} {
		for _, size := range []uint32{0, 64} {
			p.send(p.untagged(rdmap.OpReadRequest), rdmap.AppendReadRequest(nil, rdmap.ReadRequest{
				SinkSTag: sink.stag, SinkTO: sink.to, Size: size, SourceSTag: mr.RKey(), SourceTO: mr.Remote().Addr}))
			if h, payload := p.expect(rdmap.OpReadResponse); h.STag != sink.stag || h.TO != sink.to || len(payload) != int(size) {
				t.Errorf("response %+v of %d octets, want STag %#x, offset %#x, %d octets", h, len(payload), sink.stag, sink.to, size)
			}
		}
	}
}

// TestRFC5040_5_1_WriteNotDelivered: a valid Write makes no completion at its target
// and takes no receive.
func TestRFC5040_5_1_WriteNotDelivered(t *testing.T) {
	s, p := opened(t, iwarp.Config{})
	mr := s.region(t, 64)
	s.recv(t, verbs.RecvWR{ID: 1, SGL: []verbs.SGE{mr.SGE(32, 8)}})
	p.send(writeTo(mr.Remote()), sixteen)
	p.barrier()
	var wc [1]verbs.WC
	if n, err := s.cq.Poll(wc[:]); n != 0 || err != nil || !bytes.Equal(mr.Bytes()[:16], sixteen) {
		t.Errorf("%d completions, error %v, memory %x", n, err, mr.Bytes()[:16])
	}
	p.send(p.untagged(rdmap.OpSend), make([]byte, 8))
	s.want(t, 1, verbs.WCRecv, verbs.StatusSuccess)
}

// TestRFC5040_5_2_OneRequestOneResponse: a read into one buffer is one Read Request and
// is complete with one Read Response, in as many segments as that takes.
func TestRFC5040_5_2_OneRequestOneResponse(t *testing.T) {
	s, p := opened(t, iwarp.Config{})
	mr := s.region(t, 64)
	s.send(t, verbs.SendWR{ID: 1, Op: verbs.OpRead, Flags: verbs.Signaled, SGL: []verbs.SGE{mr.SGE(0, 48)}, Remote: verbs.RemoteAddr{Addr: 5, RKey: 6}},
		verbs.SendWR{ID: 2, Op: verbs.OpWrite})
	h, payload := p.expect(rdmap.OpReadRequest)
	r, _ := rdmap.ParseReadRequest(payload)
	if want := (rdmap.ReadRequest{SinkSTag: r.SinkSTag, SinkTO: r.SinkTO, Size: 48, SourceSTag: 6, SourceTO: 5}); r != want || h.MSN != 1 {
		t.Errorf("request %+v, MSN %d, want %+v", r, h.MSN, want)
	}
	p.expect(rdmap.OpWrite)
	var wc [1]verbs.WC
	resp := tagged(rdmap.OpReadResponse, r.SinkSTag, r.SinkTO)
	for range 3 {
		if n, err := s.cq.Poll(wc[:]); n != 0 || err != nil {
			t.Errorf("%d completions before the answer is whole, error %v", n, err)
		}
		resp.Last = resp.TO == r.SinkTO+32
		p.send(resp, sixteen)
		resp = resp.Advance(16)
	}
	if wc := s.want(t, 1, verbs.WCRead, verbs.StatusSuccess); wc.Len != 48 || !bytes.Equal(mr.Bytes()[:48], bytes.Repeat(sixteen, 3)) {
		t.Errorf("read: %+v", wc)
	}
}

// TestRFC5040_5_2_1_RequestNotDelivered: a Read Request is answered and neither takes
// a receive nor makes a completion.
func TestRFC5040_5_2_1_RequestNotDelivered(t *testing.T) {
	s, p := opened(t, iwarp.Config{})
	mr := s.region(t, 64)
	fill(mr.Bytes(), 1)
	s.recv(t, verbs.RecvWR{ID: 1})
	p.readRequest(mr.RemoteAt(3), 60)
	if h, payload := p.expect(rdmap.OpReadResponse); !bytes.Equal(payload, mr.Bytes()[3:63]) || !h.Last {
		t.Errorf("response %+v: %x", h, payload)
	}
	var wc [1]verbs.WC
	if n, err := s.cq.Poll(wc[:]); n != 0 || err != nil {
		t.Errorf("%d completions, error %v", n, err)
	}
	p.send(p.untagged(rdmap.OpSend), nil)
	s.want(t, 1, verbs.WCRecv, verbs.StatusSuccess)
}

// TestRFC5040_5_2_1_OneBufferEach: a read into several buffers is a request for each,
// since a request names one buffer of the requester.
func TestRFC5040_5_2_1_OneBufferEach(t *testing.T) {
	s, p := opened(t, iwarp.Config{})
	x, y := s.region(t, 64), s.region(t, 64)
	s.send(t, verbs.SendWR{ID: 1, Op: verbs.OpRead, Flags: verbs.Signaled, SGL: []verbs.SGE{x.SGE(8, 16), y.SGE(0, 32), x.SGE(32, 8)}, Remote: verbs.RemoteAddr{Addr: 100, RKey: 6}})
	at, sinks := uint64(100), map[uint32]int{}
	for i, size := range []uint32{16, 32, 8} {
		h, payload := p.expect(rdmap.OpReadRequest)
		r, _ := rdmap.ParseReadRequest(payload)
		if r.Size != size || r.SourceTO != at || r.SourceSTag != 6 || h.MSN != uint32(i+1) {
			t.Errorf("request %d: %+v, MSN %d", i, r, h.MSN)
		}
		at += uint64(size)
		sinks[r.SinkSTag]++
		p.send(tagged(rdmap.OpReadResponse, r.SinkSTag, r.SinkTO), bytes.Repeat([]byte{byte(i + 1)}, int(size)))
	}
	if wc := s.want(t, 1, verbs.WCRead, verbs.StatusSuccess); wc.Len != 56 || len(sinks) != 2 {
		t.Errorf("read: %+v into %d buffers", wc, len(sinks))
	}
	if x.Bytes()[8] != 1 || x.Bytes()[23] != 1 || y.Bytes()[0] != 2 || y.Bytes()[31] != 2 || x.Bytes()[32] != 3 || x.Bytes()[40] != 0 {
		t.Error("the pieces are not in their places")
	}
}

// TestRFC5040_5_2_1_EmptyReadUnchecked: a read of nothing names no buffer that is looked at.
func TestRFC5040_5_2_1_EmptyReadUnchecked(t *testing.T) {
	_, p := opened(t, iwarp.Config{})
	for _, r := range []verbs.RemoteAddr{{}, {Addr: ^uint64(0), RKey: 1}, {Addr: 7, RKey: ^uint32(0)}} {
		p.readRequest(r, 0)
		if h, payload := p.expect(rdmap.OpReadResponse); len(payload) != 0 || !h.Last {
			t.Errorf("%v: response %+v of %d octets", r, h, len(payload))
		}
	}
}

// TestRFC5040_5_2_2_RequestsAtOnce: as many requests as were negotiated may be
// outstanding at once. Their answers go out in the order of the requests, each whole.
func TestRFC5040_5_2_2_RequestsAtOnce(t *testing.T) {
	s, p := opened(t, iwarp.Config{})
	const size = 100000
	mr := s.region(t, size)
	fill(mr.Bytes(), 2)
	for i := range 16 {
		p.readRequest(mr.RemoteAt(i), size-16)
	}
	for i := range 16 {
		var got []byte
		for last := false; !last; {
			h, payload := p.expect(rdmap.OpReadResponse)
			if h.TO != uint64(len(got)) || h.STag != sinkSTag {
				t.Fatalf("answer %d: %+v after %d octets", i, h, len(got))
			}
			got, last = append(got, payload...), h.Last
		}
		if !bytes.Equal(got, mr.Bytes()[i:i+size-16]) {
			t.Errorf("answer %d differs", i)
		}
	}
}

// TestRFC5040_5_3_Invalidate: the STag that a Send names is invalid when the Send is
// delivered, and the receiver is told which it was.
func TestRFC5040_5_3_Invalidate(t *testing.T) {
	for _, op := range []rdmap.Opcode{rdmap.OpSendInvalidate, rdmap.OpSendSEInvalidate} {
		s, p := opened(t, iwarp.Config{})
		mr := s.revocable(t, 64)
		s.recv(t, verbs.RecvWR{ID: 1, SGL: []verbs.SGE{mr.SGE(0, 8)}}, verbs.RecvWR{ID: 2})
		h := p.untagged(op)
		h.Rsvd = mr.RKey()
		p.send(h, make([]byte, 8))
		if wc := s.want(t, 1, verbs.WCRecv, verbs.StatusSuccess); !wc.HasInv || wc.InvKey != mr.RKey() {
			t.Errorf("%v: %+v", op, wc)
		}
		p.send(writeTo(mr.Remote()), sixteen)
		if term := p.terminate(); term.Cause() != rdmap.TermDDPInvalidSTag {
			t.Errorf("%v: Write to the STag afterwards: %v", op, term)
		}
	}
}

// TestRFC5040_5_4_NothingAfterTerminate: what is posted, outstanding or asked for when
// the device terminates is not sent any more.
func TestRFC5040_5_4_NothingAfterTerminate(t *testing.T) {
	s, p := opened(t, iwarp.Config{})
	b := p.fpdu(tagged(rdmap.OpWrite, 0xdead, 0), sixteen)
	p.write(append(b, p.fpdu(p.untagged(rdmap.OpReadRequest), rdmap.AppendReadRequest(nil, rdmap.ReadRequest{}))...))
	if term := p.terminate(); term.Cause() != rdmap.TermDDPInvalidSTag { // and then the stream ends
		t.Errorf("Terminate %v", term)
	}
	if _, err := s.qp.PostSend([]verbs.SendWR{{ID: 1, Op: verbs.OpSend}}); err != nil {
		t.Error(err)
	}
	s.want(t, 1, verbs.WCSend, verbs.StatusWRFlushErr)
}

// TestRFC5040_5_5_OrderOfSubmission: operations of all kinds go out, and complete, in
// the order in which they were submitted, with the numbers of their queues in order.
func TestRFC5040_5_5_OrderOfSubmission(t *testing.T) {
	s, p := opened(t, iwarp.Config{})
	wrs := allOperations(s.region(t, 8))
	s.send(t, wrs...)
	msn := map[uint32]uint32{}
	for _, op := range onWire {
		h, payload := p.expect(op)
		if !h.Tagged {
			if msn[h.QN]++; h.MSN != msn[h.QN] {
				t.Errorf("%v: MSN %d on queue %d, want %d", op, h.MSN, h.QN, msn[h.QN])
			}
		}
		switch op {
		case rdmap.OpReadRequest:
			r, _ := rdmap.ParseReadRequest(payload)
			p.send(tagged(rdmap.OpReadResponse, r.SinkSTag, r.SinkTO), make([]byte, 8))
		case rdmap.OpAtomicRequest:
			r, _ := rdmap.ParseAtomicRequest(payload)
			p.send(p.untagged(rdmap.OpAtomicResponse), rdmap.AppendAtomicResponse(nil, rdmap.AtomicResponse{RequestID: r.RequestID}))
		default: // not answered
		}
	}
	for i := range wrs {
		if wc := s.wait(t); wc.ID != uint64(i) || wc.Status != verbs.StatusSuccess {
			t.Errorf("completion %d: %+v", i, wc)
		}
	}
}

// TestRFC5040_5_5_DeliveredInOrder: Sends and Read Responses are delivered in the order
// in which they came, each when it is whole.
func TestRFC5040_5_5_DeliveredInOrder(t *testing.T) {
	s, p := opened(t, iwarp.Config{})
	mr := s.region(t, 256)
	for i := range uint64(3) {
		s.recv(t, verbs.RecvWR{ID: i, SGL: []verbs.SGE{mr.SGE(0, 64)}})
	}
	s.send(t, verbs.SendWR{ID: 10, Op: verbs.OpRead, Flags: verbs.Signaled, SGL: []verbs.SGE{mr.SGE(64, 16)}})
	_, payload := p.expect(rdmap.OpReadRequest)
	r, _ := rdmap.ParseReadRequest(payload)
	first := p.untagged(rdmap.OpSend)
	first.Last = false
	p.send(first, sixteen)
	p.send(tagged(rdmap.OpReadResponse, r.SinkSTag, r.SinkTO), sixteen) // between two segments of a Send
	s.want(t, 10, verbs.WCRead, verbs.StatusSuccess)
	second := first.Advance(16)
	second.Last = true
	p.send(second, sixteen)
	p.send(p.untagged(rdmap.OpSend), nil)
	p.send(p.untagged(rdmap.OpSend), sixteen)
	for i, n := range []uint32{32, 0, 16} {
		if wc := s.want(t, uint64(i), verbs.WCRecv, verbs.StatusSuccess); wc.Len != n {
			t.Errorf("message %d: %d bytes, want %d", i, wc.Len, n)
		}
	}
}

// TestRFC5040_5_5_ReadSeesWrite: a Read Request is processed after the messages before
// it: it reads what they wrote.
func TestRFC5040_5_5_ReadSeesWrite(t *testing.T) {
	s, p := opened(t, iwarp.Config{})
	mr := s.region(t, 16)
	for i := range byte(50) {
		p.write(append(p.fpdu(writeTo(mr.Remote()), bytes.Repeat([]byte{i}, 16)), p.fpdu(p.untagged(rdmap.OpReadRequest), rdmap.AppendReadRequest(nil,
			rdmap.ReadRequest{Size: 16, SourceSTag: mr.RKey(), SourceTO: mr.Remote().Addr}))...))
		if _, payload := p.expect(rdmap.OpReadResponse); !bytes.Equal(payload, bytes.Repeat([]byte{i}, 16)) {
			t.Errorf("read %d: %x", i, payload)
		}
	}
}

// TestRFC5040_6_1_DepthNotExceeded: no more requests that need answers are outstanding
// than were negotiated, however many are posted.
func TestRFC5040_6_1_DepthNotExceeded(t *testing.T) {
	s := newSide(t, iwarp.Config{}, nil)
	req := request()
	req.Setup.IRD = 2
	p := acceptRaw(t, s, req, verbs.ConnParam{})
	if s.conn.Param().InitiatorDepth != 2 {
		t.Errorf("InitiatorDepth is %d, want 2", s.conn.Param().InitiatorDepth)
	}
	p.open()
	mr := s.region(t, 64)
	const reads = 10
	for i := range uint64(reads) {
		s.send(t, verbs.SendWR{ID: i, Op: verbs.OpRead, Flags: verbs.Signaled, SGL: []verbs.SGE{mr.SGE(0, 8)}})
	}
	var open []rdmap.ReadRequest
	next := func() {
		_, payload := p.expect(rdmap.OpReadRequest)
		r, _ := rdmap.ParseReadRequest(payload)
		open = append(open, r)
	}
	next()
	next()
	for i := range reads {
		if got := s.dev.Stats()["tx_fpdus"]; got != uint64(min(i+2, reads)) {
			t.Errorf("%d requests sent after %d answers, want %d", got, i, min(i+2, reads))
		}
		p.send(tagged(rdmap.OpReadResponse, open[i].SinkSTag, open[i].SinkTO), make([]byte, 8))
		if i+2 < reads {
			next()
		}
		s.want(t, uint64(i), verbs.WCRead, verbs.StatusSuccess)
	}
}

// TestRFC5040_7_NothingMovesAfterError: after an error nothing that comes is placed or
// answered, and the connection is closed.
func TestRFC5040_7_NothingMovesAfterError(t *testing.T) {
	s, p := opened(t, iwarp.Config{})
	mr := s.region(t, 64)
	s.recv(t, verbs.RecvWR{ID: 1, SGL: []verbs.SGE{mr.SGE(32, 32)}})
	bad := p.fpdu(tagged(rdmap.OpWrite, 0xdead, 0), sixteen)
	p.write(bytes.Join([][]byte{bad, p.fpdu(writeTo(mr.Remote()), sixteen), p.fpdu(p.untagged(rdmap.OpSend), sixteen)}, nil))
	if term := p.terminate(); term.Cause() != rdmap.TermDDPInvalidSTag {
		t.Errorf("Terminate %v", term)
	}
	s.want(t, 1, verbs.WCRecv, verbs.StatusWRFlushErr)
	if !zero(mr.Bytes()) {
		t.Error("something was placed after the error")
	}
	if err := p.tc.CloseWrite(); err != nil {
		t.Error(err)
	}
	if n, err := io.Copy(io.Discard, p.tc); n != 0 || err != nil {
		t.Errorf("%d octets after the Terminate, error %v", n, err)
	}
}

// TestRFC5040_8_1_1_STagsRandom: STags are hard to predict: no bit of them tells
// anything, nor does the local key of a region tell its remote one.
func TestRFC5040_8_1_1_STagsRandom(t *testing.T) {
	const regions = 4000
	s := newSide(t, iwarp.Config{}, nil)
	var ones [96]int // bits of the remote key, of its difference to the one before, and to the local key
	seen := map[uint32]bool{0: true}
	previous := uint32(0)
	buf := make([]byte, 8)
	for range regions {
		mr, err := s.pd.RegMR(buf, verbs.RemoteRead)
		if err != nil {
			t.Fatal(err)
		}
		closeAtEnd(t, mr.Close)
		if seen[mr.RKey()] {
			t.Fatalf("STag %#x comes twice, or is 0", mr.RKey())
		}
		seen[mr.RKey()] = true
		for i, v := range []uint32{mr.RKey(), mr.RKey() - previous, mr.RKey() ^ mr.LKey()} {
			for ; v != 0; v &= v - 1 {
				ones[32*i+bits.TrailingZeros32(v)]++
			}
		}
		previous = mr.RKey()
	}
	for bit, n := range ones {
		if n < regions*45/100 || n > regions*55/100 { // 6 standard deviations
			t.Errorf("bit %d is set in %d of %d keys", bit, n, regions)
		}
	}
}

// TestRFC5040_8_1_1_OverflowIsLocal: a completion queue that overflows is lost to the
// connections that use it; others of the same device and domain go on.
func TestRFC5040_8_1_1_OverflowIsLocal(t *testing.T) {
	a, b := newPair(t, iwarp.Config{}, iwarp.Config{})
	overrun(t, b)
	ev, err := b.dev.NextEvent(testContext(t))
	if err != nil || ev.Type != verbs.EventCQErr || ev.CQ == b.cq {
		t.Errorf("event %+v, error %v", ev, err)
	}
	src, dst := a.region(t, 100), b.region(t, 100)
	twoSided(t, a, b, src, dst, 64)
	var wc [1]verbs.WC
	for {
		n, err := ev.CQ.Poll(wc[:])
		if n == 0 {
			if !errors.Is(err, verbs.ErrCQOverrun) {
				t.Errorf("poll of the queue that overflowed: error %v", err)
			}
			break
		}
	}
}
