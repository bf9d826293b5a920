package tree

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/google/go-cmp/cmp"

	"cinnabar/xfer"
)

// keeping takes everything, into directories that are there too, and keeps what came of transfers that were cut.
func keeping() DirOptions {
	opt := all
	opt.Overwrite, opt.AllowDelete, opt.KeepFor = true, true, time.Hour
	return opt
}

// crossed is what a transfer has cost, in which the receiver chooses.
type crossed struct {
	data, sums int64
	removals   []string // their paths; those that are spared have a * behind them
}

// storeChosen gives a source to a receiver that chooses, as a transfer does, in pieces of a size. It ends with errCut when so many bytes have crossed; limit < 0: never.
func storeChosen(open func(context.Context, netip.AddrPort, string, xfer.Meta, int64) (xfer.File, error), src xfer.Source, piece int, limit int64) (c crossed, err error) {
	f, err := open(context.Background(), netip.AddrPort{}, src.Name, src.Meta, src.Size)
	if err != nil {
		return c, err
	}
	if err = c.transfer(f.(xfer.Chooser), src, piece, limit); err == nil {
		err = f.Commit()
	}
	if err != nil {
		return c, errors.Join(err, f.Discard())
	}
	return c, nil
}

func (c *crossed) transfer(f xfer.Chooser, src xfer.Source, piece int, limit int64) error {
	ch := src.Choice
	if err := f.Choose(xfer.Offer{Head: ch.Head, Size: src.Size, Wishes: ch.Wishes, NewHash: func() hash.Hash { return sha256.New() }}); err != nil {
		return err
	}
	write := func(from, n int64) error {
		b := make([]byte, min(int64(piece), n))
		for to := from + n; from < to; from += int64(len(b)) {
			if limit >= 0 && c.data+c.sums >= limit {
				return errCut
			}
			b = b[:min(int64(len(b)), to-from)]
			if k, err := src.Data.ReadAt(b, from); k < len(b) {
				return fmt.Errorf("read %d of %d bytes at %d: %w", k, len(b), from, err)
			}
			if _, err := f.WriteAt(b, from); err != nil {
				return err
			}
			c.data += int64(len(b))
		}
		return nil
	}
	if err := write(0, ch.Head); err != nil {
		return err
	}
	listed, above := 0, []string{}
	for {
		w, err := f.Want()
		if err != nil {
			return err
		}
		for _, r := range w.Removals {
			above = above[:r.Depth]
			p := strings.Join(append(above, r.Name), "/")
			if r.Dir {
				above = append(above, r.Name)
			}
			if !r.Stays {
				if !ch.Remove(p, r.Dir) {
					f.Spare(listed)
					p += "*"
				}
				c.removals = append(c.removals, p)
			}
			listed++
		}
		for _, r := range w.Ranges {
			if !r.Sum {
				if err := write(r.Offset, r.Length); err != nil {
					return err
				}
				continue
			}
			if limit >= 0 && c.data+c.sums >= limit {
				return errCut
			}
			h := sha256.New()
			if _, err := io.Copy(h, io.NewSectionReader(src.Data, r.Offset, r.Length)); err != nil {
				return err
			}
			c.sums += xfer.SumLen
			if err := f.Sum(r, [xfer.SumLen]byte(h.Sum(nil))); err != nil {
				return err
			}
		}
		if w.Last {
			break
		}
	}
	if n, err := src.Data.ReadAt(make([]byte, 1), src.Size); n > 0 || !errors.Is(err, io.EOF) {
		return fmt.Errorf("the source does not end: %w", err)
	}
	return nil
}

// wished returns the source of a directory, with wishes.
func wished(t testing.TB, path string, wishes xfer.Wishes) xfer.Source {
	t.Helper()
	src := scanDir(t, path, ScanOptions{Preserve: true}).Source()
	src.Choice.Wishes = wishes
	return src
}

