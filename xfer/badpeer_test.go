package xfer

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"cinnabar/internal/hostquota"
	"cinnabar/verbs"
	"cinnabar/verbs/iwarp"
)

var hostileNames = map[string]string{
	"empty":             "",
	"too long":          strings.Repeat("x", MaxName+1),
	"NUL":               "a\x00b",
	"dot":               ".",
	"dot dot":           "..",
	"absolute":          "/tmp/cinnabar-was-here",
	"parent":            "../cinnabar-was-here",
	"slash":             "a/b",
	"trailing slash":    "a/",
	"newline":           "a\nb",
	"escape":            "a\x1b[2Jb",
	"delete":            "a\x7f",
	"C1 control":        "a\u009b2J",
	"reversed":          "a\u202egpj.exe",
	"not UTF-8":         "a\xff",
	"half a character":  "a\xc3",
	"backslash":         `..\x`,
	"two NULs":          "a\x00\x00",
	"incomplete file's": tempPrefix + "0011223344556677" + tempSuffix,
}

// parity: B40
func TestCheckName(t *testing.T) {
	for what, name := range hostileNames {
		if err := CheckName(name); !errors.Is(err, CodeName) {
			t.Errorf("%s: got %v", what, err)
		}
	}
	for _, name := range []string{"a", "test-file", "...", " ", "..a", strings.Repeat("x", MaxName), "ä", "ﬁle 👩\u200d🚀", "-rf", ".part", tempPrefix} {
		if err := CheckName(name); err != nil {
			t.Errorf("%q: %v", name, err)
		}
	}
}

// Every hostile name is refused over the wire, whatever the protocol; a client
// of ours is told why; nothing outside the directory comes into being; the
// server serves the next.
// parity: B40
func TestHostileNames(t *testing.T) {
	ctx := testContext(t)
	srv := serve(t, device(t, iwarp.Config{}), Receiver{}, DirOptions{})
	outside := filepath.Join(filepath.Dir(srv.path), "cinnabar-was-here")
	hi := appendHello(nil, hello{basic: true, imm: true, digest: NoDigest})
	fastHi := appendHello(nil, hello{fast: true, digest: NoDigest})
	for what, name := range hostileNames {
		p := dialRaw(t, srv.addr, nil) // as the paper's client
		p.writeImm(p.basic(basicMR).remote, cString(name), uint32(len(name)+1))
		p.ends()
		_, err := srv.outcome(ctx)
		wantCode(t, err, CodeName, false)

		p = dialRaw(t, srv.addr, hi)
		p.writeImm(p.basic(basicMR).remote, cString(name), uint32(len(name)+1))
		if v := p.basic(basicFailed).why; v.code != CodeName || v.text == "" {
			t.Errorf("%s: refused with %+v", what, v)
		}
		p.leave()
		_, err = srv.outcome(ctx)
		wantCode(t, err, CodeName, false)

		if len(name) <= 256 { // a message has room for no more
			p = dialRaw(t, srv.addr, fastHi)
			p.send(appendFast(nil, fastMessage{kind: fastOpen, tail: []byte(name)}))
			if v, n := parseErrorMessage(p.fast(fastFailed).tail); n < 0 || v.code != CodeName {
				t.Errorf("%s: refused with %+v", what, v)
			}
			p.leave()
			_, err = srv.outcome(ctx)
			wantCode(t, err, CodeName, false)
		}
	}
	if names := srv.names(); len(names) > 0 {
		t.Errorf("the directory has %q", names)
	}
	if _, err := os.Lstat(outside); err == nil {
		t.Errorf("%s has come into being", outside)
	}
	for _, name := range []string{strings.Repeat("n", MaxName), "-rf", "a b"} {
		if _, err := (&Sender{}).Send(ctx, device(t, iwarp.Config{}), srv.addr, sourceOf(name, []byte("x"))); err != nil {
			t.Error(err)
		}
		srv.wantFile(name, []byte("x"))
	}
}

