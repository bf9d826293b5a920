package xfer

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"cinnabar/internal/hostmem"
	"cinnabar/verbs"
	"cinnabar/verbs/verbstest/memdev"
)

// FuzzSender lets receivers that follow a script loose on a sender: they refuse it, agree to anything, take the right next
// step of either protocol or a wrong one, and stop anywhere.
//
// parity: Q04
// fuzz:state
func FuzzSender(f *testing.F) {
	for protocol := range byte(3) {
		for size := range byte(5) {
			for answer := range byte(3) { // of the protocol that the sender wants, of basic, as the paper's program
				f.Add(append([]byte{0, protocol, 0, size, answer}, make([]byte, 40)...))
			}
		}
		for op := range byte(10) {
			f.Add(append([]byte{0, protocol, 0, 3, 0, 0, 0, 7, 1, op, 1, 3, 200, 9, 1, 2, 3, 4}, make([]byte, 20)...))
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		files := openFiles()
		synctest.Test(t, func(t *testing.T) { attackSender(t, &script{b}) })
		if n := hostmem.Mapped(); n != 0 {
			t.Errorf("%d mappings are left", n)
		}
		if n := openFiles(); n > files { // it may be fewer, because the collector closes descriptors of tests that ended before
			t.Errorf("%d descriptors are open, %d were before", n, files)
		}
	})
}

// boundedSource fails the test if it is read where no sender of it reads.
type boundedSource struct {
	t    testing.TB
	data []byte
}

func (s boundedSource) ReadAt(b []byte, offset int64) (int, error) {
	if offset < 0 || offset+int64(len(b)) > int64(len(s.data))+1 {
		s.t.Errorf("%d bytes are read at %d, of %d", len(b), offset, len(s.data))
	}
	return bytes.NewReader(s.data).ReadAt(b, offset)
}

func attackSender(t *testing.T, s *script) {
	device := memdev.Open(memdev.Config{Without: pick(s, 0, verbs.CapWriteImm)})
	dev, meter := verbs.NewDevice(device), &metered{DeviceDriver: device}
	sender := Sender{Protocol: pick(s, Auto, Basic, Fast), Digest: pick(s, SHA256, NoDigest, double), Hashes: doubles, Chunk: 2 * minChunk, Window: 3}
	data := noise(pick(s, 0, 1, 2*minChunk, 5*minChunk+1, 16*minChunk))

	// An innocent pair on the same device.
	srv := serve(t, dev, Receiver{}, DirOptions{})
	l := must(verbs.Listen(dev, loopback))(t)
	ctx, cancel := context.WithCancel(t.Context())
	var sent atomic.Pointer[error]
	sending, giveUp := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		defer cancel()
		_, err := sender.Send(sending, verbs.NewDevice(meter), l.Addr(), Source{Name: "f", Data: boundedSource{t, data}, Size: int64(len(data))})
		sent.Store(&err)
	})
	p := &fuzzReceiver{fuzzPeer: newFuzzPeer(t, dev), size: int64(len(data))}
	defer func() { // also if the script fails: synctest ends the process if a goroutine is left, and reports no failure
		p.close()
		cancel()
		giveUp()
		wg.Wait()
		srv.stop()
		if err := errors.Join(l.Close(), dev.Close()); err != nil {
			t.Error(err)
		}
	}()
	p.got = p.learn
	p.accept(ctx, s, l)
	for steps := 0; !s.done() && steps < 200 && sent.Load() == nil; steps++ {
		p.act(s)
		synctest.Wait()
	}

	res, err := (&Sender{}).Send(t.Context(), dev, srv.addr, sourceOf("innocent", data))
	if err != nil || res.Size != int64(len(data)) {
		t.Errorf("an innocent sender: %+v, %v", res, err)
	}
	srv.wantFile("innocent", data)

	time.Sleep(2 * (defaultTimeout + disconnectLimit)) //nolint:forbidigo // simulated time; nothing moves any more, so the sender gives up
	synctest.Wait()
	switch err := sent.Load(); {
	case err == nil:
		t.Error("a receiver that is silent holds up the sender")
	case *err == nil && !p.saidDone:
		t.Error("the sender reports success, which the receiver has not")
	}
	if most := meter.most.Load(); most > 3*basicChunk+1<<20 {
		t.Errorf("%d bytes of memory were registered at once", most)
	}
	if n := meter.now.Load(); n != 0 {
		t.Errorf("%d bytes of memory are still registered", n)
	}
}

// fuzzReceiver is a receiver that knows the protocols, if the script lets it follow them.
type fuzzReceiver struct {
	*fuzzPeer
	agreement
	size     int64
	begun    bool
	due      [][]byte // messages that would be right now
	chunks   uint64
	saidDone bool // a message that is DONE, or may be, was sent
}

