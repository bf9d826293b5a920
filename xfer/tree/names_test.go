package tree

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"testing/fstest"

	"cinnabar/xfer"
)

// manifest makes the manifest of some names in one directory.
func manifest(entries ...Entry) *Manifest {
	m := &Manifest{Entries: []Entry{{Kind: Directory}}}
	for _, e := range entries {
		e.Depth = max(e.Depth, 1)
		if e.Kind == 0 {
			e.Kind = File
		}
		m.Entries = append(m.Entries, e)
	}
	return m
}

// reasons lists refusals by their paths.
func reasons(e *RefusedError) map[string]string {
	all := map[string]string{}
	for _, r := range e.Refusals {
		all[r.Path] = r.Reason
	}
	return all
}

// Names that this or another system cannot store are refused, all of them by name, and the others are not.
func TestRefusedNames(t *testing.T) {
	d, _ := openDir(t, DirOptions{})
	m := manifest(Entry{Name: "ok"}, Entry{Name: ".hidden"}, Entry{Name: `a\b`}, Entry{Name: "a\nb"}, Entry{Name: "\xff\xfe"}, Entry{Name: "turn\u202e"},
		Entry{Name: ".cinnabar-0123456789abcdef.part"}, Entry{Name: "naïve 名 😀"}, Entry{Name: "con"}, Entry{Name: "end."}, Entry{Name: "q?"})
	got := reasons(d.refusals(m, "linux"))
	for name, text := range map[string]string{".hidden": "begins with a dot", `a\b`: "separator", "a\nb": "control character", "\xff\xfe": "UTF-8",
		"turn\u202e": "control character", ".cinnabar-0123456789abcdef.part": "reserved"} {
		if !strings.Contains(got[name], text) {
			t.Errorf("%q: %q, want %q", name, got[name], text)
		}
		delete(got, name)
	}
	if len(got) > 0 {
		t.Errorf("these are refused too: %v", got)
	}
	got = reasons(d.refusals(m, "windows"))
	for name, text := range map[string]string{"con": "device", "end.": "end with a dot", "q?": "names with one of"} {
		if !strings.Contains(got[name], text) {
			t.Errorf("%q on Windows: %q, want %q", name, got[name], text)
		}
	}
	if got["ok"] != "" || got["naïve 名 😀"] != "" {
		t.Errorf("got %v", got)
	}
	for _, name := range []string{"NUL", "nul.txt", "Com1", "LPT9.x", "com¹", "aux ", "CONIN$"} {
		if refusedByWindows(name) == "" {
			t.Errorf("%q is stored on Windows", name)
		}
	}
	for _, name := range []string{"NULL", "com", "com10", "x.nul"} {
		if r := refusedByWindows(name); r != "" {
			t.Errorf("%q: %s", name, r)
		}
	}
}

// Links that may lead out of the tree are refused, unless the directory allows them.
func TestOutsideLinks(t *testing.T) {
	for _, tt := range []struct {
		target string
		above  int
		goos   string
		out    bool
	}{
		{"a", 0, "linux", false}, {"a/b/c", 0, "linux", false}, {"./a", 0, "linux", false}, {"a//b/", 0, "linux", false}, {".", 0, "linux", false},
		{"..", 0, "linux", true}, {"..", 1, "linux", false}, {"../../a", 1, "linux", true}, {"../../a", 2, "linux", false},
		{"/etc", 3, "linux", true}, {"a/../b", 3, "linux", true}, {"../a/../b", 3, "linux", true}, {"...", 0, "linux", false}, {"./..", 0, "linux", true},
		{`..\x`, 0, "windows", true}, {`C:\x`, 5, "windows", true}, {`\x`, 5, "windows", true}, {`a\b`, 0, "windows", false}, {`..\x`, 0, "linux", false},
	} {
		if got := leadsOut(tt.target, tt.above, tt.goos); got != tt.out {
			t.Errorf("%q below %d directories on %s: %v", tt.target, tt.above, tt.goos, got)
		}
	}
	m := manifest(Entry{Name: "a", Kind: Symlink, Target: "../x"}, Entry{Name: "b", Kind: Symlink, Target: ""}, Entry{Name: "c", Kind: Symlink, Target: "x\x00"})
	d, _ := openDir(t, DirOptions{})
	got := reasons(d.refusals(m, "linux"))
	if len(got) != 3 || !strings.Contains(got["a"], `to "../x" may lead out`) {
		t.Errorf("got %v", got)
	}
	d, _ = openDir(t, DirOptions{AllowOutsideLinks: true})
	if got := reasons(d.refusals(m, "linux")); len(got) != 2 || got["a"] != "" {
		t.Errorf("got %v", got)
	}
}

