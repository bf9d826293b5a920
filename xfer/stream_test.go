package xfer

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net/netip"
	"testing"
	"testing/iotest"
	"time"

	"cinnabar/verbs/iwarp"
)

// pieces is a reader that returns random numbers of bytes.
type pieces struct {
	r io.Reader
	n *rand.Rand
}

func (p pieces) Read(b []byte) (int, error) {
	return p.r.Read(b[:min(len(b), p.n.IntN(30000))]) // 0 bytes now and then
}

// parity: X04
func TestStreams(t *testing.T) {
	ctx := testContext(t)
	dev := device(t, iwarp.Config{})
	srv := serve(t, dev, Receiver{Hashes: nil}, DirOptions{Overwrite: true})
	const chunk = 8 << 10
	for _, size := range []int{0, 1, chunk - 1, chunk, chunk + 1, pumpPart, 3*chunk*4 + 17, 1 << 20} {
		data := noise(size)
		for name, wrap := range map[string]func(io.Reader) io.Reader{
			"plain": func(r io.Reader) io.Reader { return r }, "halves": iotest.HalfReader, "end with data": iotest.DataErrReader,
			"pieces": func(r io.Reader) io.Reader { return pieces{r, rand.New(rand.NewPCG(1, 2))} },
		} {
			for _, d := range []Digest{SHA256, NoDigest} {
				s := Sender{Chunk: chunk, Window: 4, Digest: d}
				res, err := s.Send(ctx, dev, srv.addr, Source{Name: "s", Stream: wrap(bytes.NewReader(data))})
				got, gerr := srv.outcome(ctx)
				if err != nil || gerr != nil || res.Size != int64(size) || got.Size != int64(size) || res.Sum != got.Sum || res.Protocol != Fast {
					t.Errorf("%d bytes, %s, digest %s: %+v, %v; %+v, %v", size, name, d, res, err, got, gerr)
					continue
				}
				srv.wantFile("s", data)
			}
		}
	}
}

// Bytes of a slow source arrive at once, and neither side gives up a source that pauses for longer than its timeout.
func TestStreamPauses(t *testing.T) {
	ctx := testContext(t)
	const timeout = 200 * time.Millisecond
	for _, digest := range []Digest{SHA256, NoDigest} {
		dev := device(t, iwarp.Config{})
		arrived := make(chan int, 16)
		var got bytes.Buffer
		srv := serve(t, dev, Receiver{Timeout: timeout, Open: func(context.Context, netip.AddrPort, string, Meta, int64) (File, error) {
			return tell{&got, arrived}, nil
		}}, DirOptions{})
		r, w := io.Pipe()
		s := Sender{Timeout: timeout, Digest: digest}
		sent := make(chan error, 1)
		go func() {
			_, err := s.Send(ctx, dev, srv.addr, Source{Name: "s", Stream: r})
			sent <- err
		}()
		for range 3 {
			pause := time.NewTimer(3 * timeout)
			select {
			case <-pause.C:
			case err := <-sent:
				t.Fatalf("a pause ended the transfer: %v", err)
			}
			if _, err := w.Write([]byte("line\n")); err != nil {
				t.Fatal(err)
			}
			if n := <-arrived; n != 5 {
				t.Errorf("%d bytes came first", n)
			}
		}
		must(0, w.Close())(t)
		if err := <-sent; err != nil {
			t.Error(err)
		}
		if got.String() != "line\nline\nline\n" {
			t.Errorf("got %q", got.String())
		}
	}
}

// tell is a file that reports the length of each write.
type tell struct {
	b       *bytes.Buffer
	arrived chan<- int
}

func (f tell) WriteAt(b []byte, _ int64) (int, error) {
	f.b.Write(b)
	f.arrived <- len(b)
	return len(b), nil
}
func (tell) Commit() error  { return nil }
func (tell) Discard() error { return nil }

