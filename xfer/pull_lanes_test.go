package xfer

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"cinnabar/internal/hostquota"
	"cinnabar/verbs"
	"cinnabar/verbs/iwarp"
)

// Several lanes carry one pull: one result and one observer at each end, one call of Files, and the file is whole. A server grants no more than it may, and a puller connects
// no more than the file deserves.
//
// parity: X07
func TestPullLanes(t *testing.T) {
	data := noise(24<<20 + 12345)
	for name, c := range map[string]struct {
		lanes, most, places int
		size, head          int
		ordered, alone      bool // the file takes bytes in order only; the source has one reader at a time
		want                int  // Result.Lanes
	}{
		"one":                   {lanes: 1, size: len(data)},
		"two":                   {lanes: 2, size: len(data), want: 2},
		"four":                  {lanes: 4, size: len(data), want: 4},
		"four read in turn":     {lanes: 4, size: len(data), alone: true, want: 4},
		"four in order":         {lanes: 4, size: len(data), ordered: true, want: 4},
		"a head":                {lanes: 3, size: len(data), head: 3 << 20, want: 3},
		"the head is too much":  {lanes: 3, size: len(data), head: len(data) - leastLane - 1},
		"the server has two":    {lanes: 4, most: 2, size: len(data), want: 2},
		"the server has one":    {lanes: 4, most: 1, size: len(data)},
		"few places":            {lanes: 4, places: 4, size: len(data), want: 2},
		"too small for so many": {lanes: 4, size: 2*leastLane + 5, want: 2},
		"too small for several": {lanes: 4, size: leastLane},
		"empty":                 {lanes: 4},
		"no more is possible":   {lanes: MaxLanes, most: MaxLanes, size: len(data), want: 6},
	} {
		t.Run(name, func(t *testing.T) {
			ctx := testContext(t)
			var observers [2]*progressSum
			var tracers, opened, closed atomic.Int32
			src := chosenOf(data[:c.size], 0)
			src.Choice.Head = int64(c.head)
			if src.Concurrent = !c.alone; c.want > 1 && !c.alone && c.head == 0 {
				src.Data = newMeeting(ctx, src.Data, c.want)
			}
			r := Receiver{MaxLanes: c.most, MaxConnections: c.places,
				Files: func(context.Context, netip.AddrPort, FileRequest) (Source, io.Closer, error) {
					opened.Add(1)
					return src, closeCount{&closed}, nil
				},
				Trace: func() Tracer {
					tracers.Add(1)
					return func(Step) {}
				},
				Progress: func() Progress {
					observers[1] = &progressSum{t: t}
					return observers[1]
				}}
			srv := serve(t, device(t, iwarp.Config{}), r, DirOptions{})
			p, path := into(t, DirOptions{KeepFor: time.Hour})
			p.Choose, p.Lanes, p.Chunk = true, c.lanes, 128<<10
			p.Progress = func() Progress {
				observers[0] = &progressSum{t: t}
				return observers[0]
			}
			if open := p.Open; c.ordered {
				p.Open = func(ctx context.Context, from netip.AddrPort, name string, meta Meta, size int64) (File, error) {
					f, err := open(ctx, from, name, meta, size)
					return &inOrder{File: f, t: t}, err
				}
			}
			res, err := p.Pull(ctx, device(t, iwarp.Config{}), srv.addr, FileRequest{RequestFile, "f"})
			got, serr := srv.outcome(ctx)
			if err != nil || serr != nil {
				t.Fatalf("got %v and %v", err, serr)
			}
			for _, r := range []Result{res, got} {
				most := max(c.want, min(c.lanes, 1))
				if r.Size != int64(c.size) || r.Kept != 0 || r.Lanes > most || !c.alone && c.head == 0 && r.Lanes < c.want || !r.Pulled {
					t.Errorf("got %+v, want %d bytes by %d lanes", r, c.size, c.want)
				}
				if (r.Sum == [SumLen]byte{}) != (c.want > 1 || c.head > 0 && c.head < c.size && c.want > 1) {
					t.Errorf("the digest of a pull of %d lanes is %x", c.want, r.Sum)
				}
			}
			if got.Lanes != res.Lanes || got.Chunks != res.Chunks {
				t.Errorf("the puller has %d chunks by %d lanes, the server %d by %d", res.Chunks, res.Lanes, got.Chunks, got.Lanes)
			}
			if b := must(os.ReadFile(filepath.Join(path, "f")))(t); !bytes.Equal(b, data[:c.size]) {
				t.Errorf("the file has %d bytes that differ", len(b))
			}
			if got := entries(t, path); !slices.Equal(got, []string{"f"}) {
				t.Errorf("the directory has %q", got)
			}
			srv.stop()
			if tracers.Load() != 1 || opened.Load() != 1 || closed.Load() != 1 {
				t.Errorf("the server has made %d tracers for one pull, opened %d sources, and closed %d", tracers.Load(), opened.Load(), closed.Load())
			}
			for i, p := range observers {
				if p.n != int64(c.size) || p.size != p.n || !p.done {
					t.Errorf("observer %d has %d of %d bytes, finished %t", i, p.n, p.size, p.done)
				}
			}
			if len(srv.results) > 0 {
				t.Errorf("Done was also called with %+v, %v", srv.results, srv.errs)
			}
		})
	}
}

