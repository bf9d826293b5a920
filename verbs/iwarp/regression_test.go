package iwarp_test

import (
	"bytes"
	"errors"
	"runtime"
	"slices"
	"sync"
	"testing"

	"cinnabar/internal/iwarp/rdmap"
	"cinnabar/verbs"
	"cinnabar/verbs/iwarp"
)

// Each test of this file holds against a defect that the package once had. Those that
// need two things to happen at once go a number of rounds, with the moment shifted.

func (s *side) modify(t testing.TB, states ...verbs.QPState) {
	t.Helper()
	for _, state := range states {
		if err := s.qp.Modify(verbs.QPAttr{Mask: verbs.AttrState, State: state}); err != nil {
			t.Fatalf("to state %v: %v", state, err)
		}
	}
}

// TestResetFreesEverySlot: requests whose completions nobody polled before the reset
// take no place in the queues afterwards, nor give one back twice.
func TestResetFreesEverySlot(t *testing.T) {
	const depth = 4
	a := newSide(t, iwarp.Config{}, func(c *verbs.QPConfig) { c.MaxSendWR, c.MaxRecvWR = depth, depth })
	b := newSide(t, iwarp.Config{}, nil)
	mr := a.region(t, 64)
	sge := []verbs.SGE{mr.SGE(0, 8)}
	a.modify(t, verbs.StateErr)
	for id := range uint64(depth) {
		a.send(t, verbs.SendWR{ID: id, Op: verbs.OpSend, SGL: sge, Flags: verbs.Signaled})
		a.recv(t, verbs.RecvWR{ID: id, SGL: sge})
	}
	a.modify(t, verbs.StateReset, verbs.StateInit)
	connect(t, a, b, verbs.ConnParam{}, verbs.ConnParam{})
	n, err := a.qp.PostSend(slices.Repeat([]verbs.SendWR{{Op: verbs.OpSend, SGL: sge, Flags: verbs.Signaled}}, 2*depth))
	if n != depth || !errors.Is(err, verbs.ErrQueueFull) {
		t.Errorf("a send queue of depth %d took %d requests without a poll, error %v", depth, n, err)
	}
	n, err = a.qp.PostRecv(slices.Repeat([]verbs.RecvWR{{SGL: sge}}, 2*depth))
	if n != depth || !errors.Is(err, verbs.ErrQueueFull) {
		t.Errorf("a receive queue of depth %d took %d requests, error %v", depth, n, err)
	}
}

// TestCountersLoseNoWakeup: an answer that becomes due while somebody holds the locks
// only to read the counters is sent all the same.
func TestCountersLoseNoWakeup(t *testing.T) {
	a, b := newPair(t, iwarp.Config{}, iwarp.Config{})
	src, dst := b.region(t, 64), a.region(t, 64)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	defer wg.Wait()
	defer close(stop)
	wg.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				b.dev.Stats()
				runtime.Gosched() // few processors have to do for all
			}
		}
	})
	var wc [1]verbs.WC
	for id := range uint64(40) {
		a.send(t, verbs.SendWR{ID: id, Op: verbs.OpRead, SGL: []verbs.SGE{dst.SGE(0, 8)}, Remote: src.Remote(), Flags: verbs.Signaled})
		eventually(t, "the read is answered", func() bool {
			n, err := a.cq.Poll(wc[:])
			return n > 0 || err != nil
		})
		if wc[0].ID != id || wc[0].Status != verbs.StatusSuccess {
			t.Fatalf("read %d: completion %+v", id, wc[0])
		}
	}
}

// TestRegionOfACompletedSendMayBeClosed: what shares a system call with a request that
// is complete does not suffer from the end of that request's region.
func TestRegionOfACompletedSendMayBeClosed(t *testing.T) {
	const size, count = 16 << 10, 512 // together more than the sockets hold
	s := newSide(t, iwarp.Config{NoCRC: true, NoPeerToPeer: true}, func(c *verbs.QPConfig) { c.MaxSendWR = count; c.SignalAll = true })
	p := connectRaw(t, s, accept, verbs.ConnParam{})
	mrs := make([]*verbs.MR, count)
	for i := range mrs {
		var err error
		if mrs[i], err = s.pd.AllocMR(size, verbs.LocalWrite); err != nil {
			t.Fatal(err)
		}
		fill(mrs[i].Bytes(), uint64(i))
		s.send(t, verbs.SendWR{ID: uint64(i), Op: verbs.OpSend, SGL: []verbs.SGE{mrs[i].SGE(0, size)}})
	}
	// closeNext closes the region of the next request that is complete.
	closeNext := func() bool {
		var wc [1]verbs.WC
		if _, err := s.cq.Wait(testContext(t), wc[:]); err != nil || wc[0].Status != verbs.StatusSuccess {
			t.Errorf("request %d: %v, error %v; the connection: %v", wc[0].ID, wc[0].Status, err, s.conn.Err())
			return false
		}
		if err := mrs[wc[0].ID].Close(); err != nil {
			t.Error(err)
		}
		return true
	}
	first := closeNext() // while the peer reads nothing: the rest of the same call waits
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() {
		for n := 1; first && n < count && closeNext(); n++ {
		}
	})
	want, got := make([]byte, size), make([]byte, 0, size)
	for i := range mrs {
		fill(want, uint64(i))
		for got = got[:0]; len(got) < size; {
			_, payload := p.expect(rdmap.OpSend)
			got = append(got, payload...)
		}
		if !bytes.Equal(got, want) {
			t.Fatalf("message %d arrives with other bytes", i)
		}
	}
}

