package xfer

import (
	"context"
	"encoding/binary"
	"errors"
	"net/netip"
	"testing"
	"time"

	"cinnabar/verbs"
	"cinnabar/verbs/iwarp"
)

// rawPeer is one end of a connection that follows no protocol: tests write down
// each of its posts.
type rawPeer struct {
	t       testing.TB
	ctx     context.Context
	dev     *verbs.Device
	pd      *verbs.PD
	cq      *verbs.CQ
	qp      *verbs.QP
	mr      *verbs.MR // the first rawSlots*maxMessage bytes are receives
	conn    *verbs.Conn
	private []byte     // of accept
	early   []verbs.WC // messages that came before receive was called
}

const (
	rawSlots  = 16
	rawData   = rawSlots * maxMessage
	rawMemory = rawData + 128<<10
	rawSay    = rawMemory - 64 // what say sends
)

// newRaw makes an end on a software device with all its receives posted; without memory, if bare.
func newRaw(t testing.TB, bare bool) *rawPeer {
	t.Helper()
	return newRawOn(t, must(iwarp.Open(iwarp.Config{}))(t), bare)
}

// newRawOn makes an end on a device, which is closed with it.
func newRawOn(t testing.TB, dev *verbs.Device, bare bool) *rawPeer {
	t.Helper()
	t.Cleanup(func() {
		if err := dev.Close(); err != nil {
			t.Error(err)
		}
	})
	p := newRawShared(t, dev)
	p.postReceives(bare)
	return p
}

// newRawShared makes an end on a device that the caller closes, without receives.
func newRawShared(t testing.TB, dev *verbs.Device) *rawPeer {
	t.Helper()
	p := &rawPeer{t: t, ctx: testContext(t), dev: dev}
	p.pd = must(p.dev.AllocPD())(t)
	p.cq = must(p.dev.CreateCQ(256))(t)
	p.qp = must(p.pd.CreateQP(verbs.QPConfig{SendCQ: p.cq}))(t)
	p.mr = must(p.pd.AllocMR(rawMemory, verbs.LocalWrite|verbs.RemoteWrite))(t)
	t.Cleanup(func() {
		if err := errors.Join(p.qp.Close(), p.mr.Close(), p.cq.Close(), p.pd.Close()); err != nil {
			t.Error(err)
		}
	})
	return p
}

// postReceives posts all receives; without memory, if bare.
func (p *rawPeer) postReceives(bare bool) {
	p.t.Helper()
	for i := range rawSlots {
		wr := verbs.RecvWR{ID: uint64(i)}
		if !bare {
			wr.SGL = []verbs.SGE{p.mr.SGE(i*maxMessage, maxMessage)}
		}
		if _, err := p.qp.PostRecv([]verbs.RecvWR{wr}); err != nil {
			p.t.Fatal(err)
		}
	}
}

// dialRaw connects to a receiver with the given private data.
func dialRaw(t testing.TB, addr netip.AddrPort, private []byte) *rawPeer {
	t.Helper()
	p := newRaw(t, false)
	p.conn = must(verbs.Dial(p.ctx, p.qp, addr, verbs.ConnParam{PrivateData: private}))(t)
	return p
}

// post posts a request and waits until it is done, or flushed because the peer
// has ended the connection.
func (p *rawPeer) post(wr verbs.SendWR, data []byte) {
	p.t.Helper()
	wr.Flags = verbs.Signaled
	if len(data) > 0 {
		copy(p.mr.Bytes()[rawData:], data)
		wr.SGL = []verbs.SGE{p.mr.SGE(rawData, len(data))}
	}
	if _, err := p.qp.PostSend([]verbs.SendWR{wr}); err != nil {
		p.t.Fatal(err)
	}
	for {
		switch wc := p.next(); {
		case !wc.Op.IsRecv():
			return
		case wc.Err() == nil:
			p.early = append(p.early, wc) // the answer may be faster than the completion
		case wc.Status == verbs.StatusWRFlushErr:
			return
		}
	}
}

func (p *rawPeer) send(data []byte) { p.t.Helper(); p.post(verbs.SendWR{Op: verbs.OpSend}, data) }

func (p *rawPeer) write(to verbs.RemoteAddr, data []byte) {
	p.t.Helper()
	p.post(verbs.SendWR{Op: verbs.OpWrite, Remote: to}, data)
}

func (p *rawPeer) writeImm(to verbs.RemoteAddr, data []byte, imm uint32) {
	p.t.Helper()
	p.post(verbs.SendWR{Op: verbs.OpWriteImm, Remote: to, Imm: imm}, data)
}