// closeCount counts calls of Close.
type closeCount struct{ n *atomic.Int32 }

func (c closeCount) Close() error {
	c.n.Add(1)
	return nil
}

// A pull of several lanes that was cut goes on where it stopped, with any number of lanes, and the reason is that of the lane that failed.
//
// parity: X02
func TestPullLanesResume(t *testing.T) {
	needsLocks(t)
	ctx := testContext(t)
	data := noise(40 << 20)
	for _, again := range []int{1, 4} {
		cut, whole := chosenOf(data, 0), chosenOf(data, 0)
		cut.Data, cut.Concurrent = &countedReader{ReaderAt: cut.Data, most: 30 << 20}, true
		counted := &countedReader{ReaderAt: whole.Data}
		whole.Choice.SumData, whole.Data, whole.Concurrent = whole.Data, counted, true
		var now atomic.Pointer[Source]
		now.Store(&cut)
		srv := serve(t, device(t, iwarp.Config{}), Receiver{Files: func(context.Context, netip.AddrPort, FileRequest) (Source, io.Closer, error) {
			return *now.Load(), nil, nil
		}}, DirOptions{})
		dev := device(t, iwarp.Config{})
		p, path := into(t, DirOptions{KeepFor: time.Hour})
		p.Choose, p.Lanes, p.Chunk = true, 4, 64<<10
		_, err := p.Pull(ctx, dev, srv.addr, FileRequest{RequestFile, "f"})
		wantCode(t, err, CodeSource, true, "cut")
		_, err = srv.outcome(ctx)
		wantCode(t, err, CodeSource, false, "cut")
		if got := entries(t, path); !slices.Equal(got, []string{partialName("f")}) {
			t.Fatalf("the directory has %q", got)
		}
		there := equalBlocks(t, filepath.Join(path, partialName("f")), data)
		now.Store(&whole)
		p.Lanes = again
		res, err := p.Pull(ctx, dev, srv.addr, FileRequest{RequestFile, "f"})
		if err != nil || res.Kept != there || there == 0 || res.Size != int64(len(data)) {
			t.Errorf("got %+v, %v; %d bytes were there", res, err, there)
		}
		if crossed := int64(len(data)) - res.Kept; counted.n < crossed || counted.n > crossed+MaxLanes {
			t.Errorf("%d bytes were read to cross, and %d have crossed", counted.n, crossed)
		}
		if got, err := srv.outcome(ctx); err != nil || got.Kept != res.Kept || got.Chunks != res.Chunks || max(got.Lanes, 1) != max(res.Lanes, 1) {
			t.Errorf("the server has %+v, %v; the puller %+v", got, err, res)
		}
		if b := must(os.ReadFile(filepath.Join(path, "f")))(t); !bytes.Equal(b, data) {
			t.Errorf("the file has %d bytes that differ", len(b))
		}
	}
}

