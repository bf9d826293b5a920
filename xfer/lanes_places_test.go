package xfer

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"testing"

	"cinnabar/verbs"
	"cinnabar/verbs/iwarp"
)

// plainHello is the private data of a request for a transfer of one lane.
var plainHello = appendHello(nil, hello{fast: true, choice: true, digest: NoDigest, chunk: minChunk, buffers: 1, size: 1 << 20})

// rawFirst begins a transfer of 40 MiB and returns the reference for its second lane. The transfer asks for so many lanes, and must be granted as many as granted.
func rawFirst(t *testing.T, srv *server, lanes, granted uint8) (first *rawPeer, second laneRef) {
	t.Helper()
	first = dialRaw(t, srv.addr, appendHello(nil, hello{fast: true, choice: true, lanes: lanes, digest: NoDigest, chunk: minChunk, buffers: 1, size: 40 << 20}))
	ans := must(parseAnswer(first.conn.PrivateData()))(t)
	if max(ans.lanes, 1) != granted {
		t.Fatalf("%d lanes were granted, want %d", ans.lanes, granted)
	}
	first.send(appendFast(nil, fastMessage{kind: fastOpen, tail: []byte("f")}))
	first.fast(fastLayout)
	ans.transfer.lane = 1
	return first, ans.transfer
}

// A further lane takes a free place, but not the last one, and no other connection gives way to it, whether or not the request has the secret.
func TestLanesKeepNoTransferOut(t *testing.T) {
	for others, refused := range []string{1: "", 2: "is kept for a transfer", 3: "is kept for a transfer"} {
		if others == 0 {
			continue
		}
		srv := serve(t, device(t, iwarp.Config{}), Receiver{MaxConnections: 4}, DirOptions{})
		first, ref := rawFirst(t, srv, 2, 2)
		var waiting []*rawPeer
		for range others {
			waiting = append(waiting, dialRaw(t, srv.addr, plainHello))
		}
		wrong := ref
		wrong.secret[0] ^= 1
		err := rawLane(t, srv.addr, hello{join: &wrong, digest: NoDigest, chunk: minChunk, buffers: 1})
		if err == nil {
			t.Fatal("a lane without the secret is accepted")
		}
		wantText(t, err.Error(), "another secret")
		err = rawLane(t, srv.addr, hello{join: &ref, digest: NoDigest, chunk: minChunk, buffers: 1})
		switch {
		case refused == "" && err != nil:
			t.Errorf("beside %d other connections the lane is refused: %v", others, err)
		case refused != "" && !errors.Is(err, CodeBusy):
			t.Errorf("beside %d other connections the lane gets %v", others, err)
		case refused != "":
			wantText(t, err.Error(), refused)
		}
		for i, p := range waiting {
			p.send(appendFast(nil, fastMessage{kind: fastOpen, tail: []byte{'a' + byte(i)}}))
			p.fast(fastLayout)
			p.leave()
		}
		first.leave()
	}
}

// lineHandler calls a function with the number of the line each time that a line with this text is logged.
type lineHandler struct {
	slog.Handler
	text string
	n    *atomic.Int32
	do   func(n int32)
}

func (lineHandler) Enabled(context.Context, slog.Level) bool { return true }

func (h lineHandler) Handle(_ context.Context, r slog.Record) error {
	if r.Message == h.text {
		h.do(h.n.Add(1))
	}
	return nil
}

// onLine returns a logger that calls a function with each line of this text.
func onLine(text string, do func(n int32)) *slog.Logger {
	return slog.New(lineHandler{slog.DiscardHandler, text, &atomic.Int32{}, do})
}

// A lane never gives way, because its transfer has begun: also while the lane has not sent its OPEN.
func TestLanesNeverGiveWay(t *testing.T) {
	ctx := testContext(t)
	srv := serve(t, device(t, iwarp.Config{}), Receiver{MaxConnections: 4}, DirOptions{})
	data := noise(24 << 20)
	src := chosenOf(data, 0)
	src.Concurrent = true
	agreed, goOn := make(chan struct{}), make(chan struct{})
	src.Data = readHook{src.Data, func(int64) { <-goOn }}
	log := onLine("sending", func(n int32) {
		if n == 2 { // the second lane
			close(agreed)
			<-goOn
		}
	})
	dev := device(t, iwarp.Config{})
	sent := make(chan error, 1)
	var res Result
	go func() {
		var err error
		res, err = (&Sender{Lanes: 2, Logger: log}).Send(ctx, dev, srv.addr, src)
		sent <- err
	}()
	select {
	case <-agreed:
	case err := <-sent:
		t.Fatalf("the transfer ends early: %v", err)
	}
	for range 3 { // the last one is accepted when another connection has given way to it
		dialRaw(t, srv.addr, plainHello)
	}
	close(goOn)
	if err := <-sent; err != nil {
		t.Errorf("the transfer fails beside new connections: %v", err)
	}
	if res.Size != int64(len(data)) {
		t.Errorf("got %+v", res)
	}
	srv.wantFile("f", data)
}