// A transfer that is cut at any byte goes on where it stopped, also if it is cut again and again, and the files have changed meanwhile.
//
// parity: X02
func TestResume(t *testing.T) {
	needsLocks(t)
	for seed := range uint64(12) {
		r := rand.New(rand.NewPCG(seed, 2))
		from := filepath.Join(t.TempDir(), "photos")
		randomTree(t, r, from)
		d, to := openDir(t, keeping())
		var resent int64
		src := wished(t, from, 0)
		for try := 0; ; try++ {
			if r.IntN(4) == 0 {
				mutate(t, r, from)
				src = wished(t, from, 0)
			}
			limit := src.Choice.Head + 1 + r.Int64N(src.Size-src.Choice.Head+1)
			if try == 8 {
				limit = -1
			}
			c, err := storeChosen(d.Open, src, 1+r.IntN(5000), limit)
			resent = c.data
			if err == nil {
				break
			}
			if !errors.Is(err, errCut) {
				t.Fatal(err)
			}
			if names := must(os.ReadDir(to))(t); len(names) > 1 {
				t.Fatalf("%d names are in the directory", len(names))
			}
		}
		wantSame(t, from, filepath.Join(to, "photos"), true)
		wantOnly(t, to, "photos")
		if resent > src.Size {
			t.Errorf("%d bytes crossed last", resent)
		}
	}
}

// needsLocks skips a test where a transfer cannot resume.
func needsLocks(t testing.TB) {
	t.Helper()
	if runtime.GOOS != "linux" && runtime.GOOS != "darwin" {
		t.Skip("transfers resume where directories can be locked: on Linux and macOS")
	}
}

func wantOnly(t testing.TB, dir string, names ...string) {
	t.Helper()
	var got []string
	for _, e := range must(os.ReadDir(dir))(t) {
		got = append(got, e.Name())
	}
	if d := cmp.Diff(names, got); d != "" {
		t.Errorf("the directory has (-want +got):\n%s", d)
	}
}

// A transfer of large files that is cut near the end sends the rest and the sums only.
func TestResumeSendsTheRest(t *testing.T) {
	needsLocks(t)
	from := filepath.Join(t.TempDir(), "photos")
	check(t, os.MkdirAll(from, 0o755))
	data := make([]byte, 9<<20)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(data) // never fails
	for _, name := range []string{"a", "b", "c"} {
		check(t, os.WriteFile(filepath.Join(from, name), data, 0o644))
	}
	d, to := openDir(t, keeping())
	src := wished(t, from, 0)
	if _, err := storeChosen(d.Open, src, 1<<20, 24<<20); !errors.Is(err, errCut) {
		t.Fatal(err)
	}
	part := filepath.Join(to, partialName("photos"), stagedName)
	// A byte of a block has changed: this block crosses again. A file that is there, and not in the tree, goes.
	f := must(os.OpenFile(filepath.Join(part, "b"), os.O_WRONLY, 0))(t)
	must(f.WriteAt([]byte{data[5<<20] ^ 1}, 5<<20))(t)
	check(t, f.Close())
	check(t, os.WriteFile(filepath.Join(part, "other"), data, 0o644))
	check(t, os.Mkdir(filepath.Join(part, "dir"), 0o755))
	c, err := storeChosen(d.Open, src, 1<<20, -1)
	check(t, err)
	wantSame(t, from, filepath.Join(to, "photos"), true)
	if want := 3*9<<20 - 24<<20 + resumeBlock + src.Choice.Head; c.data > want+1<<20 || c.data < resumeBlock {
		t.Errorf("%d bytes crossed, want about %d", c.data, want)
	}
	wantOnly(t, to, "photos")
	wantReleased(t, d)
}

