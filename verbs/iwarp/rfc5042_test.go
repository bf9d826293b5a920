package iwarp_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"

	"cinnabar/internal/audit"
	"cinnabar/internal/iwarp/rdmap"
	"cinnabar/verbs"
	"cinnabar/verbs/iwarp"
)

// RFC 5042 describes the attacks that a device for RDMA over IP meets, and asks for countermeasures. The tests of this file
// are named by the resource that is attacked. More tests of each countermeasure stand beside its code.

// twoStreams are two connections of one device and one protection domain, with a peer each.
func twoStreams(t *testing.T, cfg iwarp.Config) (s, other *side, p, q *peer) {
	t.Helper()
	s = newSide(t, cfg, nil)
	other = s.another(t)
	p, q = acceptRaw(t, s, request(), verbs.ConnParam{}), acceptRaw(t, other, request(), verbs.ConnParam{})
	p.open()
	q.open()
	return s, other, p, q
}

// TestRFC5042_KeyOfAnotherDomain has a peer name a region of another protection domain by each operation.
// parity: A08
func TestRFC5042_KeyOfAnotherDomain(t *testing.T) {
	for _, test := range []struct {
		name  string
		cause rdmap.Cause
		do    func(p *peer, mr *verbs.MR)
	}{
		{"write", rdmap.TermDDPSTagNotAssociated, func(p *peer, mr *verbs.MR) { p.send(writeTo(mr.Remote()), sixteen) }},
		{"read", rdmap.TermSTagNotAssociated, func(p *peer, mr *verbs.MR) { p.readRequest(mr.Remote(), 16) }},
		{"atomic", rdmap.TermSTagNotAssociated, func(p *peer, mr *verbs.MR) {
			p.send(p.untagged(rdmap.OpAtomicRequest), rdmap.AppendAtomicRequest(nil, rdmap.FetchAdd(1, mr.RKey(), mr.Remote().Addr, 1)))
		}},
		{"invalidate", rdmap.TermCannotInvalidate, func(p *peer, mr *verbs.MR) {
			h := p.untagged(rdmap.OpSendInvalidate)
			h.Rsvd = mr.RKey()
			p.send(h, nil)
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			v := newVictim(t, iwarp.Config{}, nil)
			v.peer = acceptRaw(t, v.side, request(), verbs.ConnParam{})
			v.recv(t, verbs.RecvWR{ID: 1})
			v.open()
			test.do(v.peer, v.other)
			if term := v.terminate(); term.Cause() != test.cause {
				t.Errorf("%v, want %v", term, test.cause)
			}
			if !zero(v.other.Bytes()) {
				t.Error("the region has changed")
			}
		})
	}
}

// TestRFC5042_OneStreamsErrorIsItsOwn has one peer break a rule: the other stream of the same domain, and the region that
// both use, are not affected.
// parity: A08
func TestRFC5042_OneStreamsErrorIsItsOwn(t *testing.T) {
	s, _, p, q := twoStreams(t, iwarp.Config{})
	mr := s.region(t, 64)
	p.send(tagged(rdmap.OpWrite, mr.RKey(), mr.Remote().Addr+60), sixteen) // beyond the end
	if term := p.terminate(); term.Cause() != rdmap.TermDDPBaseBounds {
		t.Error(term)
	}
	q.send(writeTo(mr.Remote()), sixteen)
	q.barrier()
	if !bytes.Equal(mr.Bytes()[:16], sixteen) || !zero(mr.Bytes()[16:]) {
		t.Errorf("the region is %x", mr.Bytes())
	}
}

// TestWriteIntoAnotherPeersFrame has one peer write the bytes that a frame of another peer is landing in. That is the one case in which
// a peer ends the connection of another: the checksum of the frame is wrong then. Without the checksum both connections go on.
func TestWriteIntoAnotherPeersFrame(t *testing.T) {
	for _, crc := range []bool{true, false} {
		t.Run(fmt.Sprintf("crc=%t", crc), func(t *testing.T) {
			s := newSide(t, iwarp.Config{NoCRC: true}, nil) // the peers ask for the checksum, or do not
			req := request()
			req.CRC = crc
			p, q := acceptRaw(t, s, req, verbs.ConnParam{}), acceptRaw(t, s.another(t), req, verbs.ConnParam{})
			p.open()
			p.barrier()
			q.open()
			q.barrier()
			mr := s.region(t, 1024)
			frame := p.fpdu(writeTo(mr.Remote()), bytes.Repeat([]byte{1}, 1024))
			half := len(frame) / 2
			want := s.dev.Stats()["rx_bytes"] + uint64(half)
			p.write(frame[:half])
			eventually(t, "half of the frame has landed", func() bool { return s.dev.Stats()["rx_bytes"] == want })
			q.send(writeTo(mr.RemoteAt(256)), sixteen)
			q.barrier()
			p.write(frame[half:])
			if crc {
				if term := p.terminateMPA(); term.Cause() != rdmap.TermMPACRC {
					t.Error(term)
				}
			} else {
				p.barrier()
			}
			q.send(writeTo(mr.RemoteAt(512)), sixteen)
			q.barrier()
			if got := mr.Bytes(); !bytes.Equal(got[256:272], sixteen) || !bytes.Equal(got[512:528], sixteen) {
				t.Errorf("the region is %x", got)
			}
		})
	}
}

