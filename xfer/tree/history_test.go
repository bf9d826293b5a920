package tree

import (
	"hash/fnv"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"pgregory.net/rapid"

	"cinnabar/xfer"
)

// Histories of trees that are sent one into the other, some cut, leave what a model says: entries of the last sender, and those of
// earlier ones that no later one has.
func TestHistories(t *testing.T) {
	base, runs := t.TempDir(), 0
	rapid.Check(t, func(rt *rapid.T) {
		runs++
		to := filepath.Join(base, strconv.Itoa(runs))
		check(t, os.Mkdir(to, 0o700))
		d := must(OpenDir(t.Context(), to, keeping()))(t)
		defer d.Close()
		model := map[string]string{} // path to contents; a directory has "/"
		for range rapid.IntRange(1, 4).Draw(rt, "trees") {
			fsys, files := drawFS(rt)
			tree := must(Scan(t.Context(), fsys, "photos", ScanOptions{Preserve: true}))(t)
			for i := range tree.manifest.Entries { // times without modes, because directories of fstest cannot be written to
				tree.manifest.Entries[i].HasMode = false
			}
			tree.head = appendManifest(nil, tree.manifest)
			src := tree.Source()
			limit := src.Size
			if rapid.IntRange(0, 3).Draw(rt, "cut") == 0 {
				limit = rapid.Int64Range(0, src.Size-1).Draw(rt, "at")
			}
			piece := rapid.IntRange(1, 64).Draw(rt, "piece")
			var err error
			if rapid.Bool().Draw(rt, "chooses") {
				src.Choice.Wishes = rapid.SampledFrom([]xfer.Wishes{0, xfer.WishUpdate, xfer.WishChecksum, xfer.WishDelete, xfer.WishUpdate | xfer.WishDelete, xfer.WishChecksum | xfer.WishDelete}).Draw(rt, "wishes")
				if limit == src.Size {
					limit = -1
				}
				_, err = storeChosen(d.Open, src, piece, limit)
			} else {
				src.Choice.Wishes = 0
				err = storePart(d.Open, src, piece, limit)
			}
			deletes := src.Choice.Wishes&xfer.WishDelete != 0
			conflict := conflicts(model, files) && !deletes
			if err == nil { // a receiver that chooses may need less than there was to cut
				limit = src.Size
			}
			if limit < 0 {
				limit = src.Size
			}
			if err == nil && deletes {
				clear(model)
			}
			switch {
			case err == nil && (conflict || limit < src.Size):
				rt.Fatalf("a tree was stored that conflicts (%v), or was cut", conflict)
			case err != nil && !conflict && limit == src.Size:
				rt.Fatal(err)
			case err == nil:
				for p, data := range files {
					model[p] = data
				}
			}
			wantModel(rt, t, model, to)
		}
	})
}

// drawFS draws a small tree, and returns its entries.
func drawFS(rt *rapid.T) (fstest.MapFS, map[string]string) {
	fsys, files := fstest.MapFS{}, map[string]string{".": "/"}
	for range rapid.IntRange(0, 6).Draw(rt, "entries") {
		elements := rapid.SliceOfN(rapid.SampledFrom([]string{"a", "b", "c"}), 1, 3).Draw(rt, "path")
		p := strings.Join(elements, "/")
		if files[p] != "" || slices.ContainsFunc(above(p), func(dir string) bool { return files[dir] != "" && files[dir] != "/" }) {
			continue
		}
		data := rapid.StringMatching(`[a-z]{0,20}`).Draw(rt, "data")
		h := fnv.New32()
		h.Write([]byte(data))                                                                  // never fails (package hash)
		fsys[p] = &fstest.MapFile{Data: []byte(data), ModTime: time.Unix(int64(h.Sum32()), 0)} // files of one size and time have the same data
		files[p] = "=" + data
		for _, dir := range above(p) {
			files[dir] = "/"
		}
	}
	return fsys, files
}

// above returns the directories around a path.
func above(p string) (dirs []string) {
	for i := range p {
		if p[i] == '/' {
			dirs = append(dirs, p[:i])
		}
	}
	return dirs
}

// conflicts reports whether a directory of one side is a file of the other.
func conflicts(model, files map[string]string) bool {
	for p, data := range files {
		if old := model[p]; old != "" && (old == "/") != (data == "/") {
			return true
		}
	}
	return false
}

