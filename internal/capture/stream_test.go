package capture_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"cinnabar/internal/capture"
)

// recorder writes the calls of an Assembler down.
type recorder struct {
	text  [2]strings.Builder
	ended [2]int
}

func (r *recorder) Bytes(dir int, b []byte) { r.text[dir].Write(b) }
func (r *recorder) Gap(dir int, n uint64)   { fmt.Fprintf(&r.text[dir], "<%d>", n) }
func (r *recorder) End(dir int, why capture.Ending) {
	r.ended[dir]++
	fmt.Fprintf(&r.text[dir], "|%d", why)
}

// piece is a segment of one of the directions of a test.
type piece struct {
	dir   int
	seq   uint32
	flags byte
	data  string
}

const (
	fin = 1
	syn = 2
	rst = 4
)

// assemble returns the texts of all connections, in the order of their beginnings.
func assemble(l capture.Limits, list ...piece) []*recorder {
	var all []*recorder
	a := capture.NewAssembler(l, func(_, _ netip.AddrPort, _ bool) capture.Handler {
		all = append(all, &recorder{})
		return all[len(all)-1]
	})
	for _, p := range list {
		src, dst := addrA, addrB
		if p.dir >= 2 { // of another connection
			src = netip.AddrPortFrom(addrA.Addr(), uint16(p.dir))
		} else if p.dir == 1 {
			src, dst = dst, src
		}
		a.Add(&capture.Segment{Src: src, Dst: dst, TCP: true, Seq: p.seq, FIN: p.flags&fin != 0, SYN: p.flags&syn != 0, RST: p.flags&rst != 0,
			Length: len(p.data), Payload: []byte(p.data)})
	}
	a.Close()
	return all
}

func TestStreams(t *testing.T) {
	small := capture.Limits{Connections: 2, Waiting: 200, Segments: 2, Total: 1000}
	for name, tt := range map[string]struct {
		list []piece
		want string // the directions of each connection, with commas between them
	}{
		"in order":           {[]piece{{0, 10, syn, ""}, {1, 50, syn, ""}, {0, 11, 0, "ab"}, {1, 51, 0, "xy"}, {0, 13, fin, "c"}, {1, 53, fin, ""}}, "abc|0,xy|0"},
		"again":              {[]piece{{0, 10, syn, ""}, {0, 10, syn, ""}, {0, 11, 0, "ab"}, {0, 10, syn, ""}, {0, 11, 0, "abc"}, {0, 12, 0, "b"}}, "abc|3,|3"},
		"out of order":       {[]piece{{0, 10, syn, ""}, {0, 13, 0, "cd"}, {0, 12, 0, "bc"}, {0, 15, fin, ""}, {0, 11, 0, "a"}}, "abcd|0,|3"},
		"over the end":       {[]piece{{0, 1<<32 - 2, syn, ""}, {0, 1<<32 - 1, 0, "ab"}, {0, 2, 0, "d"}, {0, 1, 0, "c"}}, "abcd|3,|3"},
		"never came":         {[]piece{{0, 10, syn, ""}, {0, 13, 0, "c"}, {0, 16, 0, "d"}}, "<2>c<2>d|3,|3"},
		"too many wait":      {[]piece{{0, 10, syn, ""}, {0, 13, 0, "c"}, {0, 15, 0, "d"}, {0, 17, 0, "e"}, {0, 20, 0, "f"}}, "<2>c<1>d<1>e<2>f|3,|3"},
		"no beginning":       {[]piece{{0, 13, 0, "c"}, {1, 9, 0, "x"}, {0, 14, 0, "d"}, {0, 11, 0, "ab"}}, "cd|3,x|3"},
		"only headers":       {[]piece{{0, 13, 0, ""}, {1, 9, fin, ""}}, ""},
		"reset":              {[]piece{{0, 10, syn, ""}, {0, 12, 0, "b"}, {1, 0, rst, ""}, {0, 11, 0, "a"}}, "<1>b|1,|1"},
		"anew":               {[]piece{{0, 10, syn, ""}, {0, 11, 0, "a"}, {0, 99, syn, ""}, {0, 100, 0, "b"}}, "a|1,|1,b|3,|3"},
		"oldest gives way":   {[]piece{{0, 10, syn, ""}, {2, 10, syn, ""}, {0, 11, 0, "a"}, {3, 10, syn, ""}}, "a|3,|3,|2,|2,|3,|3"},
		"behind the end":     {[]piece{{0, 10, syn, ""}, {0, 11, fin, "a"}, {0, 12, 0, "b"}}, "a|0,|3"},
		"reset of no stream": {[]piece{{0, 10, rst, ""}}, ""},
	} {
		var got []string
		for _, r := range assemble(small, tt.list...) {
			got = append(got, r.text[0].String(), r.text[1].String())
		}
		if s := strings.Join(got, ","); s != tt.want {
			t.Errorf("%s: %s, want %s", name, s, tt.want)
		}
	}
}

// A stream that is cut and mixed in any way, with parts that come twice, is whole.
func TestMixedStream(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.StringN(1, 200, 400).Draw(t, "text")
		start := rapid.Uint32().Draw(t, "start")
		list := []piece{}
		for at := 0; at < len(text); {
			n := rapid.IntRange(1, 40).Draw(t, "n")
			end := min(at+n, len(text))
			list = append(list, piece{0, start + 1 + uint32(at), 0, text[at:end]})
			if rapid.Bool().Draw(t, "twice") {
				list = append(list, piece{0, start + 1 + uint32(at/2), 0, text[at/2 : end]})
			}
			at = end
		}
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
		rng.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
		list = append([]piece{{0, start, syn, ""}}, list...)
		if got := assemble(capture.DefaultLimits, list...)[0].text[0].String(); got != text+"|3" {
			t.Fatalf("%q, want %q", got, text)
		}
	})
}

// Each direction ends once, and with all limits at their least nothing waits.
func FuzzAssembler(f *testing.F) {
	f.Add([]byte{0, 2, 10, 0, 0, 0, 11, 3, 1, 2, 50, 0, 0, 0, 14, 9})
	f.Fuzz(func(t *testing.T, b []byte) {
		var list []piece
		for ; len(b) >= 4; b = b[4:] {
			list = append(list, piece{int(b[0] % 5), uint32(int8(b[1])), b[2] & 7, strings.Repeat("x", int(b[3]))})
		}
		for _, l := range []capture.Limits{{Connections: 2, Waiting: 300, Segments: 3, Total: 500}, {Connections: 1}} {
			for _, r := range assemble(l, list...) {
				if r.ended != [2]int{1, 1} {
					t.Fatalf("ends: %v", r.ended)
				}
			}
		}
	})
}