// Partial trees that another user may have made or may write to are not used, and a second transfer of a name is refused while one runs.
func TestPartialOfOthers(t *testing.T) {
	needsLocks(t)
	from := filepath.Join(t.TempDir(), "photos")
	check(t, os.MkdirAll(filepath.Join(from, "sub"), 0o755))
	check(t, os.WriteFile(filepath.Join(from, "file"), []byte("data"), 0o644))
	for name, prepare := range map[string]func(t *testing.T, part string){
		"others may write": func(t *testing.T, part string) {
			check(t, os.Mkdir(part, 0o700))
			check(t, os.Chmod(part, 0o770))
		},
		"a file": func(t *testing.T, part string) { check(t, os.WriteFile(part, nil, 0o600)) },
		"a link": func(t *testing.T, part string) { check(t, os.Symlink(t.TempDir(), part)) },
		"a file in the place": func(t *testing.T, part string) {
			check(t, os.Mkdir(part, 0o700))
			check(t, os.WriteFile(filepath.Join(part, stagedName), nil, 0o600))
		},
		"links in the place": func(t *testing.T, part string) {
			check(t, os.MkdirAll(filepath.Join(part, stagedName), 0o700))
			check(t, os.Symlink(t.TempDir(), filepath.Join(part, stagedName, "sub")))
			check(t, os.Symlink("/etc/passwd", filepath.Join(part, stagedName, "file")))
		},
		"two names": func(t *testing.T, part string) {
			check(t, os.MkdirAll(filepath.Join(part, stagedName), 0o700))
			check(t, os.WriteFile(filepath.Join(part, stagedName, "file"), []byte("data"), 0o600))
			check(t, os.Link(filepath.Join(part, stagedName, "file"), filepath.Join(part, "other")))
		},
	} {
		t.Run(name, func(t *testing.T) {
			d, to := openDir(t, keeping())
			prepare(t, filepath.Join(to, partialName("photos")))
			must(storeChosen(d.Open, wished(t, from, 0), 100, -1))(t)
			wantSame(t, from, filepath.Join(to, "photos"), true)
		})
	}

	d, to := openDir(t, keeping())
	other := must(OpenDir(t.Context(), to, keeping()))(t)
	defer other.Close()
	src := wished(t, from, 0)
	f := must(d.Open(t.Context(), netip.AddrPort{}, src.Name, src.Meta, src.Size))(t)
	var c crossed
	err := c.transfer(f.(xfer.Chooser), src, 2, src.Size-2)
	if !errors.Is(err, errCut) {
		t.Fatal(err)
	}
	_, err = d.Open(t.Context(), netip.AddrPort{}, src.Name, src.Meta, src.Size)
	wantError(t, err, xfer.CodeExists, `a tree "photos" is being received right now`)
	_, err = storeChosen(other.Open, src, 100, -1)
	wantError(t, err, xfer.CodeExists, `a tree "photos" is being received right now by another process`)
	check(t, f.Discard())
	must(storeChosen(other.Open, src, 100, -1))(t)
	wantSame(t, from, filepath.Join(to, "photos"), true)
	wantOnly(t, to, "photos")
}

// What a cut transfer leaves is removed when its time is over, and not before.
func TestPartialAge(t *testing.T) {
	needsLocks(t)
	from := filepath.Join(t.TempDir(), "photos")
	check(t, os.MkdirAll(from, 0o755))
	check(t, os.WriteFile(filepath.Join(from, "file"), make([]byte, 1000), 0o644))
	d, to := openDir(t, keeping())
	src := wished(t, from, 0)
	for _, limit := range []int64{src.Choice.Head, src.Size - 500} { // the first one leaves no data
		if _, err := storeChosen(d.Open, src, 100, limit); !errors.Is(err, errCut) {
			t.Fatal(err)
		}
		want := []string{partialName("photos")}
		if limit == src.Choice.Head {
			want = nil
		}
		wantOnly(t, to, want...)
	}
	check(t, must(OpenDir(t.Context(), to, keeping()))(t).Close())
	wantOnly(t, to, partialName("photos"))
	old := time.Now().Add(-2 * time.Hour)
	check(t, os.Chtimes(filepath.Join(to, partialName("photos")), old, old))
	check(t, must(OpenDir(t.Context(), to, keeping()))(t).Close())
	wantOnly(t, to)
}