// A name that the protocol cannot carry is refused before anything is sent.
func TestSenderRefuses(t *testing.T) {
	ctx := testContext(t)
	dev := device(t, iwarp.Config{})
	nobody := netip.MustParseAddrPort("127.0.0.1:1")
	for want, c := range map[string]struct {
		s    Sender
		src  Source
		code Code
	}{
		"name is empty":              {Sender{}, sourceOf("", nil), CodeName},
		"256 bytes, the most is 255": {Sender{}, sourceOf(strings.Repeat("x", 256), nil), CodeName},
		"NUL inside":                 {Sender{}, sourceOf("a\x00", nil), CodeName},
		"size is -1":                 {Sender{}, Source{Name: "f", Size: -1}, CodeSource},
		"4096 to 1073741824 bytes":   {Sender{Chunk: 4095}, sourceOf("f", nil), CodeTooLarge},
		"timeout is -1s":             {Sender{Timeout: -time.Second}, sourceOf("f", nil), CodeOther},
		"1 to 1024 buffers":          {Sender{Window: 1025}, sourceOf("f", nil), CodeTooLarge},
		"protocol 9 does not exist":  {Sender{Protocol: 9}, sourceOf("f", nil), CodeUnsupported},
	} {
		_, err := c.s.Send(ctx, dev, nobody, c.src)
		wantCode(t, err, c.code, false, want)
	}
	_, err := (&Sender{}).Send(ctx, dev, nobody, sourceOf("f", nil))
	wantCode(t, err, CodeLost, false, "cannot connect to 127.0.0.1:1: connect: ", "refused")
}

