package xfer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"cinnabar/verbs/iwarp"
)

// shelf is a policy of files for pulls: those of a map.
type shelf map[string][]byte

func (s shelf) files(_ context.Context, _ netip.AddrPort, r FileRequest) (Source, io.Closer, error) {
	data, ok := s[r.Path]
	if !ok || r.Op != RequestFile {
		return Source{}, nil, failf(CodeSource, "the shelf has no %q", r.Path)
	}
	src := sourceOf(filepath.Base(r.Path), data)
	src.Meta = Meta{Mode: 0o640, ModTime: time.Unix(1e9, 5)}
	return src, io.NopCloser(nil), nil
}

// into returns a puller that stores into a new directory, and the directory's path.
func into(t testing.TB, opt DirOptions) (Puller, string) {
	t.Helper()
	path := t.TempDir()
	dir := must(OpenDir(t.Context(), path, opt))(t)
	t.Cleanup(func() {
		if err := dir.Close(); err != nil {
			t.Error(err)
		}
	})
	return Puller{Open: dir.Open}, path
}

// A pull stores what a send would, whatever the size and the length of the path.
//
// parity: X04
func TestPull(t *testing.T) {
	const chunk = 8 << 10
	files := shelf{strings.Repeat("x/", 400) + "deep": noise(10), "a": nil}
	for _, n := range []int{1, chunk - 1, chunk, chunk + 1, 3 * chunk, 1 << 20} {
		files[strings.Repeat("d", 200)+string(rune('a'+n%7))+"/"+strings.Repeat("p", n%250+1)] = noise(n)
	}
	ctx := testContext(t)
	dev := device(t, iwarp.Config{})
	srv := serve(t, dev, Receiver{Files: files.files}, DirOptions{})
	for _, d := range []Digest{SHA256, NoDigest} {
		p, path := into(t, DirOptions{Overwrite: true})
		p.Chunk, p.Window, p.Digest = chunk, 4, d
		var announced int64
		p.Progress = func() Progress { return startSize{&announced} }
		for name, data := range files {
			res, err := p.Pull(ctx, dev, srv.addr, FileRequest{RequestFile, name})
			got, serr := srv.outcome(ctx)
			if err != nil || serr != nil || res.Size != int64(len(data)) || got.Size != res.Size || res.Sum != got.Sum || !res.Pulled || !got.Pulled || res.Name != filepath.Base(name) || got.Name != name || announced != res.Size {
				t.Errorf("%.20s: %+v, %v; %+v, %v; announced %d", name, res, err, got, serr, announced)
				continue
			}
			at := filepath.Join(path, filepath.Base(name))
			info := must(os.Stat(at))(t)
			if b := must(os.ReadFile(at))(t); !bytes.Equal(b, data) || info.Mode().Perm() != 0o640 || !info.ModTime().Equal(time.Unix(1e9, 5)) {
				t.Errorf("%.20s: %d bytes, %v, %v", name, len(b), info.Mode(), info.ModTime())
			}
		}
	}
}

