package iwarp_test

import (
	"bytes"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"cinnabar/internal/iwarp/ddp"
	"cinnabar/internal/iwarp/rdmap"
	"cinnabar/verbs"
	"cinnabar/verbs/iwarp"
)

// victim is a device whose peer breaks a rule.
type victim struct {
	*side
	*peer
	t *testing.T

	around []byte    // memory with the region in its middle
	mr     *verbs.MR // that region, of 4 KiB
	ro     *verbs.MR // a region that peers may not touch
	other  *verbs.MR // a region of another protection domain
	sink   *verbs.MR // where the victim's own reads go
}

const regionSize = 4096

func newVictim(t *testing.T, cfg iwarp.Config, edit func(*verbs.QPConfig)) *victim {
	t.Helper()
	v := &victim{side: newSide(t, cfg, edit), t: t, around: make([]byte, 3*regionSize)}
	var err error
	if v.mr, err = v.pd.RegMR(v.around[regionSize:2*regionSize], verbs.LocalWrite|verbs.RemoteRead|verbs.RemoteWrite|verbs.RemoteAtomic); err != nil {
		t.Fatal(err)
	}
	closeAtEnd(t, v.mr.Close)
	if v.ro, err = v.pd.AllocMR(regionSize, verbs.LocalWrite); err != nil {
		t.Fatal(err)
	}
	closeAtEnd(t, v.ro.Close)
	pd, err := v.side.dev.AllocPD()
	if err != nil {
		t.Fatal(err)
	}
	closeAtEnd(t, pd.Close)
	if v.other, err = pd.AllocMR(regionSize, verbs.LocalWrite|verbs.RemoteRead|verbs.RemoteWrite|verbs.RemoteAtomic|verbs.RemoteInvalidate); err != nil {
		t.Fatal(err)
	}
	closeAtEnd(t, v.other.Close)
	v.sink = v.region(t, regionSize)
	return v
}

// Work that the victim has posted when the rule is broken.
const (
	recvID   = 100 // and the following
	numRecvs = 3
	readID   = 200 // and the following: two reads of 64 bytes, on the wire
	fencedID = 210 // a send that waits for them
	numSends = 3
)

// work posts receives, two reads that the peer has seen and will not answer, and
// a send behind them.
func (v *victim) work(recvs int) (reads [2]rdmap.ReadRequest) {
	v.t.Helper()
	for i := range recvs {
		v.recv(v.t, verbs.RecvWR{ID: recvID + uint64(i), SGL: []verbs.SGE{v.sink.SGE(1024+16*i, 16)}})
	}
	v.open()
	for i := range reads {
		v.side.send(v.t, verbs.SendWR{ID: readID + uint64(i), Op: verbs.OpRead, Flags: verbs.Signaled,
			SGL: []verbs.SGE{v.sink.SGE(64*i, 64)}, Remote: verbs.RemoteAddr{Addr: 0x1000, RKey: 0xabc}})
		_, payload := v.expect(rdmap.OpReadRequest)
		reads[i], _ = rdmap.ParseReadRequest(payload)
	}
	v.side.send(v.t, verbs.SendWR{ID: fencedID, Op: verbs.OpSend, Flags: verbs.Signaled | verbs.Fence, SGL: []verbs.SGE{v.sink.SGE(0, 8)}})
	return reads
}

