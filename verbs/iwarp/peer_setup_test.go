package iwarp_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"cinnabar/internal/iwarp/ddp"
	"cinnabar/internal/iwarp/mpa"
	"cinnabar/internal/iwarp/rdmap"
	"cinnabar/verbs"
	"cinnabar/verbs/iwarp"
)

// hello sends 16 bytes each way, the active side first.
func (p *peer) hello(t testing.TB, s *side, active bool) {
	t.Helper()
	mr := s.region(t, 64)
	s.recv(t, verbs.RecvWR{ID: 1, SGL: []verbs.SGE{mr.SGE(0, 16)}})
	there := func() {
		p.send(p.untagged(rdmap.OpSend), []byte("0123456789abcdef"))
		if wc := s.want(t, 1, verbs.WCRecv, verbs.StatusSuccess); wc.Len != 16 || string(mr.Bytes()[:16]) != "0123456789abcdef" {
			t.Errorf("received %d bytes: %q", wc.Len, mr.Bytes()[:16])
		}
	}
	back := func() {
		copy(mr.Bytes()[16:], "fedcba9876543210")
		s.send(t, verbs.SendWR{ID: 2, Op: verbs.OpSend, Flags: verbs.Signaled, SGL: []verbs.SGE{mr.SGE(16, 16)}})
		s.want(t, 2, verbs.WCSend, verbs.StatusSuccess)
		if h, payload := p.expect(rdmap.OpSend); string(payload) != "fedcba9876543210" || h.MSN != 1 || !h.Last {
			t.Errorf("sent %+v: %q", h, payload)
		}
	}
	if active {
		back()
		there()
	} else {
		there()
		back()
	}
}

// TestSetup connects to a peer in both roles, with both revisions, and with CRCs wanted
// by either end: they are on if one of the ends wants them (RFC 5044 section 7.1.1).
func TestSetup(t *testing.T) {
	for _, revision := range []int{1, 2} {
		for _, ours := range []bool{true, false} {
			for _, theirs := range []bool{true, false} {
				name := fmt.Sprintf("revision %d/CRC %t %t", revision, ours, theirs)
				t.Run("passive/"+name, func(t *testing.T) { testSetupPassive(t, revision, ours, theirs) })
				t.Run("active/"+name, func(t *testing.T) { testSetupActive(t, revision, ours, theirs) })
			}
		}
	}
}

func testSetupPassive(t *testing.T, revision int, ours, theirs bool) {
	s := newSide(t, iwarp.Config{NoCRC: !ours}, nil)
	req := mpa.Frame{Revision: uint8(revision), CRC: theirs, PrivateData: []byte("question")}
	if revision == 2 {
		req.Enhanced, req.Setup = true, mpa.Setup{IRD: 3, ORD: 5}
	}
	p := acceptRaw(t, s, req, verbs.ConnParam{PrivateData: []byte("answer")})
	want := req
	want.Reply, want.CRC, want.PrivateData = true, ours || theirs, []byte("answer")
	if revision == 2 {
		want.Setup = mpa.Setup{IRD: 5, ORD: 3}
	}
	if got, want := encodeFrame(t, p.reply), encodeFrame(t, want); !bytes.Equal(got, want) {
		t.Errorf("reply %x, want %x", got, want)
	}
	if got := s.conn.PrivateData(); string(got) != "question" {
		t.Errorf("private data %q", got)
	}
	p.hello(t, s, false)
}

func testSetupActive(t *testing.T, revision int, ours, theirs bool) {
	s := newSide(t, iwarp.Config{NoCRC: !ours, Revision: revision, NoPeerToPeer: true}, nil)
	p := connectRaw(t, s, func(req mpa.Frame) mpa.Frame {
		if int(req.Revision) != revision || req.CRC != ours || req.Enhanced != (revision == 2) || req.Markers || string(req.PrivateData) != "question" {
			t.Errorf("request %+v", req)
		}
		reply := accept(req)
		reply.CRC = ours || theirs
		reply.PrivateData = []byte("answer")
		reply.Setup = mpa.Setup{IRD: 5, ORD: 3}
		return reply
	}, verbs.ConnParam{PrivateData: []byte("question")})
	if got := s.conn.PrivateData(); string(got) != "answer" {
		t.Errorf("private data %q", got)
	}
	p.hello(t, s, true)
}