// Only what differs crosses: by size and time, or by contents.
//
// parity: X02
func TestUpdate(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("Windows lets few users make symbolic links")
	}
	for seed := range uint64(10) {
		r := rand.New(rand.NewPCG(seed, 3))
		from := filepath.Join(t.TempDir(), "photos")
		randomTree(t, r, from)
		check(t, os.WriteFile(filepath.Join(from, "large"), make([]byte, 5<<20), 0o640))
		d, to := openDir(t, keeping())
		at := filepath.Join(to, "photos")
		must(storeChosen(d.Open, wished(t, from, 0), 1<<16, -1))(t)
		for _, wishes := range []xfer.Wishes{xfer.WishUpdate, xfer.WishChecksum} {
			src := wished(t, from, wishes)
			c := must(storeChosen(d.Open, src, 1<<16, -1))(t)
			if identical := c.data == src.Choice.Head; !identical {
				t.Errorf("seed %d, wishes %d: %d bytes crossed of a tree that the receiver has", seed, wishes, c.data-src.Choice.Head)
			}
			wantSame(t, from, at, true)
		}
		// Modes and times that differ are corrected. The time of a file lets --checksum keep it, and --update not.
		check(t, os.Chmod(filepath.Join(at, "large"), 0o600))
		check(t, os.Chtimes(filepath.Join(at, "large"), time.Time{}, time.Unix(5, 5)))
		src := wished(t, from, xfer.WishChecksum)
		if c := must(storeChosen(d.Open, src, 1<<16, -1))(t); c.data != src.Choice.Head {
			t.Errorf("seed %d: %d bytes crossed because of a mode", seed, c.data-src.Choice.Head)
		}
		wantSame(t, from, at, true)
		// A file of the same size and time that differs is found by its contents only.
		info := must(os.Stat(filepath.Join(at, "large")))(t)
		f := must(os.OpenFile(filepath.Join(at, "large"), os.O_WRONLY, 0))(t)
		must(f.WriteAt([]byte("x"), 4<<20+5))(t)
		check(t, f.Close())
		check(t, os.Chtimes(filepath.Join(at, "large"), time.Time{}, info.ModTime()))
		src = wished(t, from, xfer.WishUpdate)
		if c := must(storeChosen(d.Open, src, 1<<16, -1))(t); c.data != src.Choice.Head {
			t.Errorf("seed %d: %d bytes crossed", seed, c.data)
		}
		src = wished(t, from, xfer.WishChecksum)
		if c := must(storeChosen(d.Open, src, 1<<16, -1))(t); c.data != src.Choice.Head+5<<20 {
			t.Errorf("seed %d: %d bytes crossed, want those of one file", seed, c.data)
		}
		wantSame(t, from, at, true)
		wantReleased(t, d)
	}
}

// A file that has a name outside of the tree is not kept, because its mode and time would change there.
func TestUpdateLeavesOtherNames(t *testing.T) {
	needsLocks(t)
	from := filepath.Join(t.TempDir(), "photos")
	check(t, os.MkdirAll(from, 0o755))
	check(t, os.WriteFile(filepath.Join(from, "file"), []byte("data"), 0o644))
	d, to := openDir(t, keeping())
	must(storeChosen(d.Open, wished(t, from, 0), 100, -1))(t)
	outside := filepath.Join(t.TempDir(), "outside")
	check(t, os.Link(filepath.Join(to, "photos/file"), outside))
	check(t, os.Chmod(filepath.Join(from, "file"), 0o600))
	must(storeChosen(d.Open, wished(t, from, xfer.WishUpdate), 100, -1))(t)
	wantSame(t, from, filepath.Join(to, "photos"), true)
	if mode := must(os.Stat(outside))(t).Mode().Perm(); mode != 0o644 {
		t.Errorf("the mode outside is %v", mode)
	}
}

