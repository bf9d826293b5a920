package iwarp_test

import (
	"bytes"
	"errors"
	"io"
	"testing"

	"cinnabar/internal/iwarp/ddp"
	"cinnabar/internal/iwarp/rdmap"
	"cinnabar/verbs"
	"cinnabar/verbs/iwarp"
)

// cutter connects queue pairs of one device again and again, each to a peer that
// sends the beginning of a conversation.
type cutter struct {
	*side  // its queue pair is that of the connection at hand
	around []byte
	mr     *verbs.MR
	posted int // work requests of the connection at hand
}

func newCutter(t *testing.T, cfg iwarp.Config) *cutter {
	c := &cutter{side: newSide(t, cfg, nil), around: make([]byte, 3*regionSize)}
	var err error
	if c.mr, err = c.pd.RegMR(c.around[regionSize:2*regionSize], verbs.LocalWrite|verbs.RemoteRead|verbs.RemoteWrite|verbs.RemoteAtomic); err != nil {
		t.Fatal(err)
	}
	closeAtEnd(t, c.mr.Close)
	return c
}

// renew makes a queue pair with receives posted.
func (c *cutter) renew(t *testing.T) {
	t.Helper()
	var err error
	if c.qp, err = c.pd.CreateQP(verbs.QPConfig{SendCQ: c.cq, RecvCQ: c.cq, SignalAll: true}); err != nil {
		t.Fatal(err)
	}
	for i := range 6 {
		c.recv(t, verbs.RecvWR{ID: uint64(i), SGL: []verbs.SGE{c.mr.SGE(2048+64*i, 64)}})
	}
	c.posted = 6
}

// passive has the device accept a peer.
func (c *cutter) passive(t *testing.T) *peer {
	t.Helper()
	c.renew(t)
	p := acceptRaw(t, c.side, request(), verbs.ConnParam{})
	p.open()
	c.ask(t, p)
	return p
}

// active has the device connect to a peer.
func (c *cutter) active(t *testing.T) *peer {
	t.Helper()
	c.renew(t)
	p := connectRaw(t, c.side, accept, verbs.ConnParam{})
	c.ask(t, p)
	return p
}

// ask posts two requests that the conversation answers. They are on the wire when
// it returns: what is answered has been asked for.
func (c *cutter) ask(t *testing.T, p *peer) {
	t.Helper()
	c.side.send(t,
		verbs.SendWR{ID: 100, Op: verbs.OpRead, SGL: []verbs.SGE{c.mr.SGE(3072, 48)}},
		verbs.SendWR{ID: 101, Op: verbs.OpFetchAdd, SGL: []verbs.SGE{c.mr.SGE(3200, 8)}, CompareAdd: 1})
	p.expect(rdmap.OpReadRequest)
	p.expect(rdmap.OpAtomicRequest)
	c.posted += 2
}

// conversation is a mixed one, after which nothing is outstanding: its FPDUs, and
// the lengths after which no Send is incomplete.
func (c *cutter) conversation(p *peer) (b []byte, whole map[int]bool) {
	whole = map[int]bool{0: true}
	open := false
	add := func(h ddp.Header, payload []byte) {
		b = append(b, p.fpdu(h, payload)...)
		if _, op := rdmap.ParseControl(h.ULP); op == rdmap.OpSend {
			open = !h.Last
		}
		whole[len(b)] = !open
	}
	cut := func(h ddp.Header, payload []byte) { // in two segments, with something in between
		h.Last = false
		add(h, payload[:len(payload)/2])
		add(writeTo(c.mr.RemoteAt(512)), payload[:5])
		h = h.Advance(len(payload) / 2)
		h.Last = true
		add(h, payload[len(payload)/2:])
	}
	data := bytes.Repeat([]byte{0xee}, 48)
	add(writeTo(c.mr.Remote()), data)
	cut(p.untagged(rdmap.OpSend), data)
	add(p.untagged(rdmap.OpImmediate), make([]byte, rdmap.ImmediateLen))
	add(p.untagged(rdmap.OpSendSE), nil)
	add(p.untagged(rdmap.OpReadRequest), rdmap.AppendReadRequest(nil, rdmap.ReadRequest{SinkSTag: 1, Size: 40, SourceSTag: c.mr.RKey(), SourceTO: c.mr.Remote().Addr}))
	add(p.untagged(rdmap.OpAtomicRequest), rdmap.AppendAtomicRequest(nil, rdmap.FetchAdd(1, c.mr.RKey(), c.mr.RemoteAt(1024).Addr, 1)))
	first := tagged(rdmap.OpReadResponse, c.mr.LKey(), c.mr.RemoteAt(3072).Addr)
	first.Last = false
	add(first, data[:20])
	add(p.untagged(rdmap.OpSend), data[:33])
	second := first.Advance(20)
	second.Last = true
	add(second, data[20:])
	add(p.untagged(rdmap.OpAtomicResponse), rdmap.AppendAtomicResponse(nil, rdmap.AtomicResponse{RequestID: 1, Original: 7}))
	return b, whole
}