// The failure of the puller's file on any lane is the reason of all, and the end of the puller's context ends all lanes. The source is closed in any case.
func TestPullLanesFail(t *testing.T) {
	data := noise(40 << 20)
	reason := errors.New("the test has seen enough")
	for name, c := range map[string]struct {
		full, canceled bool
		code           Code
		text           string
	}{
		"full":     {full: true, code: CodeStorage, text: "permission denied"},
		"canceled": {canceled: true, code: CodeCanceled, text: reason.Error()},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancelCause(testContext(t))
			defer cancel(nil)
			src := chosenOf(data, 0)
			src.Concurrent = true
			src.Data = readHook{src.Data, func(offset int64) {
				if c.canceled && offset > 20<<20 {
					cancel(reason)
				}
			}}
			var closed atomic.Int32
			srv := serve(t, device(t, iwarp.Config{}), Receiver{Files: func(context.Context, netip.AddrPort, FileRequest) (Source, io.Closer, error) {
				return src, closeCount{&closed}, nil
			}}, DirOptions{})
			p, path := into(t, DirOptions{})
			p.Choose, p.Lanes = true, 4
			if open := p.Open; c.full {
				p.Open = func(ctx context.Context, from netip.AddrPort, name string, meta Meta, size int64) (File, error) {
					f, err := open(ctx, from, name, meta, size)
					return &diskFull{File: f, left: 17 << 20}, err
				}
			}
			_, err := p.Pull(ctx, device(t, iwarp.Config{}), srv.addr, FileRequest{RequestFile, "f"})
			wantCode(t, err, c.code, false, c.text)
			_, err = srv.outcome(testContext(t))
			wantCode(t, err, c.code, true, c.text)
			srv.stop()
			if len(srv.errs) > 0 || closed.Load() != 1 {
				t.Errorf("Done was also called with %v; the source was closed %d times", srv.errs, closed.Load())
			}
			if got := entries(t, path); len(got) > 0 {
				t.Errorf("the directory has %q", got)
			}
		})
	}
}

// pullFirst connects as the first lane of a pull, and asks for a file.
func pullFirst(t *testing.T, srv *server, lanes uint8) (*rawPeer, laneRef) {
	t.Helper()
	first := dialRaw(t, srv.addr, appendHello(nil, hello{pull: true, choice: true, lanes: lanes, digest: NoDigest, chunk: minChunk, buffers: 1}))
	ref := must(parseAnswer(first.conn.PrivateData()))(t).transfer
	ref.lane = 1
	first.send(appendFast(nil, pullRequest("f")))
	first.fast(fastAttr)
	first.fast(fastOpen)
	return first, ref
}

// pullRequest is the message of a request with a short path.
func pullRequest(path string) fastMessage {
	return fastMessage{kind: fastRequest, number: uint64(len(path)), word: uint32(RequestFile), tail: []byte(path)}
}

