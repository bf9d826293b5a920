package iwarp_test

import (
	"errors"
	"net/netip"
	"sync"
	"testing"
	"time"

	"cinnabar/internal/iwarp/ddp"
	"cinnabar/internal/iwarp/rdmap"
	"cinnabar/verbs"
	"cinnabar/verbs/iwarp"
)

// TestDrippedMessageGivesSharedReceiveBack has a peer send a message byte by byte, which never ends: the receive of the
// shared queue that the message occupies comes back all the same.
func TestDrippedMessageGivesSharedReceiveBack(t *testing.T) {
	s := newSide(t, iwarp.Config{}, nil)
	queue := s.share(t)
	iwarp.SetSharedStall(s.dev, 200*time.Millisecond)
	p := acceptRaw(t, s, request(), verbs.ConnParam{})
	const size = 16 << 10
	mr := s.region(t, size)
	if _, err := queue.PostRecv([]verbs.RecvWR{{ID: 7, SGL: []verbs.SGE{mr.SGE(0, size)}}}); err != nil {
		t.Fatal(err)
	}
	h := p.untagged(rdmap.OpSend)
	h.Last = false
	p.send(h, sixteen)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		for h.MO = uint32(len(sixteen)); h.MO < size; h.MO++ {
			if _, err := p.tc.Write(p.fpdu(h, []byte{1})); err != nil {
				return // the connection has ended
			}
			select {
			case <-tick.C:
			case <-stop:
				return
			}
		}
	})
	s.want(t, 7, verbs.WCRecv, verbs.StatusWRFlushErr)
	close(stop)
	wg.Wait()
}

