package xfer

import (
	"bytes"
	"encoding/hex"
	"io/fs"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"cinnabar/verbs"
)

// unhex decodes hexadecimal digits with blanks between.
func unhex(t testing.TB, s string) []byte {
	t.Helper()
	return must(hex.DecodeString(strings.NewReplacer(" ", "", "\n", "").Replace(s)))(t)
}

// The first is as the paper's C program on x86 put it on the wire of an InfiniBand
// emulation (its padding happened to be zero); the others follow its layout.
var goldenBasic = map[string]basicMessage{
	"01000000 00000000 0010d002947f0000 9f020000 00000000":  {id: basicMR, remote: verbs.RemoteAddr{Addr: 0x7f9402d01000, RKey: 0x29f}},
	"02000000 00000000 0010d002947f0000 9f020000 00000000":  {id: basicReady, remote: verbs.RemoteAddr{Addr: 0x7f9402d01000, RKey: 0x29f}},
	"03000000 00000000 0010d002947f0000 9f020000 00000000":  {id: basicDone, remote: verbs.RemoteAddr{Addr: 0x7f9402d01000, RKey: 0x29f}},
	"04000000 00000000 0400 0400 66756c6c 0000000000000000": {id: basicFailed, why: errorMessage{CodeStorage, "full"}},
}

// parity: B04 B50
func TestGoldenBasic(t *testing.T) {
	testGolden(t, goldenBasic, parseBasic, appendBasic, cmp.AllowUnexported(basicMessage{}, errorMessage{}))
}

// testGolden decodes and encodes messages, and refuses all that are cut.
func testGolden[M any](t *testing.T, golden map[string]M, parse func([]byte) (M, int), encode func([]byte, M) []byte, opt cmp.Option) {
	t.Helper()
	for h, want := range golden {
		b := unhex(t, h)
		got, n := parse(b)
		if d := cmp.Diff(got, want, opt); d != "" || n != len(b) {
			t.Errorf("%s: %d bytes, %s", h, n, d)
		}
		if enc := encode(nil, want); !bytes.Equal(enc, b) {
			t.Errorf("encoded % x, want % x", enc, b)
		}
		for i := range b {
			if _, n := parse(b[:i]); n >= 0 {
				t.Errorf("%s: %d bytes are enough", h, i)
			}
		}
	}
}

// The C program does not initialise the padding.
func TestBasicPaddingIgnored(t *testing.T) {
	m, n := parseBasic(unhex(t, "01000000 deadbeef 0010d002947f0000 9f020000 cafebabe"))
	if n != basicLen || m.remote != (verbs.RemoteAddr{Addr: 0x7f9402d01000, RKey: 0x29f}) {
		t.Errorf("got %+v, %d", m, n)
	}
}

func TestBasicMalformed(t *testing.T) {
	for name, h := range map[string]string{
		"id 0":                 "00000000 00000000 0010d002947f0000 9f020000 00000000",
		"id 5":                 "05000000 00000000 0010d002947f0000 9f020000 00000000",
		"negative id":          "ffffffff 00000000 0010d002947f0000 9f020000 00000000",
		"big-endian id":        "00000001 00000000 0010d002947f0000 9f020000 00000000",
		"error message beyond": "04000000 00000000 0400 0d00 66756c6c 0000000000000000",
	} {
		if m, n := parseBasic(unhex(t, h)); n >= 0 {
			t.Errorf("%s: got %+v", name, m)
		}
	}
}

var goldenFast = map[string]fastMessage{
	"0100 0000 09000000 0000000000000000 00000000 00000000 746573742d66696c65": {kind: fastOpen, length: 9, tail: []byte("test-file")},
	"0200 0000 00001000 0010d002947f0000 9f020000 08000000":                    {kind: fastLayout, length: 1 << 20, number: 0x7f9402d01000, word: 0x29f, count: 8},
	"0300 0000 00001000 0500000000000000 efbeadde 00000000":                    {kind: fastChunk, length: 1 << 20, number: 5, word: 0xdeadbeef},
	"0400 0000 00000000 0600000000000000 00000000 00000000":                    {kind: fastCredit, number: 6},
	"0500 0000 00000000 0000400100000000 00000000 00000000":                    {kind: fastEnd, number: 20 << 20, tail: []byte{}},
	"0600 0000 02000000 0000400100000000 00000000 00000000 abcd":               {kind: fastDone, length: 2, number: 20 << 20, tail: []byte{0xab, 0xcd}},
	"0700 0000 08000000 0000000000000000 00000000 00000000 0400 0400 66756c6c": {kind: fastFailed, length: 8, tail: []byte("\x04\x00\x04\x00full")},
}

func TestGoldenFast(t *testing.T) {
	testGolden(t, goldenFast, parseFast, appendFast, cmp.AllowUnexported(fastMessage{}))
}

