package xfer

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"io"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"cinnabar/internal/hostquota"
	"cinnabar/verbs"
	"cinnabar/verbs/iwarp"
	"cinnabar/verbs/verbstest/memdev"
)

// served is a policy of files for pulls, with one source.
func served(src Source) func(context.Context, netip.AddrPort, FileRequest) (Source, io.Closer, error) {
	return func(context.Context, netip.AddrPort, FileRequest) (Source, io.Closer, error) { return src, nil, nil }
}

// A pull that was cut goes on where it stopped. Blocks that differ cross again, and the file has the contents of the server's file in any case.
//
// parity: X02
func TestPullResumes(t *testing.T) {
	needsLocks(t)
	data := noise(3*resumeBlock + 1000)
	changed := bytes.Clone(data)
	changed[5] ^= 1
	for name, c := range map[string]struct {
		then    []byte // the server's file at the second pull
		between func(t *testing.T, part string)
		kept    int64
	}{
		"as it was":    {then: data, kept: 2 * resumeBlock},
		"file changed": {then: changed, kept: resumeBlock},
		"file grown":   {then: append(slices.Clone(data), "more"...), kept: 2 * resumeBlock},
		"file shorter": {then: data[:resumeBlock+7]},
		"another file": {then: bytes.Repeat([]byte{1}, len(data))},
		"empty file":   {then: nil},
		"part changed": {then: data, between: func(t *testing.T, part string) { overwrite(t, part, []byte{data[5] ^ 1}, 5) }, kept: resumeBlock},
		"part of another user": {then: data, between: func(t *testing.T, part string) {
			if err := os.Chmod(part, 0o666); err != nil {
				t.Fatal(err)
			}
		}},
		"source with no choice": {then: data},
	} {
		t.Run(name, func(t *testing.T) {
			ctx := testContext(t)
			dev := device(t, iwarp.Config{})
			p, path := into(t, DirOptions{KeepFor: time.Hour})
			p.Chunk, p.Window, p.Choose = 1<<20, 1, true
			part := filepath.Join(path, partialName("f"))
			src := chosenOf(data, WishUpdate|WishDelete) // the wishes are not the server's
			src.Data = cutAt{src.Data, 2 * resumeBlock, part, ctx}
			var now atomic.Pointer[Source]
			now.Store(&src)
			var crossed atomic.Int64
			srv := serve(t, dev, Receiver{
				Files: func(context.Context, netip.AddrPort, FileRequest) (Source, io.Closer, error) {
					return *now.Load(), nil, nil
				},
				Trace: func() Tracer {
					crossed.Store(0)
					return func(s Step) {
						if s.Op == OpWrite {
							crossed.Add(int64(s.Bytes))
						}
					}
				},
			}, DirOptions{})
			_, err := p.Pull(ctx, dev, srv.addr, FileRequest{RequestFile, "f"})
			wantCode(t, err, CodeSource, true)
			_, err = srv.outcome(ctx)
			wantCode(t, err, CodeSource, false)
			if got := entries(t, path); !slices.Equal(got, []string{partialName("f")}) {
				t.Fatalf("the directory has %q", got)
			}
			if c.between != nil {
				c.between(t, part)
			}
			then := chosenOf(c.then, 0)
			if name == "source with no choice" {
				then.Choice = nil
			}
			now.Store(&then)
			res, err := p.Pull(ctx, dev, srv.addr, FileRequest{RequestFile, "f"})
			got, serr := srv.outcome(ctx)
			if err != nil || serr != nil || res.Kept != c.kept || got.Kept != c.kept || res.Size != int64(len(c.then)) || got.Size != res.Size || !res.Pulled {
				t.Errorf("got %+v, %v; the server %+v, %v; want %d bytes kept", res, err, got, serr, c.kept)
			}
			if sums := crossed.Load() - (res.Size - res.Kept); sums < 0 || sums > 3*SumLen || sums%SumLen != 0 {
				t.Errorf("%d bytes have crossed, of a file of %d of which %d were there", crossed.Load(), res.Size, res.Kept)
			}
			if b := must(os.ReadFile(filepath.Join(path, "f")))(t); !bytes.Equal(b, c.then) {
				t.Errorf("the file has %d bytes that differ from the server's", len(b))
			}
			if res.Kept > 0 && res.Sum != [SumLen]byte{} {
				t.Error("a file of which a part crossed has a digest")
			}
		})
	}
}

