package xfer

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"cinnabar/internal/hostquota"
	"cinnabar/verbs"
	"cinnabar/verbs/iwarp"
)

// countedReader counts the bytes that are read.
type countedReader struct {
	io.ReaderAt
	mu   sync.Mutex
	n    int64
	most int64 // the read after so many bytes fails; 0: none does
}

func (c *countedReader) ReadAt(b []byte, offset int64) (int, error) {
	c.mu.Lock()
	c.n += int64(len(b))
	cut := c.most > 0 && c.n > c.most
	c.mu.Unlock()
	if cut {
		return 0, errors.New("cut")
	}
	return c.ReaderAt.ReadAt(b, offset)
}

// meetingReader holds each read of data until so many have begun. Each lane has one at a time, so that all lanes carry a part, if the source has four pieces for each.
type meetingReader struct {
	io.ReaderAt
	ctx  context.Context //nolint:containedctx // of the test
	mu   sync.Mutex
	left int
	met  chan struct{}
}

func newMeeting(ctx context.Context, r io.ReaderAt, n int) *meetingReader {
	return &meetingReader{ReaderAt: r, ctx: ctx, left: n, met: make(chan struct{})}
}

func (m *meetingReader) ReadAt(b []byte, offset int64) (int, error) {
	if len(b) == 0 { // the last look of a lane, which may have carried nothing
		return m.ReaderAt.ReadAt(b, offset)
	}
	m.mu.Lock()
	if m.left--; m.left == 0 {
		close(m.met)
	}
	m.mu.Unlock()
	select {
	case <-m.met:
		return m.ReaderAt.ReadAt(b, offset)
	case <-m.ctx.Done():
		return 0, m.ctx.Err()
	}
}

// progressSum adds up the bytes of one transfer, and checks the order of the calls.
type progressSum struct {
	t                 *testing.T
	mu                sync.Mutex
	begun, done, busy bool
	size, n           int64
}

func (p *progressSum) enter() func() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.busy {
		p.t.Error("two goroutines call the observer at once")
	}
	p.busy = true
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.busy = false
	}
}

func (p *progressSum) Start(res Result) {
	defer p.enter()()
	if p.begun {
		p.t.Error("Start was called twice")
	}
	p.begun, p.size = true, res.Size
}

func (p *progressSum) Advance(n int64) {
	defer p.enter()()
	if !p.begun || p.done {
		p.t.Error("Advance was called outside of the transfer")
	}
	p.n += n
}

func (p *progressSum) Finish(Result, error) {
	defer p.enter()()
	if !p.begun || p.done {
		p.t.Error("Finish was called outside of the transfer")
	}
	p.done = true
}

// inOrder is a file that takes ascending offsets only, from one goroutine.
type inOrder struct {
	File
	t    *testing.T
	mu   sync.Mutex
	next int64
}

// +checklocksignore: it does not know TryLock.
func (f *inOrder) WriteAt(b []byte, offset int64) (int, error) {
	if !f.mu.TryLock() {
		f.t.Error("two goroutines write at once")
		return 0, errors.New("two at once")
	}
	defer f.mu.Unlock()
	if offset != f.next {
		f.t.Errorf("a write at offset %d; %d is due", offset, f.next)
	}
	f.next = offset + int64(len(b))
	return f.File.WriteAt(b, offset)
}