// lanesServer is a receiver of which the test writes down each message of two lanes.
type lanesServer struct {
	t     *testing.T
	l     *verbs.Listener
	peers [2]*rawPeer
}

func newLanesServer(t *testing.T) *lanesServer {
	dev := device(t, iwarp.Config{})
	s := &lanesServer{t: t}
	for i := range s.peers {
		s.peers[i] = newRawShared(t, dev)
		s.peers[i].postReceives(false)
	}
	s.l = must(verbs.Listen(dev, loopback))(t)
	t.Cleanup(func() {
		if err := s.l.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// accept accepts the next request as the lane of this number, and waits for its OPEN.
func (s *lanesServer) accept(lane int, a answer) *rawPeer {
	s.t.Helper()
	p := s.peers[lane]
	a.protocol, a.choice, a.digest, a.chunk, a.buffers = Fast, true, NoDigest, minChunk, 1
	req := must(s.l.Accept(p.ctx))(s.t)
	p.conn = must(req.Accept(p.ctx, p.qp, verbs.ConnParam{PrivateData: appendAnswer(nil, a)}))(s.t)
	p.fast(fastOpen)
	return p
}

// want sends LAYOUT, and WANT with the ranges of the lane.
func (s *lanesServer) want(p *rawPeer, last bool, list ...Range) {
	s.t.Helper()
	p.send(appendFast(nil, fastMessage{kind: fastLayout, length: minChunk, number: p.region().Addr, word: p.region().RKey, count: 1}))
	m, ends := fastMessage{kind: fastWant, count: uint32(len(list))}, ranges{}
	if last {
		m.word = 1
	}
	for _, r := range list {
		m.tail = ends.append(m.tail, r)
	}
	p.send(appendFast(nil, m))
}

// finish answers the END of a lane that has carried nothing.
func (s *lanesServer) finish(p *rawPeer) {
	s.t.Helper()
	s.want(p, true)
	p.fast(fastEnd)
	p.send(appendFast(nil, fastMessage{kind: fastDone}))
	p.ends()
}

// A lane that the receiver ends as busy before the lane was given a range is left out; later it ends the transfer. Lanes without a range are not counted.
func TestLanesLeftOut(t *testing.T) {
	busy := appendFast(nil, failedMessage(failf(CodeBusy, "full")))
	for name, c := range map[string]struct {
		second      func(*lanesServer, *rawPeer)
		left, fails bool // the sender logs that it leaves the lane out; the transfer fails
	}{
		"busy before the layout": {func(_ *lanesServer, p *rawPeer) { p.send(busy); p.ends() }, true, false},
		"nothing to carry":       {func(s *lanesServer, p *rawPeer) { s.finish(p) }, false, false},
		"busy after a range": {func(s *lanesServer, p *rawPeer) {
			s.want(p, false, Range{Offset: 0, Length: minChunk})
			p.fast(fastChunk)
			p.send(busy)
			p.ends()
		}, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			ctx := testContext(t)
			s := newLanesServer(t)
			dev := device(t, iwarp.Config{})
			src := chosenOf(noise(2*leastLane), 0)
			sent, left := make(chan error, 1), make(chan struct{})
			log := onLine("lane left out", func(int32) { close(left) })
			var res Result
			go func() {
				var err error
				res, err = (&Sender{Lanes: 2, Digest: NoDigest, Logger: log}).Send(ctx, dev, s.l.Addr(), src)
				sent <- err
			}()
			first := s.accept(0, answer{lanes: 2, transfer: laneRef{number: 1}})
			c.second(s, s.accept(1, answer{}))
			if c.fails {
				first.ends()
				wantCode(t, <-sent, CodeBusy, true, "full")
				return
			}
			if c.left {
				select {
				case <-left:
				case err := <-sent:
					t.Fatalf("the transfer ends with its lane: %v", err)
				}
			}
			s.finish(first)
			if err := <-sent; err != nil || res.Lanes != 1 || res.Kept != src.Size {
				t.Errorf("got %+v, %v, want one lane", res, err)
			}
		})
	}
}