// TestGuiltyRequestIsBlamed: a request whose region is gone by the time it is sent
// fails, and not the one that is sent together with it.
func TestGuiltyRequestIsBlamed(t *testing.T) {
	a, b := newSide(t, iwarp.Config{NoPeerToPeer: true}, nil), newSide(t, iwarp.Config{}, nil)
	connect(t, a, b, verbs.ConnParam{}, verbs.ConnParam{})
	good, dst := b.region(t, 64), a.region(t, 64)
	bad, err := b.pd.AllocMR(64, verbs.LocalWrite)
	if err != nil {
		t.Fatal(err)
	}
	a.recv(t, verbs.RecvWR{ID: 3, SGL: []verbs.SGE{dst.SGE(0, 64)}})
	b.send(t, verbs.SendWR{ID: 1, Op: verbs.OpSend, SGL: []verbs.SGE{good.SGE(0, 8)}, Flags: verbs.Signaled},
		verbs.SendWR{ID: 2, Op: verbs.OpSend, SGL: []verbs.SGE{bad.SGE(0, 8)}, Flags: verbs.Signaled})
	if err := bad.Close(); err != nil {
		t.Fatal(err)
	}
	a.send(t, verbs.SendWR{Op: verbs.OpWrite}) // the first FPDU: now the passive side may send
	b.want(t, 1, verbs.WCSend, verbs.StatusSuccess)
	b.want(t, 2, verbs.WCSend, verbs.StatusLocProtErr)
	a.want(t, 3, verbs.WCRecv, verbs.StatusSuccess)
}

// TestFlushKeepsOrder: what is posted while the queues are flushed comes back behind
// what was posted before.
func TestFlushKeepsOrder(t *testing.T) {
	t.Run("sends", func(t *testing.T) {
		testFlushOrder(t, func(s *side, id uint64, sge verbs.SGE) error {
			_, err := s.qp.PostSend([]verbs.SendWR{{ID: id, Op: verbs.OpSend, SGL: []verbs.SGE{sge}, Flags: verbs.Signaled}})
			return err
		})
	})
	t.Run("receives", func(t *testing.T) {
		testFlushOrder(t, func(s *side, id uint64, sge verbs.SGE) error {
			_, err := s.qp.PostRecv([]verbs.RecvWR{{ID: id, SGL: []verbs.SGE{sge}}})
			return err
		})
	})
}

func testFlushOrder(t *testing.T, post func(s *side, id uint64, sge verbs.SGE) error) {
	const posts = 64
	for round := range 15 {
		s, _ := newPair(t, iwarp.Config{}, iwarp.Config{}) // cleaned up behind the peer, which may hold messages
		sge := s.region(t, 64).SGE(0, 8)
		now := make(chan struct{})
		var wg sync.WaitGroup
		wg.Go(func() {
			close(now)
			for id := range uint64(posts) {
				if err := post(s, id, sge); err != nil {
					t.Errorf("post %d: %v", id, err)
				}
			}
		})
		<-now
		for range round {
			s.qp.State() // some time passes
		}
		s.modify(t, verbs.StateErr)
		wg.Wait()
		for want := range uint64(posts) {
			if wc := s.wait(t); wc.ID != want {
				t.Fatalf("round %d: request %d comes back where %d is due", round, wc.ID, want)
			}
		}
	}
}

// stream has p write to mr without a pause, and once the stream flows the FPDUs
// behind. The function that it returns ends the stream; it is an error if that has
// ended before.
func stream(t *testing.T, p *peer, mr *verbs.MR, behind []byte) (stop func()) {
	t.Helper()
	var writes []byte
	for range 64 {
		writes = append(writes, p.fpdu(writeTo(mr.Remote()), make([]byte, 32<<10))...)
	}
	over := make(chan struct{})
	p.sync()
	var wg sync.WaitGroup
	wg.Go(func() {
		for n := 0; ; n++ {
			b := writes
			if n == 1 {
				b = append(slices.Clone(behind), writes...)
			}
			if _, err := p.tc.Write(b); err != nil {
				t.Error("the stream does not last:", err)
				return
			}
			select {
			case <-over:
				return
			default:
			}
		}
	})
	return func() {
		close(over)
		wg.Wait()
	}
}

