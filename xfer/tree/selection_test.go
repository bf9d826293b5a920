package tree

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/google/go-cmp/cmp"

	"cinnabar/xfer"
)

// randomPatterns returns patterns of which some match names of randomTree.
func randomPatterns(t testing.TB, r *rand.Rand) *Patterns {
	t.Helper()
	parts := []string{"a?", "b c*", "*", "x.tar.gz[0-2]", "UPPER*", "*ü*", "**", "[a-b]*", "~*", "n*", "a1", "*3"}
	var lines []string
	for range 1 + r.IntN(4) {
		line := []string{"", "", "", "!", "/"}[r.IntN(5)] + parts[r.IntN(len(parts))]
		for range r.IntN(3) {
			line += "/" + parts[r.IntN(len(parts))]
		}
		lines = append(lines, line+[]string{"", "", "/"}[r.IntN(3)])
	}
	return must(ParsePatterns(lines...))(t)
}

// ageFiles gives new files, of which the times differ in each run, another time.
func ageFiles(t testing.TB, path string) {
	t.Helper()
	check(t, filepath.WalkDir(path, func(p string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		info, err := d.Info()
		if err == nil && info.ModTime().After(time.Unix(17e8, 0)) {
			err = os.Chtimes(p, time.Time{}, time.Unix(17e8, 0))
		}
		return err
	}))
}

// withoutTimes is snapshot without the times of directories, because a directory that the receiver keeps for the sake of an excluded entry gets that of the removal of others.
func withoutTimes(t testing.TB, path string) map[string]string {
	t.Helper()
	found := snapshot(t, path, true)
	for p, line := range found {
		if strings.HasSuffix(line, " directory") {
			found[p], _, _ = strings.Cut(line, " ")
		}
	}
	return found
}

// A receiver that leaves entries out stores, keeps and removes the same as it does for a sender that leaves them out, whatever it has before: from a source that lets it choose, also
// after a cut, and from one that sends all bytes. The bytes of files that are left out do not cross if it chooses.
//
// parity: X01
// parity: X02
func TestLeaveOutAsSender(t *testing.T) {
	for seed := range uint64(60) {
		wishes := []xfer.Wishes{0, xfer.WishDelete, xfer.WishUpdate | xfer.WishDelete, xfer.WishChecksum | xfer.WishDelete}[seed%4]
		r := rand.New(rand.NewPCG(seed, 21))
		from := filepath.Join(t.TempDir(), "photos")
		randomTree(t, r, from)
		patterns := randomPatterns(t, r)
		receiver := func(patterns *Patterns) (*Dir, string) {
			opt := keeping()
			opt.AllowOutsideLinks, opt.AllowDotFiles = true, true
			to := t.TempDir()
			if seed%3 > 0 { // the same for each
				randomTree(t, rand.New(rand.NewPCG(seed, 22)), filepath.Join(to, "photos"))
			}
			if seed%3 == 2 {
				plain := must(OpenDir(t.Context(), to, opt))(t)
				must(storeChosen(plain.Open, wished(t, from, xfer.WishDelete), 10000, -1))(t)
				check(t, plain.Close())
				changeFiles(t, rand.New(rand.NewPCG(seed, 23)), filepath.Join(to, "photos"))
				ageFiles(t, filepath.Join(to, "photos"))
			}
			opt.Patterns = patterns
			d := must(OpenDir(t.Context(), to, opt))(t)
			t.Cleanup(func() { check(t, d.Close()) })
			return d, to
		}
		left := scanDir(t, from, ScanOptions{Preserve: true, Patterns: patterns}).Source()
		left.Choice.Wishes = wishes
		d, want := receiver(nil)
		c, wantErr := storeChosen(d.Open, left, 1000, -1)
		all := wished(t, from, wishes)
		all.Choice.Remove = func(string, bool) bool { return true }
		for _, how := range []string{"chooses", "chooses after a cut", "takes all"} {
			if how == "takes all" && wishes != 0 {
				continue
			}
			t.Run(fmt.Sprintf("%d, %s", seed, how), func(t *testing.T) {
				d, to := receiver(patterns)
				var got crossed
				var err error
				switch how {
				case "takes all":
					err = store(d.Open, all, 1000)
				case "chooses after a cut":
					if _, err = storeChosen(d.Open, all, 300, all.Choice.Head+r.Int64N(1+c.data)); errors.Is(err, errCut) {
						_, err = storeChosen(d.Open, all, 1000, -1)
					}
				default:
					got, err = storeChosen(d.Open, all, 1000, -1)
				}
				if (err == nil) != (wantErr == nil) {
					t.Fatalf("got %v, and if the sender leaves entries out %v", err, wantErr)
				}
				if diff := cmp.Diff(withoutTimes(t, filepath.Join(want, "photos")), withoutTimes(t, filepath.Join(to, "photos"))); diff != "" {
					t.Errorf("the directory is another one than if the sender leaves entries out (-sender +receiver):\n%s", diff)
				}
				if err == nil && how == "chooses" {
					if got.data-all.Choice.Head != c.data-left.Choice.Head || got.sums != c.sums {
						t.Errorf("%d bytes and %d of sums have crossed, want %d and %d", got.data-all.Choice.Head, got.sums, c.data-left.Choice.Head, c.sums)
					}
					removals := slices.DeleteFunc(slices.Clone(c.removals), func(p string) bool { return strings.HasSuffix(p, "*") })
					if slices.Sort(removals); len(got.removals)+len(removals) > 0 {
						slices.Sort(got.removals)
						if diff := cmp.Diff(removals, got.removals); diff != "" {
							t.Errorf("the list of removals is another one:\n%s", diff)
						}
					}
				}
				wantReleased(t, d)
			})
		}
	}
}