// A pull leaves out a file that the puller has: by size and time, or by its contents. Of a file that differs in some blocks only these cross. The wishes do not cross.
//
// parity: X02
func TestPullUpdates(t *testing.T) {
	ctx := testContext(t)
	data := noise(2*resumeBlock + 5)
	old := time.Unix(1e9, 12345)
	changed := bytes.Clone(data)
	changed[1]++
	for name, c := range map[string]struct {
		there  []byte
		time   time.Time
		wishes Wishes
		whole  bool // the server's source has no choice
		kept   int64
	}{
		"the same, by time":           {there: data, time: old, wishes: WishUpdate, kept: int64(len(data))},
		"another time":                {there: data, time: old.Add(1), wishes: WishUpdate},
		"another size":                {there: data[1:], time: old, wishes: WishUpdate},
		"the same time, not contents": {there: changed, time: old, wishes: WishUpdate, kept: int64(len(data))},
		"the same, by contents":       {there: data, time: old, wishes: WishChecksum, kept: int64(len(data))},
		"contents and another time":   {there: data, time: old.Add(1), wishes: WishChecksum, kept: int64(len(data))},
		"one block differs":           {there: changed, time: old, wishes: WishChecksum, kept: resumeBlock + 5},
		"both wishes":                 {there: changed, time: old, wishes: WishUpdate | WishChecksum, kept: resumeBlock + 5},
		"no wish":                     {there: data, time: old},
		"source with no choice":       {there: data, time: old, wishes: WishUpdate | WishChecksum, whole: true},
	} {
		t.Run(name, func(t *testing.T) {
			src := chosenOf(data, WishUpdate) // the wishes are not the server's
			src.Meta = Meta{Mode: 0o640, ModTime: old}
			if c.whole {
				src.Choice = nil
			}
			dev := device(t, iwarp.Config{})
			srv := serve(t, dev, Receiver{Files: served(src)}, DirOptions{})
			p, path := into(t, DirOptions{Overwrite: true, KeepFor: time.Hour})
			p.Choose, p.Wishes = true, c.wishes
			at := filepath.Join(path, "f")
			if err := errors.Join(os.WriteFile(at, c.there, 0o640), os.Chtimes(at, c.time, c.time)); err != nil {
				t.Fatal(err)
			}
			res, err := p.Pull(ctx, dev, srv.addr, FileRequest{RequestFile, "f"})
			got, serr := srv.outcome(ctx)
			if err != nil || serr != nil || res.Kept != c.kept || got.Kept != c.kept {
				t.Errorf("%d bytes were kept, %v; the server has %d, %v; want %d", res.Kept, err, got.Kept, serr, c.kept)
			}
			want := data
			if name == "the same time, not contents" {
				want = changed
			}
			if b := must(os.ReadFile(at))(t); !bytes.Equal(b, want) {
				t.Errorf("the file has %d bytes that differ from the server's", len(b))
			}
			if got := mustInfo(t, at).ModTime(); !got.Equal(old) {
				t.Errorf("the time is %v", got)
			}
			if got := entries(t, path); !slices.Equal(got, []string{"f"}) {
				t.Errorf("the directory has %q", got)
			}
		})
	}
}

// A puller has no wishes that need the answer of a sender, and none without a choice.
func TestPullWishesRefused(t *testing.T) {
	dev := device(t, iwarp.Config{})
	srv := serve(t, dev, Receiver{Files: served(chosenOf(noise(10), 0))}, DirOptions{})
	for _, c := range []struct {
		p    Puller
		op   RequestOp
		text string
	}{
		{Puller{Choose: true, Wishes: 1 << 4}, RequestFile, "of which some bits are no wishes"},
		{Puller{Wishes: WishDelete}, RequestFile, "wishes need Puller.Choose"},
		{Puller{Wishes: WishUpdate}, RequestFile, "wishes need Puller.Choose"},
		{Puller{Lanes: 2}, RequestFile, "several lanes need Puller.Choose"},
		{Puller{Choose: true, Lanes: 2}, RequestList, "several lanes need Puller.Choose"},
		{Puller{Choose: true, Wishes: WishChecksum}, RequestList, "wishes need Puller.Choose"},
	} {
		c.p.Open = func(context.Context, netip.AddrPort, string, Meta, int64) (File, error) { return nil, CodeStorage }
		_, err := c.p.Pull(testContext(t), dev, srv.addr, FileRequest{c.op, "f"})
		wantCode(t, err, CodeUnsupported, false, c.text)
	}
}

