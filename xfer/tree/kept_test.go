package tree

import (
	"errors"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"cinnabar/xfer"
)

// A name that a link of the receiver leads to is none of the tree, so the file that has it is sent again.
func TestUpdateLinksThroughLink(t *testing.T) {
	needsLocks(t)
	d, to := openDir(t, keeping())
	at := filepath.Join(to, "photos")
	old := time.Unix(1e9, 0)
	from := filepath.Join(t.TempDir(), "photos")
	check(t, os.MkdirAll(filepath.Join(from, "a"), 0o755))
	check(t, os.MkdirAll(filepath.Join(from, "c"), 0o755))
	check(t, os.WriteFile(filepath.Join(from, "a/f"), []byte("data"), 0o644))
	check(t, os.Chtimes(filepath.Join(from, "a/f"), old, old))
	check(t, os.Link(filepath.Join(from, "a/f"), filepath.Join(from, "c/g")))
	check(t, os.Symlink("c", filepath.Join(from, "b")))
	must(storeChosen(d.Open, wished(t, from, 0), 100, -1))(t)
	wantSame(t, from, at, true)
	c := must(storeChosen(d.Open, wished(t, from, xfer.WishUpdate), 100, -1))(t)
	src := wished(t, from, xfer.WishUpdate)
	if c.data != src.Choice.Head {
		t.Errorf("%d bytes of a tree that is there have crossed; its list has %d", c.data, src.Choice.Head)
	}
	check(t, os.Remove(filepath.Join(from, "b")))
	check(t, os.Rename(filepath.Join(from, "c"), filepath.Join(from, "b")))
	must(storeChosen(d.Open, wished(t, from, xfer.WishUpdate|xfer.WishDelete), 100, -1))(t)
	wantSame(t, from, at, true)
}

// A file that stays must be the one that was compared when the tree is complete. If it is not, nothing is changed.
func TestKeptFileChanges(t *testing.T) {
	needsLocks(t)
	for name, change := range map[string]func(t *testing.T, at string){
		"contents": func(t *testing.T, at string) {
			check(t, os.WriteFile(filepath.Join(at, "f"), []byte("wrong"), 0o644))
		},
		"another file": func(t *testing.T, at string) {
			new, f := filepath.Join(at, "new"), filepath.Join(at, "f")
			info := must(os.Lstat(f))(t)
			check(t, os.WriteFile(new, []byte("wrong"), 0o644))
			check(t, os.Chtimes(new, time.Time{}, info.ModTime()))
			check(t, os.Rename(new, f))
		},
		"gone":      func(t *testing.T, at string) { check(t, os.Remove(filepath.Join(at, "f"))) },
		"link gone": func(t *testing.T, at string) { check(t, os.Remove(filepath.Join(at, "g"))) },
		"link is another file": func(t *testing.T, at string) {
			check(t, os.Remove(filepath.Join(at, "g")))
			check(t, os.WriteFile(filepath.Join(at, "g"), []byte("wrong"), 0o644))
		},
	} {
		for _, wish := range []xfer.Wishes{xfer.WishUpdate, xfer.WishChecksum} {
			t.Run(name, func(t *testing.T) {
				d, to := openDir(t, keeping())
				from, at := filepath.Join(t.TempDir(), "photos"), filepath.Join(to, "photos")
				check(t, os.MkdirAll(from, 0o755))
				check(t, os.WriteFile(filepath.Join(from, "f"), []byte("right"), 0o644))
				check(t, os.Chtimes(filepath.Join(from, "f"), time.Time{}, time.Unix(1e9, 5)))
				check(t, os.Link(filepath.Join(from, "f"), filepath.Join(from, "g")))
				must(storeChosen(d.Open, wished(t, from, 0), 100, -1))(t)
				src := wished(t, from, wish|xfer.WishDelete)
				check(t, os.WriteFile(filepath.Join(at, "old"), nil, 0o644))
				f := must(d.Open(t.Context(), netip.AddrPort{}, src.Name, src.Meta, src.Size))(t)
				var c crossed
				check(t, c.transfer(f.(xfer.Chooser), src, 100, -1))
				change(t, at)
				before := snapshot(t, at, true)
				wantError(t, errors.Join(f.Commit(), f.Discard()), xfer.CodeExists, "has changed at the receiver meanwhile")
				if after := snapshot(t, at, true); len(after) != len(before) || after["f"] != before["f"] || after["old"] == "" {
					t.Errorf("the receiver has %v, and had %v", after, before)
				}
			})
		}
	}
}

// A file of the receiver that is nearly all holes is not read for --checksum, because that would take time and no traffic of the sender.
func TestChecksumOfHoles(t *testing.T) {
	needsLocks(t)
	d, to := openDir(t, keeping())
	from, at := filepath.Join(t.TempDir(), "photos"), filepath.Join(to, "photos")
	const size = 8 << 20
	check(t, os.MkdirAll(from, 0o755))
	check(t, os.MkdirAll(at, 0o755))
	check(t, os.WriteFile(filepath.Join(from, "f"), make([]byte, size), 0o644))
	f := must(os.Create(filepath.Join(at, "f")))(t)
	check(t, errors.Join(f.Truncate(size), f.Close()))
	if info := must(os.Lstat(filepath.Join(at, "f")))(t); allocated(info) == size {
		t.Skip("the file system has no holes")
	}
	c := must(storeChosen(d.Open, wished(t, from, xfer.WishChecksum), 1<<20, -1))(t)
	if c.sums != 0 || c.data < size {
		t.Errorf("%d bytes of sums and %d of data have crossed", c.sums, c.data)
	}
	wantSame(t, from, at, true)
}

// otherFile is a file of another user.
type otherFile struct{ fs.FileInfo }

func (otherFile) Sys() any { return nil }

// A file of another user stays only if it needs no other mode and time, because only its owner can set them.
func TestKeptFileOfOthers(t *testing.T) {
	needsLocks(t)
	at := filepath.Join(t.TempDir(), "f")
	check(t, os.WriteFile(at, nil, 0o600))
	info := otherFile{must(os.Lstat(at))(t)}
	for _, c := range []struct {
		e      Entry
		ignore bool
		want   bool
	}{
		{Entry{HasMode: true, Mode: 0o600, ModTime: info.ModTime()}, false, true},
		{Entry{}, false, true},
		{Entry{HasMode: true, Mode: 0o644}, false, false},
		{Entry{HasMode: true, Mode: 0o644}, true, true},
		{Entry{ModTime: time.Unix(1, 0)}, false, false},
	} {
		s := &storing{dir: &Dir{}}
		s.dir.opt.IgnoreMeta = c.ignore
		if got := s.dresses(&c.e, info); got != c.want {
			t.Errorf("%+v: got %v", c.e, got)
		}
	}
}