// If a file is left out, its first hard link that is not takes its place, and gets its data, which then come before those of other files.
func TestLeaveOutFileOfLink(t *testing.T) {
	from := filepath.Join(t.TempDir(), "photos")
	plant(t, from, "a", "b/m", "d/deep")
	check(t, os.Link(filepath.Join(from, "a"), filepath.Join(from, "c")))
	check(t, os.Link(filepath.Join(from, "a"), filepath.Join(from, "d", "link")))
	check(t, os.Link(filepath.Join(from, "d/deep"), filepath.Join(from, "e")))
	for _, patterns := range [][]string{{"a"}, {"/a", "/c"}, {"d"}, {"a", "d", "!c"}, {"*"}, {"b", "a", "c", "d"}} {
		p := must(ParsePatterns(patterns...))(t)
		opt := keeping()
		opt.Patterns = p
		for _, piece := range []int{1, 3, 1000} {
			for _, wishes := range []xfer.Wishes{0, xfer.WishChecksum} {
				d, to := openDir(t, opt)
				plain, want := openDir(t, keeping())
				must(storeChosen(plain.Open, scanDir(t, from, ScanOptions{Preserve: true, Patterns: p}).Source(), 1000, -1))(t)
				for range 2 {
					must(storeChosen(d.Open, wished(t, from, wishes), piece, -1))(t)
					wantSame(t, filepath.Join(want, "photos"), filepath.Join(to, "photos"), true)
				}
			}
			d, to := openDir(t, opt)
			plain, want := openDir(t, keeping())
			check(t, store(plain.Open, scanDir(t, from, ScanOptions{Preserve: true, Patterns: p}).Source(), 1000))
			check(t, store(d.Open, scanDir(t, from, ScanOptions{Preserve: true}).Source(), piece))
			wantSame(t, filepath.Join(want, "photos"), filepath.Join(to, "photos"), true)
		}
	}
}

// The rules for the names of a tree hold for the entries that are stored; those for the manifest hold for all of it, and so do the limits.
func TestLeaveOutOfHostileTree(t *testing.T) {
	opt := keeping()
	opt.AllowDotFiles, opt.Patterns = false, must(ParsePatterns(".*", "bad", "/out"))(t)
	d, to := openDir(t, opt)
	fsys := fstest.MapFS{".git/config": {Data: []byte("x")}, "a": {Data: []byte("a")}, "sub/.hidden": {Data: []byte("y")}, "sub/b": {Data: []byte("b")}}
	src := tree(t, fsys).Source()
	must(storeChosen(d.Open, src, 7, -1))(t)
	if got := snapshot(t, filepath.Join(to, "photos"), false); len(got) != 4 || got["sub/b"] == "" || got["a"] == "" {
		t.Errorf("got %v", got)
	}
	named := func(name string) xfer.Source {
		m := &Manifest{Entries: []Entry{{Kind: Directory}, {Kind: Directory, Name: "bad", Depth: 1}, {Kind: File, Name: name, Depth: 2, parent: 1}}}
		head := appendManifest(nil, m)
		return xfer.Source{Name: "photos/", Data: strings.NewReader(string(head)), Size: int64(len(head)), Choice: &xfer.Choice{Head: int64(len(head))}}
	}
	must(storeChosen(d.Open, named("line\nfeed"), 100, -1))(t) // which this receiver would refuse otherwise
	for _, name := range []string{"..", ".", "a/b", "a\x00b"} {
		_, err := storeChosen(d.Open, named(name), 100, -1)
		wantError(t, err, xfer.CodeName)
	}
	wantReleased(t, d)

	// The copy of the manifest counts too.
	opt.Limits.Memory = 20 * entryCost
	small, _ := openDir(t, opt)
	many := fstest.MapFS{}
	for i := range 12 {
		many[fmt.Sprint("f", i)] = &fstest.MapFile{}
	}
	_, err := storeChosen(small.Open, tree(t, many).Source(), 100, -1)
	wantError(t, err, xfer.CodeBusy)
	for i := range 12 {
		many[fmt.Sprint("bad/f", i)] = many[fmt.Sprint("f", i)]
		delete(many, fmt.Sprint("f", i))
	}
	must(storeChosen(small.Open, tree(t, many).Source(), 100, -1))(t)
	wantReleased(t, small)
}