// gone checks what is left of a victim that has sent its Terminate: everything
// that was posted comes back, once; requests tells with which status those do that
// were not flushed.
func (v *victim) gone(posted int, cause rdmap.Cause, told map[uint64]verbs.WCStatus) {
	v.t.Helper()
	if s := v.qp.State(); s != verbs.StateErr {
		v.t.Errorf("state %v, want ERR", s)
	}
	<-v.conn.Done()
	if term, ok := errors.AsType[rdmap.Terminate](v.conn.Err()); !ok || term.Cause() != cause {
		v.t.Errorf("Conn.Err is %v, want the Terminate %v", v.conn.Err(), cause)
	}
	got := make(map[uint64]int)
	for range posted {
		wc := v.wait(v.t)
		got[wc.ID]++
		want, ok := told[wc.ID]
		if !ok {
			want = verbs.StatusWRFlushErr
		}
		if wc.Status != want {
			v.t.Errorf("request %d: %v, want %v", wc.ID, wc.Status, want)
		}
	}
	var wc [1]verbs.WC
	if n, err := v.cq.Poll(wc[:]); n != 0 || err != nil {
		v.t.Errorf("a completion too many: %+v, error %v", wc[0], err)
	}
	for id, n := range got {
		if n != 1 {
			v.t.Errorf("request %d completed %d times", id, n)
		}
	}
}

// untouched checks that no byte of the victim's exposed memory, nor of that
// around it, has changed.
func (v *victim) untouched() {
	v.t.Helper()
	for name, b := range map[string][]byte{"region": v.around, "unexposed region": v.ro.Bytes(), "region of the other domain": v.other.Bytes()} {
		if i := bytes.IndexFunc(b, func(r rune) bool { return r != 0 }); i >= 0 {
			v.t.Errorf("%s: byte %d has changed", name, i)
		}
	}
}

// raised expects an asynchronous event about the queue pair.
func (v *victim) raised(typ verbs.EventType, cause rdmap.Cause) {
	v.t.Helper()
	ev, err := v.side.dev.NextEvent(testContext(v.t))
	if err != nil {
		v.t.Fatal(err)
	}
	if ev.Type != typ || ev.QP != v.qp || ev.Vendor != uint32(cause) || ev.Err == nil {
		v.t.Errorf("event %v, vendor %#x, error %v; want %v, %#x", ev.Type, ev.Vendor, ev.Err, typ, uint32(cause))
	}
}

// violation is a rule that a peer breaks, and what comes of it.
type violation struct {
	name  string
	cfg   iwarp.Config
	edit  func(*verbs.QPConfig)
	recvs int // posted; 0 is numRecvs, negative none

	// do breaks the rule and returns the header of the segment at fault.
	do func(v *victim, reads [2]rdmap.ReadRequest) ddp.Header

	cause   rdmap.Cause
	headers string // those that the Terminate includes: "", "D", "DR"
	event   verbs.EventType
	told    map[uint64]verbs.WCStatus // who gets a status of its own, mostly instead of the event
	wrote   bool                      // something legal was written before
}

func (c *violation) run(t *testing.T) {
	v := newVictim(t, c.cfg, c.edit)
	recvs := c.recvs
	if recvs == 0 {
		recvs = numRecvs
	}
	recvs = max(recvs, 0)
	v.peer = acceptRaw(t, v.side, request(), verbs.ConnParam{RNRRetry: -1})
	h := c.do(v, v.work(recvs))
	term := v.terminate()
	if term.Cause() != c.cause {
		t.Errorf("Terminate %v, want %v", term, c.cause)
	}
	var headers string
	if term.HasDDP {
		headers += "D"
		if diff := cmp.Diff(term.DDPHeader, ddp.AppendHeader(nil, h)); diff != "" {
			t.Errorf("terminated DDP header (-got +want):\n%s", diff)
		}
	}
	if term.HasRDMAP {
		headers += "R"
	}
	if headers != c.headers || term.HasLength != term.HasDDP {
		t.Errorf("the Terminate includes %q (length %t), want %q", headers, term.HasLength, c.headers)
	}
	v.gone(recvs+numSends, c.cause, c.told)
	if !c.wrote {
		v.untouched()
	}
	if c.event != 0 {
		v.raised(c.event, c.cause)
	}
}

var sixteen = bytes.Repeat([]byte{0xee}, 16)

// oldestTold is for errors that are told to the oldest request.
var oldestTold = map[uint64]verbs.WCStatus{readID: verbs.StatusBadRespErr}

