package xfer

import (
	"bytes"
	"context"
	"crypto/md5"
	"crypto/sha256"
	"errors"
	"hash"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"unicode"
	"unicode/utf8"

	"cinnabar/verbs"
	"cinnabar/verbs/iwarp"
)

// double is a digest that the package does not have.
const double Digest = "double"

// doubles has the constructor of double, the SHA-256 of all bytes with one more bit.
var doubles = Hashes{double: func() hash.Hash { return doubleHash{sha256.New()} }}

type doubleHash struct{ hash.Hash }

func (d doubleHash) Sum(b []byte) []byte {
	sum := d.Hash.Sum(b)
	sum[len(b)] ^= 1
	return sum
}

// sumOf returns the sum of data by double.
func sumOf(data []byte) [SumLen]byte {
	sum := sha256.Sum256(data)
	sum[0] ^= 1
	return sum
}

// Both sides compare files by a digest that the program has brought, and the results have its name and sum.
// parity: B51
func TestDigestByName(t *testing.T) {
	ctx := testContext(t)
	srv := serve(t, device(t, iwarp.Config{}), Receiver{Hashes: doubles}, DirOptions{Overwrite: true})
	s := Sender{Digest: double, Hashes: doubles, Chunk: minChunk}
	dev := device(t, iwarp.Config{})
	for _, size := range []int{0, 1, minChunk, 20*minChunk + 1} {
		data := noise(size)
		res, err := s.Send(ctx, dev, srv.addr, sourceOf("f", data))
		got, rerr := srv.outcome(ctx)
		if err != nil || rerr != nil {
			t.Fatal(err, rerr)
		}
		for side, r := range map[string]Result{"sender": res, "receiver": got} {
			if r.Digest != double || r.Sum != sumOf(data) || r.Protocol != Fast {
				t.Errorf("%d bytes, %s: %v %x by %v", size, side, r.Digest, r.Sum, r.Protocol)
			}
		}
		srv.wantFile("f", data)
	}
}

// A digest that one side does not have, or does not take, is refused with its name before the receiver makes a file.
// parity: B51
func TestDigestRefused(t *testing.T) {
	ctx := testContext(t)
	dev := device(t, iwarp.Config{})
	for name, c := range map[string]struct {
		r    Receiver
		s    Sender
		want []string
	}{
		"not known":         {Receiver{}, Sender{Digest: double, Hashes: doubles}, []string{`digest "double" is not known here; this receiver has sha256, none`, "insists on digest double", "use sha256"}},
		"known by others":   {Receiver{Hashes: Hashes{"other": sha256.New}}, Sender{Digest: double, Hashes: doubles}, []string{"this receiver has other, sha256, none"}},
		"not taken":         {Receiver{Digest: SHA256, Hashes: doubles}, Sender{Digest: double, Hashes: doubles}, []string{"takes digest sha256 only", "asks for double"}},
		"another is wanted": {Receiver{Digest: double, Hashes: doubles}, Sender{}, []string{"takes digest double only", "asks for sha256"}},
		"none is offered":   {Receiver{Digest: SHA256}, Sender{Digest: NoDigest}, []string{"takes digest sha256 only", "asks for none"}},
		"basic":             {Receiver{Digest: SHA256}, Sender{Protocol: Basic}, []string{"takes digest sha256 only", "basic protocol"}},
		"basic receiver":    {Receiver{Protocol: Basic, Hashes: doubles}, Sender{Digest: double, Hashes: doubles}, []string{"no protocol that this receiver takes (basic)"}},
	} {
		t.Run(name, func(t *testing.T) {
			c.r.Open = func(context.Context, netip.AddrPort, string, Meta, int64) (File, error) {
				t.Error("a file was made")
				return nil, errors.New("no")
			}
			srv := serve(t, device(t, iwarp.Config{}), c.r, DirOptions{})
			_, err := c.s.Send(ctx, dev, srv.addr, sourceOf("f", noise(10)))
			wantCode(t, err, CodeUnsupported, true, c.want...)
			_, err = srv.outcome(ctx)
			wantCode(t, err, CodeUnsupported, false)
		})
	}
}