// TestSetupNoReads: a depth of 0 in either direction is kept; a request that needs an
// answer is refused where none may be outstanding, rather than wait for ever.
func TestSetupNoReads(t *testing.T) {
	s := newSide(t, iwarp.Config{}, nil)
	req := request()
	req.Setup.IRD, req.Setup.ORD = 0, 0
	p := acceptRaw(t, s, req, verbs.ConnParam{})
	if p.reply.Setup.IRD != 0 || p.reply.Setup.ORD != 0 {
		t.Errorf("reply: %+v", p.reply.Setup)
	}
	if c := s.conn.Param(); c.InitiatorDepth != 0 || c.ResponderResources != 0 {
		t.Errorf("in force: %+v", c)
	}
	mr := s.region(t, 64)
	for _, op := range []verbs.Opcode{verbs.OpRead, verbs.OpFetchAdd, verbs.OpCompareSwap} {
		n, err := s.qp.PostSend([]verbs.SendWR{{Op: op, SGL: []verbs.SGE{mr.SGE(0, 8)}}})
		if n != 0 || !errors.Is(err, verbs.ErrInvalid) || !strings.Contains(err.Error(), "InitiatorDepth") {
			t.Errorf("%v: %d posted, error %v", op, n, err)
		}
	}
	p.hello(t, s, false)
}

// TestSetupMarkers: a peer that demands markers is told so by a rejection
// (RFC 5044 section 7.1.1), and the listener goes on.
func TestSetupMarkers(t *testing.T) {
	s := newSide(t, iwarp.Config{}, nil)
	p, l := dialRaw(t, s)
	req := request()
	req.Markers = true
	p.writeFrame(req)
	if f := p.readFrame(); !f.Reply || !f.Reject || f.Markers || f.Revision != mpa.Revision2 || !f.Enhanced {
		t.Errorf("reply %+v, want a rejection", f)
	}
	p.end()
	wantConnectable(t, s, l)
	if got := s.dev.Stats()["rejects"]; got != 1 {
		t.Errorf("%d rejects counted, want 1", got)
	}
}

// TestSetupRevision3: a revision that is not spoken is rejected by a reply that
// names the one that is (RFC 6581 section 10).
func TestSetupRevision3(t *testing.T) {
	s := newSide(t, iwarp.Config{}, nil)
	p, l := dialRaw(t, s)
	p.writeFrame(mpa.Frame{Revision: 3, CRC: true})
	if f := p.readFrame(); !f.Reply || !f.Reject || f.Revision != mpa.Revision2 {
		t.Errorf("reply %+v, want a rejection of revision 2", f)
	}
	p.end()
	wantConnectable(t, s, l)
}

