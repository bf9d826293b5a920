package tree

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"cinnabar/xfer"
)

// cutAt sends a tree until so many bytes have crossed.
func cutAt(t *testing.T, d *Dir, from string, left int64) {
	t.Helper()
	src := wished(t, from, 0)
	if _, err := storeChosen(d.Open, src, 100, src.Size-left); !errors.Is(err, errCut) {
		t.Fatal(err)
	}
}

// A later transfer goes through no link that the earlier part has where the tree has a directory now.
func TestResumeThroughNoLink(t *testing.T) {
	needsLocks(t)
	for _, target := range []string{"../../victim", "../../../../outside", "."} {
		opt := all
		opt.KeepFor, opt.AllowOutsideLinks = time.Hour, true
		d, to := openDir(t, opt)
		check(t, os.Mkdir(filepath.Join(to, "victim"), 0o755))
		check(t, os.WriteFile(filepath.Join(to, "victim/precious"), []byte("x"), 0o644))
		from := filepath.Join(t.TempDir(), "photos")
		check(t, os.MkdirAll(from, 0o755))
		check(t, os.WriteFile(filepath.Join(from, "a"), make([]byte, 1000), 0o644))
		check(t, os.Symlink(target, filepath.Join(from, "sub")))
		cutAt(t, d, from, 500)
		check(t, os.Remove(filepath.Join(from, "sub")))
		check(t, os.Mkdir(filepath.Join(from, "sub"), 0o755))
		check(t, os.Link(filepath.Join(from, "a"), filepath.Join(from, "sub/precious")))
		must(storeChosen(d.Open, wished(t, from, 0), 100, -1))(t)
		wantSame(t, from, filepath.Join(to, "photos"), true)
		wantOnly(t, filepath.Join(to, "victim"), "precious")
	}
}

// An entry of another kind, or with contents, may be where the tree has a hard link, a file, a link or a directory now.
func TestResumeOtherKinds(t *testing.T) {
	needsLocks(t)
	kinds := map[string]func(t *testing.T, at, file string){
		"directory": func(t *testing.T, at, _ string) {
			check(t, os.MkdirAll(filepath.Join(at, "b/c"), 0o755))
			check(t, os.WriteFile(filepath.Join(at, "b/file"), nil, 0o644))
		},
		"file":      func(t *testing.T, at, _ string) { check(t, os.WriteFile(at, []byte("b"), 0o644)) },
		"link":      func(t *testing.T, at, _ string) { check(t, os.Symlink("a", at)) },
		"hard link": func(t *testing.T, at, file string) { check(t, os.Link(file, at)) },
	}
	for before, prepare := range kinds {
		for after, change := range kinds {
			t.Run(before+" to "+after, func(t *testing.T) {
				d, to := openDir(t, keeping())
				from := filepath.Join(t.TempDir(), "photos")
				check(t, os.MkdirAll(from, 0o755))
				file, at := filepath.Join(from, "a"), filepath.Join(from, "b")
				check(t, os.WriteFile(file, make([]byte, 1000), 0o644))
				prepare(t, at, file)
				cutAt(t, d, from, 500)
				check(t, os.RemoveAll(at))
				change(t, at, file)
				must(storeChosen(d.Open, wished(t, from, 0), 100, -1))(t)
				wantSame(t, from, filepath.Join(to, "photos"), true)
			})
		}
	}
}

// A directory says whether it has a part of a tree or a file with which a transfer goes on.
func TestHasPart(t *testing.T) {
	needsLocks(t)
	d, to := openDir(t, keeping())
	from := filepath.Join(t.TempDir(), "photos")
	check(t, os.MkdirAll(from, 0o755))
	check(t, os.WriteFile(filepath.Join(from, "a"), make([]byte, 1000), 0o644))
	if d.HasPart("photos/") {
		t.Error("an empty directory has a part")
	}
	cutAt(t, d, from, 500)
	if !d.HasPart("photos/") || d.HasPart("photos") || d.HasPart("other/") {
		t.Error("the part of the tree is not found, or others are")
	}
	check(t, os.Chmod(filepath.Join(to, partialName("photos")), 0o777))
	if d.HasPart("photos/") {
		t.Error("a part that other users may write to is taken")
	}
	if d, _ := openDir(t, all); d.HasPart("photos/") {
		t.Error("a directory that keeps nothing has a part")
	}
}