// A stranger cannot join a pull without its secret, and a lane gets the file of its pull only. Such a lane does not end the pull.
func TestPullLanesStranger(t *testing.T) {
	ctx := testContext(t)
	data := noise(12 << 20)
	src := chosenOf(data, 0)
	var opened atomic.Int32
	srv := serve(t, device(t, iwarp.Config{}), Receiver{Files: func(_ context.Context, _ netip.AddrPort, r FileRequest) (Source, io.Closer, error) {
		opened.Add(1)
		if r.Path == "small" {
			return chosenOf(data[:10], 0), nil, nil
		}
		return src, nil, nil
	}}, DirOptions{})
	first, ref := pullFirst(t, srv, 3)
	wrong := ref
	wrong.secret[3] ^= 1
	err := rawLane(t, srv.addr, hello{join: &wrong, digest: NoDigest})
	if err == nil {
		t.Fatal("a lane without the secret is accepted")
	}
	wantText(t, err.Error(), "the wrong secret")
	_, err = srv.outcome(ctx)
	wantCode(t, err, CodeProtocol, false, "the wrong secret")
	for lane, path := range map[uint8]string{1: "g", 2: "f"} {
		ref.lane = lane
		p := dialRaw(t, srv.addr, appendHello(nil, hello{join: &ref, digest: NoDigest, chunk: minChunk, buffers: 1}))
		p.send(appendFast(nil, pullRequest(path)))
		if path == "g" {
			m := p.fast(fastFailed)
			wantText(t, string(m.tail), "lane 2 asks for another file")
			p.ends()
			continue
		}
		p.fast(fastAttr)
		if m := p.fast(fastOpen); m.number != uint64(len(data)) || m.word != 0 || m.count != 0 || string(m.tail) != "f" {
			t.Errorf("OPEN of a lane is %+v", m)
		}
		p.leave() // a lane without a part
	}
	ref.lane = 1
	err = rawLane(t, srv.addr, hello{join: &ref, digest: NoDigest})
	wantText(t, err.Error(), "another connection has it")
	first.send(appendFast(nil, fastMessage{kind: fastLayout, length: minChunk, number: first.region().Addr, word: first.region().RKey, count: 1}))
	first.send(appendFast(nil, fastMessage{kind: fastWant, word: 1}))
	first.fast(fastEnd)
	first.send(appendFast(nil, fastMessage{kind: fastDone}))
	first.leave()
	if res, err := srv.outcome(ctx); err != nil || res.Lanes != 1 || res.Kept != int64(len(data)) {
		t.Errorf("the server has %+v, %v", res, err)
	}
	small := dialRaw(t, srv.addr, appendHello(nil, hello{pull: true, choice: true, lanes: 3, digest: NoDigest, chunk: minChunk, buffers: 1}))
	ref = must(parseAnswer(small.conn.PrivateData()))(t).transfer
	ref.lane = 1
	early := dialRaw(t, srv.addr, appendHello(nil, hello{join: &ref, digest: NoDigest, chunk: minChunk, buffers: 1}))
	early.send(appendFast(nil, pullRequest("small")))
	wantText(t, string(early.fast(fastFailed).tail), "too small for several lanes")
	early.ends()
	small.send(appendFast(nil, pullRequest("small")))
	small.fast(fastAttr)
	small.fast(fastOpen)
	ref.lane = 2
	err = rawLane(t, srv.addr, hello{join: &ref, digest: NoDigest})
	wantText(t, err.Error(), "the lane was not granted")
	small.leave()
	_, err = srv.outcome(ctx)
	wantCode(t, err, CodeLost, false)
	srv.stop()
	if len(srv.errs) > 0 || opened.Load() != 2 {
		t.Errorf("the server has also reported %v; it has opened %d files", srv.errs, opened.Load())
	}
}

// pullJoined pulls a file of 12 MiB by two lanes that tests drive: the server has opened the file for both. closed counts how often it has closed the source.
func pullJoined(t *testing.T) (srv *server, first, lane *rawPeer, closed *atomic.Int32) {
	closed = &atomic.Int32{}
	srv = serve(t, device(t, iwarp.Config{}), Receiver{Files: func(context.Context, netip.AddrPort, FileRequest) (Source, io.Closer, error) {
		return chosenOf(noise(12<<20), 0), closeCount{closed}, nil
	}}, DirOptions{})
	first, ref := pullFirst(t, srv, 2)
	lane = dialRaw(t, srv.addr, appendHello(nil, hello{join: &ref, digest: NoDigest, chunk: minChunk, buffers: 1}))
	lane.send(appendFast(nil, pullRequest("f")))
	lane.fast(fastAttr)
	lane.fast(fastOpen)
	return srv, first, lane, closed
}

// A lane of a pull that dies with a part ends the pull with its reason at the server too.
func TestPullLaneDies(t *testing.T) {
	ctx := testContext(t)
	srv, first, lane, closed := pullJoined(t)
	lane.send(appendFast(nil, fastMessage{kind: fastLayout, length: minChunk, number: lane.region().Addr, word: lane.region().RKey, count: 1}))
	lane.send(appendFast(nil, fastMessage{kind: fastWant, word: 1, count: 1, tail: (&ranges{}).append(nil, Range{Length: 8 << 20})}))
	lane.fast(fastChunk)
	lane.leave()
	_, err := srv.outcome(ctx)
	wantCode(t, err, CodeLost, false, "lane 2 of 2: ")
	first.fast(fastFailed)
	first.ends()
	srv.stop()
	if len(srv.errs) > 0 || closed.Load() != 1 {
		t.Errorf("the server has also reported %v; the source was closed %d times", srv.errs, closed.Load())
	}
}