// A client that does something wrong, at each step and in each form, is ended
// with words where it understands them, and the server serves the next.
// parity: B41 B43 Y09
func TestBadClients(t *testing.T) {
	ctx := testContext(t)
	srv := serve(t, device(t, iwarp.Config{}), Receiver{MaxChunk: 8 << 10}, DirOptions{})
	noImm := serve(t, device(t, iwarp.Config{NoImmediates: true}), Receiver{MaxChunk: 8 << 10}, DirOptions{})
	basicHi := hello{basic: true, imm: true, digest: NoDigest, size: 10}
	fastHi := hello{fast: true, digest: NoDigest, size: 3 * minChunk, chunk: minChunk, buffers: 2}
	open := func(p *rawPeer) verbs.RemoteAddr {
		p.send(appendFast(nil, fastMessage{kind: fastOpen, tail: []byte("f")}))
		m := p.fast(fastLayout)
		return verbs.RemoteAddr{Addr: m.number, RKey: m.word}
	}
	chunk := func(index uint64, n int, data []byte) []byte {
		return appendFast(nil, fastMessage{kind: fastChunk, number: index, length: uint32(n), word: crcOf(data)})
	}
	named := func(p *rawPeer) verbs.RemoteAddr {
		to := p.basic(basicMR).remote
		p.writeImm(to, cString("f"), 2)
		p.basic(basicReady)
		return to
	}
	for _, c := range []badClient{
		{"leaves at once", srv, nil, func(p *rawPeer) { p.leave() }, CodeLost, "the file name"},
		{"vanishes at once", srv, nil, func(p *rawPeer) { _ = p.qp.Close() }, CodeLost, ""},
		{"leaves after the region", srv, nil, func(p *rawPeer) { p.basic(basicMR); p.leave() }, CodeLost, "the file name"},
		{"leaves after the name", srv, nil, func(p *rawPeer) { named(p); p.leave() }, CodeLost, "a chunk"},
		{"leaves after a chunk", srv, nil, func(p *rawPeer) { p.writeImm(named(p), []byte("x"), 1); p.leave() }, CodeLost, ""},
		{"immediate beyond the paper's buffer", srv, nil, func(p *rawPeer) { p.writeImm(named(p), nil, basicChunk+1) }, CodeProtocol, "10485761 bytes are announced, but the buffer has 10485760"},
		{"immediate beyond the buffer", srv, &basicHi, func(p *rawPeer) { p.writeImm(named(p), nil, 8<<10+1) }, CodeProtocol, "8193 bytes are announced"},
		{"immediate of 4 GiB - 2 as name", srv, &basicHi, func(p *rawPeer) { p.writeImm(p.basic(basicMR).remote, nil, 1<<32-2) }, CodeProtocol, "4294967294"},
		{"more than announced", srv, &basicHi, func(p *rawPeer) { p.writeImm(named(p), nil, 11) }, CodeProtocol, "said to have 10"},
		{"less than announced", srv, &basicHi, func(p *rawPeer) { p.writeImm(named(p), nil, 0) }, CodeChanged, "0 bytes came of the 10"},
		{"gives up", srv, &basicHi, func(p *rawPeer) {
			p.writeImm(named(p), appendErrorMessage(nil, errorMessage{CodeSource, "disk on fire"}, 100), sizeAbort)
		}, CodeSource, "the peer says: cannot read the source: disk on fire"},
		{"gives up without words", srv, &basicHi, func(p *rawPeer) {
			p.writeImm(named(p), []byte{0, 0, 255, 255}, sizeAbort)
		}, CodeProtocol, "no reason that makes sense"},
		{"message for immediate", srv, &basicHi, func(p *rawPeer) { p.basic(basicMR); p.send(nil) }, CodeProtocol, "0 bytes came where the size"},
		{"long message into no memory", srv, &basicHi, func(p *rawPeer) { p.basic(basicMR); p.send([]byte("hello")) }, CodeLost, ""},
		{"two chunks at once", srv, &basicHi, func(p *rawPeer) {
			to := named(p)
			p.writeImm(to, nil, 5)
			p.writeImm(to, nil, 5)
			p.writeImm(to, nil, 5)
		}, CodeProtocol, ""},
		{"not the size", noImm, &basicHi, func(p *rawPeer) { p.send(nil); p.basic(basicMR); p.send([]byte("hello")) }, CodeProtocol, "5 bytes"},
		{"size beyond the buffer", noImm, &basicHi, func(p *rawPeer) { p.send(nil); p.basic(basicMR); p.send(size4(8<<10 + 1)) }, CodeProtocol, "8193"},
		{"private data cut", srv, &hello{}, nil, CodeProtocol, "private data has 4 bytes"},
		{"fast: leaves", srv, &fastHi, func(p *rawPeer) { p.leave() }, CodeLost, "the file name"},
		{"fast: leaves after the layout", srv, &fastHi, func(p *rawPeer) { open(p); p.leave() }, CodeLost, "chunks"},
		{"fast: vanishes after a chunk", srv, &fastHi, func(p *rawPeer) {
			p.write(open(p), make([]byte, minChunk))
			_ = p.qp.Close()
		}, CodeLost, ""},
		{"fast: garbage", srv, &fastHi, func(p *rawPeer) { p.send([]byte("hello")) }, CodeProtocol, "5 bytes that makes no sense"},
		{"fast: too long a message", srv, &fastHi, func(p *rawPeer) { p.send(make([]byte, maxMessage+1)) }, CodeLost, ""},
		{"fast: chunk before the name", srv, &fastHi, func(p *rawPeer) { p.send(chunk(0, minChunk, nil)) }, CodeProtocol, "the client sent CHUNK"},
		{"fast: damaged chunk", srv, &fastHi, func(p *rawPeer) {
			p.write(open(p), make([]byte, minChunk))
			p.send(chunk(0, minChunk, []byte("other")))
		}, CodeCorrupt, "the chunk at offset 0 has CRC32C"},
		{"fast: too much credit taken", srv, &fastHi, func(p *rawPeer) { open(p); p.send(chunk(2, minChunk, nil)) }, CodeProtocol, "chunk: number 2 is out of order: 0 is next"},
		{"fast: end too soon", srv, &fastHi, func(p *rawPeer) {
			open(p)
			p.send(appendFast(nil, fastMessage{kind: fastEnd, number: 3 * minChunk}))
		}, CodeChanged, "of which 0 came"},
		{"fast: write beyond the buffers", srv, &fastHi, func(p *rawPeer) {
			to := open(p)
			to.Addr += 2 * minChunk
			p.write(to, []byte("x"))
		}, CodeLost, ""},
		{"fast: write with a wrong key", srv, &fastHi, func(p *rawPeer) {
			to := open(p)
			to.RKey++
			p.write(to, []byte("x"))
		}, CodeLost, ""},
		{"fast: gives up", srv, &fastHi, func(p *rawPeer) {
			open(p)
			p.send(appendFast(nil, fastMessage{kind: fastFailed, tail: appendErrorMessage(nil, errorMessage{CodeCanceled, "no time"}, 100)}))
		}, CodeCanceled, "the peer says: cancelled: no time"},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.try(ctx, t)
			var s Sender
			if _, err := s.Send(ctx, device(t, iwarp.Config{}), c.srv.addr, sourceOf("next", []byte("next"))); err != nil {
				t.Fatalf("the next client: %v", err)
			}
			if _, err := c.srv.outcome(ctx); err != nil {
				t.Errorf("the next client: %v", err)
			}
			if names := c.srv.names(); len(names) != 1 || names[0] != "next" {
				t.Errorf("the directory has %q", names)
			}
			if err := os.Remove(filepath.Join(c.srv.path, "next")); err != nil {
				t.Error(err)
			}
		})
	}
}