// What the sender does not have goes, after the list of it: without following links, and without names that the receiver protects or the sender excludes.
//
// parity: X02
func TestDelete(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("Windows lets few users make symbolic links")
	}
	from := filepath.Join(t.TempDir(), "photos")
	outside := t.TempDir()
	check(t, os.WriteFile(filepath.Join(outside, "precious"), []byte("x"), 0o644))
	check(t, os.MkdirAll(filepath.Join(from, "both/deep"), 0o755))
	check(t, os.WriteFile(filepath.Join(from, "was-dir"), []byte("now a file"), 0o644))
	check(t, os.Mkdir(filepath.Join(from, "was-file"), 0o755))
	opt := keeping()
	opt.AllowDotFiles = false
	d, to := openDir(t, opt)
	at := filepath.Join(to, "photos")
	for _, p := range []string{"both/deep/gone/a/b", "both/gone", "build/object", "keeps/.hidden", "keeps/gone", "was-dir/x/y", ".profile", "z"} {
		check(t, os.MkdirAll(filepath.Dir(filepath.Join(at, p)), 0o755))
		check(t, os.WriteFile(filepath.Join(at, p), []byte("old"), 0o644))
	}
	check(t, os.WriteFile(filepath.Join(at, "was-file"), []byte("old"), 0o644))
	check(t, os.Symlink(outside, filepath.Join(at, "link")))
	check(t, os.Symlink(outside, filepath.Join(at, "both/deep/gone/link")))

	tree := scanDir(t, from, ScanOptions{Patterns: must(ParsePatterns("build/"))(t)})
	src := tree.Source()
	src.Choice.Wishes = xfer.WishDelete | xfer.WishDryRun
	want := []string{"build*", "build/object*", "keeps", "keeps/gone", "link", "z", "both/gone", "both/deep/gone", "both/deep/gone/a", "both/deep/gone/a/b", "both/deep/gone/link", "was-dir", "was-dir/x", "was-dir/x/y", "was-file"}
	before := snapshot(t, to, true)
	c, err := storeChosen(d.Open, src, 100, -1)
	wantError(t, err, xfer.CodeProtocol, "only wanted to know") // a sender would have ended it
	slices.Sort(want)
	slices.Sort(c.removals)
	if diff := cmp.Diff(want, c.removals); diff != "" {
		t.Errorf("the list differs (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(before, snapshot(t, to, true)); diff != "" {
		t.Errorf("the dry run has changed:\n%s", diff)
	}

	src.Choice.Wishes = xfer.WishDelete
	_, err = storeChosen(d.Open, src, 100, src.Choice.Head)
	if !errors.Is(err, errCut) {
		t.Fatal(err)
	}
	after := snapshot(t, to, true)
	for p := range after {
		if strings.HasPrefix(p, tempPrefix) {
			delete(after, p)
		}
	}
	delete(before, ".")
	delete(after, ".")
	if diff := cmp.Diff(before, after); diff != "" {
		t.Errorf("a transfer that was cut has changed:\n%s", diff)
	}
	must(storeChosen(d.Open, src, 100, -1))(t)
	var got []string
	for p := range snapshot(t, at, false) {
		got = append(got, p)
	}
	slices.Sort(got)
	if diff := cmp.Diff([]string{".", ".profile", "both", "both/deep", "build", "build/object", "keeps", "keeps/.hidden", "was-dir", "was-file"}, got); diff != "" {
		t.Errorf("the directory differs (-want +got):\n%s", diff)
	}
	wantOnly(t, outside, "precious")
	wantReleased(t, d)

	opt.AllowDelete = false
	strict, _ := openDir(t, opt)
	_, err = storeChosen(strict.Open, src, 100, -1)
	wantError(t, err, xfer.CodeUnsupported, "this receiver removes nothing for senders")

	opt.AllowDelete, opt.Limits.Entries = true, 6
	few := must(OpenDir(t.Context(), to, opt))(t)
	defer few.Close()
	for i := range 6 {
		check(t, os.WriteFile(filepath.Join(at, fmt.Sprint("more", i)), nil, 0o644))
	}
	_, err = storeChosen(few.Open, src, 100, -1)
	wantError(t, err, xfer.CodeTooLarge, "more than 6 entries would be removed")
}

