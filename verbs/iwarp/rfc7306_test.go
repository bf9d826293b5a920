package iwarp_test

import (
	"encoding/binary"
	"runtime"
	"sync"
	"testing"

	"cinnabar/internal/hostmem"
	"cinnabar/internal/iwarp/rdmap"
	"cinnabar/verbs"
	"cinnabar/verbs/iwarp"
)

// atomicRequest sends an Atomic Request.
func (p *peer) atomicRequest(a rdmap.AtomicRequest) {
	p.t.Helper()
	p.send(p.untagged(rdmap.OpAtomicRequest), rdmap.AppendAtomicRequest(nil, a))
}

// atomicResponse reads an Atomic Response.
func (p *peer) atomicResponse() rdmap.AtomicResponse {
	p.t.Helper()
	_, payload := p.expect(rdmap.OpAtomicResponse)
	r, n := rdmap.ParseAtomicResponse(payload)
	if n != len(payload) {
		p.t.Fatalf("atomic response of %d octets", len(payload))
	}
	return r
}

// TestRFC7306_5_Atomic: additions by two streams and by the program itself, all at
// once, to one word: none is lost, though half of them arrive with masks.
func TestRFC7306_5_Atomic(t *testing.T) {
	const each = 400
	dev := newSide(t, iwarp.Config{}, nil)
	mr := dev.region(t, 8)
	var peers []*peer
	for range 2 {
		qp, err := dev.pd.CreateQP(verbs.QPConfig{SendCQ: dev.cq, RecvCQ: dev.cq})
		if err != nil {
			t.Fatal(err)
		}
		closeAtEnd(t, qp.Close)
		s := *dev
		s.qp = qp
		peers = append(peers, acceptRaw(t, &s, request(), verbs.ConnParam{}))
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for range each {
			hostmem.Add64(mr.Bytes(), 1)
			runtime.Gosched()
		}
	})
	for n := range uint32(each) {
		for i, p := range peers {
			mask := uint64(i) << 63 // no boundary in the 64 bits, or one at their end: the same sum
			p.atomicRequest(rdmap.AtomicRequest{Op: rdmap.AtomicFetchAdd, RequestID: n, STag: mr.RKey(), TO: mr.Remote().Addr, AddSwap: 1, AddSwapMask: mask})
		}
		for _, p := range peers {
			if r := p.atomicResponse(); r.RequestID != n {
				t.Errorf("answer to request %d, want %d", r.RequestID, n)
			}
		}
	}
	wg.Wait()
	if v, _ := hostmem.Load64(mr.Bytes()); v != 3*each {
		t.Errorf("%d additions counted, want %d", v, 3*each)
	}
}

// TestRFC7306_5_2_1_RequestNotDelivered: an Atomic Request is carried out and answered
// with what the memory held; the target's program is not told.
func TestRFC7306_5_2_1_RequestNotDelivered(t *testing.T) {
	s, p := opened(t, iwarp.Config{})
	mr := s.region(t, 16)
	s.recv(t, verbs.RecvWR{ID: 1})
	word := mr.Bytes()[8:]
	binary.NativeEndian.PutUint64(word, 40)
	at := mr.RemoteAt(8).Addr
	p.atomicRequest(rdmap.FetchAdd(7, mr.RKey(), at, 2))
	if r := p.atomicResponse(); r.RequestID != 7 || r.Original != 40 {
		t.Errorf("answer %+v", r)
	}
	p.atomicRequest(rdmap.CmpSwap(8, mr.RKey(), at, 41, 1)) // does not compare
	if r := p.atomicResponse(); r.RequestID != 8 || r.Original != 42 {
		t.Errorf("answer %+v", r)
	}
	p.atomicRequest(rdmap.CmpSwap(9, mr.RKey(), at, 42, 99))
	if r := p.atomicResponse(); r.RequestID != 9 || r.Original != 42 || binary.NativeEndian.Uint64(word) != 99 {
		t.Errorf("answer %+v, memory %d", r, binary.NativeEndian.Uint64(word))
	}
	// Masks: only the lower byte takes part.
	p.atomicRequest(rdmap.AtomicRequest{Op: rdmap.AtomicCmpSwap, RequestID: 10, STag: mr.RKey(), TO: at, Compare: 0x1163, CompareMask: 0xff, AddSwap: 0x2264, AddSwapMask: 0xff})
	if r := p.atomicResponse(); r.Original != 99 || binary.NativeEndian.Uint64(word) != 0x64 {
		t.Errorf("answer %+v, memory %#x", r, binary.NativeEndian.Uint64(word))
	}
	var wc [1]verbs.WC
	if n, err := s.cq.Poll(wc[:]); n != 0 || err != nil || !zero(mr.Bytes()[:8]) {
		t.Errorf("%d completions at the target, error %v", n, err)
	}
	p.send(p.untagged(rdmap.OpSend), nil)
	s.want(t, 1, verbs.WCRecv, verbs.StatusSuccess)
}

