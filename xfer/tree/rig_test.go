package tree

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"cinnabar/internal/leaktest"
	"cinnabar/xfer"
)

// TestMain fails the package if a goroutine or a mapping is left behind.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m, goleak.Cleanup(leaktest.Exit)) }

// must turns a result and an error into the result.
func must[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// testContext ends a test that hangs.
func testContext(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// openDir opens a new directory for trees.
func openDir(t testing.TB, opt DirOptions) (*Dir, string) {
	t.Helper()
	path := t.TempDir()
	d := must(OpenDir(t.Context(), path, opt))(t)
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return d, path
}

// scanDir lists a directory.
func scanDir(t testing.TB, path string, opt ScanOptions) *Tree {
	t.Helper()
	tree := must(ScanDir(testContext(t), path, opt))(t)
	t.Cleanup(func() {
		if err := tree.Close(); err != nil {
			t.Error(err)
		}
	})
	return tree
}

// store gives the bytes of a source to a receiver's directory as a transfer does, in pieces of a size.
func store(open func(context.Context, netip.AddrPort, string, xfer.Meta, int64) (xfer.File, error), src xfer.Source, piece int) error {
	return storePart(open, src, piece, src.Size)
}

// errCut ends a transfer in tests.
var errCut = errors.New("the transfer was cut")

// storePart is store that ends with errCut after some bytes, unless those are all.
func storePart(open func(context.Context, netip.AddrPort, string, xfer.Meta, int64) (xfer.File, error), src xfer.Source, piece int, limit int64) error {
	f, err := open(context.Background(), netip.AddrPort{}, src.Name, src.Meta, src.Size)
	if err != nil {
		return err
	}
	err = fill(f, src, piece, limit)
	if err == nil {
		err = f.Commit()
	}
	if err != nil {
		return errors.Join(err, f.Discard())
	}
	return nil
}

func fill(f xfer.File, src xfer.Source, piece int, limit int64) error {
	b := make([]byte, piece)
	for at := int64(0); at < min(src.Size, limit); at += int64(len(b)) {
		b = b[:min(int64(piece), src.Size-at)]
		if n, err := src.Data.ReadAt(b, at); n < len(b) {
			return fmt.Errorf("read %d of %d bytes at %d: %w", n, len(b), at, err)
		}
		if _, err := f.WriteAt(b, at); err != nil {
			return err
		}
	}
	if limit < src.Size {
		return errCut
	}
	if n, err := src.Data.ReadAt(make([]byte, 1), src.Size); n > 0 || !errors.Is(err, io.EOF) {
		return err
	}
	return nil
}

// snapshot describes everything below path, one line for each entry. Times are left out where they do not cross.
func snapshot(t testing.TB, path string, times bool) map[string]string {
	t.Helper()
	found := map[string]string{}
	first := map[identity]string{}
	check(t, filepath.WalkDir(path, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(path, p)
		info, err := d.Info()
		if err != nil {
			return err
		}
		line := ""
		if times && info.Mode().Type() != fs.ModeSymlink {
			line = fmt.Sprintf("%v %d ", info.Mode().Perm(), info.ModTime().UnixNano())
		}
		switch {
		case info.IsDir():
			line += "directory"
		case info.Mode().Type() == fs.ModeSymlink:
			target, err := os.Readlink(p)
			if err != nil {
				return err
			}
			line += "-> " + target
		default:
			data, err := os.ReadFile(p)
			if err != nil {
				return err
			}
			line += fmt.Sprintf("%d bytes %x", len(data), sha256.Sum256(data))
			if id, links := identityOf(info); links > 1 {
				if first[id] == "" {
					first[id] = rel
				}
				line += " linked to " + first[id]
			}
		}
		found[rel] = line
		return nil
	}))
	return found
}

// wantSame compares two directories.
func wantSame(t testing.TB, want, got string, times bool) {
	t.Helper()
	if diff := cmp.Diff(snapshot(t, want, times), snapshot(t, got, times)); diff != "" {
		t.Errorf("the stored tree differs (-sent +stored):\n%s", diff)
	}
}

// wantEmpty checks that a directory has nothing.
func wantEmpty(t testing.TB, path string) {
	t.Helper()
	for _, e := range must(os.ReadDir(path))(t) {
		t.Errorf("%s is left behind", e.Name())
	}
}

// wantError checks the class and the text of an error.
func wantError(t testing.TB, err error, code xfer.Code, texts ...string) {
	t.Helper()
	if !errors.Is(err, code) {
		t.Errorf("got %v, want code %q", err, code)
		return
	}
	for _, s := range texts {
		if !strings.Contains(err.Error(), s) {
			t.Errorf("got %q, want it to say %q", err, s)
		}
	}
}

// randomTree fills a directory with entries of all kinds.
func randomTree(t testing.TB, r *rand.Rand, path string) {
	t.Helper()
	check(t, os.MkdirAll(path, 0o755))
	fillRandom(t, r, path, 0, new([]string))
	settleTimes(t, r, path)
}

func fillRandom(t testing.TB, r *rand.Rand, path string, depth int, files *[]string) {
	t.Helper()
	odd := []string{"a", "b c", "ü-ß", "-rf", "x.tar.gz", "UPPER", "star*", "q?", "quote'\"", "~", "#hash", "!bang", strings.Repeat("n", 255)}
	if runtime.GOOS == "windows" {
		odd = odd[:6]
	}
	for range r.IntN(7) {
		name := odd[r.IntN(len(odd))]
		if len(name) < 200 {
			name += fmt.Sprint(r.IntN(4))
		}
		p := filepath.Join(path, name)
		if _, err := os.Lstat(p); err == nil {
			continue
		}
		switch kind := r.IntN(10); {
		case kind < 3 && depth < 4:
			check(t, os.Mkdir(p, 0o700))
			fillRandom(t, r, p, depth+1, files)
		case kind == 3 && len(*files) > 0:
			check(t, os.Link((*files)[r.IntN(len(*files))], p))
		case kind == 4 && runtime.GOOS != "windows":
			check(t, os.Symlink([]string{"a1", "nowhere", "a/b/c", "./x"}[r.IntN(4)], p))
		case kind == 5:
			writeSparse(t, r, p)
			*files = append(*files, p)
		default:
			b := make([]byte, []int{0, 1, 100, 4096, 9000}[r.IntN(5)])
			for i := range b {
				b[i] = byte(r.Uint32())
			}
			check(t, os.WriteFile(p, b, 0o600))
			*files = append(*files, p)
		}
	}
}

// writeSparse makes a file with holes of several lengths, one at its end or not.
func writeSparse(t testing.TB, r *rand.Rand, path string) {
	t.Helper()
	f := must(os.Create(path))(t)
	size := int64(r.IntN(1 << 20))
	for range r.IntN(4) {
		at := r.Int64N(1 << 20)
		n := must(f.WriteAt([]byte("some data"), at))(t)
		size = max(size, at+int64(n))
	}
	check(t, f.Truncate(size))
	check(t, f.Close())
}

// settleTimes gives everything a mode and a time of its own, those inside first.
func settleTimes(t testing.TB, r *rand.Rand, path string) {
	t.Helper()
	var all []string
	check(t, filepath.WalkDir(path, func(p string, _ fs.DirEntry, err error) error {
		all = append(all, p)
		return err
	}))
	for i := len(all) - 1; i >= 0; i-- {
		info := must(os.Lstat(all[i]))(t)
		if info.Mode().Type() == fs.ModeSymlink {
			continue
		}
		mode := []fs.FileMode{0o600, 0o644, 0o400, 0o640}[r.IntN(4)]
		if info.IsDir() {
			mode = []fs.FileMode{0o700, 0o755, 0o750}[r.IntN(3)]
		}
		check(t, os.Chmod(all[i], mode))
		check(t, os.Chtimes(all[i], time.Time{}, time.Unix(1e9+r.Int64N(5e8), r.Int64N(1e9))))
	}
}