// A request that cannot be met gives the puller the reason, and leaves nothing.
func TestPullRefused(t *testing.T) {
	ctx := testContext(t)
	dev := device(t, iwarp.Config{})
	files := shelf{"a": noise(100)}
	srv := serve(t, dev, Receiver{Files: func(ctx context.Context, peer netip.AddrPort, r FileRequest) (Source, io.Closer, error) {
		switch r.Path {
		case "endless":
			return Source{Name: "endless", Stream: bytes.NewReader(nil)}, nil, nil
		case "torn":
			return Source{Name: "torn", Data: bytes.NewReader(noise(10)), Size: 20}, nil, nil
		case "unnamed":
			return Source{Data: bytes.NewReader(nil)}, nil, nil
		}
		return files.files(ctx, peer, r)
	}}, DirOptions{})
	p, path := into(t, DirOptions{})
	for _, c := range []struct {
		r      FileRequest
		code   Code
		remote bool
		says   string
	}{
		{FileRequest{RequestFile, "b"}, CodeSource, true, `the shelf has no "b"`},
		{FileRequest{RequestList, "a"}, CodeSource, true, "the shelf has no"},
		{FileRequest{RequestFile, "endless"}, CodeSource, true, "has no size"},
		{FileRequest{RequestFile, "unnamed"}, CodeName, true, "the name is empty"},
		{FileRequest{RequestFile, "torn"}, CodeChanged, true, "ends after 10 bytes"},
	} {
		_, err := p.Pull(ctx, dev, srv.addr, c.r)
		wantCode(t, err, c.code, c.remote, c.says, "pull")
		_, err = srv.outcome(ctx)
		wantCode(t, err, c.code, false, c.says, "serve")
	}
	for _, c := range []struct {
		r    FileRequest
		code Code
		says string
	}{
		{FileRequest{RequestFile, ""}, CodeName, "the path is empty"},
		{FileRequest{RequestFile, "a\x00"}, CodeName, "NUL"},
		{FileRequest{RequestFile, strings.Repeat("x", MaxRequest+1)}, CodeName, "a request carries 1024"},
		{FileRequest{7, "a"}, CodeUnsupported, "operation 7"},
	} {
		_, err := p.Pull(ctx, dev, srv.addr, c.r)
		wantCode(t, err, c.code, false, c.says)
	}
	_, err := (&Puller{}).Pull(ctx, dev, srv.addr, FileRequest{RequestFile, "a"})
	wantCode(t, err, CodeOther, false, "Open is nil")
	p.Open = func(context.Context, netip.AddrPort, string, Meta, int64) (File, error) {
		return nil, failf(CodeStorage, "no room")
	}
	_, err = p.Pull(ctx, dev, srv.addr, FileRequest{RequestFile, "a"})
	wantCode(t, err, CodeStorage, false, "no room")
	_, err = srv.outcome(ctx)
	wantCode(t, err, CodeStorage, true, "no room")
	if entries := must(os.ReadDir(path))(t); len(entries) > 0 {
		t.Errorf("%v is left behind", entries)
	}
	plain := serve(t, dev, Receiver{}, DirOptions{})
	_, err = (&Puller{Open: p.Open}).Pull(ctx, dev, plain.addr, FileRequest{RequestFile, "a"})
	wantCode(t, err, CodeUnsupported, true, "no files to pull")
}

// The end of a puller's context ends both sides while the source is opened, and the server serves the next.
func TestPullCancelled(t *testing.T) {
	dev := device(t, iwarp.Config{})
	opening := make(chan struct{}, 1)
	files := shelf{"a": noise(100)}
	srv := serve(t, dev, Receiver{Files: func(ctx context.Context, peer netip.AddrPort, r FileRequest) (Source, io.Closer, error) {
		if r.Path == "slow" {
			opening <- struct{}{}
			<-ctx.Done()
			return Source{}, nil, context.Cause(ctx)
		}
		return files.files(ctx, peer, r)
	}}, DirOptions{})
	p, _ := into(t, DirOptions{})
	ctx, cancel := context.WithCancel(testContext(t))
	go func() {
		<-opening
		cancel()
	}()
	_, err := p.Pull(ctx, dev, srv.addr, FileRequest{RequestFile, "slow"})
	wantCode(t, err, CodeCanceled, false)
	if _, err := srv.outcome(testContext(t)); err == nil || errors.Is(err, context.DeadlineExceeded) { // it waits for Files, and so for the end of its context
		t.Fatalf("the server: %v", err)
	}
	if _, err := p.Pull(testContext(t), dev, srv.addr, FileRequest{RequestFile, "a"}); err != nil {
		t.Error(err)
	}
}