// badClient does something wrong.
type badClient struct {
	name string
	srv  *server
	hi   *hello // nil: no private data
	do   func(p *rawPeer)
	code Code // of the server's error
	want string
}

func (c *badClient) try(ctx context.Context, t *testing.T) {
	t.Helper()
	c.srv.t = t
	if c.do == nil {
		p := newRaw(t, false)
		_, err := verbs.Dial(p.ctx, p.qp, c.srv.addr, verbs.ConnParam{PrivateData: []byte(helloMagic)})
		if rejected, ok := errors.AsType[*verbs.RejectedError](err); !ok || len(rejected.PrivateData) < refusalLen {
			t.Errorf("got %v, want a rejection with a reason", err)
		}
	} else {
		var private []byte
		if c.hi != nil {
			private = appendHello(nil, *c.hi)
		}
		p := dialRaw(t, c.srv.addr, private)
		c.do(p)
		if p.qp.State() != verbs.StateReset { // not closed
			p.ends()
		}
	}
	_, err := c.srv.outcome(ctx)
	e, ok := errors.AsType[*Error](err)
	if !ok || e.Code != c.code {
		t.Errorf("got %v, want code %q", err, c.code)
		return
	}
	wantText(t, err.Error(), c.want)
}

// crcOf is the checksum of a chunk.
func crcOf(b []byte) uint32 { return crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)) }

// A client that connects and is silent, in each protocol, is given up after the
// timeout.
// parity: B41
func TestSilentClient(t *testing.T) {
	ctx := testContext(t)
	srv := serve(t, device(t, iwarp.Config{}), Receiver{Timeout: 400 * time.Millisecond}, DirOptions{})
	for what, private := range map[string][]byte{
		"the file name": nil, "the client's first message": appendHello(nil, hello{basic: true}), "the file name ": appendHello(nil, hello{fast: true}),
	} {
		p := dialRaw(t, srv.addr, private)
		_, err := srv.outcome(ctx)
		wantCode(t, err, CodeTimeout, false, "nothing has moved for 400ms", strings.TrimSpace(what))
		p.ends()
	}
}

// Beyond MaxConnections a sender is refused with the reason, and no other sender is hurt.
func TestBusy(t *testing.T) {
	ctx := testContext(t)
	srv := serve(t, device(t, iwarp.Config{}), Receiver{MaxConnections: 1}, DirOptions{})
	p := dialRaw(t, srv.addr, appendHello(nil, hello{fast: true, chunk: minChunk, buffers: 1, size: 1 << 20}))
	p.send(appendFast(nil, fastMessage{kind: fastOpen, tail: []byte("g")}))
	p.fast(fastLayout)
	dev := device(t, iwarp.Config{})
	_, err := (&Sender{}).Send(ctx, dev, srv.addr, sourceOf("f", nil))
	wantCode(t, err, CodeBusy, true, "1 of 1 connections are in use by all hosts")
	if strings.Contains(err.Error(), "again") { // the command adds what to do
		t.Errorf("the error has a remedy already: %v", err)
	}
	_, err = srv.outcome(ctx)
	wantCode(t, err, CodeBusy, false)
	p.leave()
	_, err = srv.outcome(ctx)
	wantCode(t, err, CodeLost, false)
	for { // because the server frees the place soon after it has reported the end
		_, err := (&Sender{}).Send(ctx, dev, srv.addr, sourceOf("f", nil))
		if errors.Is(err, CodeBusy) {
			continue
		}
		if err != nil {
			t.Error(err)
		}
		break
	}
}

