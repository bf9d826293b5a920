package tree

import (
	"context"
	"errors"
	"fmt"
	"github.com/google/go-cmp/cmp"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"cinnabar/xfer"
)

// plant writes files with their paths as contents. A path that ends in a slash is a directory.
func plant(t *testing.T, at string, paths ...string) {
	t.Helper()
	check(t, os.MkdirAll(at, 0o755))
	for _, p := range paths {
		check(t, os.MkdirAll(filepath.Join(at, filepath.Dir(p)), 0o755))
		if !strings.HasSuffix(p, "/") {
			check(t, os.WriteFile(filepath.Join(at, p), []byte(p), 0o644))
		}
	}
}

// A tree is refused, and changes nothing, if entries that do not go are where the sender has an entry of another kind.
func TestDeleteConflict(t *testing.T) {
	for _, c := range []struct{ name, here, there, pattern, text string }{
		{"protected", "x", "x/.hidden", "", `"x/.hidden", which this receiver does not remove`},
		{"protected deep", "x", "x/y/z/.hidden", "", `z/.hidden`},
		{"spared", "x", "x/y.o", "*.o", `y.o", which the sender does not remove`},
		{"spared deep", "a/x", "a/x/y/z.o", "*.o", `z.o", which the sender does not remove`},
	} {
		t.Run(c.name, func(t *testing.T) {
			opt := keeping()
			opt.AllowDotFiles = false
			d, to := openDir(t, opt)
			at, from := filepath.Join(to, "photos"), filepath.Join(t.TempDir(), "photos")
			plant(t, at, c.there, "x/other", "old")
			plant(t, from, c.here, "a/first")
			src := scanDir(t, from, ScanOptions{Preserve: true, Patterns: must(ParsePatterns(c.pattern))(t)}).Source()
			src.Choice.Wishes = xfer.WishDelete
			before := snapshot(t, at, true)
			_, err := storeChosen(d.Open, src, 100, -1)
			wantError(t, err, xfer.CodeExists, c.text)
			if diff := cmp.Diff(before, snapshot(t, at, true)); diff != "" {
				t.Errorf("the transfer has failed and changed:\n%s", diff)
			}
			wantReleased(t, d)
		})
	}
}

// What has changed at the receiver since the list of removals stays, and no link is followed that has come meanwhile.
func TestDeleteChanged(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("Windows lets few users make symbolic links")
	}
	replace := func(t *testing.T, at string) {
		t.Helper()
		check(t, os.WriteFile(at+".new", []byte("new"), 0o644))
		check(t, os.Rename(at+".new", at))
	}
	for name, c := range map[string]struct {
		change func(t *testing.T, to string)
		stays  []string // below the directory of the receiver
		failed string   // why the transfer fails; "": it does not
	}{
		"file is replaced":   {func(t *testing.T, to string) { replace(t, filepath.Join(to, "photos/old")) }, []string{"photos/old"}, ""},
		"file is written to": {func(t *testing.T, to string) { plant(t, to, "photos/old") }, []string{"photos/old"}, ""},
		"file has become a directory": {func(t *testing.T, to string) {
			check(t, os.Remove(filepath.Join(to, "photos/old")))
			plant(t, to, "photos/old/file")
		}, []string{"photos/old/file"}, ""},
		"directory is replaced": {func(t *testing.T, to string) {
			check(t, os.Rename(filepath.Join(to, "photos/dir"), filepath.Join(to, "was")))
			plant(t, to, "photos/dir/file")
		}, []string{"photos/dir/file", "was/file"}, ""},
		"directory has become a link": {func(t *testing.T, to string) {
			check(t, os.Rename(filepath.Join(to, "photos/dir"), filepath.Join(to, "was")))
			check(t, os.Symlink("../was", filepath.Join(to, "photos/dir")))
		}, []string{"photos/dir", "was/file"}, ""},
		"directory of both has become a link": {func(t *testing.T, to string) {
			check(t, os.Rename(filepath.Join(to, "photos/both"), filepath.Join(to, "was")))
			check(t, os.Symlink("../was", filepath.Join(to, "photos/both")))
		}, []string{"was/old"}, "has become"},
		"file is in the way": {func(t *testing.T, to string) { plant(t, to, "photos/way/more") }, []string{"photos/old", "photos/way/more"}, `"way" has changed or is in use`},
		"way is replaced":    {func(t *testing.T, to string) { replace(t, filepath.Join(to, "photos/way/file")) }, []string{"photos/old", "photos/way/file"}, "has changed or is in use"},
	} {
		t.Run(name, func(t *testing.T) {
			d, to := openDir(t, keeping())
			from := filepath.Join(t.TempDir(), "photos")
			plant(t, from, "both/new", "way")
			plant(t, filepath.Join(to, "photos"), "both/old", "dir/file", "old", "way/file")
			check(t, os.Chtimes(filepath.Join(to, "photos/old"), time.Time{}, time.Unix(1e9, 0)))
			src := wished(t, from, xfer.WishDelete)
			f := must(d.Open(t.Context(), netip.AddrPort{}, src.Name, src.Meta, src.Size))(t)
			var crossed crossed
			check(t, crossed.transfer(f.(xfer.Chooser), src, 100, -1))
			c.change(t, to)
			err := f.Commit()
			if c.failed == "" {
				check(t, err)
			} else {
				wantError(t, err, xfer.CodeExists, c.failed)
				check(t, f.Discard())
			}
			for _, p := range c.stays {
				if _, err := os.Lstat(filepath.Join(to, p)); err != nil {
					t.Error(err)
				}
			}
			wantReleased(t, d)
		})
	}
}