// A source that fails, and one that blocks while the transfer ends for another reason.
func TestStreamsThatFail(t *testing.T) {
	dev := device(t, iwarp.Config{})
	srv := serve(t, dev, Receiver{}, DirOptions{})
	ctx := testContext(t)
	broken := errors.New("the tape is torn")
	_, err := (&Sender{}).Send(ctx, dev, srv.addr, Source{Name: "torn", Stream: io.MultiReader(bytes.NewReader(noise(100_000)), iotest.ErrReader(broken))})
	wantCode(t, err, CodeSource, false, "cannot read at offset 100000", "the tape is torn")
	_, err = srv.outcome(ctx)
	wantCode(t, err, CodeSource, true, "the tape is torn")
	_, err = (&Sender{}).Send(ctx, dev, srv.addr, Source{Name: "idle", Stream: pieces{iotest.ErrReader(nil), rand.New(rand.NewPCG(1, 2))}})
	wantCode(t, err, CodeSource, false, io.ErrNoProgress.Error())
	_, _ = srv.outcome(ctx)

	for _, c := range []struct {
		name string
		end  func(cancel func())
	}{
		{"cancelled", func(cancel func()) { cancel() }},
		{"receiver ends", func(func()) { srv.stop() }}, // the last, because no receiver is there afterwards
	} {
		name, end := c.name, c.end
		r, w := io.Pipe()
		limited, cancel := context.WithCancel(ctx)
		opened := make(chan struct{}, 1)
		s := Sender{Progress: func() Progress { return starts(opened) }}
		sent := make(chan error, 1)
		go func() {
			_, err := s.Send(limited, dev, srv.addr, Source{Name: name, Stream: r})
			sent <- err
		}()
		<-opened
		begun := time.Now()
		end(cancel)
		if err := <-sent; err == nil {
			t.Errorf("%s: the transfer succeeded", name)
		}
		if took := time.Since(begun); took > 10*time.Second {
			t.Errorf("%s: Send waited %v for a read that blocks", name, took)
		}
		cancel()
		must(0, w.Close())(t) // ends the goroutine
		if name == "cancelled" {
			_, _ = srv.outcome(ctx)
		}
	}
	if names := srv.names(); len(names) > 0 {
		t.Errorf("%q are left behind", names)
	}
}

// starts is a Progress that tells its start.
type starts chan<- struct{}

func (s starts) Start(Result)       { s <- struct{}{} }
func (starts) Advance(int64)        {}
func (starts) Finish(Result, error) {}

// What cannot be sent is refused before a connection, and what a receiver does not take by it.
func TestStreamsRefused(t *testing.T) {
	ctx := testContext(t)
	dev := device(t, iwarp.Config{})
	empty := func() io.Reader { return bytes.NewReader(nil) }
	_, err := (&Sender{Protocol: Basic}).Send(ctx, dev, loopback, Source{Name: "s", Stream: empty()})
	wantCode(t, err, CodeUnsupported, false, "a stream needs the fast protocol")
	_, err = (&Sender{}).Send(ctx, dev, loopback, Source{Name: "s", Stream: empty(), Data: bytes.NewReader(nil)})
	wantCode(t, err, CodeSource, false, "both Data and Stream")
	_, err = (&Sender{}).Send(ctx, dev, loopback, Source{Name: "s", Stream: empty(), Choice: &Choice{}})
	wantCode(t, err, CodeSource, false, "both Stream and Choice")
	srv := serve(t, dev, Receiver{Protocol: Basic}, DirOptions{})
	_, err = (&Sender{}).Send(ctx, dev, srv.addr, Source{Name: "s", Stream: empty()})
	wantCode(t, err, CodeUnsupported, true, "offers no protocol that this receiver takes", "store it in a file")
}

// A receiver without streams sees no protocol that it has in the request, and other requests have no bit of streams.
func TestStreamRequest(t *testing.T) {
	b := appendHello(nil, hello{stream: true, digest: SHA256})
	if b[5] != offerStream {
		t.Errorf("the offers are %#x", b[5])
	}
	if h := must(parseHello(b))(t); !h.stream || h.fast || h.basic || h.size != 0 {
		t.Errorf("%+v", h)
	}
	if b := appendHello(nil, hello{basic: true, fast: true}); b[5] != offerBasic|offerFast {
		t.Errorf("the offers are %#x", b[5])
	}
}

// A sender of a stream that breaks the rules is refused.
func TestBadStreams(t *testing.T) {
	const chunk = 4096
	hi := appendHello(nil, hello{stream: true, digest: NoDigest, chunk: chunk, buffers: 2})
	open := fastMessage{kind: fastOpen, tail: []byte("s")}
	for name, c := range map[string]struct {
		messages []fastMessage
		code     Code
		says     string
	}{
		"end of another size":   {[]fastMessage{{kind: fastChunk}, {kind: fastEnd, number: 7}}, CodeProtocol, "says that its stream has 7 bytes, and 0 came"},
		"long chunk":            {[]fastMessage{{kind: fastChunk, length: chunk + 1}}, CodeProtocol, "chunk 0 has 4097 bytes"},
		"wrong sum":             {[]fastMessage{{kind: fastChunk, word: 1}}, CodeCorrupt, "CRC32C"},
		"chunks out of order":   {[]fastMessage{{kind: fastChunk, number: 1}}, CodeProtocol, "out of order"},
		"a message of the peer": {[]fastMessage{{kind: fastCredit, number: 1}}, CodeProtocol, "CREDIT"},
	} {
		t.Run(name, func(t *testing.T) {
			ctx := testContext(t)
			srv := serve(t, device(t, iwarp.Config{}), Receiver{}, DirOptions{})
			p := dialRaw(t, srv.addr, hi)
			p.send(appendFast(nil, open))
			p.fast(fastLayout)
			for _, m := range c.messages {
				p.send(appendFast(nil, m))
			}
			_, err := srv.outcome(ctx)
			wantCode(t, err, c.code, false, c.says)
		})
	}
}