// next waits for a completion.
func (p *rawPeer) next() verbs.WC {
	p.t.Helper()
	var wc [1]verbs.WC
	if _, err := p.cq.Wait(p.ctx, wc[:]); err != nil {
		p.t.Fatal(err)
	}
	return wc[0]
}

// receive waits for a message, or for immediate data.
func (p *rawPeer) receive() (msg []byte, imm uint32) {
	p.t.Helper()
	var wc verbs.WC
	if len(p.early) > 0 {
		wc, p.early = p.early[0], p.early[1:]
	} else {
		wc = p.next()
	}
	if err := wc.Err(); err != nil || !wc.Op.IsRecv() {
		p.t.Fatalf("got %+v, %v, want a message", wc, err)
	}
	if wc.HasImm {
		return nil, wc.Imm
	}
	return p.mr.Bytes()[int(wc.ID)*maxMessage:][:wc.Len], 0
}

// basic waits for a message of a basic server.
func (p *rawPeer) basic(id int32) basicMessage {
	p.t.Helper()
	b, _ := p.receive()
	m, n := parseBasic(b)
	if n < 0 || m.id != id {
		p.t.Fatalf("got %+v from % x, want id %d", m, b, id)
	}
	return m
}

// fast waits for a message of the fast protocol.
func (p *rawPeer) fast(kind uint16) fastMessage {
	p.t.Helper()
	b, _ := p.receive()
	m, n := parseFast(b)
	if n < 0 || m.kind != kind {
		p.t.Fatalf("got %+v from % x, want %s", m, b, fastNames[kind])
	}
	return m
}

// ends waits until the peer has ended the connection.
func (p *rawPeer) ends() {
	p.t.Helper()
	select {
	case <-p.conn.Done():
	case <-p.ctx.Done():
		p.t.Fatal("the connection goes on")
	}
}

// leave disconnects in order.
func (p *rawPeer) leave() {
	p.t.Helper()
	_ = p.conn.Disconnect(p.ctx) // the other side may have been faster
}

// cString is a name as the paper's client writes it.
func cString(name string) []byte { return append([]byte(name), 0) }

// paperClient sends a file as the paper's program does.
func paperClient(t testing.TB, addr netip.AddrPort, name string, data []byte, chunk int) {
	t.Helper()
	p := dialRaw(t, addr, nil)
	to := p.basic(basicMR).remote
	p.writeImm(to, cString(name), uint32(len(name)+1))
	p.basic(basicReady)
	for len(data) > 0 {
		n := min(chunk, len(data))
		p.writeImm(to, data[:n], uint32(n))
		p.basic(basicReady)
		data = data[n:]
	}
	p.writeImm(to, nil, 0)
	p.basic(basicDone)
	p.leave()
}