// A second pull of a name is refused while another process pulls a file of that name, and the first pull succeeds.
func TestPullIsLocked(t *testing.T) {
	needsLocks(t)
	ctx := testContext(t)
	path, data := t.TempDir(), noise(100)
	dev := device(t, iwarp.Config{})
	srv := serve(t, dev, Receiver{Files: served(chosenOf(data, 0))}, DirOptions{})
	var pullers []Puller
	for range 2 { // two Dirs stand for two processes
		d := must(OpenDir(t.Context(), path, DirOptions{KeepFor: time.Hour}))(t)
		defer d.Close()
		pullers = append(pullers, Puller{Open: d.Open, Choose: true})
	}
	open := pullers[0].Open
	pullers[0].Open = func(ctx context.Context, from netip.AddrPort, name string, meta Meta, size int64) (File, error) {
		f, err := open(ctx, from, name, meta, size)
		return lockedFile{f.(*dirFile), func() {
			_, err := pullers[1].Pull(ctx, dev, srv.addr, FileRequest{RequestFile, "f"})
			wantCode(t, err, CodeExists, false, `"f" is being received right now by another process`)
		}}, err
	}
	if _, err := pullers[0].Pull(ctx, dev, srv.addr, FileRequest{RequestFile, "f"}); err != nil {
		t.Fatal(err)
	}
	if got := entries(t, path); !slices.Equal(got, []string{"f"}) {
		t.Errorf("the directory has %q", got)
	}
}

// lockedFile calls the function meanwhile when the file has its lock.
type lockedFile struct {
	*dirFile
	meanwhile func()
}

func (f lockedFile) Choose(o Offer) error {
	err := f.dirFile.Choose(o)
	f.meanwhile()
	return err
}

// HasPart finds the part with which the next transfer of a name goes on, and no other file.
func TestHasPart(t *testing.T) {
	needsLocks(t)
	path := t.TempDir()
	part := filepath.Join(path, partialName("f"))
	keeps, drops := must(OpenDir(t.Context(), path, DirOptions{KeepFor: time.Hour}))(t), must(OpenDir(t.Context(), path, DirOptions{}))(t)
	defer keeps.Close()
	defer drops.Close()
	if keeps.HasPart("f") {
		t.Error("an empty directory has a part")
	}
	if err := os.WriteFile(part, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if !keeps.HasPart("f") || keeps.HasPart("g") || drops.HasPart("f") {
		t.Error("the part is not found, or others are")
	}
	if err := os.Chmod(part, 0o666); err != nil {
		t.Fatal(err)
	}
	if keeps.HasPart("f") {
		t.Error("a part that other users may write to is taken")
	}
}

// pullFrom pulls a source into a file over a device in memory, in a bubble of synctest. It returns the results of both sides.
func pullFrom(t *testing.T, p Puller, src Source) (pulled, sent Result, perr, serr error) {
	t.Helper()
	return pullWithin(t, 0, p, src)
}

// pullWithin is pullFrom with the timeout of the server; 0: its default.
func pullWithin(t *testing.T, timeout time.Duration, p Puller, src Source) (pulled, sent Result, perr, serr error) {
	t.Helper()
	dev := verbs.NewDevice(memdev.Open(memdev.Config{}))
	l := must(verbs.Listen(dev, loopback))(t)
	done := make(chan struct{})
	r := Receiver{Open: func(context.Context, netip.AddrPort, string, Meta, int64) (File, error) { return nil, CodeUnsupported }, Files: served(src), Timeout: timeout}
	r.Progress = func() Progress { return &recorder{t: t, simulated: true} }
	p.Progress = r.Progress
	go func() {
		defer close(done)
		sent, serr = r.ServeOne(t.Context(), l)
	}()
	pulled, perr = p.Pull(t.Context(), dev, l.Addr(), FileRequest{RequestFile, src.Name})
	<-done
	if err := errors.Join(l.Close(), dev.Close()); err != nil {
		t.Error(err)
	}
	return pulled, sent, perr, serr
}

// A puller has parts of random files, some with errors. Only the ranges that it chooses cross, and the file is whole.
//
// parity: X02
func TestOnlyWantedIsPulled(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		size := rapid.IntRange(0, 40_000).Draw(rt, "size")
		head := rapid.IntRange(0, size).Draw(rt, "head")
		data, choose := noise(size), rapid.Bool().Draw(rt, "choose")
		random := rand.New(rand.NewPCG(rapid.Uint64().Draw(rt, "seed"), 0))
		f := &choosingFile{old: bytes.Clone(data), per: rapid.IntRange(1, 200).Draw(rt, "per"), data: make([]byte, size)}
		clear(f.old[:head])
		kept := int64(0)
		for at := head; at < size; {
			r := Range{Offset: int64(at), Length: int64(min(1+random.IntN(9000), size-at)), Sum: random.IntN(3) > 0}
			switch wrong := random.IntN(2) == 0; {
			case r.Sum:
				f.sums = append(f.sums, r)
				if wrong {
					f.old[r.Offset] ^= 1
				} else {
					kept += r.Length
				}
			case wrong:
				f.wants = append(f.wants, r)
				clear(f.old[r.Offset:][:r.Length])
			default:
				kept += r.Length
			}
			at += int(r.Length)
		}
		if !choose {
			kept = 0
		}
		synctest.Test(t, func(t *testing.T) {
			src := sourceOf("f", data)
			src.Choice = &Choice{Head: int64(head)}
			p := Puller{Choose: choose, Chunk: minChunk, Window: rapid.IntRange(1, 9).Draw(rt, "window"), Digest: rapid.SampledFrom([]Digest{SHA256, NoDigest}).Draw(rt, "digest"),
				Open: func(context.Context, netip.AddrPort, string, Meta, int64) (File, error) { return f, nil }}
			pulled, sent, perr, serr := pullFrom(t, p, src)
			if perr != nil || serr != nil || !bytes.Equal(f.data, data) || !f.committed {
				rt.Fatalf("got %v; the server %v", perr, serr)
			}
			if pulled.Kept != kept || sent.Kept != kept || pulled.Size != int64(size) || sent.Size != int64(size) {
				rt.Fatalf("%d bytes with %d kept at the puller, %d with %d at the server; want %d with %d", pulled.Size, pulled.Kept, sent.Size, sent.Kept, size, kept)
			}
		})
	})
}