// TestTerminateSent breaks each rule that a peer can break and compares the Terminate
// on the wire with RFC 5040 section 4.8, and what it leaves behind.
func TestTerminateSent(t *testing.T) {
	for _, list := range [][]violation{writeViolations, readViolations, responseViolations, messageViolations, extensionViolations} {
		for _, c := range list {
			t.Run(c.name, c.run)
		}
	}
}

// writing breaks a rule by a Write of 16 bytes at the place that where gives.
func writing(where func(v *victim) verbs.RemoteAddr) func(*victim, [2]rdmap.ReadRequest) ddp.Header {
	return func(v *victim, _ [2]rdmap.ReadRequest) ddp.Header {
		return v.peer.send(writeTo(where(v)), sixteen)
	}
}

func atKey(key uint32) func(v *victim) verbs.RemoteAddr {
	return func(v *victim) verbs.RemoteAddr { return verbs.RemoteAddr{Addr: v.mr.Remote().Addr, RKey: key} }
}

// offset is the place n bytes from the start of the region, inside or not.
func offset(n int) func(v *victim) verbs.RemoteAddr {
	return func(v *victim) verbs.RemoteAddr { return v.mr.Remote().Add(uint64(n)) }
}

func noRight(v *victim) verbs.RemoteAddr     { return v.ro.Remote() }
func otherDomain(v *victim) verbs.RemoteAddr { return v.other.Remote() }
func wrapping(v *victim) verbs.RemoteAddr {
	return verbs.RemoteAddr{Addr: ^uint64(0) - 7, RKey: v.mr.RKey()}
}
func localKey(v *victim) verbs.RemoteAddr {
	return verbs.RemoteAddr{Addr: v.mr.Remote().Addr, RKey: v.mr.LKey()}
}

var writeViolations = []violation{
	{name: "write wrong STag", do: writing(atKey(0xdead)), cause: rdmap.TermDDPInvalidSTag, headers: "D", event: verbs.EventQPAccessErr},
	{name: "write STag 0", do: writing(atKey(0)), cause: rdmap.TermDDPInvalidSTag, headers: "D", event: verbs.EventQPAccessErr},
	{name: "write local key", do: writing(localKey), cause: rdmap.TermDDPInvalidSTag, headers: "D", event: verbs.EventQPAccessErr},
	{name: "write one before", do: writing(offset(-1)), cause: rdmap.TermDDPBaseBounds, headers: "D", event: verbs.EventQPAccessErr},
	{name: "write one behind", do: writing(offset(regionSize - 15)), cause: rdmap.TermDDPBaseBounds, headers: "D", event: verbs.EventQPAccessErr},
	{name: "write behind", do: writing(offset(regionSize)), cause: rdmap.TermDDPBaseBounds, headers: "D", event: verbs.EventQPAccessErr},
	{name: "write TO wraps", do: writing(wrapping), cause: rdmap.TermDDPTOWrap, headers: "D", event: verbs.EventQPAccessErr},
	{name: "write no right", do: writing(noRight), cause: rdmap.TermAccess, headers: "D", event: verbs.EventQPAccessErr},
	{name: "write other domain", do: writing(otherDomain), cause: rdmap.TermDDPSTagNotAssociated, headers: "D", event: verbs.EventQPAccessErr},
	{name: "write grows out of bounds", cause: rdmap.TermDDPBaseBounds, headers: "D", event: verbs.EventQPAccessErr, wrote: true,
		do: func(v *victim, _ [2]rdmap.ReadRequest) ddp.Header {
			h := writeTo(v.mr.RemoteAt(regionSize - 16))
			h.Last = false
			v.peer.send(h, sixteen)
			h = h.Advance(16)
			h.Last = true
			v.peer.send(h, []byte{0xee})
			if v.around[2*regionSize] != 0 {
				v.t.Error("a byte behind the region was written")
			}
			return h
		}},
	{name: "write changes STag", cause: rdmap.TermDDPInvalidSTag, headers: "D", event: verbs.EventQPAccessErr, wrote: true,
		do: func(v *victim, _ [2]rdmap.ReadRequest) ddp.Header {
			h := writeTo(v.mr.Remote())
			h.Last = false
			v.peer.send(h, sixteen)
			return v.peer.send(tagged(rdmap.OpWrite, v.ro.RKey(), h.TO+16), sixteen)
		}},
	{name: "write jumps", cause: rdmap.TermDDPBaseBounds, headers: "D", event: verbs.EventQPAccessErr, wrote: true,
		do: func(v *victim, _ [2]rdmap.ReadRequest) ddp.Header {
			h := writeTo(v.mr.Remote())
			h.Last = false
			v.peer.send(h, sixteen)
			return v.peer.send(writeTo(v.mr.RemoteAt(17)), sixteen)
		}},
	{name: "write version", cause: rdmap.TermDDPTaggedVersion, headers: "D", event: verbs.EventQPAccessErr,
		do: func(v *victim, _ [2]rdmap.ReadRequest) ddp.Header {
			h := writeTo(v.mr.Remote())
			h.Version = 2
			return v.peer.send(h, sixteen)
		}},
}