// Names that differ in their case only are refused where the file system takes them for one.
func TestCollisions(t *testing.T) {
	refused := &RefusedError{}
	m := manifest(Entry{Name: "A"}, Entry{Name: "B", Kind: Directory}, Entry{Name: "A", Depth: 2}, Entry{Name: "a"}, Entry{Name: "É"}, Entry{Name: "é"})
	m.Entries[3].parent = 2
	refuseCollisions(m, refused)
	if got := reasons(refused); len(got) != 2 || got["a"] == "" || got["é"] == "" {
		t.Errorf("got %v", got)
	}
}

// An error names the first names and counts the others, and its text is bounded.
func TestRefusedError(t *testing.T) {
	e := &RefusedError{}
	if e.err("x") != nil {
		t.Error("no name is an error")
	}
	for i := range 1000 {
		e.add(fmt.Sprintf("%d-%s", i, strings.Repeat("n", 4000)), "no")
	}
	err := e.err("the receiver refuses the tree")
	wantError(t, err, xfer.CodeName, "because of 1000 of its names", `"0-nn`, "and 936 more")
	if len(err.Error()) > 64*200 {
		t.Errorf("the text has %d bytes", len(err.Error()))
	}
}

// The memory of manifests is counted together, given back at the end, and bounded.
func TestManifestMemory(t *testing.T) {
	opt := all
	opt.Limits.Memory = 3*entryCost + 20
	d, to := openDir(t, opt)
	src := tree(t, fstest.MapFS{"a": {Data: []byte("x")}, "b": {}}).Source()
	for range 3 {
		f := must(d.Open(t.Context(), netip.AddrPort{}, "photos/", xfer.Meta{}, src.Size))(t)
		if err := fill(f, src, 1000, src.Size-1); !errors.Is(err, errCut) {
			t.Fatal(err)
		}
		if err := store(d.Open, xfer.Source{Name: "other/", Data: src.Data, Size: src.Size}, 1000); !errors.Is(err, xfer.CodeBusy) {
			t.Errorf("got %v, want busy", err)
		}
		if _, err := d.Open(t.Context(), netip.AddrPort{}, "photos/", xfer.Meta{}, src.Size); !errors.Is(err, xfer.CodeExists) {
			t.Errorf("got %v for a tree that is being received", err)
		}
		check(t, f.Discard())
		wantReleased(t, d)
	}
	wantEmpty(t, to)
	check(t, store(d.Open, src, 1000))
	wantReleased(t, d)
}

// One host with many trees leaves memory for others, and may have three quarters of it for one tree.
func TestManifestMemoryIsShared(t *testing.T) {
	opt := all
	opt.Limits.Memory = 100 * entryCost
	d, _ := openDir(t, opt)
	greedy, late := netip.MustParseAddrPort("192.0.2.1:1000"), netip.MustParseAddrPort("192.0.2.2:1000")
	var open []xfer.File
	begin := func(from netip.AddrPort, entries int) error {
		fsys := fstest.MapFS{}
		for i := range entries {
			fsys[fmt.Sprintf("%03d", i)] = &fstest.MapFile{Data: []byte("x")}
		}
		src := tree(t, fsys).Source()
		f := must(d.Open(t.Context(), from, fmt.Sprintf("t%d/", len(open)), xfer.Meta{}, src.Size))(t)
		if err := fill(f, src, 1000, src.Size-1); !errors.Is(err, errCut) {
			check(t, f.Discard())
			return err
		}
		open = append(open, f)
		return nil
	}
	for begin(greedy, 7) == nil {
	}
	if n := len(open); n < 4 || n > 9 {
		t.Errorf("one host has %d trees of 8 entries in memory for 100", n)
	}
	check(t, begin(late, 7))
	for _, f := range open {
		check(t, f.Discard())
	}
	wantReleased(t, d)
	open = nil
	check(t, begin(greedy, 70))
	wantError(t, begin(greedy, 7), xfer.CodeBusy, "the share of one host")
	check(t, begin(late, 7))
	for _, f := range open {
		check(t, f.Discard())
	}
	wantError(t, begin(late, 80), xfer.CodeBusy, "the share of one host")
	wantReleased(t, d)
}