// acceptRawFrom is acceptRaw for a peer at another address of the loopback network.
func acceptRawFrom(t testing.TB, s *side, ip string) *peer {
	t.Helper()
	l, err := verbs.Listen(s.dev, netip.MustParseAddrPort("127.0.0.1:0"))
	if err != nil {
		t.Fatal(err)
	}
	p := newPeer(t, dialFrom(t, l, ip))
	p.writeFrame(request())
	r, err := l.Accept(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	if s.conn, err = r.Accept(testContext(t), s.qp, verbs.ConnParam{}); err != nil {
		t.Fatal(err)
	}
	p.reply = p.readFrame()
	p.crc, p.device = p.reply.CRC, s.dev
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	return p
}

// TestUnfinishedMessagesAreShared has one host begin a message on each of many connections that share a receive queue, and
// end none. It does not get all receives: a message of another host arrives, and so do messages of its own that are whole. When
// a connection ends, the next one that waits gets its part.
func TestUnfinishedMessagesAreShared(t *testing.T) {
	const receives = 16
	s := newSide(t, iwarp.Config{}, nil)
	queue := s.share(t)
	mr := s.region(t, 64*receives)
	post := func(i uint64) {
		if _, err := queue.PostRecv([]verbs.RecvWR{{ID: i, SGL: []verbs.SGE{mr.SGE(64*int(i), 64)}}}); err != nil {
			t.Fatal(err)
		}
	}
	for i := range uint64(receives) {
		post(i)
	}
	var peers []*peer
	var qps []*verbs.QP
	var begun ddp.Header // of each message
	for i := range uint64(receives) {
		s.qp = s.on(t, queue)
		qps = append(qps, s.qp)
		p := acceptRaw(t, s, request(), verbs.ConnParam{})
		begun = p.untagged(rdmap.OpSend)
		begun.Last = false
		p.send(begun, sixteen)
		eventually(t, "the beginning has come", func() bool { return s.dev.Stats()["rx_fpdus"] == i+1 })
		peers = append(peers, p)
	}
	s.qp = s.on(t, queue)
	same := acceptRaw(t, s, request(), verbs.ConnParam{})
	same.send(same.untagged(rdmap.OpSend), sixteen)
	if wc := s.wait(t); wc.Status != verbs.StatusSuccess || wc.QPNum != s.qp.Num() {
		t.Errorf("a message that is whole: %+v", wc)
	}
	s.qp = s.on(t, queue)
	other := acceptRawFrom(t, s, "127.0.0.9")
	other.send(other.untagged(rdmap.OpSend), sixteen)
	if wc := s.wait(t); wc.Status != verbs.StatusSuccess || wc.QPNum != s.qp.Num() {
		t.Errorf("the message of another host: %+v", wc)
	}
	begun.Last, begun.MO = true, uint32(len(sixteen))
	peers[receives-1].send(begun, sixteen)
	if wc := s.wait(t); wc.Status != verbs.StatusSuccess || wc.QPNum != qps[receives-1].Num() || wc.Len != 2*uint32(len(sixteen)) {
		t.Errorf("a message that waited and is whole now: %+v", wc)
	}
	for i, p := range peers[:receives-1] {
		p.tc.Close()
		wc := s.wait(t)
		if wc.Status != verbs.StatusWRFlushErr || wc.QPNum != qps[i].Num() {
			t.Fatalf("connection %d had a receive, or got the part of one before it; the completion is %+v", i, wc)
		}
		post(wc.ID)
	}
}

// TestMessageWaitsForShareWithoutRNR has a host begin more messages than its share of a shared queue, on queue pairs that do not wait
// for receives. There are receives, so these connections do not end: a message that waits for the host's others goes on when
// it is whole. When there is no receive the next one ends its connection.
func TestMessageWaitsForShareWithoutRNR(t *testing.T) {
	const receives = 16
	s := newSide(t, iwarp.Config{}, nil)
	queue := s.share(t)
	mr := s.region(t, 64*receives)
	for i := range uint64(receives) {
		if _, err := queue.PostRecv([]verbs.RecvWR{{ID: i, SGL: []verbs.SGE{mr.SGE(64*int(i), 64)}}}); err != nil {
			t.Fatal(err)
		}
	}
	begin := func(n uint64) (p *peer, begun ddp.Header) {
		s.qp = s.on(t, queue)
		p = acceptRaw(t, s, request(), verbs.ConnParam{RNRRetry: -1})
		begun = p.untagged(rdmap.OpSend)
		begun.Last = false
		p.send(begun, sixteen)
		eventually(t, "the beginning has come", func() bool { return s.dev.Stats()["rx_fpdus"] == n })
		return p, begun
	}
	for i := range uint64(receives - 1) {
		begin(i + 1)
	}
	last, begun := begin(receives)
	if n, _, _ := iwarp.Held(s.dev); n == 0 {
		t.Fatal("the host's share is all of the queue")
	}
	conn, qp := s.conn, s.qp
	select {
	case <-conn.Done():
		t.Fatal("the connection has ended:", conn.Err())
	default:
	}
	begun.Last, begun.MO = true, uint32(len(sixteen))
	last.send(begun, sixteen)
	if wc := s.wait(t); wc.Status != verbs.StatusSuccess || wc.QPNum != qp.Num() || wc.Len != 2*uint32(len(sixteen)) {
		t.Errorf("a message that waited and is whole now: %+v", wc)
	}

	empty := newSide(t, iwarp.Config{}, nil)
	empty.share(t) // without receives
	p := acceptRaw(t, empty, request(), verbs.ConnParam{RNRRetry: -1})
	p.send(p.untagged(rdmap.OpSend), sixteen)
	<-empty.conn.Done()
}

// TestReceiveWakesOneWaiter has several connections hold a message for a shared queue. A receive that is posted then is for the first
// one, and PostRecv does not touch the others, of which there may be thousands.
func TestReceiveWakesOneWaiter(t *testing.T) {
	const waiters = 4
	s := newSide(t, iwarp.Config{}, nil)
	queue := s.share(t)
	mr := s.region(t, 64*waiters)
	post := func(i int) error {
		_, err := queue.PostRecv([]verbs.RecvWR{{ID: uint64(i), SGL: []verbs.SGE{mr.SGE(64*i, 64)}}})
		return err
	}
	var qps []*verbs.QP
	var first netip.AddrPort
	for i := range waiters {
		s.qp = s.on(t, queue)
		p := acceptRaw(t, s, request(), verbs.ConnParam{})
		p.send(p.untagged(rdmap.OpSend), sixteen)
		s.holds(t, i+1)
		if qps = append(qps, s.qp); i == 0 {
			first = s.conn.RemoteAddr()
		}
	}
	unlock := iwarp.LockInput(s.dev, first)
	posted := make(chan error, 1)
	go func() { posted <- post(0) }()
	select {
	case err := <-posted:
		unlock()
		if err != nil {
			t.Fatal(err)
		}
	case <-testContext(t).Done():
		unlock()
		t.Fatal("PostRecv waits for a connection that gets no receive:", <-posted)
	}
	if wc := s.wait(t); wc.Status != verbs.StatusSuccess || wc.QPNum != qps[0].Num() {
		t.Errorf("%+v, want a message on queue pair %d", wc, qps[0].Num())
	}
	for i := 1; i < waiters; i++ {
		if err := post(i); err != nil {
			t.Fatal(err)
		}
		if wc := s.wait(t); wc.Status != verbs.StatusSuccess || wc.QPNum != qps[i].Num() {
			t.Errorf("%+v, want a message on queue pair %d", wc, qps[i].Num())
		}
	}
}

// TestReceiveBeforeWrongOne posts a receive together with one that is refused, while a connection holds a message. The message goes
// to the first receive.
func TestReceiveBeforeWrongOne(t *testing.T) {
	s := newSide(t, iwarp.Config{}, nil)
	queue := s.share(t)
	mr := s.region(t, 64)
	p := acceptRaw(t, s, request(), verbs.ConnParam{})
	p.send(p.untagged(rdmap.OpSend), sixteen)
	s.holds(t, 1)
	sge := mr.SGE(0, 64)
	n, err := queue.PostRecv([]verbs.RecvWR{{ID: 1, SGL: []verbs.SGE{sge}}, {ID: 2, SGL: []verbs.SGE{sge, sge, sge, sge, sge}}})
	if n != 1 || !errors.Is(err, verbs.ErrInvalid) {
		t.Fatalf("PostRecv: %d, %v; want 1 and an error about the scatter list", n, err)
	}
	if held, _, _ := iwarp.Held(s.dev); held != 0 {
		t.Errorf("%d messages are held though a receive was posted", held)
	}
	if wc := s.wait(t); wc.Status != verbs.StatusSuccess || wc.ID != 1 {
		t.Errorf("%+v, want a message in receive 1", wc)
	}
}