func wantModel(rt *rapid.T, t *testing.T, model map[string]string, to string) {
	got := map[string]string{}
	check(t, filepath.WalkDir(to, func(p string, e os.DirEntry, err error) error {
		if err != nil || p == to {
			return err
		}
		if isTemp(e.Name()) { // what came of a transfer that was cut
			return filepath.SkipDir
		}
		rel, err := filepath.Rel(filepath.Join(to, "photos"), p)
		if err != nil {
			return err
		}
		if e.IsDir() {
			got[filepath.ToSlash(rel)] = "/"
			return nil
		}
		data, err := os.ReadFile(p)
		got[filepath.ToSlash(rel)] = "=" + string(data)
		return err
	}))
	if len(got) != len(model) || compare(model, got, "") != "" {
		rt.Fatalf("the directory has %v, the model %v", got, model)
	}
}

// A tree goes into a directory that is there, entry by entry; links of the receiver are replaced and never followed.
func TestMergeIgnoresLinks(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("Windows lets few users make symbolic links")
	}
	opt := all
	opt.Overwrite = true
	d, to := openDir(t, opt)
	outside := filepath.Join(t.TempDir(), "outside")
	check(t, os.WriteFile(outside, []byte("mine"), 0o600))
	check(t, os.MkdirAll(filepath.Join(to, "photos"), 0o755))
	check(t, os.Symlink(outside, filepath.Join(to, "photos/file")))
	check(t, os.Symlink(filepath.Dir(outside), filepath.Join(to, "photos/dir")))

	err := store(d.Open, tree(t, fstest.MapFS{"dir/x": {Data: []byte("x")}, "file": {Data: []byte("new")}}).Source(), 100)
	wantError(t, err, xfer.CodeName, `"dir": it is a directory, and at the receiver none`)
	check(t, store(d.Open, tree(t, fstest.MapFS{"file": {Data: []byte("new")}}).Source(), 100))
	if got := string(must(os.ReadFile(outside))(t)); got != "mine" {
		t.Errorf("the file outside has %q", got)
	}
	if got := string(must(os.ReadFile(filepath.Join(to, "photos/file")))(t)); got != "new" {
		t.Errorf("got %q", got)
	}

	check(t, os.Symlink(outside, filepath.Join(to, "link")))
	_, err = d.Open(t.Context(), netip.AddrPort{}, "link/", xfer.Meta{}, 100)
	wantError(t, err, xfer.CodeExists, "is no directory")
}

// An error between the names of two entries, while a tree goes into one that is there, says that those before are stored, if there are some.
func TestErrorWithinMerge(t *testing.T) {
	for _, lost := range []string{"a", "b"} {
		opt := all
		opt.Overwrite = true
		d, to := openDir(t, opt)
		files := func(data string) xfer.Source {
			return tree(t, fstest.MapFS{"a": {Data: []byte(data)}, "b": {Data: []byte(data)}}).Source()
		}
		check(t, store(d.Open, files("old"), 100))
		src := files("new")
		f := must(d.Open(t.Context(), netip.AddrPort{}, src.Name, src.Meta, src.Size))(t)
		check(t, fill(f, src, 100, src.Size))
		check(t, os.Remove(filepath.Join(to, f.(*claimed).s.temp, stagedName, lost)))
		err := f.Commit()
		wantError(t, err, xfer.CodeStorage, `cannot name "`+lost+`"`)
		check(t, f.Discard())
		want := map[string]string{"a": "old", "b": "old"}
		if lost == "b" {
			want["a"] = "new"
			wantError(t, err, xfer.CodeStorage, "the entries before it are stored")
		} else if strings.Contains(err.Error(), "stored") {
			t.Errorf("got %q, and nothing was stored", err)
		}
		for name, data := range want {
			if got := string(must(os.ReadFile(filepath.Join(to, "photos", name)))(t)); got != data {
				t.Errorf("without %s: %s has %q, want %q", lost, name, got, data)
			}
		}
		if n := len(must(os.ReadDir(to))(t)); n != 1 {
			t.Errorf("%d names are in the directory", n)
		}
		wantReleased(t, d)
	}
}