// A manifest that does not end with the head, and files of the receiver that change meanwhile, fail the transfer.
func TestChoiceFails(t *testing.T) {
	needsLocks(t)
	fsys := fstest.MapFS{"a": {Data: []byte("data"), ModTime: time.Unix(1e9, 0)}}
	open := func(d *Dir, wishes xfer.Wishes) (xfer.Chooser, xfer.Source) {
		src := must(Scan(t.Context(), fsys, "photos", ScanOptions{Preserve: true}))(t).Source()
		src.Choice.Wishes = wishes
		return must(d.Open(t.Context(), netip.AddrPort{}, src.Name, src.Meta, src.Size))(t).(xfer.Chooser), src
	}
	d, to := openDir(t, keeping())
	for _, more := range []int64{-1, 1} {
		f, src := open(d, 0)
		src.Choice.Head += more
		var c crossed
		wantError(t, c.transfer(f, src, 1000, -1), xfer.CodeProtocol, "")
		check(t, f.Discard())
	}
	f, src := open(d, 0)
	must(storeChosen(func(context.Context, netip.AddrPort, string, xfer.Meta, int64) (xfer.File, error) { return f, nil }, src, 100, -1))(t)
	f, src = open(d, xfer.WishUpdate)
	var c crossed
	check(t, c.transfer(f, src, 1000, -1))
	check(t, os.Remove(filepath.Join(to, "photos/a")))
	err := f.Commit()
	wantError(t, err, xfer.CodeExists, `"a" has changed at the receiver meanwhile`)
	check(t, f.Discard())
	wantReleased(t, d)
}

// mutate changes some entries of a directory.
func mutate(t testing.TB, r *rand.Rand, path string) {
	t.Helper()
	var all []string
	check(t, filepath.WalkDir(path, func(p string, _ fs.DirEntry, err error) error {
		if p != path {
			all = append(all, p)
		}
		return err
	}))
	r.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	for _, p := range all[:min(len(all), 1+r.IntN(5))] {
		info, err := os.Lstat(p)
		if err != nil {
			continue // it went with a directory
		}
		switch kind := r.IntN(6); {
		case kind == 0:
			check(t, os.RemoveAll(p))
		case kind == 1 && !info.IsDir():
			check(t, os.Remove(p))
			check(t, os.Mkdir(p, 0o755))
			check(t, os.WriteFile(filepath.Join(p, "inside"), bytes.Repeat([]byte("i"), r.IntN(3000)), 0o644))
		case kind == 2:
			check(t, os.RemoveAll(p))
			check(t, os.WriteFile(p, bytes.Repeat([]byte("n"), r.IntN(9000)), 0o640))
		case kind == 3 && info.Mode().IsRegular():
			check(t, os.Chmod(p, 0o640))
		case kind == 4 && info.Mode().IsRegular():
			check(t, os.Chmod(p, 0o600))
			f := must(os.OpenFile(p, os.O_WRONLY|os.O_APPEND, 0))(t)
			must(f.WriteString("more"))(t)
			check(t, f.Close())
		default:
			_ = os.Rename(p, p[:len(p)-1]+"R") // of a name of its own, or not
		}
	}
	added := filepath.Join(path, fmt.Sprint("new", r.IntN(3)))
	check(t, os.RemoveAll(added))
	check(t, os.WriteFile(added, bytes.Repeat([]byte("m"), r.IntN(100)), 0o600))
	var dirs []string
	check(t, filepath.WalkDir(path, func(p string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			dirs = append(dirs, p)
		}
		return err
	}))
	for _, p := range dirs { // of the past, because rsync compares the seconds of directories only
		check(t, os.Chtimes(p, time.Time{}, time.Unix(1e9+r.Int64N(5e8), r.Int64N(1e9))))
	}
}