// reading breaks a rule by a Read Request for 16 bytes.
func reading(where func(v *victim) verbs.RemoteAddr) func(*victim, [2]rdmap.ReadRequest) ddp.Header {
	return func(v *victim, _ [2]rdmap.ReadRequest) ddp.Header { return v.readRequest(where(v), 16) }
}

var readViolations = []violation{
	{name: "read wrong STag", do: reading(atKey(0xdead)), cause: rdmap.TermInvalidSTag, headers: "DR", event: verbs.EventQPAccessErr},
	{name: "read one before", do: reading(offset(-1)), cause: rdmap.TermBaseBounds, headers: "DR", event: verbs.EventQPAccessErr},
	{name: "read one behind", do: reading(offset(regionSize - 15)), cause: rdmap.TermBaseBounds, headers: "DR", event: verbs.EventQPAccessErr},
	{name: "read TO wraps", do: reading(wrapping), cause: rdmap.TermTOWrap, headers: "DR", event: verbs.EventQPAccessErr},
	{name: "read no right", do: reading(noRight), cause: rdmap.TermAccess, headers: "DR", event: verbs.EventQPAccessErr},
	{name: "read other domain", do: reading(otherDomain), cause: rdmap.TermSTagNotAssociated, headers: "DR", event: verbs.EventQPAccessErr},
	{name: "read request too short", cause: rdmap.TermCatastrophic, headers: "D", event: verbs.EventQPReqErr,
		do: func(v *victim, _ [2]rdmap.ReadRequest) ddp.Header {
			return v.peer.send(v.untagged(rdmap.OpReadRequest), make([]byte, rdmap.ReadRequestLen-1))
		}},
	{name: "read request too long", cause: rdmap.TermDDPTooLong, headers: "D", event: verbs.EventQPReqErr,
		do: func(v *victim, _ [2]rdmap.ReadRequest) ddp.Header {
			return v.peer.send(v.untagged(rdmap.OpReadRequest), make([]byte, rdmap.ReadRequestLen+1))
		}},
}

// answering breaks a rule by a Read Response of n bytes to the place that edit
// makes of the right one.
func answering(n int, edit func(h *ddp.Header, reads [2]rdmap.ReadRequest)) func(*victim, [2]rdmap.ReadRequest) ddp.Header {
	return func(v *victim, reads [2]rdmap.ReadRequest) ddp.Header {
		h := tagged(rdmap.OpReadResponse, reads[0].SinkSTag, reads[0].SinkTO)
		edit(&h, reads)
		return v.peer.send(h, make([]byte, n))
	}
}