// An error after removals says that there were some.
func TestDeleteFails(t *testing.T) {
	d, to := openDir(t, keeping())
	from := filepath.Join(t.TempDir(), "photos")
	plant(t, from, "a/", "b")
	plant(t, filepath.Join(to, "photos"), "a", "old")
	src := wished(t, from, xfer.WishDelete)
	f := must(d.Open(t.Context(), netip.AddrPort{}, src.Name, src.Meta, src.Size))(t)
	var crossed crossed
	check(t, crossed.transfer(f.(xfer.Chooser), src, 100, -1))
	check(t, os.RemoveAll(filepath.Join(to, f.(*claimed).s.temp, stagedName, "a")))
	wantError(t, f.Commit(), xfer.CodeStorage, `cannot name "a"`, "1 entries of the receiver are removed")
	check(t, f.Discard())
	wantOnly(t, filepath.Join(to, "photos"), "old")
}

// A directory in which the file system finds an entry by another name than its own is refused: a file system that ignores the case of names has such ones.
func TestDeleteOtherNames(t *testing.T) {
	d, to := openDir(t, keeping())
	plant(t, to, "photos/File")
	src := wished(t, t.TempDir(), xfer.WishDelete)
	f := must(d.Open(t.Context(), netip.AddrPort{}, "photos/", src.Meta, src.Size))(t).(*claimed)
	f.s.m = &Manifest{Entries: []Entry{{Kind: Directory}}}
	w := walk{root: d.root}
	// The dot stands for such a name, because it is found and not listed.
	for names, want := range map[string]string{".": `"."`, "File": "", "file": ""} {
		if folds := d.foldsCase("photos"); folds && names == "file" {
			want = `"file"`
		}
		err := f.s.listExtra(&w, 0, "photos", []string{names}, &[]int{-1})
		if want == "" {
			check(t, err)
		} else {
			wantError(t, err, xfer.CodeName, want, "leave --delete out")
		}
	}
	check(t, w.leave())
	check(t, f.Discard())
}

