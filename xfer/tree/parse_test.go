package tree

import (
	"bytes"
	"encoding/hex"
	"io/fs"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"cinnabar/xfer"
)

// sample is a tree with an entry of each kind.
func sample() *Manifest {
	return &Manifest{Data: 9, Entries: []Entry{
		{Kind: Directory, HasMode: true, Mode: 0o755, ModTime: time.Unix(1e9, 7)},
		{Name: "d", Kind: Directory, Depth: 1},
		{Name: "f", Kind: File, Depth: 2, parent: 1, Size: 3, HasMode: true, Mode: 0o640},
		{Name: "h", Kind: HardLink, Depth: 1, Link: 2},
		{Name: "l", Kind: Symlink, Depth: 1, Target: "d/f"},
		{Name: "s", Kind: File, Depth: 1, Size: 1000, Sparse: true, Extents: []Extent{{100, 4}, {998, 2}}},
	}}
}

// The bytes of a manifest do not change: other versions of the program read them.
func TestGoldenManifest(t *testing.T) {
	want := strings.Join([]string{
		"636e787401000000",
		"01" + "00" + "00" + "03" + "ed03" + "070064a7b3b6e00d", // 1,000,000,000,000,000,007 ns
		"01" + "01" + "0164" + "00",
		"02" + "02" + "0166" + "01" + "a003" + "03",
		"04" + "01" + "0168" + "00" + "02",
		"03" + "01" + "016c" + "00" + "03642f66",
		"02" + "01" + "0173" + "04" + "e807",
		"05" + "64" + "04",
		"05" + "fe06" + "02",
		"00" + "06" + "09",
	}, "")
	if got := hex.EncodeToString(appendManifest(nil, sample())); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// parseAll parses a manifest that comes in pieces.
func parseAll(b []byte, piece int, l Limits) (m *Manifest, used int, err error) {
	p := newParser(l, nil)
	for used < len(b) && !p.done {
		n, err := p.feed(b[used:min(used+piece, len(b))])
		if err != nil {
			return nil, used, err
		}
		used += n
	}
	if !p.done {
		return nil, used, nil
	}
	return p.m, used, nil
}

var sameManifest = cmp.Options{cmp.AllowUnexported(Entry{}), cmpopts.EquateEmpty(), cmpopts.EquateApproxTime(0)}

// A manifest reads as it was written, in pieces of any size, and bytes behind it are left.
func TestManifestRoundTrip(t *testing.T) {
	for piece := 1; piece < 200; piece++ {
		b := appendManifest(nil, sample())
		m, used, err := parseAll(append(b, "data"...), piece, Limits{})
		if err != nil || used != len(b) {
			t.Fatalf("pieces of %d: %d of %d bytes, %v", piece, used, len(b), err)
		}
		if diff := cmp.Diff(sample(), m, sameManifest); diff != "" {
			t.Fatal(diff)
		}
	}
}

// Random manifests read as they were written.
func TestRandomManifests(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		m := drawManifest(rt)
		b := appendManifest(nil, m)
		got, used, err := parseAll(b, rapid.IntRange(1, 300).Draw(rt, "piece"), Limits{})
		if err != nil || used != len(b) || got == nil {
			rt.Fatalf("%d of %d bytes, %v", used, len(b), err)
		}
		if diff := cmp.Diff(m, got, sameManifest); diff != "" {
			rt.Fatal(diff)
		}
		i := 0
		for p := range got.All() {
			if p != got.Path(i) {
				rt.Fatalf("All has %q, Path %q", p, got.Path(i))
			}
			i++
		}
	})
}

func drawManifest(rt *rapid.T) *Manifest {
	m := &Manifest{Entries: []Entry{{Kind: Directory}}}
	dirs := []int{0}
	for i := range rapid.IntRange(0, 20).Draw(rt, "entries") {
		depth := rapid.IntRange(1, len(dirs)).Draw(rt, "depth")
		dirs = dirs[:depth]
		e := Entry{Name: string(rune('A' + i)), Depth: depth, parent: dirs[depth-1], Kind: rapid.SampledFrom([]Kind{Directory, File, Symlink, HardLink}).Draw(rt, "kind")}
		switch e.Kind {
		case Directory:
			dirs = append(dirs, len(m.Entries))
		case Symlink:
			e.Target = rapid.StringN(0, 50, maxTarget).Draw(rt, "target")
		case HardLink:
			e.Link = -1
			for j := range m.Entries {
				if m.Entries[j].Kind == File {
					e.Link = j
				}
			}
			if e.Link < 0 {
				continue
			}
		default:
			e.Size = rapid.Int64Range(0, 1<<40).Draw(rt, "size")
			e.Sparse = rapid.Bool().Draw(rt, "sparse")
		}
		if e.Sparse {
			for end := int64(0); end < e.Size && len(e.Extents) < 5; {
				hole := rapid.Int64Range(0, e.Size-end-1).Draw(rt, "hole")
				x := Extent{end + hole, rapid.Int64Range(1, e.Size-end-hole).Draw(rt, "length")}
				e.Extents = append(e.Extents, x)
				end = x.Offset + x.Length
			}
		}
		if rapid.Bool().Draw(rt, "mode") {
			e.HasMode, e.Mode = true, fs.FileMode(rapid.Uint32Range(0, 0o777).Draw(rt, "bits"))
		}
		if rapid.Bool().Draw(rt, "time") {
			e.ModTime = time.Unix(0, rapid.Int64().Draw(rt, "ns"))
		}
		m.Data += e.data()
		m.Entries = append(m.Entries, e)
	}
	return m
}