// over checks the end of a connection whose stream was cut: nothing hangs, every
// request came back once, and the memory around is as it was.
func (c *cutter) over(t *testing.T, at int, orderly bool) {
	t.Helper()
	<-c.conn.Done()
	if err := c.conn.Err(); orderly != errors.Is(err, verbs.ErrDisconnected) || !orderly && !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("cut at %d (orderly %t): error %v", at, orderly, err)
	}
	c.drained(t, at)
}

func (c *cutter) drained(t *testing.T, at int) {
	t.Helper()
	seen := make(map[uint64]bool)
	for range c.posted {
		wc := c.wait(t)
		if seen[wc.ID] {
			t.Errorf("cut at %d: request %d completed twice", at, wc.ID)
		}
		seen[wc.ID] = true
	}
	var wc [1]verbs.WC
	if n, err := c.cq.Poll(wc[:]); n != 0 || err != nil {
		t.Errorf("cut at %d: a completion too many, %+v, error %v", at, wc[0], err)
	}
	if !zero(c.around[:regionSize]) || !zero(c.around[2*regionSize:]) {
		t.Errorf("cut at %d: memory around the region has changed", at)
	}
	if err := c.qp.Close(); err != nil {
		t.Error(err)
	}
}

func zero(b []byte) bool { return len(bytes.Trim(b, "\x00")) == 0 }

// TestCut ends the stream of a mixed conversation at each of its bytes, in both roles.
func TestCut(t *testing.T) {
	t.Run("passive", func(t *testing.T) {
		c := newCutter(t, iwarp.Config{})
		testCut(t, c, c.passive)
	})
	t.Run("active", func(t *testing.T) {
		c := newCutter(t, iwarp.Config{NoPeerToPeer: true, NoCRC: true})
		testCut(t, c, c.active)
	})
}

func testCut(t *testing.T, c *cutter, connect func(*testing.T) *peer) {
	for at := 0; ; at++ {
		p := connect(t)
		b, whole := c.conversation(p)
		p.write(b[:at])
		if err := p.tc.CloseWrite(); err != nil {
			t.Fatal(err)
		}
		c.over(t, at, whole[at])
		p.drain()
		if at == len(b) {
			break
		}
	}
}

// drain reads until the device ends its side, and closes.
func (p *peer) drain() {
	p.t.Helper()
	if _, err := io.Copy(io.Discard, p.tc); err != nil {
		p.t.Error(err)
	}
	p.tc.Close()
}

// TestCutReset is TestCut with a peer that resets the connection, at some bytes.
func TestCutReset(t *testing.T) {
	c := newCutter(t, iwarp.Config{})
	for at := 0; ; at += 13 {
		p := c.passive(t)
		b, _ := c.conversation(p)
		if at > len(b) {
			at = len(b)
		}
		p.write(b[:at])
		if err := p.tc.SetLinger(0); err != nil {
			t.Fatal(err)
		}
		p.tc.Close()
		<-c.conn.Done()
		if err := c.conn.Err(); err == nil || errors.Is(err, verbs.ErrDisconnected) {
			t.Errorf("reset at %d: error %v", at, err)
		}
		c.drained(t, at)
		if at == len(b) {
			break
		}
	}
}

// TestCutBits flips each bit of the first FPDUs of a conversation: with CRCs on,
// nothing of it is ever taken for something else.
func TestCutBits(t *testing.T) {
	c := newCutter(t, iwarp.Config{})
	c.renew(t)
	frame := func(p *peer) []byte {
		return p.fpdu(p.untagged(rdmap.OpSend), bytes.Repeat([]byte{0xee}, 13))
	}
	bits := 8 * len(frame(&peer{crc: true}))
	for bit := range bits {
		if bit > 0 {
			c.renew(t)
		}
		p := acceptRaw(t, c.side, request(), verbs.ConnParam{})
		b := frame(p)
		b[bit/8] ^= 1 << (bit % 8)
		p.write(b)
		p.tc.CloseWrite()
		<-c.conn.Done()
		if err := c.conn.Err(); errors.Is(err, verbs.ErrDisconnected) {
			t.Errorf("bit %d flipped: error %v", bit, err)
		}
		for range c.posted {
			if wc := c.wait(t); wc.Status == verbs.StatusSuccess {
				t.Errorf("bit %d flipped: the message was delivered", bit)
			}
		}
		c.posted = 0
		c.drained(t, bit)
		p.drain()
	}
}
