package xfer

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"cinnabar/internal/audit"
	"cinnabar/internal/hostquota"
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
	first.fastWorking(fastLayout)
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
		wantText(t, err.Error(), "the wrong secret")
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
			p.fastWorking(fastLayout)
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
	agreed, reading, goOn := make(chan struct{}), make(chan struct{}), make(chan struct{})
	begin := sync.OnceFunc(func() { close(reading) })
	src.Data = readHook{src.Data, func(int64) { begin(); <-goOn }}
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
	for _, begun := range []chan struct{}{agreed, reading} { // and the first lane has named its file
		select {
		case <-begun:
		case err := <-sent:
			t.Fatalf("the transfer ends early: %v", err)
		}
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

// The further lanes of a transfer get half of the places that their host could take at most.
func TestLanesGranted(t *testing.T) {
	for name, c := range map[string]struct{ places, own, others, want int64 }{
		"many places":                  {places: 64, own: 1, want: 8},
		"the rest of a host's share":   {places: 64, own: 30, want: 4},
		"a host that has its share":    {places: 64, own: 35, want: 1},
		"few places for another":       {places: 64, own: 2, others: 36, want: 4},
		"eight places":                 {places: 8, own: 1, want: 2},
		"undivided places":             {places: 4, own: 1, want: 2},
		"undivided, another transfer":  {places: 4, own: 1, others: 1, want: 2},
		"undivided, one place is free": {places: 4, own: 1, others: 2, want: 1},
		"three places":                 {places: 3, own: 1, want: 1},
	} {
		quota := hostquota.NewBook(hostquota.Limits{hostquota.Connections: c.places})
		account, other := quota.Account(hostNumber(1)), quota.Account(hostNumber(2))
		for range c.others {
			if err := other.Take(hostquota.Connections, 1); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
		}
		for range c.own {
			if err := account.Take(hostquota.Connections, 1); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
		}
		got := int64(1)
		if g := newLaneBook(c.places).grant(account, 8, &agreement{size: 1 << 30, buffers: 8, chunk: defaultChunk}); g != nil {
			got = int64(g.lanes)
		}
		if got != c.want {
			t.Errorf("%s: %d lanes, want %d", name, got, c.want)
		}
	}
}

// Where places are not divided, the lanes of two hosts leave one for a third.
func TestLanesLeaveAPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		audit.Reset()
		dev := newCrowd(t)
		srv := serve(t, dev, Receiver{MaxConnections: 4}, DirOptions{})
		var peers []*rawPeer
		var refs []laneRef
		dial := func(host byte, h hello) error {
			p, err := silent(t, dev, srv.addr, host, h)
			if err == nil {
				peers = append(peers, p)
			}
			return err
		}
		for host := byte(1); host <= 2; host++ {
			if err := dial(host, hello{fast: true, choice: true, lanes: 2, digest: NoDigest, chunk: minChunk, buffers: 1, size: 1 << 30}); err != nil {
				t.Fatal(err)
			}
			ans := must(parseAnswer(peers[host-1].conn.PrivateData()))(t)
			if ans.lanes != 2 {
				t.Fatalf("host %d gets %d lanes", host, ans.lanes)
			}
			ans.transfer.lane = 1
			refs = append(refs, ans.transfer)
		}
		if err := dial(1, hello{join: &refs[0], digest: NoDigest, chunk: minChunk, buffers: 1}); err != nil {
			t.Errorf("the lane of the first host is refused: %v", err)
		}
		err := dial(2, hello{join: &refs[1], digest: NoDigest, chunk: minChunk, buffers: 1})
		if v := refusalOf(err); v.code != CodeBusy {
			t.Errorf("the lane of the second host gets %+v, %v", v, err)
		}
		if err := dial(3, hello{fast: true, digest: NoDigest, chunk: minChunk, buffers: 1, size: 1}); err != nil {
			t.Errorf("a third host is refused: %v", err)
		}
		for _, p := range peers {
			p.leave()
		}
	})
}

// slowToWant is a file that wants nothing, and says so when it may.
type slowToWant struct {
	choosingFile
	may chan struct{}
}

func (f *slowToWant) Want() (Wanted, error) {
	<-f.may
	return f.choosingFile.Want()
}

// A lane that has joined and was given nothing does not count at the receiver, as at the sender.
func TestLanesWithoutAPart(t *testing.T) {
	ctx := testContext(t)
	f := &slowToWant{may: make(chan struct{})}
	srv := serve(t, device(t, iwarp.Config{}), Receiver{Open: func(context.Context, netip.AddrPort, string, Meta, int64) (File, error) { return f, nil }}, DirOptions{})
	first, ref := rawFirst(t, srv, 2, 2)
	second := dialRaw(t, srv.addr, appendHello(nil, hello{join: &ref, digest: NoDigest, chunk: minChunk, buffers: 1}))
	second.send(appendFast(nil, fastMessage{kind: fastOpen, tail: []byte("f")}))
	second.fastWorking(fastLayout)
	close(f.may)
	for _, p := range []*rawPeer{second, first} {
		if m := p.fastWorking(fastWant); m.count != 0 || m.word != 1 {
			t.Fatalf("got %+v", m)
		}
		p.send(appendFast(nil, fastMessage{kind: fastEnd}))
		p.fastWorking(fastDone)
		p.leave()
	}
	if res, err := srv.outcome(ctx); err != nil || res.Lanes != 1 || res.Kept != 40<<20 {
		t.Errorf("got %+v, %v, want one lane", res, err)
	}
}

// The chunks of a lane are counted when the lane has stored them, because the first lane may end before the lane's connection does.
func TestLaneChunks(t *testing.T) {
	account := hostquota.NewBook(hostquota.Limits{}).Account(hostNumber(1))
	g := newLaneBook(8).grant(account, 2, &agreement{size: 1 << 30, buffers: 8, chunk: defaultChunk})
	g.open(t.Context(), "f", &choosingFile{})
	lane := must(g.join(1, "f", func() int64 { return 7 }))(t)
	res := Result{Chunks: 3}
	if err := lane.Commit(); err != nil {
		t.Fatal(err)
	}
	if g.result(&res, nil); res.Chunks != 10 {
		t.Errorf("got %d chunks, want 3 of the first lane and 7 of the second", res.Chunks)
	}
	g.end(1, 7, nil)
	res = Result{Chunks: 3}
	if g.result(&res, nil); res.Chunks != 10 {
		t.Errorf("got %d chunks after the lane's end, want 10", res.Chunks)
	}
}