var responseViolations = []violation{
	{name: "response to another STag", cause: rdmap.TermDDPInvalidSTag, headers: "D", told: oldestTold,
		do: answering(64, func(h *ddp.Header, _ [2]rdmap.ReadRequest) { h.STag++ })},
	{name: "response to the second read first", cause: rdmap.TermDDPBaseBounds, headers: "D", told: oldestTold,
		do: answering(64, func(h *ddp.Header, reads [2]rdmap.ReadRequest) { h.STag, h.TO = reads[1].SinkSTag, reads[1].SinkTO })},
	{name: "response one before", cause: rdmap.TermDDPBaseBounds, headers: "D", told: oldestTold,
		do: answering(64, func(h *ddp.Header, _ [2]rdmap.ReadRequest) { h.TO-- })},
	{name: "response too long", cause: rdmap.TermDDPBaseBounds, headers: "D", told: oldestTold,
		do: answering(65, func(*ddp.Header, [2]rdmap.ReadRequest) {})},
	{name: "response too short", cause: rdmap.TermDDPBaseBounds, headers: "D", told: oldestTold,
		do: answering(63, func(*ddp.Header, [2]rdmap.ReadRequest) {})},
	{name: "empty response", cause: rdmap.TermDDPBaseBounds, headers: "D", told: oldestTold,
		do: answering(0, func(*ddp.Header, [2]rdmap.ReadRequest) {})},
	{name: "atomic response for a read", cause: rdmap.TermCatastrophic, headers: "D", told: oldestTold,
		do: func(v *victim, _ [2]rdmap.ReadRequest) ddp.Header {
			return v.peer.send(v.untagged(rdmap.OpAtomicResponse), rdmap.AppendAtomicResponse(nil, rdmap.AtomicResponse{RequestID: 1}))
		}},
}

// sending breaks a rule by a Send whose header edit has changed.
func sending(n int, edit func(h *ddp.Header)) func(*victim, [2]rdmap.ReadRequest) ddp.Header {
	return func(v *victim, _ [2]rdmap.ReadRequest) ddp.Header {
		h := v.untagged(rdmap.OpSend)
		edit(&h)
		return v.peer.send(h, make([]byte, n))
	}
}