// TestRFC7306_5_2_2_RequestsAtOnce: as many atomics and reads together as were
// negotiated may be outstanding; they are carried out, and answered, in order.
func TestRFC7306_5_2_2_RequestsAtOnce(t *testing.T) {
	s, p := opened(t, iwarp.Config{})
	mr := s.region(t, 8)
	for i := range uint32(8) {
		p.atomicRequest(rdmap.FetchAdd(i, mr.RKey(), mr.Remote().Addr, 1))
		p.readRequest(mr.Remote(), 0)
	}
	for i := range uint32(8) {
		if r := p.atomicResponse(); r.RequestID != i || r.Original != uint64(i) {
			t.Errorf("answer %d: %+v", i, r)
		}
		p.expect(rdmap.OpReadResponse)
	}
}

// TestRFC7306_5_2_2_ResponseDelivered: the answer to an atomic reaches its requester's
// memory and completion, in the order of the requests.
func TestRFC7306_5_2_2_ResponseDelivered(t *testing.T) {
	s, p := opened(t, iwarp.Config{})
	mr := s.region(t, 24)
	s.send(t, verbs.SendWR{ID: 1, Op: verbs.OpFetchAdd, Flags: verbs.Signaled, SGL: []verbs.SGE{mr.SGE(0, 8)}, Remote: verbs.RemoteAddr{Addr: 16, RKey: 5}, CompareAdd: 3},
		verbs.SendWR{ID: 2, Op: verbs.OpCompareSwap, Flags: verbs.Signaled, SGL: []verbs.SGE{mr.SGE(9, 3), mr.SGE(16, 5)}, Remote: verbs.RemoteAddr{Addr: 24, RKey: 6}, CompareAdd: 4, Swap: 5})
	var got [2]rdmap.AtomicRequest
	for i := range got {
		_, payload := p.expect(rdmap.OpAtomicRequest)
		got[i], _ = rdmap.ParseAtomicRequest(payload)
	}
	for i, want := range []rdmap.AtomicRequest{rdmap.FetchAdd(got[0].RequestID, 5, 16, 3), rdmap.CmpSwap(got[1].RequestID, 6, 24, 4, 5)} {
		if got[i] != want {
			t.Errorf("request %d: %+v, want %+v", i, got[i], want)
		}
	}
	var wc [1]verbs.WC
	if n, err := s.cq.Poll(wc[:]); n != 0 || err != nil {
		t.Errorf("%d completions before an answer, error %v", n, err)
	}
	for i, r := range got {
		p.send(p.untagged(rdmap.OpAtomicResponse), rdmap.AppendAtomicResponse(nil, rdmap.AtomicResponse{RequestID: r.RequestID, Original: uint64(i+1) * 0x0102030405060708}))
	}
	s.want(t, 1, verbs.WCFetchAdd, verbs.StatusSuccess)
	if wc := s.want(t, 2, verbs.WCCompareSwap, verbs.StatusSuccess); wc.Len != 8 {
		t.Errorf("%d bytes", wc.Len)
	}
	second := binary.NativeEndian.Uint64(append(append([]byte(nil), mr.Bytes()[9:12]...), mr.Bytes()[16:21]...))
	if first := binary.NativeEndian.Uint64(mr.Bytes()); first != 0x0102030405060708 || second != 2*0x0102030405060708 {
		t.Errorf("values %#x and %#x", first, second)
	}
}