// wantConnectable connects an ordinary peer to l; it is the first that Accept sees.
func wantConnectable(t *testing.T, s *side, l *verbs.Listener) {
	t.Helper()
	p := dialListener(t, l)
	p.writeFrame(request())
	r, err := l.Accept(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	if r.RemoteAddr().Port() != uint16(p.tc.LocalAddr().(*net.TCPAddr).Port) {
		t.Errorf("Accept returned the request of %v, want that of %v", r.RemoteAddr(), p.tc.LocalAddr())
	}
	if s.conn, err = r.Accept(testContext(t), s.qp, verbs.ConnParam{}); err != nil {
		t.Fatal(err)
	}
	if p.reply = p.readFrame(); p.reply.Reject {
		t.Fatal("rejected")
	}
	p.crc = p.reply.CRC
	p.hello(t, s, false)
}

// garbage is what other protocols may say on this port, and frames with one field wrong.
func garbage(t *testing.T) map[string][]byte {
	good := encodeFrame(t, request())
	edit := func(f func(b []byte)) []byte {
		b := bytes.Clone(good)
		f(b)
		return b
	}
	return map[string][]byte{
		"HTTP":             []byte("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"),
		"TLS":              append([]byte{0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3}, make([]byte, 64)...),
		"zeros":            make([]byte, 64),
		"last key octet":   edit(func(b []byte) { b[15] ^= 1 }),
		"reply":            edit(func(b []byte) { copy(b, "MPA ID Rep Frame") }),
		"revision 0":       edit(func(b []byte) { b[17] = 0 }),
		"private data 513": edit(func(b []byte) { b[18], b[19] = 2, 1 }),
		"no set-up data":   edit(func(b []byte) { b[18], b[19] = 0, 3 }),
	}
}

// TestSetupGarbage: what is no request is not shown to the program, and not
// answered unless by a rejection; the listener goes on.
func TestSetupGarbage(t *testing.T) {
	for name, b := range garbage(t) {
		t.Run("passive/"+name, func(t *testing.T) {
			s := newSide(t, iwarp.Config{}, nil)
			p, l := dialRaw(t, s)
			p.write(b)
			p.refusedQuietly(t)
			wantConnectable(t, s, l)
		})
		t.Run("active/"+name, func(t *testing.T) {
			if name == "reply" {
				b = encodeFrame(t, request())
			}
			s := newSide(t, iwarp.Config{}, nil)
			if err := dialAnswered(t, s, b, false); err == nil {
				t.Error("Dial succeeded")
			}
		})
	}
}

// refusedQuietly expects the end of the connection, and before it nothing or a rejection.
func (p *peer) refusedQuietly(t testing.TB) {
	t.Helper()
	b, _ := io.ReadAll(p.tc) // a reset, because more was sent than was read, ends it too
	if len(b) == 0 {
		return
	}
	if f, n, err := mpa.ParseFrame(b); err != nil || n != len(b) || !f.Reject {
		t.Errorf("answered by %x", b)
	}
}

// dialAnswered has s dial a peer that answers with b and then closes, or stays
// silent. The peer is gone when it returns.
func dialAnswered(t testing.TB, s *side, b []byte, silent bool) error {
	t.Helper()
	p, dialed := dialPeer(testContext(t), t, s, verbs.ConnParam{})
	p.readFrame()
	p.write(b)
	if silent {
		defer p.tc.Close()
	} else {
		p.tc.Close()
	}
	return <-dialed
}

// TestSetupCut cuts the request and the reply at every byte.
func TestSetupCut(t *testing.T) {
	req := request()
	req.PrivateData = []byte("data")
	t.Run("request", func(t *testing.T) {
		s := newSide(t, iwarp.Config{}, nil)
		_, l := dialRaw(t, s)
		b := encodeFrame(t, req)
		for i := range b {
			p := dialListener(t, l)
			p.write(b[:i])
			if err := p.tc.CloseWrite(); err != nil {
				t.Fatal(err)
			}
			p.end()
			p.tc.Close()
		}
		wantConnectable(t, s, l)
	})
	t.Run("reply", func(t *testing.T) {
		s := newSide(t, iwarp.Config{NoPeerToPeer: true}, nil)
		reply := accept(request())
		reply.PrivateData = []byte("data")
		b := encodeFrame(t, reply)
		for i := range b {
			if err := dialAnswered(t, s, b[:i], false); err == nil {
				t.Errorf("Dial succeeded with %d of %d octets of a reply", i, len(b))
			} else if !strings.Contains(err.Error(), "closed") && !strings.Contains(err.Error(), "reset") {
				t.Errorf("after %d octets: error %q does not say that the peer closed the connection", i, err)
			}
			if state := s.qp.State(); state != verbs.StateInit {
				t.Fatalf("state %v after a failed Dial, want INIT", state)
			}
		}
		if err := dialAnswered(t, s, b, true); err != nil {
			t.Errorf("Dial with the whole reply: %v", err)
		}
	})
}

// TestSetupSilent: peers that say nothing do not keep others from connecting.
func TestSetupSilent(t *testing.T) {
	s := newSide(t, iwarp.Config{}, nil)
	_, l := dialRaw(t, s)
	for range 10 {
		dialListener(t, l)
	}
	wantConnectable(t, s, l)
}

// TestSetupSilence: a peer that stops speaking is given up after HandshakeTimeout.
func TestSetupSilence(t *testing.T) {
	const limit = 200 * time.Millisecond
	frame := encodeFrame(t, request())
	for _, n := range []int{0, 1, 10, 17, len(frame) - 1} {
		t.Run(fmt.Sprintf("passive/%d", n), func(t *testing.T) {
			t.Parallel()
			s := newSide(t, iwarp.Config{HandshakeTimeout: limit}, nil)
			p, _ := dialRaw(t, s)
			p.write(frame[:n])
			p.end()
		})
		t.Run(fmt.Sprintf("active/%d", n), func(t *testing.T) {
			t.Parallel()
			s := newSide(t, iwarp.Config{HandshakeTimeout: limit}, nil)
			reply := encodeFrame(t, accept(request()))
			p, dialed := dialPeer(testContext(t), t, s, verbs.ConnParam{})
			_, _ = p.tc.Write(reply[:n]) // on a slow machine the time is over already
			if err := <-dialed; !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("Dial: error %v, want a deadline exceeded", err)
			}
		})
	}
	t.Run("cancelled", func(t *testing.T) {
		s := newSide(t, iwarp.Config{}, nil)
		ctx, cancel := context.WithCancelCause(testContext(t))
		p, dialed := dialPeer(ctx, t, s, verbs.ConnParam{})
		p.readFrame()
		why := errors.New("no longer wanted")
		cancel(why)
		if err := <-dialed; !errors.Is(err, why) {
			t.Errorf("Dial: error %v, want the context's cause", err)
		}
		p.end()
	})
}