var messageViolations = []violation{
	{name: "DDP version", cause: rdmap.TermDDPUntaggedVersion, headers: "D", event: verbs.EventQPReqErr,
		do: sending(8, func(h *ddp.Header) { h.Version = 0 })},
	{name: "RDMAP version", cause: rdmap.TermInvalidVersion, headers: "D", event: verbs.EventQPReqErr,
		do: sending(8, func(h *ddp.Header) { h.ULP = 2<<6 | byte(rdmap.OpSend) })},
	{name: "queue number", cause: rdmap.TermDDPInvalidQN, headers: "D", event: verbs.EventQPReqErr,
		do: sending(8, func(h *ddp.Header) { h.QN = 4 })},
	{name: "MSN one ahead", cause: rdmap.TermDDPMSNRange, headers: "D", event: verbs.EventQPReqErr,
		do: sending(8, func(h *ddp.Header) { h.MSN++ })},
	{name: "MSN repeated", cause: rdmap.TermDDPMSNRange, headers: "D", event: verbs.EventQPReqErr,
		do: sending(8, func(h *ddp.Header) { h.MSN = 0 })},
	{name: "MO of a first segment", cause: rdmap.TermDDPInvalidMO, headers: "D", event: verbs.EventQPReqErr,
		do: sending(8, func(h *ddp.Header) { h.MO = 8 })},
	{name: "MO jumps", cause: rdmap.TermDDPInvalidMO, headers: "D", event: verbs.EventQPReqErr,
		do: func(v *victim, _ [2]rdmap.ReadRequest) ddp.Header {
			h := v.untagged(rdmap.OpSend)
			h.Last = false
			v.peer.send(h, make([]byte, 8))
			h.Last, h.MO = true, 9
			return v.peer.send(h, make([]byte, 1))
		}},
	{name: "message one too long", cause: rdmap.TermDDPTooLong, headers: "D", told: map[uint64]verbs.WCStatus{recvID: verbs.StatusLocLenErr},
		do: sending(17, func(*ddp.Header) {})},
	{name: "message grows too long", cause: rdmap.TermDDPTooLong, headers: "D", told: map[uint64]verbs.WCStatus{recvID: verbs.StatusLocLenErr},
		do: func(v *victim, _ [2]rdmap.ReadRequest) ddp.Header {
			h := v.untagged(rdmap.OpSend)
			h.Last = false
			v.peer.send(h, make([]byte, 16))
			h = h.Advance(16)
			h.Last = true
			return v.peer.send(h, make([]byte, 1))
		}},
	{name: "no buffer", recvs: -1, cause: rdmap.TermDDPNoBuffer, headers: "D", event: verbs.EventQPReqErr,
		do: sending(8, func(*ddp.Header) {})},
	{name: "no buffer for an empty message", recvs: -1, cause: rdmap.TermDDPNoBuffer, headers: "D", event: verbs.EventQPReqErr,
		do: sending(0, func(*ddp.Header) {})},
	{name: "unassigned opcode", cause: rdmap.TermUnexpectedOpcode, headers: "D", event: verbs.EventQPReqErr,
		do: sending(8, func(h *ddp.Header) { h.ULP = rdmap.Control(12) })},
	{name: "opcode on another queue", cause: rdmap.TermUnexpectedOpcode, headers: "D", event: verbs.EventQPReqErr,
		do: sending(8, func(h *ddp.Header) { h.QN = ddp.QNReadRequest })},
	{name: "untagged Write", cause: rdmap.TermUnexpectedOpcode, headers: "D", event: verbs.EventQPReqErr,
		do: sending(8, func(h *ddp.Header) { h.ULP = rdmap.Control(rdmap.OpWrite) })},
	{name: "tagged Send", cause: rdmap.TermUnexpectedOpcode, headers: "D", event: verbs.EventQPReqErr,
		do: func(v *victim, _ [2]rdmap.ReadRequest) ddp.Header {
			return v.peer.send(tagged(rdmap.OpSend, v.mr.RKey(), v.mr.Remote().Addr), sixteen)
		}},
	{name: "invalidation of an unknown key", cause: rdmap.TermCannotInvalidate, headers: "D", event: verbs.EventQPAccessErr, told: invalidTold,
		do: invalidating(func(*victim) uint32 { return 0xdead })},
	{name: "invalidation across domains", cause: rdmap.TermCannotInvalidate, headers: "D", event: verbs.EventQPAccessErr, told: invalidTold,
		do: invalidating(func(v *victim) uint32 { return v.other.RKey() })},
	{name: "invalidation without the right", cause: rdmap.TermCannotInvalidate, headers: "D", event: verbs.EventQPAccessErr, told: invalidTold,
		do: invalidating(func(v *victim) uint32 { return v.mr.RKey() })},
	{name: "wrong CRC", cause: rdmap.TermMPACRC, event: verbs.EventQPFatal,
		do: func(v *victim, _ [2]rdmap.ReadRequest) ddp.Header {
			b := v.fpdu(v.untagged(rdmap.OpSend), make([]byte, 8))
			b[len(b)-1] ^= 1
			v.peer.write(b)
			return ddp.Header{}
		}},
	{name: "wrong CRC of a Write", cause: rdmap.TermMPACRC, event: verbs.EventQPFatal, wrote: true,
		do: func(v *victim, _ [2]rdmap.ReadRequest) ddp.Header {
			b := v.fpdu(writeTo(v.mr.Remote()), sixteen)
			b[len(b)-1] ^= 1
			v.peer.write(b)
			return ddp.Header{}
		}},
}

// invalidTold is who is told that his message had a wrong key in it.
var invalidTold = map[uint64]verbs.WCStatus{recvID: verbs.StatusLocQPOpErr}

func invalidating(key func(v *victim) uint32) func(*victim, [2]rdmap.ReadRequest) ddp.Header {
	return func(v *victim, _ [2]rdmap.ReadRequest) ddp.Header {
		h := v.untagged(rdmap.OpSendInvalidate)
		h.Rsvd = key(v)
		return v.peer.send(h, make([]byte, 8))
	}
}