// A lane that has joined and says nothing more does not keep the source open, nor the place of the first lane, after the end of that one.
func TestPullLaneStalls(t *testing.T) {
	ctx := testContext(t)
	srv, first, lane, closed := pullJoined(t)
	first.leave()
	_, err := srv.outcome(ctx)
	wantCode(t, err, CodeLost, false)
	if closed.Load() != 1 {
		t.Errorf("at the end of the pull the source was closed %d times", closed.Load())
	}
	lane.fast(fastFailed)
	lane.ends()
}

// A server that breaks the rules on a lane ends the pull, and leaves nothing.
func TestBadServerOfLanes(t *testing.T) {
	const size = 12 << 20
	attr := attrMessage(Meta{})
	open := fastMessage{kind: fastOpen, number: size, tail: []byte("f")}
	for name, c := range map[string]struct {
		messages []fastMessage
		text     string
	}{
		"another name":  {[]fastMessage{attr, {kind: fastOpen, number: size, tail: []byte("g")}}, `lane 2 is for "g"`},
		"another size":  {[]fastMessage{attr, {kind: fastOpen, number: size + 1, tail: []byte("f")}}, "lane 2 is for a file of 12582913 bytes"},
		"a head":        {[]fastMessage{attr, {kind: fastOpen, number: size, word: 5, tail: []byte("f")}}, "lane 2 has a head of 5 bytes"},
		"no chunk":      {[]fastMessage{attr, open, {kind: fastEnd}}, "had not chosen all"},
		"chunk too big": {[]fastMessage{attr, open, {kind: fastChunk, length: minChunk + 1}}, "chunk 0"},
		"removals":      {[]fastMessage{attr, open, {kind: fastNote, number: 1}}, "answered NOTE 1"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newLanesServer(t)
			p, path := into(t, DirOptions{})
			p.Choose, p.Lanes, p.Digest, p.Chunk, p.Window = true, 2, NoDigest, minChunk, 1
			done := make(chan error, 1)
			dev, ctx := device(t, iwarp.Config{}), testContext(t)
			go func() {
				_, err := p.Pull(ctx, dev, s.l.Addr(), FileRequest{RequestFile, "f"})
				done <- err
			}()
			first := s.acceptPull(0, answer{lanes: 2, transfer: laneRef{number: 7}})
			first.send(appendFast(nil, attr))
			first.send(appendFast(nil, open))
			second := s.acceptPull(1, answer{})
			for i, m := range c.messages {
				if i == 2 { // a lane that fails before it has its file is left out
					second.fastWorking(fastLayout)
				}
				second.send(appendFast(nil, m))
			}
			err := <-done
			wantCode(t, err, CodeProtocol, false, c.text)
			if got := entries(t, path); len(got) > 0 {
				t.Errorf("%q is left behind", got)
			}
		})
	}
}

// acceptPull accepts the next request as the lane of this number of a pull, and waits for its REQUEST.
func (s *lanesServer) acceptPull(lane int, a answer) *rawPeer {
	s.t.Helper()
	p := s.peers[lane]
	a.protocol, a.choice, a.digest, a.chunk, a.buffers = Fast, true, NoDigest, minChunk, 1
	req := must(s.l.Accept(p.ctx))(s.t)
	p.conn = must(req.Accept(p.ctx, p.qp, verbs.ConnParam{PrivateData: appendAnswer(nil, a)}))(s.t)
	p.fast(fastRequest)
	return p
}