func TestFastMalformed(t *testing.T) {
	for name, h := range map[string]string{
		"kind 0":          "0000 0000 00000000 0000000000000000 00000000 00000000",
		"kind 8":          "0800 0000 00000000 0000000000000000 00000000 00000000",
		"tail beyond":     "0100 0000 01000000 0000000000000000 00000000 00000000",
		"tail of 4 GiB":   "0100 0000 ffffffff 0000000000000000 00000000 00000000 00",
		"tail of 257":     "0100 0000 01010000 0000000000000000 00000000 00000000" + strings.Repeat("61", 257),
		"big-endian kind": "0001 0000 00000000 0000000000000000 00000000 00000000",
	} {
		if m, n := parseFast(unhex(t, h)); n >= 0 {
			t.Errorf("%s: got %+v", name, m)
		}
	}
}

var goldenHello = map[string]hello{
	"636e7866 01100100 00000800 08000000 a0000000000000000000000000 0000af 07000000 003f0000": {imm: true, digest: SHA256, chunk: 0x80000, buffers: 8, join: &laneRef{secret: [laneSecretLen]byte{0: 0xa0, 15: 0xaf}, number: 7, lane: 63}},
	"636e7866 01 03 01 00 00000000 0000 0000 0000900100000000 0000000000000000 00000000 00000000": {
		basic: true, fast: true, imm: true, digest: SHA256, size: 25 << 20},
	"636e7866 01 02 00 01 00001000 1000 0300 0000000000000000 15cd5b0700000000 a4010000 00000000": {
		fast: true, digest: NoDigest, chunk: 1 << 20, buffers: 16, meta: Meta{Mode: 0o644, ModTime: time.Unix(0, 123456789)}},
}

func TestGoldenHello(t *testing.T) {
	for h, want := range goldenHello {
		b := unhex(t, h)
		got, err := parseHello(b)
		if d := cmp.Diff(got, want, cmp.AllowUnexported(hello{}, laneRef{})); err != nil || d != "" {
			t.Errorf("%s: %v, %s", h, err, d)
		}
		if enc := appendHello(nil, want); !bytes.Equal(enc, b) {
			t.Errorf("encoded % x, want % x", enc, b)
		}
		if len(b) > 56 {
			t.Errorf("%d bytes are more than rdma_cm carries over InfiniBand", len(b))
		}
		for i := range b {
			if _, err := parseHello(b[:i]); err == nil {
				t.Errorf("%s: %d bytes are enough", h, i)
			}
		}
		// InfiniBand pads with zeros, later versions may add to it.
		if got, err := parseHello(append(b, 0, 0, 1)); err != nil || got.size != want.size {
			t.Errorf("with more behind: %+v, %v", got, err)
		}
	}
}

// A time that 64 bits of nanoseconds cannot hold is not told, rather than another one.
func TestHelloTimes(t *testing.T) {
	for when, crosses := range map[time.Time]bool{
		{}:                                  false,
		time.Unix(0, 0):                     true,
		time.Unix(0, math.MinInt64):         true,
		time.Unix(0, math.MaxInt64):         true,
		time.Unix(0, math.MinInt64).Add(-1): false,
		time.Unix(0, math.MaxInt64).Add(1):  false,
		time.Unix(1<<40, 0):                 false,
	} {
		h := must(parseHello(appendHello(nil, hello{meta: Meta{ModTime: when}})))(t)
		if want := (time.Time{}); crosses && !h.meta.ModTime.Equal(when) || !crosses && h.meta.ModTime != want {
			t.Errorf("%v: got %v", when, h.meta.ModTime)
		}
	}
}

func TestHelloMalformed(t *testing.T) {
	good := appendHello(nil, hello{basic: true})
	for name, change := range map[string]func([]byte){
		"version 0":           func(b []byte) { b[4] = 0 },
		"size beyond 63 bits": func(b []byte) { b[23] = 0x80 },
	} {
		b := bytes.Clone(good)
		change(b)
		if h, err := parseHello(b); err == nil {
			t.Errorf("%s: got %+v", name, h)
		}
	}
	if isOurs(nil) || isOurs([]byte("cnx")) || isOurs([]byte("CNXF1234")) {
		t.Error("what does not begin with the magic is not ours")
	}
	// Only permission bits go along, whatever a peer says.
	b := bytes.Clone(good)
	b[14] = knowsMode
	copy(b[32:], []byte{0xff, 0xff, 0xff, 0xff})
	if h := must(parseHello(b))(t); h.meta.Mode != fs.ModePerm {
		t.Errorf("mode %v", h.meta.Mode)
	}
}