// Pullers and servers that break the rules are refused, and requests of others have no bit of pulls.
func TestBadPulls(t *testing.T) {
	hi := appendHello(nil, hello{pull: true, digest: NoDigest, chunk: minChunk, buffers: 2})
	if hi[5] != offerPull || !must(parseHello(hi))(t).pull {
		t.Errorf("the offers are %#x", hi[5])
	}
	for _, other := range []byte{offerBasic, offerFast, offerStream, 0x80} {
		mixed := bytes.Clone(hi)
		mixed[5] |= other
		if _, err := parseHello(mixed); !errors.Is(err, CodeProtocol) {
			t.Errorf("the offers %#x: %v", mixed[5], err)
		}
	}
	request := func(total, piece int, tail string) fastMessage {
		return fastMessage{kind: fastRequest, number: uint64(total), word: uint32(RequestFile), count: uint32(piece), tail: []byte(tail)}
	}
	full := strings.Repeat("x", requestPiece)
	for name, messages := range map[string][]fastMessage{
		"no path":           {request(0, 0, "")},
		"too long":          {request(MaxRequest+1, 0, full)},
		"short piece":       {request(300, 0, "x")},
		"piece twice":       {request(300, 0, full), request(300, 0, full)},
		"another total":     {request(300, 0, full), request(301, 1, full)},
		"NUL":               {request(1, 0, "\x00")},
		"another operation": {{kind: fastRequest, number: 1, word: 9, tail: []byte("a")}},
		"OPEN":              {{kind: fastOpen, tail: []byte("a")}},
		"request twice":     {request(1, 0, "a"), request(1, 0, "a")},
	} {
		t.Run(name, func(t *testing.T) {
			srv := serve(t, device(t, iwarp.Config{}), Receiver{Files: shelf{"a": noise(10)}.files}, DirOptions{})
			p := dialRaw(t, srv.addr, hi)
			for _, m := range messages {
				p.send(appendFast(nil, m))
			}
			if _, err := srv.outcome(testContext(t)); err == nil || errors.Is(err, CodeTimeout) {
				t.Errorf("got %v", err)
			}
		})
	}
	open, attr := fastMessage{kind: fastOpen, number: 5, tail: []byte("a")}, attrMessage(Meta{})
	for name, messages := range map[string][]fastMessage{
		"OPEN before ATTR": {open},
		"ATTR twice":       {attr, attr},
		"size":             {attr, {kind: fastOpen, number: 1 << 63, tail: []byte("a")}},
		"no name":          {attr, {kind: fastOpen}},
		"CHUNK":            {attr, {kind: fastChunk, length: 5}},
		"chunk too long":   {attr, open, {kind: fastChunk, length: 6}},
	} {
		t.Run("server/"+name, func(t *testing.T) {
			raw := newRaw(t, false)
			raw.private = appendAnswer(nil, answer{protocol: Fast, digest: SHA256, chunk: minChunk, buffers: 2})
			addr, accepted := raw.accept(loopback)
			p, path := into(t, DirOptions{})
			done := make(chan error, 1)
			dev := device(t, iwarp.Config{})
			ctx := testContext(t)
			go func() {
				_, err := p.Pull(ctx, dev, addr, FileRequest{RequestFile, "a"})
				done <- err
			}()
			peer := <-accepted
			peer.fast(fastRequest)
			for _, m := range messages {
				peer.send(appendFast(nil, m))
			}
			if err := <-done; !errors.Is(err, CodeProtocol) && !errors.Is(err, CodeName) {
				t.Errorf("got %v", err)
			}
			if entries := must(os.ReadDir(path))(t); len(entries) > 0 {
				t.Errorf("%v is left behind", entries)
			}
		})
	}
}

// Programs that decode captures see requests to pull, and streams.
func TestDescribePulls(t *testing.T) {
	for _, c := range []struct {
		part Part
		b    []byte
		want string
	}{
		{PartRequest, appendHello(nil, hello{pull: true, digest: SHA256}), "offer [file=0 basic=false fast=false digest=sha256 pull=true]"},
		{PartRequest, appendHello(nil, hello{stream: true, digest: SHA256}), "offer [file=0 basic=false fast=false digest=sha256 stream=true]"},
		{PartFast, appendFast(nil, fastMessage{kind: fastRequest, number: 1, word: uint32(RequestList), tail: []byte("d")}), "REQUEST [operation=list piece=0 path=d]"},
		{PartFast, appendFast(nil, attrMessage(Meta{Mode: 0o644, ModTime: time.Unix(0, 7)})), "ATTR [time=7 mode=420]"},
	} {
		name, fields, err := Describe(c.part, c.b)
		if got := fmt.Sprint(name, " ", fields); err != nil || got != c.want {
			t.Errorf("%s, %v; want %s", got, err, c.want)
		}
	}
}

// startSize keeps the size that a transfer begins with.
type startSize struct{ n *int64 }

func (s startSize) Start(r Result)     { *s.n = r.Size }
func (startSize) Advance(int64)        {}
func (startSize) Finish(Result, error) {}