// Manifests that break a rule are refused, with the reason.
func TestHostileManifests(t *testing.T) {
	root := Entry{Kind: Directory}
	file := func(name string) Entry { return Entry{Name: name, Kind: File, Depth: 1} }
	list := func(entries ...Entry) []byte {
		m := &Manifest{Entries: append([]Entry{root}, entries...)}
		for i := range m.Entries {
			m.Data += m.Entries[i].data()
		}
		return appendManifest(nil, m)
	}
	head := appendManifest(nil, &Manifest{})[:headerLen]
	raw := func(records string) []byte { return append(bytes.Clone(head), records...) }
	const rootRecord = "\x01\x00\x00\x00"
	sparse := func(size int64, x ...Extent) Entry {
		return Entry{Name: "s", Kind: File, Depth: 1, Size: size, Sparse: true, Extents: x}
	}
	for _, tt := range []struct {
		name   string
		b      []byte
		limits Limits
		code   xfer.Code
		text   string
	}{
		{"magic", []byte("cnxf\x01\x00\x00\x00"), Limits{}, xfer.CodeUnsupported, "not of version 1"},
		{"version", []byte("cnxt\x02\x00\x00\x00"), Limits{}, xfer.CodeUnsupported, "not of version 1"},
		{"kind", raw("\x09"), Limits{}, xfer.CodeProtocol, "kind 9"},
		{"no root", raw("\x02\x01\x01a\x00\x00"), Limits{}, xfer.CodeProtocol, "begin with the root"},
		{"empty", raw("\x00\x00\x00"), Limits{}, xfer.CodeProtocol, "ends after 0 entries"},
		{"two roots", list(root), Limits{}, xfer.CodeProtocol, "depth 0"},
		{"too deep at once", list(Entry{Name: "a", Kind: File, Depth: 2}), Limits{}, xfer.CodeProtocol, "depth 2"},
		{"below a file", list(file("a"), Entry{Name: "b", Kind: File, Depth: 2}), Limits{}, xfer.CodeProtocol, "depth 2"},
		{"below a link", list(Entry{Name: "a", Kind: Symlink, Depth: 1, Target: "/etc"}, Entry{Name: "passwd", Kind: File, Depth: 2}), Limits{}, xfer.CodeProtocol, "depth 2"},
		{"empty name", list(file("")), Limits{}, xfer.CodeName, "empty name"},
		{"dot", list(file(".")), Limits{}, xfer.CodeName, `"."`},
		{"dotdot", list(file("..")), Limits{}, xfer.CodeName, `".."`},
		{"slash", list(file("a/b")), Limits{}, xfer.CodeName, `"a/b"`},
		{"absolute", list(file("/etc")), Limits{}, xfer.CodeName, `"/etc"`},
		{"NUL", list(file("a\x00b")), Limits{}, xfer.CodeName, "NUL"},
		{"long name", list(file(strings.Repeat("n", 256))), Limits{}, xfer.CodeName, "255 bytes"},
		{"endless name", raw(rootRecord + "\x02\x01\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"), Limits{}, xfer.CodeName, "255 bytes"},
		{"endless target", raw(rootRecord + "\x03\x01\x01a\x00\xff\xff\xff\xff\x0f"), Limits{}, xfer.CodeName, "4095 bytes"},
		{"endless number", raw(rootRecord + "\x02" + strings.Repeat("\xff", 11)), Limits{}, xfer.CodeProtocol, "64 bits"},
		{"twice", list(file("a"), file("a")), Limits{}, xfer.CodeProtocol, "ascend"},
		{"descending", list(file("b"), file("a")), Limits{}, xfer.CodeProtocol, "ascend"},
		{"fields", raw(rootRecord + "\x02\x01\x01a\xf0\x00"), Limits{}, xfer.CodeProtocol, "fields 0xf0"},
		{"sparse directory", raw("\x01\x00\x00\x04"), Limits{}, xfer.CodeProtocol, "fields 0x4"},
		{"size", raw(rootRecord + "\x02\x01\x01a\x00\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"), Limits{}, xfer.CodeProtocol, "18446744073709551615 bytes"},
		{"sum", list(Entry{Name: "a", Kind: File, Depth: 1, Size: math.MaxInt64}, Entry{Name: "b", Kind: File, Depth: 1, Size: 1}), Limits{}, xfer.CodeProtocol, "announces more"},
		{"link to nothing", list(Entry{Name: "a", Kind: HardLink, Depth: 1, Link: 9}), Limits{}, xfer.CodeProtocol, "entry 9"},
		{"link to itself", list(Entry{Name: "a", Kind: HardLink, Depth: 1, Link: 1}), Limits{}, xfer.CodeProtocol, "entry 1"},
		{"link to a directory", list(Entry{Name: "a", Kind: HardLink, Depth: 1, Link: 0}), Limits{}, xfer.CodeProtocol, "entry 0"},
		{"extent of nothing", raw("\x05\x00\x01"), Limits{}, xfer.CodeProtocol, "no sparse file"},
		{"extent of a plain file", raw(rootRecord + "\x02\x01\x01a\x00\x05\x05\x00\x01"), Limits{}, xfer.CodeProtocol, "no sparse file"},
		{"extent beyond the end", list(sparse(10, Extent{8, 3})), Limits{}, xfer.CodeProtocol, "beyond its end"},
		{"hole beyond the end", list(sparse(10, Extent{11, 1})), Limits{}, xfer.CodeProtocol, "beyond its end"},
		{"extent of nothing", list(sparse(10, Extent{8, 0})), Limits{}, xfer.CodeProtocol, "without bytes"},
		{"wrong end", raw(rootRecord + "\x00\x02\x00"), Limits{}, xfer.CodeProtocol, "it says 2 and 0"},
		{"wrong data", raw(rootRecord + "\x00\x01\x01"), Limits{}, xfer.CodeProtocol, "it says 1 and 1"},
		{"many entries", list(file("a"), file("b")), Limits{Entries: 2}, xfer.CodeTooLarge, "more than 2 entries"},
		{"many extents", list(sparse(10, Extent{0, 1}, Extent{2, 1})), Limits{Entries: 3}, xfer.CodeTooLarge, "more than 3 entries"},
		{"deep", list(Entry{Name: "a", Kind: Directory, Depth: 1}, Entry{Name: "b", Kind: File, Depth: 2}), Limits{Depth: 1}, xfer.CodeTooLarge, "below 2 directories"},
		{"long path", list(Entry{Name: "aaaa", Kind: Directory, Depth: 1}, Entry{Name: "b", Kind: File, Depth: 2}), Limits{Path: 5}, xfer.CodeTooLarge, "6 bytes"},
	} {
		for _, piece := range []int{1, 7, 1 << 20} {
			_, _, err := parseAll(tt.b, piece, tt.limits)
			if err == nil {
				t.Errorf("%s: accepted in pieces of %d", tt.name, piece)
				continue
			}
			wantError(t, err, tt.code, tt.text)
		}
	}
}