// The paper's client, which knows nothing of private data, is served.
// parity: B04
func TestPaperClient(t *testing.T) {
	ctx := testContext(t)
	var log logBuffer
	srv := serve(t, device(t, iwarp.Config{}), Receiver{Logger: log.logger()}, DirOptions{})
	for name, size := range map[string]int{"empty": 0, "one": 1, "whole": 200 << 10, "part": 200<<10 - 1} {
		data := noise(size)
		paperClient(t, srv.addr, name, data, 100<<10)
		res, err := srv.outcome(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if res.Size != int64(size) || res.Protocol != Basic || !res.Immediate || res.Chunk != basicChunk {
			t.Errorf("%s: %+v", name, res)
		}
		srv.wantFile(name, data)
	}
	wantText(t, log.String(), "protocol=basic", "a program of the paper")
}

// acceptRaw takes a request as a server without private data.
func acceptRaw(t testing.TB, bare bool) (addr netip.AddrPort, accepted <-chan *rawPeer) {
	t.Helper()
	return newRaw(t, bare).accept(loopback)
}

// accept takes a request as a server, with the private data of p.
func (p *rawPeer) accept(at netip.AddrPort) (addr netip.AddrPort, accepted <-chan *rawPeer) {
	t := p.t
	t.Helper()
	l := must(verbs.Listen(p.dev, at))(t)
	out := make(chan *rawPeer, 1)
	done := make(chan struct{})
	go func() {
		defer close(done)
		r, err := l.Accept(p.ctx)
		if err == nil {
			p.conn, err = r.Accept(p.ctx, p.qp, verbs.ConnParam{PrivateData: p.private})
		}
		if err != nil {
			t.Error(err)
		}
		out <- p
	}()
	t.Cleanup(func() {
		<-done
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	return l.Addr(), out
}

// region is where the raw server has its buffer.
func (p *rawPeer) region() verbs.RemoteAddr { return p.mr.RemoteAt(rawData) }

func (p *rawPeer) buffer() []byte { return p.mr.Bytes()[rawData:rawSay] }

// say sends a message of up to 64 bytes of a server, from outside of its buffer, and does not wait until it is done.
func (p *rawPeer) say(msg []byte) {
	p.t.Helper()
	n := copy(p.mr.Bytes()[rawSay:], msg)
	if _, err := p.qp.PostSend([]verbs.SendWR{{Op: verbs.OpSend, SGL: []verbs.SGE{p.mr.SGE(rawSay, n)}}}); err != nil {
		p.t.Fatal(err)
	}
}

// The paper's server is served, too: the answer without private data means
// basic with immediates, chunks of no more than its 10 MiB, and the end in silence.
// That it speaks first works even where nobody has offered to let it.
// parity: B04 B31
func TestPaperServer(t *testing.T) {
	for name, cfg := range map[string]iwarp.Config{"peer-to-peer": {}, "no peer-to-peer": {NoPeerToPeer: true}} {
		t.Run(name, func(t *testing.T) { paperServer(t, cfg) })
	}
}

// paperServer serves a sender as the paper's program does.
func paperServer(t *testing.T, cfg iwarp.Config) {
	t.Helper()
	ctx := testContext(t)
	addr, accepted := acceptRaw(t, true)
	data := noise(100 << 10)
	sent := make(chan error, 1)
	dev := device(t, cfg)
	var res Result
	go func() {
		var err error
		res, err = (&Sender{Chunk: 64 << 10}).Send(ctx, dev, addr, sourceOf("test-file", data))
		sent <- err
	}()
	p := <-accepted
	say := func(id int32) { p.say(appendBasic(nil, basicMessage{id: id, remote: p.region()})) }
	say(basicMR)
	_, n := p.receive()
	if got := string(p.buffer()[:n]); got != "test-file\x00" {
		t.Errorf("name %q", got)
	}
	say(basicReady)
	var got []byte
	for {
		_, n := p.receive()
		if n == 0 {
			break
		}
		got = append(got, p.buffer()[:n]...)
		say(basicReady)
	}
	say(basicDone)
	p.ends()
	if err := <-sent; err != nil {
		t.Error(err)
	}
	if string(got) != string(data) || res.Protocol != Basic || !res.Immediate || res.Chunks != 2 || res.Chunk != 64<<10 {
		t.Errorf("%d bytes arrived, %+v", len(got), res)
	}
}

// A device without immediates cannot talk to the paper's programs, and says so.
func TestPaperProgramsNeedImmediates(t *testing.T) {
	ctx := testContext(t)
	dev := device(t, iwarp.Config{NoImmediates: true})
	srv := serve(t, dev, Receiver{}, DirOptions{})
	p := newRaw(t, false)
	_, err := verbs.Dial(p.ctx, p.qp, srv.addr, verbs.ConnParam{})
	rejected, ok := errors.AsType[*verbs.RejectedError](err)
	if !ok {
		t.Fatalf("got %v, want a rejection", err)
	}
	if v, ok := parseRefusal(rejected.PrivateData); !ok || v.code != CodeUnsupported {
		t.Errorf("refusal %+v", v)
	}
	_, err = srv.outcome(ctx)
	wantCode(t, err, CodeUnsupported, false, "write with immediate")

	for want, s := range map[string]Sender{"lacks": {}, "basic protocol only": {Protocol: Fast}} {
		addr, accepted := acceptRaw(t, true)
		_, err = s.Send(ctx, dev, addr, sourceOf("f", nil))
		wantCode(t, err, CodeUnsupported, false, want)
		(<-accepted).ends()
	}
}

// A server that accepts and is silent, and one that is silent before, are given up.
func TestSilentServer(t *testing.T) {
	ctx := testContext(t)
	addr, accepted := acceptRaw(t, true)
	s := Sender{Timeout: 500 * time.Millisecond}
	start := time.Now()
	_, err := s.Send(ctx, device(t, iwarp.Config{}), addr, sourceOf("f", nil))
	wantCode(t, err, CodeTimeout, false, "nothing has moved for 500ms", "the server's memory region")
	if took := time.Since(start); took > 10*time.Second {
		t.Errorf("it took %v", took)
	}
	(<-accepted).ends()

	dev := device(t, iwarp.Config{})
	l := must(verbs.Listen(dev, loopback))(t)
	_, err = s.Send(ctx, dev, l.Addr(), sourceOf("f", nil))
	wantCode(t, err, CodeTimeout, false, "no connection to 127.0.0.1:", "within 500ms")
	if err := l.Close(); err != nil {
		t.Error(err)
	}
}

// size4 is the announcement of the form without immediates.
func size4(n uint32) []byte { return binary.BigEndian.AppendUint32(nil, n) }