// TestReadIsAnsweredWhileWritesStream: the answer to a read does not wait for a pause
// in what the peer sends.
func TestReadIsAnsweredWhileWritesStream(t *testing.T) {
	s, p := uncheckedPeer(t)
	ask := rdmap.AppendReadRequest(nil, rdmap.ReadRequest{SinkSTag: sinkSTag})
	stop := stream(t, p, s.region(t, 64<<10), p.fpdu(p.untagged(rdmap.OpReadRequest), ask))
	defer stop()
	p.expect(rdmap.OpReadResponse)
}

// TestReceivesArePostedWhileWritesStream: posts that let held messages in get their
// turn while the peer keeps the reader busy.
func TestReceivesArePostedWhileWritesStream(t *testing.T) {
	const messages = 50
	s, p := uncheckedPeer(t)
	for range messages {
		p.send(p.untagged(rdmap.OpSend), nil)
	}
	s.holds(t, messages)
	stop := stream(t, p, s.region(t, 64<<10), nil)
	defer stop()
	for id := range uint64(messages) {
		s.recv(t, verbs.RecvWR{ID: id})
		s.want(t, id, verbs.WCRecv, verbs.StatusSuccess)
	}
}

// uncheckedPeer connects a peer to a fresh side without CRCs.
func uncheckedPeer(t *testing.T) (*side, *peer) {
	t.Helper()
	s := newSide(t, iwarp.Config{NoCRC: true}, nil)
	req := request()
	req.CRC = false
	p := acceptRaw(t, s, req, verbs.ConnParam{})
	p.open()
	p.barrier()
	return s, p
}

// TestOfferedDepthsCanBeAccepted: whoever accepts a request with the parameters that
// it shows is not told that they are out of range.
func TestOfferedDepthsCanBeAccepted(t *testing.T) {
	s := newSide(t, iwarp.Config{}, nil)
	p, l := dialRaw(t, s)
	req := request()
	req.Setup.ORD, req.Setup.IRD = 0x3fff, 0x3fff // all that the field can say
	p.writeFrame(req)
	r, err := l.Accept(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.Accept(testContext(t), s.qp, r.Param()); err != nil {
		t.Fatal("accept:", err)
	}
	if reply := p.readFrame(); reply.Reject || reply.Setup.IRD == 0 || reply.Setup.ORD == 0 {
		t.Errorf("reply %+v", reply)
	}
}

// TestNothingSucceedsBehindAnError: of the requests behind the one that the peer
// refused none is reported as done, sent or not.
func TestNothingSucceedsBehindAnError(t *testing.T) {
	s := newSide(t, iwarp.Config{NoPeerToPeer: true}, nil)
	p := connectRaw(t, s, accept, verbs.ConnParam{})
	sge := []verbs.SGE{s.region(t, 64).SGE(0, 8)}
	s.send(t, verbs.SendWR{ID: 1, Op: verbs.OpRead, SGL: sge, Flags: verbs.Signaled},
		verbs.SendWR{ID: 2, Op: verbs.OpSend, SGL: sge, Flags: verbs.Signaled},
		verbs.SendWR{ID: 3, Op: verbs.OpSend, SGL: sge})
	for _, op := range []rdmap.Opcode{rdmap.OpReadRequest, rdmap.OpSend, rdmap.OpSend} {
		p.expect(op)
	}
	p.send(p.untagged(rdmap.OpTerminate), rdmap.AppendTerminate(nil, rdmap.TermBaseBounds.Terminate()))
	s.want(t, 1, verbs.WCRead, verbs.StatusRemAccessErr)
	s.want(t, 2, verbs.WCSend, verbs.StatusWRFlushErr)
	s.want(t, 3, verbs.WCSend, verbs.StatusWRFlushErr)
}

// TestTerminateReachesAHalfClosedPeer: a peer that ends its side right behind a bad
// frame is told what was wrong.
func TestTerminateReachesAHalfClosedPeer(t *testing.T) {
	for range 30 {
		s := newSide(t, iwarp.Config{}, nil)
		p := acceptRaw(t, s, request(), verbs.ConnParam{})
		p.open()
		p.barrier()
		b := p.fpdu(tagged(rdmap.OpWrite, 0, 0), nil)
		b[len(b)-1] ^= 1
		p.write(b)
		if err := p.tc.CloseWrite(); err != nil {
			t.Fatal(err)
		}
		if term := p.terminate(); term.Cause() != rdmap.TermMPACRC {
			t.Fatalf("terminate: %v", term)
		}
	}
}

// TestResetBehindReplyEndsConnection: a peer that resets the connection right behind its reply
// makes Dial fail, or the connection that it returns.
func TestResetBehindReplyEndsConnection(t *testing.T) {
	for range 20 {
		s := newSide(t, iwarp.Config{}, nil)
		p, dialed := dialPeer(testContext(t), t, s, verbs.ConnParam{})
		p.writeFrame(accept(p.readFrame()))
		if err := p.tc.SetLinger(0); err != nil {
			t.Fatal(err)
		}
		p.tc.Close()
		if err := <-dialed; err != nil {
			continue
		}
		<-s.conn.Done()
		if err := s.conn.Err(); err == nil || errors.Is(err, verbs.ErrDisconnected) {
			t.Errorf("the connection ends with %v", err)
		}
	}
}

// TestReadBehindOurEndIsNoFailure: a peer that asks for a read when this side has
// ended its stream gets no answer, and does not make Disconnect wait in vain.
func TestReadBehindOurEndIsNoFailure(t *testing.T) {
	s := newSide(t, iwarp.Config{}, nil)
	p := acceptRaw(t, s, request(), verbs.ConnParam{})
	p.open()
	p.barrier()
	gone := make(chan error, 1)
	go func() { gone <- s.conn.Disconnect(testContext(t)) }()
	p.end()
	p.readRequest(verbs.RemoteAddr{}, 0)
	if err := <-gone; err != nil {
		t.Error("disconnect:", err)
	}
	if err := s.conn.Err(); !errors.Is(err, verbs.ErrDisconnected) {
		t.Errorf("the connection ends with %v, want %v", err, verbs.ErrDisconnected)
	}
}

// TestDisconnectEndsAStalledConnection: a peer that has ended its stream behind more
// than is held for it makes Disconnect wait for nothing.
func TestDisconnectEndsAStalledConnection(t *testing.T) {
	s := newSide(t, iwarp.Config{HoldLimit: 1000}, nil)
	p := acceptRaw(t, s, request(), verbs.ConnParam{})
	p.open()
	p.barrier()
	for range 5 {
		p.send(p.untagged(rdmap.OpSend), make([]byte, 600))
	}
	if err := p.tc.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the connection is stalled", func() bool {
		_, _, stalled := iwarp.Held(s.dev)
		return stalled
	})
	if err := s.conn.Disconnect(testContext(t)); err != nil {
		t.Error("disconnect:", err)
	}
}