// A receiver that requires a digest takes no file of the paper's program, which has none.
// parity: B51
func TestDigestAndPaper(t *testing.T) {
	ctx := testContext(t)
	srv := serve(t, device(t, iwarp.Config{}), Receiver{Digest: SHA256}, DirOptions{})
	p := newRaw(t, true)
	if _, err := verbs.Dial(ctx, p.qp, srv.addr, verbs.ConnParam{}); err == nil {
		t.Error("the paper's program was accepted")
	}
	_, err := srv.outcome(ctx)
	wantCode(t, err, CodeUnsupported, false, "takes digest sha256 only", "paper's program")
}

// Receivers of before refuse the number of a digest by name, and the sender's error adds the name. A receiver without private data
// is the paper's program, which has no digest, so the sender sends nothing.
// parity: B51
func TestDigestAndOldReceivers(t *testing.T) {
	ctx := testContext(t)
	dev := device(t, iwarp.Config{})
	s := Sender{Digest: double, Hashes: doubles}
	l := must(verbs.Listen(device(t, iwarp.Config{}), loopback))(t)
	sent := make(chan error, 1)
	go func() {
		_, err := s.Send(ctx, dev, l.Addr(), sourceOf("f", noise(10)))
		sent <- err
	}()
	req := must(l.Accept(ctx))(t)
	if err := req.Reject(appendRefusal(nil, errorMessage{code: CodeUnsupported, text: "digest 2 is not known here"}, maxRefusal)); err != nil {
		t.Error(err)
	}
	wantCode(t, <-sent, CodeUnsupported, true, "digest 2 is not known here", "digest double", "use sha256")
	if err := l.Close(); err != nil {
		t.Error(err)
	}

	addr, accepted := acceptRaw(t, false)
	_, err := s.Send(ctx, dev, addr, sourceOf("f", noise(10)))
	wantCode(t, err, CodeUnsupported, false, "basic protocol only", "digest double")
	p := <-accepted
	p.ends()
}

// Two programs that mean different functions by one name store no file.
// parity: B51
func TestDigestDiffers(t *testing.T) {
	ctx := testContext(t)
	srv := serve(t, device(t, iwarp.Config{}), Receiver{Hashes: Hashes{double: sha256.New}}, DirOptions{})
	_, err := (&Sender{Digest: double, Hashes: doubles}).Send(ctx, device(t, iwarp.Config{}), srv.addr, sourceOf("f", noise(10)))
	wantCode(t, err, CodeCorrupt, true, "digest double is")
	_, err = srv.outcome(ctx)
	wantCode(t, err, CodeCorrupt, false, "digest double is")
	if names := srv.names(); len(names) > 0 {
		t.Errorf("files %q are left", names)
	}
}