// A pull that fails while sums cross has not moved a byte of the file, and says so.
func TestPullFailsInSums(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		data := noise(10 * minChunk)
		f := &choosingFile{old: data, per: 2}
		for at := range 10 {
			f.sums = append(f.sums, Range{Offset: int64(at) * minChunk, Length: minChunk, Sum: true})
		}
		src := sourceOf("f", data)
		src.Choice = &Choice{SumData: bytes.NewReader(data[:7*minChunk])} // the file was cut
		p := Puller{Choose: true, Chunk: minChunk, Window: 1, Open: func(context.Context, netip.AddrPort, string, Meta, int64) (File, error) { return f, nil }}
		pulled, sent, perr, _ := pullFrom(t, p, src)
		wantCode(t, perr, CodeChanged, true)
		if pulled.Size != 0 || pulled.Chunks == 0 || sent.Size != 0 {
			t.Errorf("the puller has %d bytes after %d chunks, the server %d", pulled.Size, pulled.Chunks, sent.Size)
		}
	})
}

// A puller sends the same request as earlier versions if it does not let its file choose, or asks for a list. A server grants lanes to pulls only if the puller chooses.
func TestPullOffers(t *testing.T) {
	private := func(p Puller, op RequestOp) []byte {
		raw := newRaw(t, false)
		raw.private = appendRefusal(nil, errorMessage{code: CodeBusy}, maxRefusal)
		l := must(verbs.Listen(raw.dev, loopback))(t)
		defer l.Close()
		asked := make(chan []byte, 1)
		go func() {
			req, err := l.Accept(raw.ctx)
			if err != nil {
				t.Error(err)
				asked <- nil
				return
			}
			asked <- bytes.Clone(req.PrivateData())
			_ = req.Reject(raw.private) // the test has what it wants
		}()
		p.Open = func(context.Context, netip.AddrPort, string, Meta, int64) (File, error) { return nil, CodeStorage }
		_, err := p.Pull(raw.ctx, raw.dev, l.Addr(), FileRequest{op, "f"})
		wantCode(t, err, CodeBusy, true)
		return <-asked
	}
	before := appendHello(nil, hello{pull: true, imm: true, digest: SHA256, buffers: defaultBuffers})
	for name, got := range map[string][]byte{"file": private(Puller{}, RequestFile), "list": private(Puller{Choose: true}, RequestList)} {
		if !bytes.Equal(got, before) {
			t.Errorf("%s: % x, want % x", name, got, before)
		}
	}
	before[6] |= capChoice
	if got := private(Puller{Choose: true}, RequestFile); !bytes.Equal(got, before) {
		t.Errorf("% x, want % x", got, before)
	}
	before[37] = 3
	if got := private(Puller{Choose: true, Lanes: 3}, RequestFile); !bytes.Equal(got, before) {
		t.Errorf("% x, want % x", got, before)
	}
	h := &host{Receiver: &Receiver{Files: served(Source{}), MaxLanes: 8}, attr: verbs.DeviceAttr{MaxPrivateData: 512}, lanes: newLaneBook(64)}
	account := hostquota.NewBook(hostquota.Limits{}).Account(hostNumber(1))
	for chooses, want := range map[bool]uint8{false: 0, true: 5} {
		a := agreement{protocol: Fast, chooses: chooses, pull: true, size: -1}
		if h.grantLanes(account, &hello{pull: true, choice: chooses, lanes: 5}, &a); a.lanes.n != want {
			t.Errorf("the puller chooses: %t: a pull gets %d lanes", chooses, a.lanes.n)
		}
	}
}