// The memory of the manifest is bounded for every sink, because targets of links have up to 4,095 bytes each.
func TestReceiveMemory(t *testing.T) {
	m := &Manifest{Entries: []Entry{{Kind: Directory}}}
	for i := range 100 {
		m.Entries = append(m.Entries, Entry{Name: fmt.Sprintf("%02d", i), Kind: Symlink, Depth: 1, Target: strings.Repeat("x", maxTarget)})
	}
	b := appendManifest(nil, m)
	for _, memory := range []int64{100 * maxTarget, 100*(entryCost+2+maxTarget) + entryCost} {
		sink := &noSink{}
		f := must(Receive(sink, int64(len(b)), Limits{Memory: memory}))(t)
		_, err := f.WriteAt(b, 0)
		if memory == 100*maxTarget {
			wantError(t, err, xfer.CodeTooLarge, "Limits.Memory")
		} else {
			check(t, err)
		}
		if begun := err == nil; sink.begun != begun {
			t.Errorf("with %d bytes Begin was called: %v", memory, sink.begun)
		}
		check(t, f.Discard())
	}
}

// noSink stores nothing.
type noSink struct{ begun bool }

func (s *noSink) Begin(*Manifest) error        { s.begun = true; return nil }
func (*noSink) Write(int, []byte, int64) error { return nil }
func (*noSink) Commit() error                  { return nil }
func (*noSink) Discard() error                 { return nil }

// wantReleased checks that a directory holds no memory and no name of a tree.
func wantReleased(t *testing.T, d *Dir) {
	t.Helper()
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.held != 0 || len(d.busy)+len(d.hosts) != 0 {
		t.Errorf("%d bytes, by hosts %v, and %v are held", d.held, d.hosts, d.busy)
	}
}

// A transfer of another length than its manifest announces is refused before anything is stored.
func TestWrongLength(t *testing.T) {
	d, to := openDir(t, all)
	src := tree(t, fstest.MapFS{"a": {Data: []byte("some data")}}).Source()
	for _, size := range []int64{src.Size - 1, src.Size + 1} {
		f := must(d.Open(t.Context(), netip.AddrPort{}, "photos/", xfer.Meta{}, size))(t)
		err := fill(f, src, 1000, src.Size)
		wantError(t, err, xfer.CodeProtocol, "announces 9 bytes of data")
		check(t, f.Discard())
	}
	f := must(d.Open(t.Context(), netip.AddrPort{}, "photos/", xfer.Meta{}, 5))(t)
	if _, err := f.WriteAt([]byte("cnxt\x01"), 0); err != nil {
		t.Fatal(err)
	}
	wantError(t, f.Commit(), xfer.CodeProtocol, "inside the manifest")
	check(t, f.Discard())
	_, err := d.Open(t.Context(), netip.AddrPort{}, "photos/", xfer.Meta{}, -1)
	wantError(t, err, xfer.CodeUnsupported, "fast protocol")
	careful, _ := openDir(t, DirOptions{})
	for _, name := range []string{"/", "../", "a/b/", ".x/"} {
		if _, err := careful.Open(t.Context(), netip.AddrPort{}, name, xfer.Meta{}, 5); !errors.Is(err, xfer.CodeName) {
			t.Errorf("%q: %v", name, err)
		}
	}
	wantEmpty(t, to)
}