// Settings that can never work fail before anything is connected.
// parity: B51
func TestDigestSettings(t *testing.T) {
	ctx := testContext(t)
	dev := device(t, iwarp.Config{})
	l := must(verbs.Listen(dev, loopback))(t)
	for want, c := range map[string]struct {
		digest   Digest
		protocol Protocol
		hashes   Hashes
	}{
		`digest "double" is not known here; this `: {double, Auto, nil},
		"has no constructor":                       {double, Auto, Hashes{double: nil}},
		"its constructor returns nil":              {double, Auto, Hashes{double: func() hash.Hash { return nil }}},
		"have 16 bytes; 32 are needed":             {double, Auto, Hashes{double: md5.New}},
		`"sha256" is that of a digest`:             {SHA256, Auto, Hashes{SHA256: sha256.New}},
		`"none" is that of a digest`:               {SHA256, Auto, Hashes{NoDigest: sha256.New}},
		"has 0 bytes; 1 to 16":                     {SHA256, Auto, Hashes{"": sha256.New}},
		"has 17 bytes; 1 to 16":                    {SHA256, Auto, Hashes{Digest(strings.Repeat("x", 17)): sha256.New}},
		`"a\x1b[2J" of a digest has characters`:    {SHA256, Auto, Hashes{"a\x1b[2J": sha256.New}},
		`"Blake" of a digest has characters`:       {SHA256, Auto, Hashes{"Blake": sha256.New}},
		"basic protocol has no digest":             {double, Basic, doubles},
	} {
		_, err := (&Sender{Digest: c.digest, Protocol: c.protocol, Hashes: c.hashes}).Send(ctx, dev, l.Addr(), sourceOf("f", nil))
		wantCode(t, err, CodeUnsupported, false, want)
		_, err = (&Receiver{Open: func(context.Context, netip.AddrPort, string, Meta, int64) (File, error) { return nil, nil }, Digest: c.digest, Protocol: c.protocol, Hashes: c.hashes}).ServeOne(ctx, l)
		wantCode(t, err, CodeUnsupported, false, want)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
}

// The names of digests cross behind the fields of before, and what a peer says about them is checked.
// parity: B51
func TestDigestOnTheWire(t *testing.T) {
	hi := hello{fast: true, digest: "blake3", size: 25 << 20}
	b := unhex(t, "636e7866 01 02 00 02 00000000 0000 0000 0000900100000000 0000000000000000 00000000 06000000 626c616b6533")
	if enc := appendHello(nil, hi); !bytes.Equal(enc, b) {
		t.Errorf("encoded % x, want % x", enc, b)
	}
	if got, err := parseHello(b); err != nil || got != hi {
		t.Errorf("got %+v, %v", got, err)
	}
	if n := len(appendHello(nil, hello{digest: Digest(strings.Repeat("x", MaxDigestLen))})); n > 56 {
		t.Errorf("%d bytes are more than rdma_cm carries over InfiniBand", n)
	}
	want := answer{protocol: Fast, digest: "blake3", chunk: 10 << 20, buffers: 1}
	a := unhex(t, "636e7866 01 02 00 02 0000a000 0100 0600 626c616b6533")
	if enc := appendAnswer(nil, want); !bytes.Equal(enc, a) {
		t.Errorf("encoded % x, want % x", enc, a)
	}
	if got, err := parseAnswer(a); err != nil || got != want {
		t.Errorf("got %+v, %v", got, err)
	}
	for name, change := range map[string]struct {
		code  Code
		apply func(b []byte, length, name int) []byte
	}{
		"kind 3":           {CodeUnsupported, func(b []byte, _, _ int) []byte { b[7] = 3; return b }},
		"length 0":         {CodeProtocol, func(b []byte, length, _ int) []byte { b[length] = 0; return b }},
		"length 17":        {CodeProtocol, func(b []byte, length, _ int) []byte { b[length] = 17; return append(b, make([]byte, 20)...) }},
		"length 255":       {CodeProtocol, func(b []byte, length, _ int) []byte { b[length] = 255; return append(b, make([]byte, 300)...) }},
		"beyond the end":   {CodeProtocol, func(b []byte, _, _ int) []byte { return b[:len(b)-1] }},
		"no name":          {CodeProtocol, func(b []byte, _, name int) []byte { return b[:name] }},
		"control":          {CodeProtocol, func(b []byte, _, name int) []byte { b[name] = 0x1b; return b }},
		"NUL":              {CodeProtocol, func(b []byte, _, name int) []byte { b[name+5] = 0; return b }},
		"upper case":       {CodeProtocol, func(b []byte, _, name int) []byte { b[name] = 'B'; return b }},
		"not UTF-8":        {CodeProtocol, func(b []byte, _, name int) []byte { b[name] = 0xff; return b }},
		"number by name":   {CodeProtocol, func(b []byte, _, name int) []byte { copy(b[name:], "sha256"); return b }},
		"number by name 2": {CodeProtocol, func(b []byte, length, name int) []byte { b[length] = 4; copy(b[name:], "none"); return b }},
	} {
		_, err := parseHello(change.apply(bytes.Clone(b), 36, helloLen))
		if !errors.Is(err, change.code) || !isPlain(err.Error()) {
			t.Errorf("request, %s: got %q", name, err)
		}
		_, err = parseAnswer(change.apply(bytes.Clone(a), 14, answerLen))
		if !errors.Is(err, change.code) || !isPlain(err.Error()) {
			t.Errorf("answer, %s: got %q", name, err)
		}
	}
}

// A list of many digests does not make an error text long, because the text has to fit into a refusal.
func TestDigestsInErrors(t *testing.T) {
	many := Hashes{}
	for c := 'a'; c <= 'z'; c++ {
		many[Digest(strings.Repeat(string(c), MaxDigestLen))] = sha256.New
	}
	text := many.unknown(Digest(strings.Repeat("0", MaxDigestLen)), "receiver").Error()
	if room := maxRefusal - refusalLen - errorMessageLen; len(text) > room || !strings.HasSuffix(text, "...") {
		t.Errorf("%q has %d bytes, %d have room", text, len(text), room)
	}
}

// gate is a digest whose first Write waits.
type gate struct {
	began   chan struct{} // closed by the first Write
	release chan struct{} // ends its wait
	once    sync.Once
}

func newGate() *gate { return &gate{began: make(chan struct{}), release: make(chan struct{})} }

func (g *gate) hashes() Hashes {
	return Hashes{double: func() hash.Hash { return &gatedHash{doubles[double](), g} }}
}

type gatedHash struct {
	hash.Hash
	gate *gate
}

func (h *gatedHash) Write(b []byte) (int, error) {
	h.gate.once.Do(func() {
		close(h.gate.began)
		<-h.gate.release
	})
	return h.Hash.Write(b)
}

// While one side hashes, that side gives up. Both sides end with the reason, and no file is left.
// parity: B51
func TestGiveUpWhileHashing(t *testing.T) {
	for _, side := range []string{"sender", "receiver"} {
		t.Run(side, func(t *testing.T) {
			ctx, cancel := context.WithCancel(testContext(t))
			defer cancel()
			g := newGate()
			r, s := Receiver{Hashes: doubles}, Sender{Digest: double, Hashes: doubles, Chunk: minChunk, Window: 2}
			if side == "sender" {
				s.Hashes = g.hashes()
			} else {
				r.Hashes = g.hashes()
			}
			srv := serve(t, device(t, iwarp.Config{}), r, DirOptions{})
			dev := device(t, iwarp.Config{})
			sent := make(chan error, 1)
			go func() {
				_, err := s.Send(ctx, dev, srv.addr, sourceOf("f", noise(40*minChunk)))
				sent <- err
			}()
			<-g.began
			// The side that gives up sends the reason at once, and returns when its hash does.
			var serr, rerr error
			if side == "sender" {
				cancel()
				_, rerr = srv.outcome(testContext(t))
				close(g.release)
				serr = <-sent
			} else {
				srv.cancel()
				serr = <-sent
				close(g.release)
				_, rerr = srv.outcome(testContext(t))
			}
			wantCode(t, serr, CodeCanceled, side == "receiver")
			wantCode(t, rerr, CodeCanceled, side == "sender")
			if names := srv.names(); len(names) > 0 {
				t.Errorf("files %q are left", names)
			}
		})
	}
}

// The receiver's connection ends while the sender hashes.
// parity: B51
func TestPeerDiesWhileHashing(t *testing.T) {
	ctx := testContext(t)
	p := newRaw(t, false)
	l := must(verbs.Listen(p.dev, loopback))(t)
	g := newGate()
	dev := device(t, iwarp.Config{})
	sent := make(chan error, 1)
	go func() {
		s := Sender{Digest: double, Hashes: g.hashes(), Chunk: minChunk, Window: 1}
		_, err := s.Send(ctx, dev, l.Addr(), sourceOf("f", noise(2*minChunk)))
		sent <- err
	}()
	req := must(l.Accept(ctx))(t)
	p.conn = must(req.Accept(ctx, p.qp, verbs.ConnParam{PrivateData: appendAnswer(nil, answer{protocol: Fast, digest: double, chunk: minChunk, buffers: 1})}))(t)
	p.fast(fastOpen)
	region := p.region()
	p.send(appendFast(nil, fastMessage{kind: fastLayout, length: minChunk, number: region.Addr, word: region.RKey, count: 1}))
	<-g.began
	p.leave()
	close(g.release)
	wantCode(t, <-sent, CodeLost, false)
	if err := l.Close(); err != nil {
		t.Error(err)
	}
}

// isPlain reports whether s is text without control characters.
func isPlain(s string) bool {
	return utf8.ValidString(s) && !strings.ContainsFunc(s, unicode.IsControl)
}