// A server of an earlier version gives the whole file to a puller that could choose.
func TestPullFromEarlierServer(t *testing.T) {
	raw := newRaw(t, false)
	raw.private = appendAnswer(nil, answer{protocol: Fast, digest: NoDigest, chunk: minChunk, buffers: 2})
	addr, accepted := raw.accept(loopback)
	ctx, data := testContext(t), noise(100)
	p, path := into(t, DirOptions{KeepFor: time.Hour})
	if err := os.WriteFile(filepath.Join(path, partialName("f")), data[:50], 0o600); err != nil {
		t.Fatal(err)
	}
	p.Choose, p.Digest = true, NoDigest
	done := make(chan error, 1)
	dev := device(t, iwarp.Config{})
	go func() {
		_, err := p.Pull(ctx, dev, addr, FileRequest{RequestFile, "f"})
		done <- err
	}()
	peer := <-accepted
	peer.fast(fastRequest)
	peer.send(appendFast(nil, attrMessage(Meta{})))
	peer.send(appendFast(nil, fastMessage{kind: fastOpen, number: 100, tail: []byte("f")}))
	layout := peer.fast(fastLayout) // and no WANT follows
	peer.write(verbs.RemoteAddr{Addr: layout.number, RKey: layout.word}, data)
	peer.send(appendFast(nil, fastMessage{kind: fastChunk, length: 100, word: crcOf(data)}))
	peer.send(appendFast(nil, fastMessage{kind: fastEnd, number: 100}))
	peer.fast(fastCredit)
	peer.fast(fastDone)
	peer.leave()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if b := must(os.ReadFile(filepath.Join(path, "f")))(t); !bytes.Equal(b, data) {
		t.Errorf("the file has %d bytes that differ", len(b))
	}
}

// A server of an earlier version cannot be asked for a list of removals, and the pull of one fails before a byte crosses.
func TestPullDeleteFromEarlierServer(t *testing.T) {
	raw := newRaw(t, false)
	raw.private = appendAnswer(nil, answer{protocol: Fast, digest: SHA256, chunk: minChunk, buffers: 2})
	addr, accepted := raw.accept(loopback)
	p, path := into(t, DirOptions{Overwrite: true})
	p.Choose, p.Wishes = true, WishDelete
	done := make(chan error, 1)
	dev, ctx := device(t, iwarp.Config{}), testContext(t)
	go func() {
		_, err := p.Pull(ctx, dev, addr, FileRequest{RequestFile, "f"})
		done <- err
	}()
	(<-accepted).ends()
	wantCode(t, <-done, CodeUnsupported, false, "the server sends whole files and trees only")
	if got := entries(t, path); len(got) > 0 {
		t.Errorf("the directory has %q", got)
	}
}