// Several lanes carry one file: one result, one observer at each end, and the file is whole. A receiver grants no more than it may.
//
// parity: X07
func TestLanes(t *testing.T) {
	data := noise(24<<20 + 12345)
	for name, c := range map[string]struct {
		lanes, most, places int
		size                int
		ordered, alone      bool // the file takes bytes in order only; the source has one reader at a time
		want                int  // Result.Lanes
	}{
		"one":                    {lanes: 1, size: len(data)},
		"two":                    {lanes: 2, size: len(data), want: 2},
		"four":                   {lanes: 4, size: len(data), want: 4},
		"four read in turn":      {lanes: 4, size: len(data), alone: true, want: 4},
		"four in order":          {lanes: 4, size: len(data), ordered: true, want: 4},
		"the receiver has two":   {lanes: 4, most: 2, size: len(data), want: 2},
		"the receiver has one":   {lanes: 4, most: 1, size: len(data)},
		"few places":             {lanes: 4, places: 4, size: len(data), want: 2},
		"too small for so many":  {lanes: 4, size: 2*leastLane + 5, want: 2},
		"too small for several":  {lanes: 4, size: leastLane},
		"the sender has no more": {lanes: MaxLanes, most: MaxLanes, size: len(data), want: 6},
	} {
		t.Run(name, func(t *testing.T) {
			ctx := testContext(t)
			var observers [2]*progressSum
			var tracers [2]atomic.Int32
			trace := func(side int) func() Tracer {
				return func() Tracer {
					tracers[side].Add(1)
					return func(Step) {}
				}
			}
			r := Receiver{MaxLanes: c.most, MaxConnections: c.places, Trace: trace(1), Progress: func() Progress {
				observers[1] = &progressSum{t: t}
				return observers[1]
			}}
			if c.ordered {
				dir := must(OpenDir(t.Context(), t.TempDir(), DirOptions{}))(t)
				t.Cleanup(func() { _ = dir.Close() })
				r.Open = func(ctx context.Context, from netip.AddrPort, name string, meta Meta, size int64) (File, error) {
					f, err := dir.Open(ctx, from, name, meta, size)
					return &inOrder{File: f, t: t}, err
				}
			}
			srv := serve(t, device(t, iwarp.Config{}), r, DirOptions{})
			s := Sender{Lanes: c.lanes, Chunk: 128 << 10, Trace: trace(0), Progress: func() Progress {
				observers[0] = &progressSum{t: t}
				return observers[0]
			}}
			src := chosenOf(data[:c.size], 0)
			if src.Concurrent = !c.alone; c.want > 1 && !c.alone {
				src.Data = newMeeting(ctx, src.Data, c.want)
			}
			res, err := s.Send(ctx, device(t, iwarp.Config{}), srv.addr, src)
			got, rerr := srv.outcome(ctx)
			if err != nil || rerr != nil {
				t.Fatalf("got %v and %v", err, rerr)
			}
			for _, r := range []Result{res, got} {
				if r.Size != int64(c.size) || r.Kept != 0 || r.Lanes > c.want || !c.alone && r.Lanes < c.want {
					t.Errorf("got %+v, want %d bytes by %d lanes", r, c.size, c.want)
				}
			}
			if got.Lanes != res.Lanes || got.Chunks != res.Chunks {
				t.Errorf("the sender has %d chunks by %d lanes, the receiver %d by %d", res.Chunks, res.Lanes, got.Chunks, got.Lanes)
			}
			if !c.ordered {
				srv.wantFile("f", data[:c.size])
			}
			srv.stop()
			for i := range tracers {
				if n := tracers[i].Load(); n != 1 {
					t.Errorf("side %d has made %d tracers for one transfer", i, n)
				}
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

// A transfer of several lanes that was cut goes on where it stopped, with any number of lanes, and its reason is that of the lane that failed.
func TestLanesResume(t *testing.T) {
	needsLocks(t)
	ctx := testContext(t)
	data := noise(40 << 20)
	for _, again := range []int{1, 4} {
		srv := serve(t, device(t, iwarp.Config{}), Receiver{}, DirOptions{KeepFor: time.Hour})
		dev := device(t, iwarp.Config{})
		cut := chosenOf(data, 0)
		cut.Data, cut.Concurrent = &countedReader{ReaderAt: cut.Data, most: 30 << 20}, true
		_, err := (&Sender{Lanes: 4, Chunk: 64 << 10}).Send(ctx, dev, srv.addr, cut)
		wantCode(t, err, CodeSource, false, "cut")
		_, err = srv.outcome(ctx)
		wantCode(t, err, CodeSource, true, "cut")
		if got := srv.names(); !slices.Equal(got, []string{partialName("f")}) {
			t.Fatalf("the directory has %q", got)
		}
		there := equalBlocks(t, filepath.Join(srv.path, partialName("f")), data)
		src := chosenOf(data, 0)
		counted := &countedReader{ReaderAt: src.Data}
		src.Choice.SumData, src.Data, src.Concurrent = src.Data, counted, true
		res, err := (&Sender{Lanes: again}).Send(ctx, dev, srv.addr, src)
		if err != nil || res.Kept != there || there == 0 || res.Size != int64(len(data)) {
			t.Errorf("got %+v, %v; %d bytes were there", res, err, there)
		}
		if crossed := int64(len(data)) - res.Kept; counted.n < crossed || counted.n > crossed+MaxLanes {
			t.Errorf("%d bytes were read to cross, and %d have crossed", counted.n, crossed)
		}
		if got, err := srv.outcome(ctx); err != nil || got.Kept != res.Kept || got.Chunks != res.Chunks || max(got.Lanes, 1) != max(res.Lanes, 1) {
			t.Errorf("the receiver has %+v, %v; the sender %+v", got, err, res)
		}
		srv.wantFile("f", data)
	}
}

// equalBlocks returns the number of bytes in those blocks of the part of a file that are the blocks of the file. Lanes leave gaps in some of the blocks.
func equalBlocks(t *testing.T, path string, data []byte) (n int64) {
	t.Helper()
	part := must(os.ReadFile(path))(t)
	for at := 0; at < len(part); at += resumeBlock {
		if b := part[at:min(at+resumeBlock, len(part))]; bytes.Equal(b, data[at:][:len(b)]) {
			n += int64(len(b))
		}
	}
	return n
}

// diskFull is a file that takes so many bytes.
type diskFull struct {
	File
	mu   sync.Mutex
	left int64
}

func (f *diskFull) WriteAt(b []byte, offset int64) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.left -= int64(len(b)); f.left < 0 {
		return 0, os.ErrPermission
	}
	return f.File.WriteAt(b, offset)
}

// The failure of the receiver's file on any lane is the reason of all.
func TestLanesFileFails(t *testing.T) {
	ctx := testContext(t)
	dir := must(OpenDir(t.Context(), t.TempDir(), DirOptions{}))(t)
	defer func() { _ = dir.Close() }()
	r := Receiver{Open: func(ctx context.Context, from netip.AddrPort, name string, meta Meta, size int64) (File, error) {
		f, err := dir.Open(ctx, from, name, meta, size)
		return &diskFull{File: f, left: 17 << 20}, err
	}}
	srv := serve(t, device(t, iwarp.Config{}), r, DirOptions{})
	_, err := (&Sender{Lanes: 4}).Send(ctx, device(t, iwarp.Config{}), srv.addr, chosenOf(noise(40<<20), 0))
	wantCode(t, err, CodeStorage, true, "permission denied")
	_, err = srv.outcome(ctx)
	wantCode(t, err, CodeStorage, false, "permission denied")
	srv.stop()
	if len(srv.errs) > 0 {
		t.Errorf("Done was also called with %v", srv.errs)
	}
}

// A receiver of one file takes the lanes of its transfer, and refuses all others meanwhile.
func TestLanesServeFirst(t *testing.T) {
	ctx := testContext(t)
	data := noise(20 << 20)
	dev := device(t, iwarp.Config{})
	dir := must(OpenDir(t.Context(), t.TempDir(), DirOptions{}))(t)
	defer func() { _ = dir.Close() }()
	l := must(verbs.Listen(dev, loopback))(t)
	defer func() { _ = l.Close() }()
	type outcome struct {
		res Result
		err error
	}
	ended := make(chan outcome, 1)
	r := Receiver{Open: dir.Open, Done: func(_ Result, err error) { t.Errorf("Done was called with %v", err) }}
	go func() {
		res, err := r.ServeFirst(ctx, l)
		ended <- outcome{res, err}
	}()
	src := chosenOf(data, 0)
	src.Data, src.Concurrent = newMeeting(ctx, src.Data, 3), true
	res, err := (&Sender{Lanes: 3, Chunk: 128 << 10}).Send(ctx, device(t, iwarp.Config{}), l.Addr(), src)
	got := <-ended
	if err != nil || got.err != nil || got.res.Size != int64(len(data)) || res.Lanes != 3 || got.res.Lanes != 3 {
		t.Errorf("got %+v, %v and %+v, %v", res, err, got.res, got.err)
	}
}

// The end of the sender's context ends all lanes.
func TestLanesCanceled(t *testing.T) {
	ctx, cancel := context.WithCancelCause(testContext(t))
	reason := errors.New("the test has seen enough")
	srv := serve(t, device(t, iwarp.Config{}), Receiver{}, DirOptions{})
	src := chosenOf(noise(40<<20), 0)
	src.Data = readHook{src.Data, func(offset int64) {
		if offset > 20<<20 {
			cancel(reason)
		}
	}}
	_, err := (&Sender{Lanes: 4}).Send(ctx, device(t, iwarp.Config{}), srv.addr, src)
	wantCode(t, err, CodeCanceled, false, reason.Error())
	_, err = srv.outcome(testContext(t))
	wantCode(t, err, CodeCanceled, true, reason.Error())
}

// readHook calls a function before each read.
type readHook struct {
	io.ReaderAt
	do func(offset int64)
}

func (r readHook) ReadAt(b []byte, offset int64) (int, error) {
	r.do(offset)
	return r.ReaderAt.ReadAt(b, offset)
}

// rawLane makes the request for a lane, and returns the error of its refusal.
func rawLane(t *testing.T, addr netip.AddrPort, h hello) error {
	t.Helper()
	p := newRaw(t, false)
	c, err := verbs.Dial(p.ctx, p.qp, addr, verbs.ConnParam{PrivateData: appendHello(nil, h)})
	if err == nil {
		p.conn = c
		p.leave()
		return nil
	}
	r, ok := errors.AsType[*verbs.RejectedError](err)
	if !ok {
		t.Fatal(err)
	}
	m, ok := parseRefusal(r.PrivateData)
	if !ok {
		t.Fatalf("the refusal has % x", r.PrivateData)
	}
	return m.failure()
}

// A stranger cannot join a transfer: a lane needs the secret, and a number that was granted and is not used. The transfer and its result do not change.
func TestLanesStranger(t *testing.T) {
	ctx := testContext(t)
	data := noise(12 << 20)
	srv := serve(t, device(t, iwarp.Config{}), Receiver{}, DirOptions{})
	first := dialRaw(t, srv.addr, appendHello(nil, hello{fast: true, choice: true, lanes: 3, digest: NoDigest, chunk: minChunk, buffers: 1, size: uint64(len(data))}))
	ans := must(parseAnswer(first.conn.PrivateData()))(t)
	if ans.lanes != 3 || ans.transfer.secret == [laneSecretLen]byte{} {
		t.Fatalf("got %+v", ans)
	}
	good := ans.transfer
	good.lane = 1
	with := func(change func(*laneRef)) *laneRef {
		r := good
		change(&r)
		return &r
	}
	for name, c := range map[string]struct {
		h     hello
		text  string
		alone bool // the receiver reports it, because it is not of the transfer
	}{
		"first bit of the secret": {hello{join: with(func(r *laneRef) { r.secret[0] ^= 1 }), digest: NoDigest}, "the wrong secret", true},
		"last bit of the secret":  {hello{join: with(func(r *laneRef) { r.secret[laneSecretLen-1] ^= 0x80 }), digest: NoDigest}, "the wrong secret", true},
		"no secret":               {hello{join: with(func(r *laneRef) { r.secret = [laneSecretLen]byte{} }), digest: NoDigest}, "the wrong secret", true},
		"another transfer":        {hello{join: with(func(r *laneRef) { r.number++ }), digest: NoDigest}, "does not have", true},
		"lane 0":                  {hello{join: with(func(r *laneRef) { r.lane = 0 }), digest: NoDigest}, "was not granted", false},
		"lane beyond":             {hello{join: with(func(r *laneRef) { r.lane = 3 }), digest: NoDigest}, "was not granted", false},
		"last lane of all":        {hello{join: with(func(r *laneRef) { r.lane = 255 }), digest: NoDigest}, "was not granted", false},
		"another digest":          {hello{join: &good, digest: SHA256}, "has digest sha256", false},
	} {
		err := rawLane(t, srv.addr, c.h)
		if err == nil {
			t.Errorf("%s: the lane was accepted", name)
			continue
		}
		wantText(t, name+": "+err.Error(), c.text)
		if c.alone {
			_, err := srv.outcome(ctx)
			wantCode(t, err, CodeProtocol, false, c.text)
		}
	}
	if err := rawLane(t, srv.addr, hello{join: &good, digest: NoDigest, chunk: minChunk, buffers: 1}); err != nil { // and leaves before its OPEN
		t.Errorf("the lane was refused: %v", err)
	}
	err := rawLane(t, srv.addr, hello{join: &good, digest: NoDigest})
	wantText(t, err.Error(), "another connection has it")
	if len(srv.told) > 0 {
		t.Errorf("the receiver has also reported %v", srv.errs)
	}
	first.leave()
	_, err = srv.outcome(ctx)
	wantCode(t, err, CodeLost, false)
	err = rawLane(t, srv.addr, hello{join: with(func(r *laneRef) { r.lane = 2 }), digest: NoDigest})
	wantText(t, err.Error(), "has ended")
	srv.stop()
	if len(srv.errs) > 0 {
		t.Errorf("the receiver has also reported %v", srv.errs)
	}
}

// A lane that breaks the rules, or dies, ends its transfer with its reason.
func TestLanesBad(t *testing.T) {
	data := noise(12 << 20)
	for name, c := range map[string]struct {
		open fastMessage
		code Code
		text string
		dies bool // after OPEN
	}{
		"another name": {open: fastMessage{kind: fastOpen, tail: []byte("g")}, code: CodeProtocol, text: `lane 2 of 2: lane 2 is for "g"`},
		"a head":       {open: fastMessage{kind: fastOpen, number: 5, tail: []byte("f")}, code: CodeProtocol, text: "lane 2 of 2: lane 2 has a head of 5 bytes"},
		"wishes":       {open: fastMessage{kind: fastOpen, word: uint32(WishDelete), tail: []byte("f")}, code: CodeProtocol, text: "both belong to the first lane"},
		"dies":         {open: fastMessage{kind: fastOpen, tail: []byte("f")}, code: CodeLost, text: "lane 2 of 2: ", dies: true},
	} {
		t.Run(name, func(t *testing.T) {
			ctx := testContext(t)
			srv := serve(t, device(t, iwarp.Config{}), Receiver{MaxLanes: 2}, DirOptions{})
			first := dialRaw(t, srv.addr, appendHello(nil, hello{fast: true, choice: true, lanes: 2, digest: NoDigest, chunk: minChunk, buffers: 1, size: uint64(len(data))}))
			ref := must(parseAnswer(first.conn.PrivateData()))(t).transfer
			ref.lane = 1
			first.send(appendFast(nil, fastMessage{kind: fastOpen, tail: []byte("f")}))
			first.fastWorking(fastLayout)
			first.fastWorking(fastWant)
			lane := dialRaw(t, srv.addr, appendHello(nil, hello{join: &ref, digest: NoDigest, chunk: minChunk, buffers: 1}))
			lane.send(appendFast(nil, c.open))
			if c.dies {
				lane.fastWorking(fastLayout)
				lane.fastWorking(fastWant)
				lane.leave()
			}
			_, err := srv.outcome(ctx)
			wantCode(t, err, c.code, false, c.text)
			for m := first.any(); m.kind != fastFailed; m = first.any() {
				if m.kind != fastWant && m.kind != fastNote {
					t.Fatalf("got %s", fastNames[m.kind])
				}
			}
			lane.ends()
			first.ends()
			srv.stop()
			if len(srv.errs) > 0 {
				t.Errorf("the receiver has also reported %v", srv.errs)
			}
		})
	}
}

// fastWorking waits for a message of the fast protocol, after any number of messages that the receiver's file is at work.
func (p *rawPeer) fastWorking(kind uint16) fastMessage {
	p.t.Helper()
	m := p.any()
	for m.kind == fastNote && len(m.tail) == 0 {
		m = p.any()
	}
	if m.kind != kind {
		p.t.Fatalf("got %+v, want %s", m, fastNames[kind])
	}
	return m
}

// any waits for a message of the fast protocol of any kind.
func (p *rawPeer) any() fastMessage {
	p.t.Helper()
	b, _ := p.receive()
	m, n := parseFast(b)
	if n < 0 {
		p.t.Fatalf("got % x", b)
	}
	return m
}

// The lanes of one host beside the first ones of its transfers get a quarter of the places, and come back.
func TestLaneBook(t *testing.T) {
	quota := hostquota.NewBook(hostquota.Limits{})
	a, b := quota.Account(hostquota.HostOf(netip.MustParseAddr("192.0.2.1"))), quota.Account(hostquota.HostOf(netip.MustParseAddr("192.0.2.2")))
	book := newLaneBook(32)
	agreed := &agreement{size: 1 << 30, buffers: 8, chunk: defaultChunk}
	var groups []*laneGroup
	for i, want := range []uint8{6, 4, 0} {
		g := book.grant(a, 6, agreed)
		if want == 0 && g != nil || want > 0 && (g == nil || g.lanes != want) {
			t.Errorf("transfer %d: got %+v, want %d lanes", i, g, want)
		}
		if g != nil {
			groups = append(groups, g)
		}
	}
	if g := book.grant(b, 6, agreed); g == nil || g.lanes != 6 {
		t.Error("another host gets no lanes")
	}
	book.remove(groups[0])
	if g := book.grant(a, 6, agreed); g == nil || g.lanes != 6 {
		t.Error("the lanes of a transfer that has ended do not come back")
	}
	if groups[0].ref.secret == groups[1].ref.secret {
		t.Error("two transfers have one secret")
	}
	for range 2 * mostEnded {
		book.remove(book.grant(b, 2, agreed))
	}
	book.mu.Lock()
	defer book.mu.Unlock()
	if n := len(book.ended); n != mostEnded {
		t.Errorf("%d transfers that have ended are remembered", n)
	}
}

// The bytes of requests and answers about lanes. Those of one lane are as before.
//
// parity: X07
func TestGoldenLanes(t *testing.T) {
	ref := laneRef{secret: [laneSecretLen]byte{0: 0xa0, 15: 0xaf}, number: 7}
	second := ref
	second.lane = 1
	for h, want := range map[string]hello{
		"636e7866 01020500 00000800 08000000 0000004000000000 0000000000000000 00000000 00040000":              {fast: true, imm: true, choice: true, lanes: 4, digest: SHA256, chunk: 0x80000, buffers: 8, size: 1 << 30},
		"636e7866 01100100 00000800 08000000 a0000000000000000000000000 0000af 07000000 00010000":              {join: &second, imm: true, digest: SHA256, chunk: 0x80000, buffers: 8},
		"636e7866 01100002 00000000 00000000 a0000000000000000000000000 0000af 07000000 06010000626c616b65 33": {join: &second, digest: "blake3"},
	} {
		b := unhex(t, h)
		got, err := parseHello(b)
		if d := gocmp.Diff(got, want, gocmp.AllowUnexported(hello{}, laneRef{})); d != "" || err != nil {
			t.Errorf("%s: %v, %s", h, err, d)
		}
		if enc := appendHello(nil, want); !bytes.Equal(enc, b) {
			t.Errorf("encoded % x, want % x", enc, b)
		}
		for i := range b {
			if _, err := parseHello(b[:i]); err == nil {
				t.Errorf("%s: %d bytes are enough", h, i)
			}
		}
	}
	for h, want := range map[string]answer{
		"636e7866 01020500 00000800 0800 0003 a0000000000000000000000000 0000af 07000000":              {protocol: Fast, imm: true, choice: true, digest: SHA256, chunk: 0x80000, buffers: 8, lanes: 3, transfer: ref},
		"636e7866 01020402 00000800 0800 0602 626c616b6533 a0000000000000000000000000 0000af 07000000": {protocol: Fast, choice: true, digest: "blake3", chunk: 0x80000, buffers: 8, lanes: 2, transfer: ref},
	} {
		b := unhex(t, h)
		got, err := parseAnswer(b)
		if d := gocmp.Diff(got, want, gocmp.AllowUnexported(answer{}, laneRef{})); d != "" || err != nil {
			t.Errorf("%s: %v, %s", h, err, d)
		}
		if enc := appendAnswer(nil, want); !bytes.Equal(enc, b) {
			t.Errorf("encoded % x, want % x", enc, b)
		}
		for i := range b {
			if _, err := parseAnswer(b[:i]); err == nil {
				t.Errorf("%s: %d bytes are enough", h, i)
			}
		}
	}
	if _, err := parseHello(unhex(t, "636e7866 01120100 00000800 08000000 a0000000000000000000000000 0000af 07000000 00010000")); err == nil {
		t.Error("a request for a lane beside the fast protocol is in order")
	}
}

// A sender refuses lanes that it has not asked for, and larger buffers for each of several lanes than it has asked for, or than the default.
func TestLanesNotAsked(t *testing.T) {
	ref := laneRef{number: 1}
	for name, c := range map[string]struct {
		lanes uint8
		lane  laneRef // of the request
		chunk int     // that was asked for
		a     answer
		ok    bool
	}{
		"as asked":                 {lanes: 2, a: answer{choice: true, lanes: 2, transfer: ref}, ok: true},
		"more":                     {lanes: 2, a: answer{choice: true, lanes: 3, transfer: ref}},
		"not asked":                {lanes: 1, a: answer{choice: true, lanes: 2, transfer: ref}},
		"without choice":           {lanes: 2, a: answer{lanes: 2, transfer: ref}},
		"number 0":                 {lanes: 2, a: answer{choice: true, lanes: 2}},
		"largest chunk, one lane":  {lanes: 2, a: answer{choice: true, chunk: basicChunk}, ok: true},
		"default chunk":            {lanes: 2, a: answer{choice: true, lanes: 2, transfer: ref, chunk: defaultChunk}, ok: true},
		"more than the default":    {lanes: 2, a: answer{choice: true, lanes: 2, transfer: ref, chunk: defaultChunk + 1}},
		"a further lane":           {lanes: 2, lane: ref, a: answer{choice: true, chunk: defaultChunk}, ok: true},
		"a further lane with more": {lanes: 2, lane: ref, a: answer{choice: true, chunk: defaultChunk + 1}},
		"the chunk asked for":      {lanes: 2, chunk: 1 << 20, a: answer{choice: true, lanes: 2, transfer: ref, chunk: 1 << 20}, ok: true},
		"more than was asked for":  {lanes: 2, chunk: minChunk, a: answer{choice: true, lanes: 2, transfer: ref, chunk: minChunk + 1}},
	} {
		d := &delivery{Sender: &Sender{Lanes: int(c.lanes), Chunk: c.chunk}, src: chosenOf(noise(10), 0), digest: SHA256, lane: c.lane}
		c.a.protocol, c.a.digest, c.a.chunk, c.a.buffers = Fast, SHA256, cmp.Or(c.a.chunk, minChunk), defaultBuffers
		if _, err := d.agree(appendAnswer(nil, c.a)); (err == nil) != c.ok {
			t.Errorf("%s: got %v", name, err)
		}
	}
}