// Fifty clients at once, of both protocols, with a name each and buffers that do
// not fit into memory together.
// parity: B42
func TestManyClients(t *testing.T) {
	const clients = 50
	ctx := testContext(t)
	srv := serve(t, device(t, iwarp.Config{}), Receiver{MaxMemory: 4 << 20, MaxConnections: 2 * clients}, DirOptions{}) // one host gets 9 in 16 places
	dev := device(t, iwarp.Config{})
	data := noise(300<<10 + clients)
	errs := make([]error, clients)
	var wg sync.WaitGroup
	for i := range clients {
		wg.Go(func() {
			s := Sender{Protocol: Protocol(1 + i%2), Chunk: 64 << 10, Window: 4}
			_, errs[i] = s.Send(ctx, dev, srv.addr, sourceOf(fmt.Sprintf("file-%d", i), data[:300<<10+i]))
		})
	}
	wg.Wait()
	for i, err := range errs {
		if err != nil {
			t.Errorf("client %d: %v", i, err)
			continue
		}
		srv.wantFile(fmt.Sprintf("file-%d", i), data[:300<<10+i])
	}
}

// parity: B41
func TestBudget(t *testing.T) {
	h := &host{}
	h.divide(128<<10, 8) // each place has 4 KiB, one transfer 32 KiB at most, one host 54 KiB of the common 96
	near, far := h.book.Account(hostNumber(1)), h.book.Account(hostNumber(2))
	for i, c := range []struct {
		account                                            *hostquota.Account
		buffers, chunk, least, wantBuffers, wantChunk, own int
	}{
		{near, 8, 1 << 20, minChunk, 1, 32 << 10, 28 << 10},
		{near, 4, 8 << 10, minChunk, 2, 8 << 10, 40 << 10},
		{near, 1, 10 << 20, 10 << 20, 0, 0, 40 << 10}, // a program of the paper
		{near, 4, 16 << 10, minChunk, 1, 16 << 10, 52 << 10},
		{near, 4, 16 << 10, minChunk, 1, 4 << 10, 52 << 10}, // the place's own
		{far, 4, 16 << 10, minChunk, 1, 16 << 10, 12 << 10},
		{far, 1, 40 << 10, 40 << 10, 0, 0, 12 << 10},
	} {
		buffers, chunk, counted := h.take(c.account, c.buffers, c.chunk, c.least)
		if own := c.account.Used(hostquota.Memory); buffers != c.wantBuffers || chunk != c.wantChunk || own != int64(c.own) || counted > own {
			t.Errorf("%d: got %d buffers of %d, %d counted, %d in all", i, buffers, chunk, counted, own)
		}
	}
	h.divide(128<<10, 1) // a receiver of one file gives it all
	if buffers, chunk, counted := h.take(h.book.Account(hostNumber(1)), 16, 8<<10, minChunk); buffers != 16 || chunk != 8<<10 || counted != 0 {
		t.Errorf("got %d buffers of %d, %d counted", buffers, chunk, counted)
	}
}

func TestReceiverLimits(t *testing.T) {
	r := Receiver{Open: (&Dir{}).Open, MaxMemory: 8 << 10, MaxConnections: 3}
	if connections, memory := r.Limits(); connections != 3 || memory != 8<<10 {
		t.Errorf("limits are %d and %d", connections, memory)
	}
	dev := device(t, iwarp.Config{})
	l := must(verbs.Listen(dev, loopback))(t)
	wantCode(t, r.Serve(t.Context(), l), CodeTooLarge, false, "MaxMemory of 8192 bytes is too little for 3 transfers")
	r = Receiver{Open: (&Dir{}).Open, Timeout: -1}
	wantCode(t, r.Serve(t.Context(), l), CodeOther, false, "Receiver.Timeout is -1ns")
	for _, n := range []int{-1, 1<<20 + 1} {
		r = Receiver{Open: (&Dir{}).Open, MaxConnections: n}
		wantCode(t, r.Serve(t.Context(), l), CodeTooLarge, false, "MaxConnections is ")
	}
	if connections, memory := new(Receiver).Limits(); connections < 1 || connections > mostConnections ||
		memory < int64(connections)*minChunk || memory > mostMemory {
		t.Errorf("defaults are %d and %d", connections, memory)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
}