// pulling returns both machines of a pull of a file of 1000 bytes with a head of 100: the server has sent the head, and the puller has made its file.
func pulling(t testing.TB) (*puller, *pullServer) {
	t.Helper()
	a := agreement{chunk: 4096, buffers: 2, digest: NoDigest, chooses: true, pull: true}
	p := &puller{fastServer: newFastServer(a, verbs.RemoteAddr{}), request: FileRequest{RequestFile, "f"}}
	a.size = -1
	s := &pullServer{fastClient: newFastClient(a, "", nil)}
	message := func(m fastMessage) event { return event{kind: evReceived, data: appendFast(nil, m)} }
	s.step(message(fastMessage{kind: fastRequest, number: 1, word: uint32(RequestFile), tail: []byte("f")}), nil)
	s.src = Source{Name: "f", Size: 1000, Choice: &Choice{Head: 100}}
	s.step(event{kind: evOpened}, nil)
	s.step(message(fastMessage{kind: fastLayout, length: 4096, count: 2}), nil)
	s.step(event{kind: evRead, n: 100}, nil)
	p.step(message(attrMessage(Meta{})), nil)
	p.step(message(fastMessage{kind: fastOpen, number: 1000, word: 100, tail: []byte("f")}), nil)
	p.step(event{kind: evOpened}, nil)
	return p, s
}

// OPEN of a pull has the length of the head if the puller chooses, and the bytes of earlier versions otherwise.
func TestPullOpenBytes(t *testing.T) {
	for chooses, want := range map[bool]string{
		false: "0100 0000 01000000 0000000005000000 00000000 00000000 66",
		true:  "0100 0000 01000000 0000000005000000 07000000 02000000 66",
	} {
		s := &pullServer{fastClient: newFastClient(agreement{chunk: 4096, buffers: 2, chooses: chooses, pull: true, size: -1}, "", nil), phase: pullOpening}
		s.src = Source{Name: "f", Size: 5 << 32, Choice: &Choice{Head: 2<<32 | 7}}
		acts := s.step(event{kind: evOpened}, nil)
		if got, want := acts[len(acts)-1].msg, must(hex.DecodeString(strings.ReplaceAll(want, " ", "")))(t); !bytes.Equal(got, want) {
			t.Errorf("the puller chooses: %t: got % x, want % x", chooses, got, want)
		}
	}
}

// failureOf gives events to a machine, and returns the failure with which it ends.
func failureOf(m machine, events ...event) (failure error) {
	for _, ev := range events {
		for _, a := range m.step(ev, nil) {
			if a.kind == actFinish {
				return a.err
			}
		}
	}
	return nil
}