// TestRFC5042_SharedKeyCannotBeInvalidated has one peer revoke a key that another one uses.
// parity: A08
func TestRFC5042_SharedKeyCannotBeInvalidated(t *testing.T) {
	s, _, p, q := twoStreams(t, iwarp.Config{})
	mr := s.region(t, 64)
	s.recv(t, verbs.RecvWR{ID: 1})
	h := p.untagged(rdmap.OpSendInvalidate)
	h.Rsvd = mr.RKey()
	p.send(h, nil)
	if term := p.terminate(); term.Cause() != rdmap.TermCannotInvalidate {
		t.Error(term)
	}
	q.send(writeTo(mr.Remote()), sixteen)
	q.barrier()
	if !bytes.Equal(mr.Bytes()[:16], sixteen) {
		t.Error("the key does not serve the other stream any more")
	}
}

// TestRFC5042_KeysAndAddressesAreRandom draws keys and addresses: neither the next key nor the next address follows from
// the last, and the local key does not give the remote one.
// parity: A08
func TestRFC5042_KeysAndAddressesAreRandom(t *testing.T) {
	s := newSide(t, iwarp.Config{}, nil)
	var seen [3]map[uint64]bool
	for i := range seen {
		seen[i] = map[uint64]bool{}
	}
	var last [2]uint64
	const n = 200
	for range n {
		mr := s.region(t, 16)
		key, addr := uint64(mr.RKey()), mr.Remote().Addr
		seen[0][key-last[0]] = true
		seen[1][addr-last[1]] = true
		seen[2][uint64(mr.RKey()^mr.LKey())] = true
		last = [2]uint64{key, addr}
	}
	for i, m := range seen {
		if len(m) < n-2 {
			t.Errorf("series %d: %d different distances among %d", i, len(m), n)
		}
	}
}

// TestRFC5042_SharedReceiveQueueHardLimit has one stream begin a message in a shared receive queue and never end it. The
// stream holds one receive, and no more, while another stream goes on receiving; when it ends, the receive comes back.
// [TestUnfinishedMessageGivesSharedReceiveBack] has the time after which the device ends it.
// parity: A08
func TestRFC5042_SharedReceiveQueueHardLimit(t *testing.T) {
	s := newSide(t, iwarp.Config{}, nil)
	queue := s.share(t)
	first := s.qp
	p := acceptRaw(t, s, request(), verbs.ConnParam{})
	conn := s.conn
	s.qp = s.on(t, queue)
	q := acceptRaw(t, s, request(), verbs.ConnParam{})
	mr := s.region(t, 256)
	for i := range 4 {
		if _, err := queue.PostRecv([]verbs.RecvWR{{ID: uint64(i), SGL: []verbs.SGE{mr.SGE(64*i, 64)}}}); err != nil {
			t.Fatal(err)
		}
	}
	h := p.untagged(rdmap.OpSend)
	h.Last = false
	p.send(h, sixteen)
	p.barrier()
	for range 3 {
		q.send(q.untagged(rdmap.OpSend), sixteen)
		if wc := s.wait(t); wc.Status != verbs.StatusSuccess {
			t.Errorf("the other stream's message: %+v", wc)
		}
	}
	p.tc.Close()
	if wc := s.wait(t); wc.ID != 0 || wc.QPNum != first.Num() || wc.Status != verbs.StatusWRFlushErr {
		t.Errorf("the unfinished message: %+v, want receive 0 back", wc)
	}
	<-conn.Done()
}