// A parser never fails otherwise than by an error, does not depend on the pieces in which the bytes come, and reads each accepted manifest again after it was written.
func FuzzManifest(f *testing.F) {
	f.Add(appendManifest(nil, sample()), 5)
	f.Add(appendManifest(nil, &Manifest{Entries: []Entry{{Kind: Directory}}}), 1)
	f.Add([]byte("cnxt\x01\x00\x00\x00\x05\x00\x01"), 3)
	f.Fuzz(func(t *testing.T, b []byte, piece int) {
		l := Limits{Entries: 1000, Depth: 8, Path: 300}
		m, used, err := parseAll(b, 1+int(uint(piece)%4096), l)
		whole, wholeUsed, wholeErr := parseAll(b, len(b)+1, l)
		if (err == nil) != (wholeErr == nil) || err == nil && used != wholeUsed {
			t.Fatalf("in pieces of %d: %d bytes, %v; whole: %d, %v", piece, used, err, wholeUsed, wholeErr)
		}
		if err != nil || m == nil {
			return
		}
		if diff := cmp.Diff(m, whole, sameManifest); diff != "" {
			t.Fatal(diff)
		}
		again, _, err := parseAll(appendManifest(nil, m), 1<<20, l)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(m, again, sameManifest); diff != "" {
			t.Fatal(diff)
		}
		var data int64
		c := cursor{m: m}
		for {
			i, offset, n, ok := c.next()
			if !ok {
				break
			}
			if n <= 0 || offset < 0 || offset+n > m.Entries[i].Size {
				t.Fatalf("entry %d has data at %d of %d bytes", i, offset, n)
			}
			data += n
			c.advance(n)
		}
		if data != m.Data {
			t.Fatalf("the data has %d bytes, the manifest says %d", data, m.Data)
		}
		refused := (&Dir{}).refusals(m, "windows")
		if refused.err("") != nil && refused.Error() == "" {
			t.Fatal("a refusal without words")
		}
	})
}