// The list of removals may be longer than one look at a directory.
func TestDeleteMany(t *testing.T) {
	d, to := openDir(t, keeping())
	from := filepath.Join(t.TempDir(), "photos")
	plant(t, from, "a/file")
	var paths []string
	for i := range entriesAtOnce + 1 {
		paths = append(paths, fmt.Sprint("a/", i), fmt.Sprint("dir/", i))
	}
	plant(t, filepath.Join(to, "photos"), paths...)
	c := must(storeChosen(d.Open, wished(t, from, xfer.WishDelete), 100, -1))(t)
	if want := len(paths) + 1; len(c.removals) != want {
		t.Errorf("%d removals, want %d", len(c.removals), want)
	}
	wantSame(t, from, filepath.Join(to, "photos"), true)
}

// Work that is stopped removes nothing more.
func TestDeleteStops(t *testing.T) {
	d, to := openDir(t, keeping())
	from := filepath.Join(t.TempDir(), "photos")
	plant(t, from, "a")
	plant(t, filepath.Join(to, "photos"), "old", "dir/file")
	src := wished(t, from, xfer.WishDelete)
	ctx, end := context.WithCancel(t.Context())
	defer end()
	f := must(d.Open(ctx, netip.AddrPort{}, src.Name, src.Meta, src.Size))(t)
	var crossed crossed
	check(t, crossed.transfer(f.(xfer.Chooser), src, 100, -1))
	end()
	wantError(t, f.Commit(), xfer.CodeCanceled, "is over")
	check(t, f.Discard())
	for _, p := range []string{"old", "dir/file"} {
		if _, err := os.Lstat(filepath.Join(to, "photos", p)); err != nil {
			t.Error(err)
		}
	}
}

// endsAfter is a context that ends at one of the calls of Err: the one that brings left to 0.
type endsAfter struct {
	context.Context
	end  context.CancelCauseFunc
	left atomic.Int32
}

// errLost is the reason for the end of an endsAfter.
var errLost = errors.New("the sender is lost")

func (c *endsAfter) Err() error {
	if c.left.Add(-1) == 0 {
		c.end(errLost)
	}
	return c.Context.Err()
}

// The transfer ends at each place of a Commit that removes entries. Either the directory is as before, or the tree has its names, modes and times, and only entries that the sender does not have
// may be there besides. The error says what was done.
func TestDeleteCutAnywhere(t *testing.T) {
	from := filepath.Join(t.TempDir(), "photos")
	plant(t, from, "way1", "way2", "new", "d/secret")
	check(t, os.Chmod(filepath.Join(from, "d"), 0o700))
	check(t, os.Chtimes(filepath.Join(from, "d"), time.Time{}, time.Unix(1e9, 0)))
	want := snapshot(t, from, true)
	for n := int32(1); ; n++ {
		d, to := openDir(t, keeping())
		at := filepath.Join(to, "photos")
		plant(t, at, "way1/mine", "way1/mine2", "way2/mine", "old1", "old2", "d/old")
		check(t, os.Chmod(filepath.Join(at, "d"), 0o777))
		before := snapshot(t, at, true)
		src := wished(t, from, xfer.WishDelete)
		ctx := &endsAfter{}
		ctx.Context, ctx.end = context.WithCancelCause(t.Context())
		f := must(d.Open(ctx, netip.AddrPort{}, src.Name, src.Meta, src.Size))(t)
		var crossed crossed
		check(t, crossed.transfer(f.(xfer.Chooser), src, 100, -1))
		ctx.left.Store(n)
		err := f.Commit()
		if err == nil {
			if n < 4 {
				t.Errorf("a Commit looks %d times at its context", n-1)
			}
			return
		}
		check(t, f.Discard())
		if !errors.Is(err, errLost) {
			t.Errorf("look %d: %v", n, err)
		}
		got := snapshot(t, at, true)
		if maps.Equal(got, before) {
			continue
		}
		if text := err.Error(); !strings.Contains(text, "the tree stands under its name") || !strings.Contains(text, "entries of the receiver are removed") {
			t.Errorf("look %d: %v", n, err)
		}
		for p, line := range want {
			if got[p] != line {
				t.Errorf("look %d: %s is %q, want %q", n, p, got[p], line)
			}
		}
	}
}