// accept answers the sender's request, or lets it wait.
func (p *fuzzReceiver) accept(ctx context.Context, s *script, l *verbs.Listener) {
	req, err := l.Accept(ctx)
	if err != nil { // the sender has given up
		return
	}
	h, _ := parseHello(req.PrivateData())
	a := answer{protocol: Basic, imm: h.imm, digest: h.digest, chunk: h.chunk, buffers: 1}
	if h.fast {
		a.protocol, a.buffers = Fast, h.buffers
	}
	var private []byte
	switch s.below(8) {
	case 0:
		private = appendAnswer(nil, a)
	case 1:
		a.protocol, a.buffers = Basic, 1
		private = appendAnswer(nil, a)
	case 2: // the paper's program
		a = answer{protocol: Basic, imm: true}
	case 3:
		a = answer{protocol: Protocol(s.below(4)), imm: s.below(2) == 0, digest: pick[Digest](s, SHA256, NoDigest, "double"), chunk: uint32(s.number()), buffers: uint16(s.number())}
		private = appendAnswer(nil, a)
	case 4:
		private = s.bytes(60)
	case 5:
		private = append([]byte(helloMagic), s.bytes(60)...)
	case 6:
		_ = req.Reject(appendRefusal(nil, errorMessage{code: Code(s.number()), text: string(s.bytes(300))}, maxRefusal)) // may have gone
		return
	case 7:
		_ = req.Reject(s.bytes(60)) // may have gone
		return
	}
	p.agreement = agreement{protocol: a.protocol, imm: a.imm, digest: a.digest, buffers: int(a.buffers), chunk: int(a.chunk)}
	if p.conn, err = req.Accept(ctx, p.qp, verbs.ConnParam{PrivateData: private}); err != nil {
		p.conn = nil
		return
	}
	if p.protocol == Basic && p.imm {
		p.due = append(p.due, p.basicMessage(basicMR))
	}
}

func (p *fuzzReceiver) basicMessage(id int32) []byte {
	return appendBasic(nil, basicMessage{id: id, remote: p.mr.RemoteAt(fuzzData)})
}

// learn takes a message or immediate data of the sender, and notes the right answer.
func (p *fuzzReceiver) learn(b []byte, wc *verbs.WC) {
	if p.protocol == Fast {
		m, n := parseFast(b)
		switch {
		case n < 0:
		case m.kind == fastOpen:
			r := p.mr.RemoteAt(fuzzData)
			p.due = append(p.due, appendFast(nil, fastMessage{kind: fastLayout, length: uint32(p.chunk), number: r.Addr, word: r.RKey, count: uint32(p.buffers)}))
		case m.kind == fastChunk:
			p.chunks++
			p.due = append(p.due, appendFast(nil, fastMessage{kind: fastCredit, number: p.chunks}))
		case m.kind == fastEnd:
			p.due = append(p.due, appendFast(nil, fastMessage{kind: fastDone, number: m.number, tail: bytes.Clone(m.tail)}))
		}
		return
	}
	n := wc.Imm
	if !wc.HasImm {
		if !p.begun {
			p.begun = true
			p.due = append(p.due, p.basicMessage(basicMR))
			return
		}
		if len(b) != sizeLen {
			return
		}
		n = binary.BigEndian.Uint32(b)
	}
	id := int32(basicReady)
	if n == 0 {
		id = basicDone
	}
	p.due = append(p.due, p.basicMessage(id))
}

// act takes the next step of the script.
func (p *fuzzReceiver) act(s *script) {
	if p.conn == nil {
		s.b = nil
		return
	}
	p.poll()
	switch s.below(16) {
	default:
		p.answer()
	case 7, 8, 9:
		p.saidDone = true // perhaps
		p.hostile(s, verbs.RemoteAddr{Addr: s.number(), RKey: uint32(s.number())})
	case 10:
		time.Sleep(pick(s, time.Millisecond, time.Second, defaultTimeout/2, defaultTimeout)) //nolint:forbidigo // simulated time
	case 11:
		if s.below(4) == 0 {
			_ = p.conn.Disconnect(p.t.Context()) // the sender may have been faster
		}
	case 12: // a credit that is wrong, or early
		p.chunks += s.number()
		p.send(appendFast(nil, fastMessage{kind: fastCredit, number: p.chunks}))
	case 13: // buffers elsewhere, or others than agreed
		p.send(appendFast(nil, fastMessage{kind: fastLayout, length: uint32(p.chunk) + uint32(s.below(2)), number: s.number(), word: uint32(s.number()), count: uint32(p.buffers)}))
	case 14: // twice
		if len(p.due) > 0 {
			p.due = append(p.due, p.due[0])
		}
		p.answer()
	case 15:
		p.send(failedBytes(p.protocol, errorMessage{code: Code(s.number()), text: string(s.bytes(300))}))
	}
	p.poll()
}

// failedBytes is the message by which a receiver gives up.
func failedBytes(protocol Protocol, v errorMessage) []byte {
	if protocol == Fast {
		return appendFast(nil, fastMessage{kind: fastFailed, tail: appendErrorMessage(nil, v, maxErrorMessage)})
	}
	return appendBasic(nil, basicMessage{id: basicFailed, why: v})
}

// answer sends the next message that is due.
func (p *fuzzReceiver) answer() {
	if len(p.due) == 0 {
		return
	}
	msg := p.due[0]
	p.due = p.due[1:]
	if m, n := parseFast(msg); n > 0 && m.kind == fastDone {
		p.saidDone = true
	}
	if m, n := parseBasic(msg); n > 0 && m.id == basicDone {
		p.saidDone = true
	}
	p.send(msg)
}