// TestRFC5042_CompletionQueueOverrun has one stream overrun its completion queue: streams with another completion queue are
// not affected, and the queue's own program learns of it.
// parity: A08
func TestRFC5042_CompletionQueueOverrun(t *testing.T) {
	s := newSide(t, iwarp.Config{}, nil)
	mr := s.region(t, 64)
	small, err := s.dev.CreateCQ(2)
	if err != nil {
		t.Fatal(err)
	}
	closeAtEnd(t, small.Close)
	greedy := &side{dev: s.dev, pd: s.pd, cq: small}
	if greedy.qp, err = s.pd.CreateQP(verbs.QPConfig{SendCQ: small, RecvCQ: small, MaxSendWR: 8, MaxRecvWR: 8, MaxSendSGE: 1, MaxRecvSGE: 1}); err != nil {
		t.Fatal(err)
	}
	closeAtEnd(t, greedy.qp.Close)
	p, q := acceptRaw(t, greedy, request(), verbs.ConnParam{}), acceptRaw(t, s, request(), verbs.ConnParam{})
	s.recv(t, verbs.RecvWR{ID: 9, SGL: []verbs.SGE{mr.SGE(0, 64)}})
	for i := range 6 {
		greedy.recv(t, verbs.RecvWR{ID: uint64(i), SGL: []verbs.SGE{mr.SGE(0, 64)}})
	}
	for range 6 {
		p.send(p.untagged(rdmap.OpSend), sixteen)
	}
	p.barrier()
	q.send(q.untagged(rdmap.OpSend), sixteen)
	s.want(t, 9, verbs.WCRecv, verbs.StatusSuccess)
	var wc [8]verbs.WC
	n, err := small.Poll(wc[:])
	for err == nil && n > 0 {
		n, err = small.Poll(wc[:])
	}
	if !errors.Is(err, verbs.ErrCQOverrun) {
		t.Errorf("Poll of the queue that was overrun: %v, want %v", err, verbs.ErrCQOverrun)
	}
}

// TestRFC5042_SharedCompletionQueueTooSmall makes queue pairs whose work queues together are deeper than the completion
// queue that they share: one line of the log says so.
// parity: A08
func TestRFC5042_SharedCompletionQueueTooSmall(t *testing.T) {
	var lines warnings
	audit.Reset()
	s := newSide(t, iwarp.Config{Logger: slog.New(&lines)}, nil)
	small, err := s.dev.CreateCQ(16)
	if err != nil {
		t.Fatal(err)
	}
	closeAtEnd(t, small.Close)
	for i := range 3 {
		qp, err := s.pd.CreateQP(verbs.QPConfig{SendCQ: small, RecvCQ: small, MaxSendWR: 6, MaxRecvWR: 6})
		if err != nil {
			t.Fatal(err)
		}
		closeAtEnd(t, qp.Close)
		if want := min(i, 1); lines.n != want {
			t.Errorf("%d warnings after %d queue pairs, want %d", lines.n, i+1, want)
		}
	}
}

// warnings counts the warnings of a log.
type warnings struct{ n int }

func (w *warnings) Enabled(_ context.Context, l slog.Level) bool { return l >= slog.LevelWarn }
func (w *warnings) Handle(context.Context, slog.Record) error    { w.n++; return nil }
func (w *warnings) WithAttrs([]slog.Attr) slog.Handler           { return w }
func (w *warnings) WithGroup(string) slog.Handler                { return w }

// TestRFC5042_ReadsOutstanding has a peer ask for more reads than were agreed.
// parity: A08
func TestRFC5042_ReadsOutstanding(t *testing.T) {
	s := newSide(t, iwarp.Config{}, nil)
	p := acceptRaw(t, s, request(), verbs.ConnParam{ResponderResources: 2})
	const size = 1 << 20
	mr := s.region(t, size)
	var out []byte
	for range 64 { // the answers do not fit the socket, so they are outstanding
		out = append(out, p.fpdu(p.untagged(rdmap.OpReadRequest), rdmap.AppendReadRequest(nil, rdmap.ReadRequest{
			SinkSTag: sinkSTag, Size: size, SourceSTag: mr.RKey(), SourceTO: mr.Remote().Addr}))...)
	}
	p.write(out)
	<-s.conn.Done()
	if term, ok := errors.AsType[rdmap.Terminate](s.conn.Err()); !ok || term.Cause() != rdmap.TermDDPNoBuffer {
		t.Errorf("%v, want the Terminate for too many reads", s.conn.Err())
	}
}

// TestRFC5042_NoStaleData registers new memory for reading: nothing that the process had before is in it.
// parity: A08
func TestRFC5042_NoStaleData(t *testing.T) {
	s, p := opened(t, iwarp.Config{})
	for range 8 {
		mr, err := s.pd.AllocMR(4096, verbs.LocalWrite|verbs.RemoteRead)
		if err != nil {
			t.Fatal(err)
		}
		p.readRequest(mr.Remote(), 4096)
		if _, b := p.expect(rdmap.OpReadResponse); !zero(b) {
			t.Fatal("a peer reads old data from a new region")
		}
		fill(mr.Bytes(), 1)
		if err := mr.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