// TestSetupPrivateData carries as much private data as fits, and refuses one byte more.
func TestSetupPrivateData(t *testing.T) {
	for _, c := range []struct{ revision, limit int }{{1, 512}, {2, 508}} {
		for _, n := range []int{0, 1, c.limit} {
			data := bytes.Repeat([]byte{7}, n)
			s := newSide(t, iwarp.Config{}, nil)
			req := mpa.Frame{Revision: uint8(c.revision), Enhanced: c.revision == 2, CRC: true, PrivateData: data}
			param := verbs.ConnParam{PrivateData: data[:min(n, 508)]}
			p := acceptRaw(t, s, req, param)
			if !bytes.Equal(s.conn.PrivateData(), data) {
				t.Errorf("revision %d: %d bytes arrived as %d", c.revision, n, len(s.conn.PrivateData()))
			}
			if !bytes.Equal(p.reply.PrivateData, param.PrivateData) {
				t.Errorf("revision %d: answer of %d bytes arrived as %d", c.revision, len(param.PrivateData), len(p.reply.PrivateData))
			}
		}
		s := newSide(t, iwarp.Config{Revision: c.revision}, nil)
		_, addr := listenRaw(t)
		_, err := verbs.Dial(testContext(t), s.qp, addr, verbs.ConnParam{PrivateData: make([]byte, c.limit+1)})
		if !errors.Is(err, verbs.ErrInvalid) || !strings.Contains(err.Error(), fmt.Sprint(c.limit)) {
			t.Errorf("revision %d, one byte too much: error %v", c.revision, err)
		}
	}
}

// TestSetupRejected: a rejection reaches the program with the peer's private data.
func TestSetupRejected(t *testing.T) {
	s := newSide(t, iwarp.Config{NoPeerToPeer: true}, nil)
	reply := accept(request())
	reply.Reject, reply.PrivateData = true, []byte("not today")
	err := dialAnswered(t, s, encodeFrame(t, reply), true)
	if r, ok := errors.AsType[*verbs.RejectedError](err); !ok || string(r.PrivateData) != "not today" {
		t.Errorf("error %v, want a rejection with the peer's words", err)
	}
}

// TestSetupByteByByte: a whole conversation that arrives one octet at a time.
func TestSetupByteByByte(t *testing.T) {
	s := newSide(t, iwarp.Config{}, nil)
	mr := s.region(t, 4096)
	s.recv(t, verbs.RecvWR{ID: 1, SGL: []verbs.SGE{mr.SGE(0, 100)}}, verbs.RecvWR{ID: 2})
	p, l := dialRaw(t, s)
	if err := p.tc.SetNoDelay(true); err != nil {
		t.Fatal(err)
	}
	trickle := func(b []byte) {
		for i := range b {
			p.write(b[i : i+1])
		}
	}
	trickle(encodeFrame(t, request()))
	r, err := l.Accept(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	if s.conn, err = r.Accept(testContext(t), s.qp, verbs.ConnParam{}); err != nil {
		t.Fatal(err)
	}
	p.reply = p.readFrame()
	p.crc = p.reply.CRC
	data := bytes.Repeat([]byte("0123456789"), 10)
	first := p.untagged(rdmap.OpSend)
	first.Last = false
	trickle(p.fpdu(first, data[:33]))
	second := first.Advance(33)
	second.Last = true
	trickle(p.fpdu(writeTo(mr.RemoteAt(1001)), data))
	trickle(p.fpdu(second, data[33:]))
	trickle(p.fpdu(p.untagged(rdmap.OpImmediate), []byte{1, 2, 3, 4, 0, 0, 0, 0}))
	if wc := s.want(t, 1, verbs.WCRecv, verbs.StatusSuccess); wc.Len != 100 || !bytes.Equal(mr.Bytes()[:100], data) {
		t.Errorf("send: %+v, %q", wc, mr.Bytes()[:100])
	}
	if wc := s.want(t, 2, verbs.WCRecvRDMAImm, verbs.StatusSuccess); wc.Imm != 0x01020304 || wc.Len != 100 || !bytes.Equal(mr.Bytes()[1001:1101], data) {
		t.Errorf("write with immediate: %+v, %q", wc, mr.Bytes()[1001:1101])
	}
	trickle(p.fpdu(p.untagged(rdmap.OpReadRequest), rdmap.AppendReadRequest(nil, rdmap.ReadRequest{
		SinkSTag: sinkSTag, SinkTO: 5, Size: 99, SourceSTag: mr.RKey(), SourceTO: mr.RemoteAt(1002).Addr})))
	if h, payload := p.expect(rdmap.OpReadResponse); h != (ddp.Header{Tagged: true, Last: true, Version: 1, ULP: rdmap.Control(rdmap.OpReadResponse), STag: sinkSTag, TO: 5}) || !bytes.Equal(payload, data[1:]) {
		t.Errorf("read: %+v %q", h, payload)
	}
}