// Excluded entries are not removed, and refuse the tree if they are where the sender has an entry of another kind.
func TestLeaveOutAndDelete(t *testing.T) {
	opt := keeping()
	opt.Patterns = must(ParsePatterns("*.o", "cache/", "/top"))(t)
	d, to := openDir(t, opt)
	at, from := filepath.Join(to, "photos"), filepath.Join(t.TempDir(), "photos")
	plant(t, from, "a", "sub/b", "sub/new.o", "top")
	plant(t, at, "old", "old.o", "cache/x", "sub/cache/y", "gone/x", "gone/y.o", "sub/top", "top")
	check(t, os.WriteFile(filepath.Join(at, "top"), []byte("mine"), 0o600))
	src := wished(t, from, xfer.WishDelete|xfer.WishDryRun)
	list := []string{"gone", "gone/x", "old", "sub/top"}
	before := snapshot(t, at, true)
	f := must(d.Open(t.Context(), netip.AddrPort{}, src.Name, src.Meta, src.Size))(t)
	var c crossed
	check(t, c.transfer(f.(xfer.Chooser), src, 100, -1))
	check(t, f.Discard())
	if slices.Sort(c.removals); !slices.Equal(c.removals, list) || cmp.Diff(before, snapshot(t, at, true)) != "" {
		t.Errorf("a dry run lists %q, want %q", c.removals, list)
	}
	c = must(storeChosen(d.Open, wished(t, from, xfer.WishDelete), 100, -1))(t)
	if slices.Sort(c.removals); !slices.Equal(c.removals, list) {
		t.Errorf("got %q, want %q", c.removals, list)
	}
	var got []string
	for p := range snapshot(t, at, false) {
		got = append(got, p)
	}
	want := []string{".", "a", "cache", "cache/x", "gone", "gone/y.o", "old.o", "sub", "sub/b", "sub/cache", "sub/cache/y", "top"}
	if slices.Sort(got); !slices.Equal(got, want) {
		t.Errorf("the directory has %q, want %q", got, want)
	}
	if b := must(os.ReadFile(filepath.Join(at, "top")))(t); string(b) != "mine" {
		t.Errorf("an excluded file was replaced: %q", b)
	}
	for _, there := range []string{"x/y.o", "x/deep/cache/z"} { // the server has a file x
		plant(t, from, "x")
		plant(t, at, there)
		before := snapshot(t, at, true)
		_, err := storeChosen(d.Open, wished(t, from, xfer.WishDelete), 100, -1)
		wantError(t, err, xfer.CodeExists, "which this receiver does not remove")
		if diff := cmp.Diff(before, snapshot(t, at, true)); diff != "" {
			t.Errorf("the transfer has failed and changed:\n%s", diff)
		}
		check(t, os.RemoveAll(filepath.Join(at, "x")))
	}
	check(t, os.Remove(filepath.Join(from, "x")))
	plant(t, from, "kind/cache") // a file, which the pattern for directories does not exclude
	plant(t, at, "kind/cache/z")
	_, err := storeChosen(d.Open, wished(t, from, xfer.WishDelete), 100, -1)
	wantError(t, err, xfer.CodeExists, `"kind/cache", which the patterns of this receiver exclude`)
	wantReleased(t, d)
}

// The end of the transfer ends the work on the list.
func TestLeaveOutStops(t *testing.T) {
	opt := keeping()
	opt.Patterns = must(ParsePatterns("x"))(t)
	d, to := openDir(t, opt)
	ctx, end := context.WithCancel(t.Context())
	src := tree(t, fstest.MapFS{"a": {}}).Source()
	f := must(d.Open(ctx, netip.AddrPort{}, src.Name, src.Meta, src.Size))(t)
	end()
	wantError(t, fill(f, src, 100, src.Size), xfer.CodeCanceled, "is over")
	check(t, f.Discard())
	wantEmpty(t, to)
	wantReleased(t, d)
}

func TestCheckPattern(t *testing.T) {
	for _, line := range []string{"*.o", "build/x/", "!keep", "[a-c]x", "[]]", `\[`, `a\\`, "[[:digit:]]", `\#x`, "**", "a[/]b", `x\ `} {
		if err := CheckPattern(line); err != nil {
			t.Errorf("%q: %v", line, err)
		}
	}
	for line, says := range map[string]string{
		"[": `"[" has a [ without its ]`, "a[b-/c": "without its ]", "x/[[:nothing:]]": "class of characters", "[a": `write \[`,
		`a\`: `ends in a backslash`, `a\/`: `write \\`, "/": "names no entry", "!": "names no entry", "#x": "names no entry", "": "names no entry", "a\nb": "line feed",
		"./secret": "between its slashes", "../x": "two dots", "a//b": "empty element", "//x": "empty element", "a/./b": "a dot", "secret/.": "a dot",
	} {
		if err := CheckPattern(line); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: %v, want %q", line, err, says)
		}
	}
}