// A server of files refuses a puller that breaks the rules of WANT and NOTE, and a puller refuses a server that does.
func TestBadPullChoices(t *testing.T) {
	message := func(m fastMessage) event { return event{kind: evReceived, data: appendFast(nil, m)} }
	want := func(last uint32, b string, count uint32) event {
		return message(fastMessage{kind: fastWant, word: last, count: count, tail: []byte(b)})
	}
	for name, c := range map[string]struct {
		events []event
		text   string
	}{
		"beyond the end":       {[]event{want(1, "\x00\x88\x0f", 1)}, "does not follow the others"},
		"behind all bytes":     {[]event{want(0, "\x00\x88\x0e", 1), want(0, "\x00\x02", 1)}, "does not follow the others"},
		"after the last":       {[]event{want(1, "\x00\x02", 1), want(0, "\x00\x02", 1)}, "after the last one: true"},
		"removal":              {[]event{message(fastMessage{kind: fastNote, number: 1, tail: []byte("\x02\x00\x01a")})}, "NOTE 1 with 4 bytes"},
		"note out of turn":     {[]event{message(fastMessage{kind: fastNote, number: 2})}, "NOTE 2 with 0 bytes"},
		"request again":        {[]event{message(fastMessage{kind: fastRequest, number: 1, word: 1, tail: []byte("f")})}, "REQUEST"},
		"nine WANTs under way": {slices.Repeat([]event{want(0, "\x00\x02", 1)}, 12), "8 messages before it are not answered"},
	} {
		t.Run(name, func(t *testing.T) {
			_, s := pulling(t)
			if err := failureOf(s, c.events...); !errors.Is(err, CodeProtocol) {
				t.Errorf("got %v", err)
			} else {
				wantText(t, err.Error(), c.text)
			}
		})
	}
	for name, c := range map[string]struct {
		ev   event
		text string
	}{
		"answer to no note": {message(fastMessage{kind: fastNote, number: 1}), "answered NOTE 1"},
		"WANT":              {want(1, "", 0), "sent WANT"},
		"more than chosen":  {message(fastMessage{kind: fastChunk, length: 101}), "chunk 0 has 101 bytes"},
		"end":               {message(fastMessage{kind: fastEnd, number: 100}), "had not chosen all"},
	} {
		t.Run("server/"+name, func(t *testing.T) {
			p, _ := pulling(t)
			if err := failureOf(p, c.ev); !errors.Is(err, CodeProtocol) {
				t.Errorf("got %v", err)
			} else {
				wantText(t, err.Error(), c.text)
			}
		})
	}
	for name, open := range map[string]fastMessage{
		"head beyond the file":      {kind: fastOpen, number: 10, word: 11, tail: []byte("f")},
		"head of 32 bits":           {kind: fastOpen, number: 10, count: 1, tail: []byte("f")},
		"head of 64 bits":           {kind: fastOpen, number: 1<<63 - 1, word: 1<<32 - 1, count: 1<<32 - 1, tail: []byte("f")},
		"longer than any file":      {kind: fastOpen, number: 1 << 63, tail: []byte("f")},
		"size 1, wishes of senders": {kind: fastOpen, number: 1, word: uint32(WishChecksum), tail: []byte("f")},
	} {
		p := &puller{fastServer: newFastServer(agreement{chunk: 4096, buffers: 2, digest: NoDigest, chooses: true}, verbs.RemoteAddr{})}
		if err := failureOf(p, message(attrMessage(Meta{})), message(open)); !errors.Is(err, CodeProtocol) {
			t.Errorf("%s: got %v", name, err)
		}
	}
	p := &puller{fastServer: newFastServer(agreement{chunk: 4096, buffers: 2, digest: NoDigest, chooses: true}, verbs.RemoteAddr{})}
	p.step(message(attrMessage(Meta{})), nil)
	for _, a := range p.step(message(fastMessage{kind: fastOpen, number: 1 << 40, word: 4, count: 3, tail: []byte("f")}), nil) {
		if a.kind == actOpen && (a.offset != 3<<32|4 || a.crc != 0) {
			t.Errorf("the file has a head of %d bytes and wishes %d", a.offset, a.crc)
		}
	}
	p = &puller{fastServer: newFastServer(agreement{chunk: 4096, buffers: 2, digest: NoDigest, chooses: true}, verbs.RemoteAddr{}), wishes: WishChecksum}
	p.step(message(attrMessage(Meta{})), nil)
	for _, a := range p.step(message(fastMessage{kind: fastOpen, number: 1 << 40, word: 4, count: 3, tail: []byte("f")}), nil) {
		if a.kind == actOpen && (a.offset != 3<<32|4 || a.crc != uint32(WishChecksum)) {
			t.Errorf("the file has a head of %d bytes and wishes %d, and the wishes are the puller's", a.offset, a.crc)
		}
	}
	src := sourceOf("f", noise(10))
	src.Choice = &Choice{Head: 11}
	synctest.Test(t, func(t *testing.T) {
		p := Puller{Choose: true, Open: func(context.Context, netip.AddrPort, string, Meta, int64) (File, error) {
			return &memFile{disk: instant}, nil
		}}
		_, _, err, _ := pullFrom(t, p, src)
		wantCode(t, err, CodeSource, true, "the source of the server's Files has Choice.Head 11; it must be 0 to its Size, 10")
	})
}