func TestAnswer(t *testing.T) {
	const golden = "636e7866 01 01 01 01 0000a000 0100 0000"
	want := answer{protocol: Basic, imm: true, digest: NoDigest, chunk: 10 << 20, buffers: 1}
	b := unhex(t, golden)
	if got, err := parseAnswer(b); err != nil || got != want {
		t.Errorf("got %+v, %v", got, err)
	}
	if enc := appendAnswer(nil, want); !bytes.Equal(enc, b) {
		t.Errorf("encoded % x, want % x", enc, b)
	}
	for i := range b {
		if _, err := parseAnswer(b[:i]); err == nil {
			t.Errorf("%d bytes are enough", i)
		}
	}
	for at, v := range map[int]byte{4: 2, 5: 0} {
		bad := bytes.Clone(b)
		bad[at] = v
		if got, err := parseAnswer(bad); err == nil {
			t.Errorf("byte %d = %d: got %+v", at, v, got)
		}
	}
}

func TestRefusal(t *testing.T) {
	const golden = "636e7866 01 00 0a00 0400 66756c6c"
	want := errorMessage{CodeBusy, "full"}
	b := unhex(t, golden)
	if got, ok := parseRefusal(b); !ok || got != want {
		t.Errorf("got %+v, %v", got, ok)
	}
	if enc := appendRefusal(nil, want, 148); !bytes.Equal(enc, b) {
		t.Errorf("encoded % x, want % x", enc, b)
	}
	for i := range b {
		if v, ok := parseRefusal(b[:i]); ok {
			t.Errorf("%d bytes are enough: %+v", i, v)
		}
	}
	for limit, n := range map[int]int{148: 148, 20: 20, 10: 10, 9: 0, 0: 0} {
		if got := len(appendRefusal(nil, errorMessage{CodeBusy, strings.Repeat("x", 1000)}, limit)); got != n {
			t.Errorf("limit %d: %d bytes, want %d", limit, got, n)
		}
	}
}

// What peers say goes to terminals and logs.
func TestVerdictIsPrintable(t *testing.T) {
	err := errorMessage{CodeOther, "a\x1b[2Jb\nc\xff" + strings.Repeat("ä", 200)}
	b := appendErrorMessage(nil, err, maxErrorMessage)
	v, n := parseErrorMessage(b)
	if n != maxErrorMessage-1 || !strings.HasSuffix(v.text, "ä") { // one byte more would be half a character
		t.Errorf("%d bytes, %q", n, v.text)
	}
	if text := v.failure().Error(); !strings.HasPrefix(text, "a?[2Jb?c") || strings.ContainsAny(text, "\x1b\n") {
		t.Errorf("got %q", text)
	}
}

func FuzzParseBasic(f *testing.F) {
	for h := range goldenBasic {
		f.Add(unhex(f, h))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		m, n := parseBasic(b)
		if n < 0 {
			return
		}
		if again, k := parseBasic(appendBasic(nil, m)); k < basicLen || n > len(b) || again != m {
			t.Errorf("% x: %+v, again %+v, %d of %d bytes", b, m, again, n, k)
		}
	})
}

func FuzzParseFast(f *testing.F) {
	for h := range goldenFast {
		f.Add(unhex(f, h))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		m, n := parseFast(b)
		if n < 0 {
			return
		}
		b = bytes.Clone(b[:n])
		b[2], b[3] = 0, 0
		if enc := appendFast(nil, m); !bytes.Equal(enc, b) {
			t.Errorf("% x is encoded as % x", b, enc)
		}
	})
}

func FuzzParsePrivateData(f *testing.F) {
	for h := range goldenHello {
		f.Add(unhex(f, h))
	}
	f.Add(appendHello(nil, hello{digest: double}))
	f.Add(appendAnswer(nil, answer{protocol: Fast, digest: double}))
	f.Add(appendAnswer(nil, answer{protocol: Fast, chunk: math.MaxUint32, buffers: math.MaxUint16}))
	f.Add(appendRefusal(nil, errorMessage{CodeBusy, "full"}, 148))
	f.Fuzz(func(t *testing.T, b []byte) {
		if h, err := parseHello(b); err == nil {
			if again, err := parseHello(appendHello(nil, h)); err != nil || !cmp.Equal(again, h, cmp.AllowUnexported(hello{}, laneRef{})) {
				t.Errorf("%+v, again %+v, %v", h, again, err)
			}
		}
		if a, err := parseAnswer(b); err == nil {
			if again, err := parseAnswer(appendAnswer(nil, a)); err != nil || again != a {
				t.Errorf("%+v, again %+v, %v", a, again, err)
			}
		}
		if v, ok := parseRefusal(b); ok {
			if again, ok := parseRefusal(appendRefusal(nil, v, 1000)); !ok || again != v {
				t.Errorf("%+v, again %+v", v, again)
			}
		}
	})
}