// The time for a directory grows with its entries, and not with their square.
func TestFlatDirectory(t *testing.T) {
	needsLocks(t)
	const n = 50_000 // whose square takes a minute
	m := &Manifest{Entries: []Entry{{Kind: Directory}}}
	for i := range n {
		m.Entries = append(m.Entries, Entry{Name: fmt.Sprintf("%07d", i), Kind: HardLink, Depth: 1, Link: 1})
	}
	m.Entries[1] = Entry{Name: m.Entries[1].Name, Kind: File, Depth: 1, Size: 1}
	m.Data = 1
	head := appendManifest(nil, m)
	d, to := openDir(t, keeping())
	check(t, os.MkdirAll(filepath.Join(to, partialName("photos"), stagedName), 0o700))
	check(t, os.Chmod(filepath.Join(to, partialName("photos")), 0o700))
	check(t, os.Mkdir(filepath.Join(to, "photos"), 0o755))
	size := int64(len(head)) + 1
	f := must(d.Open(t.Context(), netip.AddrPort{}, "photos/", xfer.Meta{}, size))(t).(xfer.Chooser)
	check(t, f.Choose(xfer.Offer{Head: int64(len(head)), Size: size, Wishes: xfer.WishDelete}))
	must(f.WriteAt(head, 0))(t)
	check(t, f.Discard())
}

// A transfer that is over stops work that is under way, and keeps the part.
func TestStop(t *testing.T) {
	needsLocks(t)
	d, to := openDir(t, keeping())
	from := filepath.Join(t.TempDir(), "photos")
	check(t, os.MkdirAll(from, 0o755))
	check(t, os.WriteFile(filepath.Join(from, "a"), make([]byte, 1000), 0o644))
	cutAt(t, d, from, 500)
	src := wished(t, from, 0)
	open := func(ctx context.Context, from netip.AddrPort, name string, meta xfer.Meta, size int64) (xfer.File, error) {
		ctx, end := context.WithCancel(ctx)
		defer end()
		return d.Open(ctx, from, name, meta, size)
	}
	_, err := storeChosen(open, src, 100, -1)
	wantError(t, err, xfer.CodeCanceled, "is over")
	wantOnly(t, to, partialName("photos"))
	must(storeChosen(d.Open, src, 100, -1))(t)
	wantSame(t, from, filepath.Join(to, "photos"), true)
	wantReleased(t, d)
}

// The removal of what killed receivers have left ends with the context of OpenDir, and with Close. A later receiver removes the rest.
func TestRemovalOfStaleEnds(t *testing.T) {
	needsLocks(t)
	to := t.TempDir()
	stale, long := filepath.Join(to, tempPrefix+"0000000000000001"+tempSuffix), time.Now().Add(-2*staleAfter)
	plant(t, stale, "a/1", "a/2", "b/3")
	check(t, os.Chtimes(stale, long, long))
	why := errors.New("no time")
	ended, end := context.WithCancelCause(t.Context())
	end(why)
	if _, err := OpenDir(ended, to, keeping()); !errors.Is(err, why) {
		t.Errorf("got %v", err)
	}
	root := must(os.OpenRoot(to))(t)
	steps := 0
	err := removeAll(root, filepath.Base(stale), func() error {
		if steps++; steps == 6 {
			return why
		}
		return nil
	})
	if left := len(snapshot(t, stale, false)); !errors.Is(err, why) || left == 0 || left == 6 {
		t.Errorf("got %v, and %d entries", err, left)
	}
	check(t, root.Close())
	check(t, os.Chtimes(stale, long, long))
	d := must(OpenDir(t.Context(), to, keeping()))(t)
	wantEmpty(t, to)
	check(t, d.Close())
	plant(t, stale, "a/1")
	check(t, os.Chtimes(stale, long, long))
	d.clean(long) // as Open of a transfer that is late
	d.cleaning.Wait()
	if len(snapshot(t, stale, false)) != 3 {
		t.Error("a closed directory removes")
	}
}
