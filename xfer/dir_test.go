package xfer

import (
	"context"
	"errors"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"cinnabar/verbs/iwarp"
)

// put stores data as a transfer does.
func put(t *testing.T, d *Dir, name string, meta Meta, data string) error {
	t.Helper()
	f, err := d.Open(t.Context(), netip.AddrPort{}, name, meta, int64(len(data)))
	if err != nil {
		return err
	}
	if _, err := f.WriteAt([]byte(data), 0); err != nil {
		t.Fatal(err)
	}
	if err := f.Commit(); err != nil {
		return errors.Join(err, f.Discard())
	}
	return nil
}

func openDir(t *testing.T, opt DirOptions) (*Dir, string) {
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

func wantContent(t *testing.T, path, want string) {
	t.Helper()
	got, err := os.ReadFile(path)
	if err != nil || string(got) != want {
		t.Errorf("%s: got %q, %v, want %q", filepath.Base(path), got, err, want)
	}
}

func entries(t *testing.T, path string) []string {
	t.Helper()
	var names []string
	for _, e := range must(os.ReadDir(path))(t) {
		names = append(names, e.Name())
	}
	return names
}

// parity: B19
func TestDirRefusesToOverwrite(t *testing.T) {
	d, path := openDir(t, DirOptions{})
	if err := put(t, d, "f", Meta{}, "first"); err != nil {
		t.Fatal(err)
	}
	if err := put(t, d, "f", Meta{}, "second"); !errors.Is(err, CodeExists) {
		t.Errorf("got %v", err)
	}
	if err := os.Mkdir(filepath.Join(path, "dir"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := put(t, d, "dir", Meta{}, "x"); !errors.Is(err, CodeExists) || !strings.Contains(err.Error(), "directory") {
		t.Errorf("got %v", err)
	}
	// A file that comes into being while the transfer runs.
	f := must(d.Open(t.Context(), netip.AddrPort{}, "late", Meta{}, 1))(t)
	if err := os.WriteFile(filepath.Join(path, "late"), []byte("other"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := f.Commit(); !errors.Is(err, CodeExists) {
		t.Errorf("got %v", err)
	}
	if err := f.Discard(); err != nil {
		t.Error(err)
	}
	wantContent(t, filepath.Join(path, "f"), "first")
	wantContent(t, filepath.Join(path, "late"), "other")
	if got := entries(t, path); !slices.Equal(got, []string{"dir", "f", "late"}) {
		t.Errorf("got %q", got)
	}
}

func TestDirOverwrites(t *testing.T) {
	d, path := openDir(t, DirOptions{Overwrite: true})
	for _, data := range []string{"first", "2nd"} {
		if err := put(t, d, "f", Meta{}, data); err != nil {
			t.Fatal(err)
		}
	}
	wantContent(t, filepath.Join(path, "f"), "2nd")
	// The old file stays until the new one is complete.
	f := must(d.Open(t.Context(), netip.AddrPort{}, "f", Meta{}, 5))(t)
	if _, err := f.WriteAt([]byte("third"), 0); err != nil {
		t.Error(err)
	}
	wantContent(t, filepath.Join(path, "f"), "2nd")
	if err := f.Discard(); err != nil {
		t.Error(err)
	}
	wantContent(t, filepath.Join(path, "f"), "2nd")
	if err := os.Mkdir(filepath.Join(path, "dir"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := put(t, d, "dir", Meta{}, "x"); !errors.Is(err, CodeExists) {
		t.Errorf("got %v", err)
	}
}

// One name is received once at a time, and again after a failure.
func TestDirNameInUse(t *testing.T) {
	d, path := openDir(t, DirOptions{Overwrite: true})
	f := must(d.Open(t.Context(), netip.AddrPort{}, "f", Meta{}, 0))(t)
	if _, err := d.Open(t.Context(), netip.AddrPort{}, "f", Meta{}, 0); !errors.Is(err, CodeExists) || !strings.Contains(err.Error(), "right now") {
		t.Errorf("got %v", err)
	}
	for range 2 { // a second Discard does nothing
		if err := f.Discard(); err != nil {
			t.Error(err)
		}
	}
	if err := put(t, d, "f", Meta{}, "x"); err != nil {
		t.Error(err)
	}
	if err := put(t, d, "f", Meta{}, "y"); err != nil {
		t.Error(err)
	}
	wantContent(t, filepath.Join(path, "f"), "y")
}

// A stranger's file must not be one that the next shell reads in a home directory, .bash_aliases say.
func TestDirRefusesDotFiles(t *testing.T) {
	d, path := openDir(t, DirOptions{})
	for _, name := range []string{".bash_aliases", ".x", "..x", ".cinnabar-0"} {
		if err := put(t, d, name, Meta{}, "x"); !errors.Is(err, CodeName) || !strings.Contains(err.Error(), "begins with a dot") {
			t.Errorf("%s: got %v", name, err)
		}
	}
	if got := entries(t, path); len(got) != 0 {
		t.Errorf("got %q", got)
	}
	d, path = openDir(t, DirOptions{AllowDotFiles: true})
	if err := put(t, d, ".bash_aliases", Meta{}, "x"); err != nil {
		t.Error(err)
	}
	wantContent(t, filepath.Join(path, ".bash_aliases"), "x")
	for _, name := range []string{".", "..", tempPrefix + "0" + tempSuffix} {
		if err := put(t, d, name, Meta{}, "x"); !errors.Is(err, CodeName) {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

// A sender's execute bits are dropped, because the receiver's user could run a stranger's program by mistake. A mode that
// has no other bits lets no user read the file.
func TestDirDropsExecuteBits(t *testing.T) {
	for _, c := range []struct {
		allow      bool
		mode, want fs.FileMode
	}{
		{false, 0o755, 0o644},
		{false, 0o755 | fs.ModeSetuid | fs.ModeSetgid | fs.ModeSticky, 0o644},
		{false, 0o111, 0},
		{true, 0o755 | fs.ModeSetuid | fs.ModeSetgid | fs.ModeSticky, 0o755},
		{true, 0o100, 0o100},
	} {
		d, path := openDir(t, DirOptions{AllowExec: c.allow})
		if err := put(t, d, "f", Meta{Mode: c.mode}, "x"); err != nil {
			t.Error(err)
		}
		if got := must(os.Stat(filepath.Join(path, "f")))(t).Mode(); got != c.want {
			t.Errorf("allowed %v: a sender's %v becomes %v, want %v", c.allow, c.mode, got, c.want)
		}
	}
}

// Symbolic links lead nowhere.
// parity: B40
func TestDirIgnoresLinks(t *testing.T) {
	d, path := openDir(t, DirOptions{Overwrite: true})
	outside := filepath.Join(t.TempDir(), "outside")
	if err := os.WriteFile(outside, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(outside, filepath.Join(path, "f")); err != nil {
		t.Fatal(err)
	}
	if err := put(t, d, "f", Meta{}, "theirs"); err != nil {
		t.Error(err)
	}
	wantContent(t, outside, "mine")
	if info := must(os.Lstat(filepath.Join(path, "f")))(t); !info.Mode().IsRegular() {
		t.Errorf("f is %v, want a file in the link's place", info.Mode())
	}
}

func TestDirMeta(t *testing.T) {
	when := time.Date(2013, 1, 16, 12, 0, 0, 500, time.UTC)
	meta := Meta{Mode: 0o4751 | fs.ModeSetuid, ModTime: when}
	d, path := openDir(t, DirOptions{Sync: true, AllowExec: true})
	if err := put(t, d, "f", meta, "x"); err != nil {
		t.Fatal(err)
	}
	if info := must(os.Stat(filepath.Join(path, "f")))(t); info.Mode() != 0o751 || !info.ModTime().Equal(when) {
		t.Errorf("mode %v, time %v", info.Mode(), info.ModTime())
	}
	d, path = openDir(t, DirOptions{IgnoreMeta: true})
	if err := put(t, d, "f", meta, "x"); err != nil {
		t.Fatal(err)
	}
	if info := must(os.Stat(filepath.Join(path, "f")))(t); info.Mode()&0o111 != 0 || info.ModTime().Equal(when) {
		t.Errorf("mode %v, time %v", info.Mode(), info.ModTime())
	}
}

// What only its owner may read in the end is read by nobody on the way.
// parity: B48
func TestDirTemporaryMode(t *testing.T) {
	for name, c := range map[string]struct {
		opt  DirOptions
		meta Meta
		most fs.FileMode
	}{
		"private":        {DirOptions{}, Meta{Mode: 0o600}, 0o600},
		"for all to see": {DirOptions{}, Meta{Mode: 0o755}, 0o600},
		"not said":       {DirOptions{}, Meta{}, 0o644},
		"not wanted":     {DirOptions{IgnoreMeta: true}, Meta{Mode: 0o600}, 0o644},
	} {
		d, path := openDir(t, c.opt)
		f := must(d.Open(t.Context(), netip.AddrPort{}, "f", c.meta, 1))(t)
		info := must(os.Stat(filepath.Join(path, entries(t, path)[0])))(t)
		if got := info.Mode().Perm(); got&^c.most != 0 {
			t.Errorf("%s: mode %v on the way", name, got)
		}
		if err := f.Commit(); err != nil {
			t.Error(err)
		}
		if info := must(os.Stat(filepath.Join(path, "f")))(t); !c.opt.IgnoreMeta && c.meta.Mode != 0 && info.Mode() != c.meta.Mode&^0o111 {
			t.Errorf("%s: mode %v in the end", name, info.Mode())
		}
	}
}

// The ways to a name that replaces nothing: that of the system, that by a hard link.
// parity: B44
func TestDirExclusiveNames(t *testing.T) {
	for name, rename := range map[string]func(d *Dir, f *dirFile) error{
		"rename": func(d *Dir, f *dirFile) error { return renameExclusive(d.root, f.temp, f.name) },
		"link":   func(_ *Dir, f *dirFile) error { return f.link() },
	} {
		d, path := openDir(t, DirOptions{})
		f := must(d.create(t.Context(), "f", Meta{}))(t)
		if err := f.finish(); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(path, "f"), []byte("other"), 0o600); err != nil {
			t.Fatal(err)
		}
		err := rename(d, f)
		if name == "rename" && errors.Is(err, errors.ErrUnsupported) {
			continue // the link does it here
		}
		if !errors.Is(err, fs.ErrExist) {
			t.Errorf("%s: got %v", name, err)
		}
		wantContent(t, filepath.Join(path, "f"), "other")
		if err := os.Remove(filepath.Join(path, "f")); err != nil {
			t.Fatal(err)
		}
		if err := rename(d, f); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if got := entries(t, path); !slices.Equal(got, []string{"f"}) {
			t.Errorf("%s: got %q", name, got)
		}
	}
}

// What fails behind the name is undone, or said.
// parity: B44
func TestDirUndo(t *testing.T) {
	sync := failf(CodeStorage, "cannot sync the directory")
	for _, overwrite := range []bool{false, true} {
		d, path := openDir(t, DirOptions{Overwrite: overwrite})
		f := must(d.create(t.Context(), "f", Meta{}))(t)
		if err := errors.Join(f.finish(), f.rename()); err != nil {
			t.Fatal(err)
		}
		err := f.undo(sync)
		if !errors.Is(err, CodeStorage) || !strings.Contains(err.Error(), "cannot sync") || strings.Contains(err.Error(), "is stored as") != overwrite {
			t.Errorf("overwrite %v: %v", overwrite, err)
		}
		if got := len(entries(t, path)) == 1; got != overwrite {
			t.Errorf("overwrite %v: the file is there: %v", overwrite, got)
		}
	}
	d, path := openDir(t, DirOptions{})
	f := must(d.create(t.Context(), "f", Meta{}))(t)
	if err := errors.Join(f.finish(), f.rename(), os.Remove(filepath.Join(path, "f"))); err != nil {
		t.Fatal(err)
	}
	if err := f.undo(sync); !errors.Is(err, CodeStorage) || !errors.Is(err, fs.ErrNotExist) || strings.Contains(err.Error(), path) {
		t.Errorf("got %v", err)
	}
}

// Mode and time cross, between programs of this package, if the sender wants it.
// parity: B48
func TestPreserve(t *testing.T) {
	when := time.Date(2013, 1, 16, 12, 0, 0, 0, time.UTC)
	path := filepath.Join(t.TempDir(), "script")
	if err := os.WriteFile(path, []byte("#!"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Chmod(path, 0o750), os.Chtimes(path, when, when)); err != nil {
		t.Fatal(err)
	}
	ctx := testContext(t)
	srv := serve(t, device(t, iwarp.Config{}), Receiver{}, DirOptions{Overwrite: true, Sync: true, AllowExec: true})
	dev := device(t, iwarp.Config{})
	for _, p := range []Protocol{Basic, Fast} {
		for _, preserve := range []bool{true, false} {
			src, f, err := OpenFile(path, preserve)
			if err != nil {
				t.Fatal(err)
			}
			_, err = (&Sender{Protocol: p}).Send(ctx, dev, srv.addr, src)
			if err := errors.Join(err, f.Close()); err != nil {
				t.Fatal(err)
			}
			info := must(os.Stat(filepath.Join(srv.path, "script")))(t)
			if got := info.Mode() == 0o750 && info.ModTime().Equal(when); got != preserve {
				t.Errorf("%v, preserve %v: mode %v, time %v", p, preserve, info.Mode(), info.ModTime())
			}
		}
	}
}

// parity: B44
func TestDirKeepsPartial(t *testing.T) {
	d, path := openDir(t, DirOptions{KeepPartial: true})
	f := must(d.Open(t.Context(), netip.AddrPort{}, "f", Meta{}, 10))(t)
	if _, err := f.WriteAt([]byte("half"), 0); err != nil {
		t.Error(err)
	}
	if err := f.Discard(); err != nil {
		t.Error(err)
	}
	got := entries(t, path)
	if len(got) != 1 || !strings.HasSuffix(got[0], tempSuffix) {
		t.Fatalf("got %q", got)
	}
	wantContent(t, filepath.Join(path, got[0]), "half")
}

// Failures name what was done and the file, not the receiver's directory.
// parity: B45
func TestDirFailures(t *testing.T) {
	path := t.TempDir()
	d := must(OpenDir(t.Context(), path, DirOptions{}))(t)
	f := must(d.Open(t.Context(), netip.AddrPort{}, "f", Meta{}, 0))(t)
	if err := d.Close(); err != nil {
		t.Error(err)
	}
	_, err := d.Open(t.Context(), netip.AddrPort{}, "g", Meta{}, 0)
	if !errors.Is(err, CodeStorage) || strings.Contains(err.Error(), path) {
		t.Errorf("got %v", err)
	}
	if err := f.Commit(); !errors.Is(err, CodeStorage) && !errors.Is(err, CodeExists) {
		t.Errorf("got %v", err)
	}
	_ = f.Discard() // the directory is closed
	if _, err := OpenDir(t.Context(), filepath.Join(path, "none"), DirOptions{}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("got %v", err)
	}
}

func TestOpenFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "test-file")
	if err := os.WriteFile(path, []byte("abc"), 0o640); err != nil {
		t.Fatal(err)
	}
	src, f, err := OpenFile(path, false)
	if err != nil || src.Name != "test-file" || src.Size != 3 || src.Meta != (Meta{}) {
		t.Errorf("got %+v, %v", src, err)
	}
	if err := f.Close(); err != nil {
		t.Error(err)
	}
	if _, _, err := OpenFile(filepath.Dir(path), false); err == nil || !strings.Contains(err.Error(), "no regular file") {
		t.Errorf("got %v", err)
	}
	if _, _, err := OpenFile(path+"x", false); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("got %v", err)
	}
}

// A full disk fails the transfer with words about the disk, and no other.
func TestDirDiskFull(t *testing.T) {
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Skip("this system has no /dev/full")
	}
	d, path := openDir(t, DirOptions{})
	open := func(ctx context.Context, from netip.AddrPort, name string, meta Meta, size int64) (File, error) {
		f, err := d.Open(ctx, from, name, meta, size)
		if err == nil && name == "large" {
			df := f.(*dirFile)
			err = df.File.Close()
			df.File = full
		}
		return f, err
	}
	ctx := testContext(t)
	srv := serve(t, device(t, iwarp.Config{}), Receiver{Open: open}, DirOptions{})
	dev := device(t, iwarp.Config{})
	for _, p := range []Protocol{Basic, Fast} {
		if p == Fast {
			full = must(os.OpenFile("/dev/full", os.O_WRONLY, 0))(t)
		}
		_, err = (&Sender{Protocol: p}).Send(ctx, dev, srv.addr, sourceOf("large", noise(100<<10)))
		wantCode(t, err, CodeStorage, true, "large", "cannot write at offset 0", "the disk of the receiver's directory is full", "no space left")
		if res, _ := srv.outcome(ctx); res.Name != "large" { // until then the name is in use
			t.Errorf("the outcome is of %q", res.Name)
		}
		if _, err := (&Sender{Protocol: p}).Send(ctx, dev, srv.addr, sourceOf(p.String(), noise(100<<10))); err != nil {
			t.Errorf("the next file: %v", err)
		}
		if _, err := srv.outcome(ctx); err != nil {
			t.Error(err)
		}
	}
	srv.stop() // a receiver removes the part of a failed transfer after it has answered
	if got := entries(t, path); !slices.Equal(got, []string{"basic", "fast"}) {
		t.Errorf("got %q", got)
	}
}