// A lane of a pull may ask for its place while the first lane opens the file. The race detector looks on.
func TestPullLaneWhileFileOpens(t *testing.T) {
	quota := hostquota.NewBook(hostquota.Limits{hostquota.Connections: 64})
	h := &host{Receiver: &Receiver{}, attr: verbs.DeviceAttr{MaxPrivateData: 512}, lanes: newLaneBook(64)}
	g := h.lanes.grant(quota.Account(hostNumber(1)), 4, &agreement{pull: true, size: -1, buffers: 8, chunk: defaultChunk})
	src := chosenOf(noise(1), 0)
	src.Size = 1 << 30
	var opening sync.WaitGroup
	opening.Go(func() { g.spreadServed(FileRequest{RequestFile, "f"}, &src) })
	for lane := uint8(1); lane < g.lanes; lane++ {
		ref := g.ref
		ref.lane = lane
		a, _, err := h.chooseLane(&hello{join: &ref, chunk: minChunk, buffers: 1})
		if err != nil || !a.pull || a.buffers != 1 {
			t.Errorf("lane %d gets %+v, %v", lane, a, err)
		}
	}
	opening.Wait()
}

// A request that gets no memory is granted no lanes, because only the end of a transfer gives lanes back.
func TestRefusedGetsNoLanes(t *testing.T) {
	quota := hostquota.NewBook(hostquota.Limits{hostquota.Connections: 64, hostquota.Memory: 1})
	h := &host{Receiver: &Receiver{Files: served(Source{})}, attr: verbs.DeviceAttr{MaxPrivateData: 512}, lanes: newLaneBook(64), book: quota}
	private := appendHello(nil, hello{pull: true, choice: true, lanes: 4, digest: SHA256, chunk: minChunk, buffers: 1})
	_, _, err := h.decide(private, quota.Account(hostNumber(1)))
	wantText(t, err.Error(), "bytes for buffers are in use")
	h.lanes.mu.Lock()
	defer h.lanes.mu.Unlock()
	if len(h.lanes.groups) > 0 || len(h.lanes.granted) > 0 {
		t.Errorf("%d transfers and %d hosts have lanes", len(h.lanes.groups), len(h.lanes.granted))
	}
}

// A pull whose file is too small for the lanes that were granted gives those back that it does not use, so that another pull of the host gets them.
func TestPullLanesGivenBack(t *testing.T) {
	account := hostquota.NewBook(hostquota.Limits{hostquota.Connections: 64}).Account(hostNumber(1))
	b := newLaneBook(64)
	granted := func() int64 {
		b.mu.Lock()
		defer b.mu.Unlock()
		return b.granted[account]
	}
	agreed := &agreement{pull: true, size: -1, buffers: 8, chunk: defaultChunk}
	for size, want := range map[int64]int64{leastLane: 0, 3 * leastLane: 2, 100 * leastLane: 7} {
		g := b.grant(account, 8, agreed)
		src := chosenOf(nil, 0)
		src.Size = size
		b.settle(g, g.spreadServed(FileRequest{RequestFile, "f"}, &src))
		if got := granted(); got != want {
			t.Errorf("a pull of %d bytes has %d further lanes, want %d", size, got, want)
		}
		if err := g.claim(uint8(want) + 1); err == nil {
			t.Errorf("a pull of %d bytes has a lane %d", size, want+2)
		}
		if b.remove(g); granted() > 0 {
			t.Errorf("after the pull its host has %d further lanes", granted())
		}
	}
}

// The answer to a further lane must let the puller choose, as that to the first one does, because the lane has no bytes of its own otherwise.
func TestPullLaneMustChoose(t *testing.T) {
	d := &delivery{Sender: &Sender{Protocol: Fast}, digest: NoDigest, choosesPull: true, pull: &FileRequest{}, attr: verbs.DeviceAttr{MaxPrivateData: 512}, lane: laneRef{number: 7, lane: 1}}
	for chooses, text := range map[bool]string{true: "", false: "accepts lane 2 without the choice"} {
		got := ""
		if err := d.checkAnswer(&agreement{protocol: Fast, digest: NoDigest, chooses: chooses, buffers: 1, chunk: minChunk}, true); err != nil {
			got = err.Error()
		}
		if (got == "") != (text == "") || !strings.Contains(got, text) {
			t.Errorf("an answer that lets the puller choose: %t: got %q, want %q", chooses, got, text)
		}
	}
}