// atomicAt breaks a rule by an Atomic Request.
func atomicAt(op rdmap.AtomicOp, where func(v *victim) verbs.RemoteAddr) func(*victim, [2]rdmap.ReadRequest) ddp.Header {
	return func(v *victim, _ [2]rdmap.ReadRequest) ddp.Header {
		r := where(v)
		return v.peer.send(v.untagged(rdmap.OpAtomicRequest), rdmap.AppendAtomicRequest(nil, rdmap.AtomicRequest{
			Op: op, RequestID: 1, STag: r.RKey, TO: r.Addr, AddSwap: 1, AddSwapMask: ^uint64(0)}))
	}
}

var extensionViolations = []violation{
	{name: "misaligned FetchAdd", cause: rdmap.TermCatastrophic, headers: "D", event: verbs.EventQPReqErr, do: atomicAt(rdmap.AtomicFetchAdd, offset(4))},
	{name: "misaligned CmpSwap", cause: rdmap.TermCatastrophic, headers: "D", event: verbs.EventQPReqErr, do: atomicAt(rdmap.AtomicCmpSwap, offset(1))},
	{name: "unassigned atomic", cause: rdmap.TermCatastrophic, headers: "D", event: verbs.EventQPReqErr, do: atomicAt(1, offset(0))},
	{name: "atomic wrong STag", cause: rdmap.TermInvalidSTag, headers: "D", event: verbs.EventQPAccessErr, do: atomicAt(rdmap.AtomicFetchAdd, atKey(0xdead))},
	{name: "atomic behind", cause: rdmap.TermBaseBounds, headers: "D", event: verbs.EventQPAccessErr, do: atomicAt(rdmap.AtomicFetchAdd, offset(regionSize))},
	{name: "atomic no right", cause: rdmap.TermAccess, headers: "D", event: verbs.EventQPAccessErr, do: atomicAt(rdmap.AtomicFetchAdd, noRight)},
	{name: "atomic other domain", cause: rdmap.TermSTagNotAssociated, headers: "D", event: verbs.EventQPAccessErr, do: atomicAt(rdmap.AtomicFetchAdd, otherDomain)},
	{name: "atomics off", cfg: iwarp.Config{NoAtomics: true}, cause: rdmap.TermUnexpectedOpcode, headers: "D", event: verbs.EventQPReqErr,
		do: atomicAt(rdmap.AtomicFetchAdd, offset(0))},
	{name: "queue 3 without atomics", cfg: iwarp.Config{NoAtomics: true}, cause: rdmap.TermDDPInvalidQN, headers: "D", event: verbs.EventQPReqErr,
		do: sending(8, func(h *ddp.Header) { h.QN = ddp.QNAtomicResponse })},
	{name: "immediates off", cfg: iwarp.Config{NoImmediates: true}, cause: rdmap.TermUnexpectedOpcode, headers: "D", event: verbs.EventQPReqErr,
		do: func(v *victim, _ [2]rdmap.ReadRequest) ddp.Header {
			return v.peer.send(v.untagged(rdmap.OpImmediate), make([]byte, rdmap.ImmediateLen))
		}},
	{name: "immediate of 7 octets", cause: rdmap.TermCatastrophic, headers: "D", event: verbs.EventQPReqErr,
		do: func(v *victim, _ [2]rdmap.ReadRequest) ddp.Header {
			return v.peer.send(v.untagged(rdmap.OpImmediate), make([]byte, rdmap.ImmediateLen-1))
		}},
	{name: "immediate without buffer", recvs: -1, cause: rdmap.TermDDPNoBuffer, headers: "D", event: verbs.EventQPReqErr,
		do: func(v *victim, _ [2]rdmap.ReadRequest) ddp.Header {
			return v.peer.send(v.untagged(rdmap.OpImmediate), make([]byte, rdmap.ImmediateLen))
		}},
}