// A server waits for a puller whose file is at work, but not without end, because that would keep one of its places. It waits for its own timeout at least, however many NOTEs
// come, and the server tells a silent puller from one that says that its file is at work.
func TestPullerWorks(t *testing.T) {
	for name, c := range map[string]struct {
		takes   time.Duration
		silent  bool
		timeout time.Duration // of the server; 0: its default
		beat    time.Duration // the puller's timeout, of which a quarter is the time between two NOTEs
		fails   string        // "": it does not
	}{
		"goes on":                    {takes: 50 * time.Minute},
		"many NOTEs":                 {takes: 50 * time.Minute, beat: 400 * time.Millisecond},
		"without end":                {takes: 2 * time.Hour, fails: "the peer has sent nothing for 1h0m0s but that its file is at work"},
		"within a long timeout":      {takes: 2 * time.Hour, timeout: 3 * time.Hour},
		"longer than a long timeout": {takes: 4 * time.Hour, timeout: 3 * time.Hour, fails: "the peer has sent nothing for 3h0m0s but that its file is at work"},
		"silent":                     {takes: time.Hour, silent: true, fails: "nothing has moved for 30s"},
		"silent for a long timeout":  {takes: 4 * time.Hour, silent: true, timeout: 3 * time.Hour, fails: "nothing has moved for 3h0m0s"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				start := time.Now()
				f := &choosingFile{per: 1, steps: func() uint64 { return uint64(time.Since(start)) }}
				if c.silent {
					f.steps = func() uint64 { return 0 }
				}
				f.commit = func() error {
					<-time.NewTimer(c.takes).C
					return nil
				}
				src := sourceOf("f", nil)
				src.Choice = &Choice{}
				p := Puller{Choose: true, Timeout: c.beat, Open: func(context.Context, netip.AddrPort, string, Meta, int64) (File, error) { return f, nil }}
				_, _, perr, serr := pullWithin(t, c.timeout, p, src)
				if c.fails != "" {
					wantCode(t, serr, CodeTimeout, false, c.fails)
					return
				}
				if err := errors.Join(perr, serr); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// FuzzPullChoosing gives messages of a peer to a server of files from which a puller chooses, and to a puller that chooses. The server keeps a bounded number of
// requests, and does not read beyond the source.
//
// fuzz:state
func FuzzPullChoosing(f *testing.F) {
	message := func(m fastMessage) []byte {
		b := appendFast(nil, m)
		return append([]byte{byte(len(b)), byte(len(b) >> 8)}, b...)
	}
	f.Add(message(fastMessage{kind: fastWant, word: 1, count: 2, tail: []byte("\x00\x03\x05\x20")}))
	f.Add(slices.Concat(message(fastMessage{kind: fastWant, count: 1, tail: []byte("\x00\xa0\x0a")}), message(fastMessage{kind: fastCredit, number: 1}), message(fastMessage{kind: fastWant, word: 1})))
	f.Add(slices.Concat(message(fastMessage{kind: fastNote, number: 1}), message(fastMessage{kind: fastNote, number: 2, tail: []byte("\x02\x00\x01a")})))
	f.Add(slices.Concat(message(fastMessage{kind: fastChunk, length: 100}), message(fastMessage{kind: fastChunk, number: 1, length: 900}), message(fastMessage{kind: fastEnd, number: 1000})))
	f.Add(slices.Concat(message(attrMessage(Meta{})), message(fastMessage{kind: fastOpen, number: 5, word: 6, tail: []byte("f")})))
	f.Fuzz(func(t *testing.T, b []byte) {
		p, s := pulling(t)
		fresh := &puller{fastServer: newFastServer(agreement{chunk: 4096, buffers: 2, digest: NoDigest, chooses: true}, verbs.RemoteAddr{})}
		serverOver, pullerOver, freshOver := false, false, false
		for len(b) >= 2 {
			n := min(int(b[0])|int(b[1]&1)<<8, len(b)-2)
			ev := event{kind: evReceived, data: b[2 : 2+n]}
			b = b[2+n:]
			serverOver = serverOver || answerClient(t, s, s.fastClient, ev)
			pullerOver = pullerOver || answerServer(p, ev)
			freshOver = freshOver || answerServer(fresh, ev)
			if fresh.choice.head > fresh.size {
				t.Fatalf("the head has %d bytes, the file %d", fresh.choice.head, fresh.size)
			}
		}
	})
}

// Each removal that a puller lists counts as work of its file, because the list may take longer than the timeout.
func TestListIsWork(t *testing.T) {
	var seen []uint64
	var s *storer
	s = &storer{chooser: &choosingFile{removals: []Removal{{Name: "a"}, {Name: "d", Dir: true}, {Name: "x", Depth: 1}}}, removals: &localRemovals{may: func(path string, _ bool) bool {
		seen = append(seen, s.steps())
		return path != "d/x"
	}}}
	if ev := s.want(); ev.err != nil || len(ev.want.Removals) > 0 || !slices.Equal(seen, []uint64{1, 2, 3}) {
		t.Errorf("got %+v; the steps were %d", ev, seen)
	}
	if got := s.chooser.(*choosingFile).spared; !slices.Equal(got, []int{2}) {
		t.Errorf("%d were spared", got)
	}
}