// TestModifyCannotReviveADeadConnection: a change of state that meets the end of the
// connection does not lead out of ERR.
func TestModifyCannotReviveADeadConnection(t *testing.T) {
	for round := range 30 {
		a, b := newPair(t, iwarp.Config{}, iwarp.Config{})
		var wg sync.WaitGroup
		wg.Go(func() {
			if err := b.qp.Modify(verbs.QPAttr{Mask: verbs.AttrState, State: verbs.StateErr}); err != nil {
				t.Error(err)
			}
		})
		to := verbs.StateSQD
		for over := false; !over; {
			// It fails when the connection has ended.
			over = a.qp.Modify(verbs.QPAttr{Mask: verbs.AttrState, State: to}) != nil
			to = verbs.StateSQD + verbs.StateRTS - to
			select {
			case <-a.conn.Done():
				over = true
			default:
			}
		}
		<-a.conn.Done()
		wg.Wait()
		if state := a.qp.State(); state != verbs.StateErr {
			t.Fatalf("round %d: state %v, the connection: %v", round, state, a.conn.Err())
		}
	}
}

// TestDisconnectMeetsPosts: of posts at the moment of Disconnect some are refused, and
// the others do not keep it from ending.
func TestDisconnectMeetsPosts(t *testing.T) {
	for round := range 30 {
		a, _ := newPair(t, iwarp.Config{}, iwarp.Config{})
		now := make(chan struct{})
		var wg sync.WaitGroup
		wg.Go(func() {
			for n := 0; ; n++ {
				if n == round {
					close(now)
				}
				_, err := a.qp.PostSend([]verbs.SendWR{{Op: verbs.OpWrite}})
				if errors.Is(err, verbs.ErrDisconnected) || errors.Is(err, verbs.ErrQueueFull) {
					return
				} else if err != nil {
					t.Error(err)
					return
				}
			}
		})
		<-now
		if err := a.conn.Disconnect(testContext(t)); err != nil {
			t.Errorf("round %d: disconnect: %v", round, err)
		}
		wg.Wait()
	}
}
