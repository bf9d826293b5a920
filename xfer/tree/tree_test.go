package tree

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
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
	"testing/synctest"
	"time"

	"cinnabar/verbs"
	"cinnabar/verbs/iwarp"
	"cinnabar/xfer"
)

// all takes everything that a sender may send.
var all = DirOptions{DirOptions: xfer.DirOptions{AllowDotFiles: true, AllowExec: true}}

// Random trees arrive as they were sent, in pieces of any size.
//
// parity: X01 Y09
func TestRandomTrees(t *testing.T) {
	for seed := range uint64(8) {
		r := rand.New(rand.NewPCG(seed, 1))
		from := filepath.Join(t.TempDir(), "photos")
		randomTree(t, r, from)
		tree := scanDir(t, from, ScanOptions{Preserve: true})
		d, to := openDir(t, all)
		check(t, store(d.Open, tree.Source(), []int{3, 17, 1000, 1 << 20}[seed%4]))
		wantSame(t, from, filepath.Join(to, "photos"), runtime.GOOS != "windows")
	}
}

// A tree crosses over a connection by the fast protocol, and a directory is not replaced without leave.
func TestSendTree(t *testing.T) {
	from := filepath.Join(t.TempDir(), "photos")
	randomTree(t, rand.New(rand.NewPCG(7, 7)), from)
	d, to := openDir(t, all)
	tree := scanDir(t, from, ScanOptions{Preserve: true})
	send := serve(t, xfer.Receiver{Open: d.Open})

	res, err := send(tree.Source())
	check(t, err)
	if res.Protocol != xfer.Fast || res.Name != "photos/" || res.Size != tree.Source().Size {
		t.Errorf("got %+v", res)
	}
	wantSame(t, from, filepath.Join(to, "photos"), runtime.GOOS != "windows")

	_, err = send(tree.Source())
	wantError(t, err, xfer.CodeExists, `the receiver has a directory "photos" and does not overwrite`)
}

// serve serves trees over loopback and returns a function that sends there.
func serve(t *testing.T, r xfer.Receiver) func(xfer.Source) (xfer.Result, error) {
	t.Helper()
	ctx, cancel := context.WithCancel(testContext(t))
	dev := must(iwarp.Open(iwarp.Config{}))(t)
	l := must(verbs.Listen(dev, netip.MustParseAddrPort("127.0.0.1:0")))(t)
	served := make(chan error, 1)
	go func() { served <- r.Serve(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		if err := errors.Join(<-served, l.Close(), dev.Close()); err != nil {
			t.Error(err)
		}
	})
	return func(src xfer.Source) (xfer.Result, error) {
		s := xfer.Sender{Protocol: xfer.Fast}
		return s.Send(ctx, dev, l.Addr(), src)
	}
}

// Receivers of plain files refuse a tree by its name.
func TestPlainReceiverRefusesTrees(t *testing.T) {
	path := t.TempDir()
	files := must(xfer.OpenDir(t.Context(), path, xfer.DirOptions{}))(t)
	defer files.Close()
	from := t.TempDir()
	_, err := serve(t, xfer.Receiver{Open: files.Open})(scanDir(t, from, ScanOptions{}).Source())
	wantError(t, err, xfer.CodeName, "path separator")
	wantEmpty(t, path)
}

// The reason of a refusal reaches the sender over the connection, and nothing is stored.
func TestRefusalReachesSender(t *testing.T) {
	fsys := fstest.MapFS{"ok": {Data: make([]byte, 1<<20)}, "sub/.profile": {Data: []byte("x")}}
	tree := must(Scan(testContext(t), fsys, "photos", ScanOptions{}))(t)
	d, to := openDir(t, DirOptions{})
	_, err := serve(t, xfer.Receiver{Open: d.Open})(tree.Source())
	wantError(t, err, xfer.CodeName, "the receiver refuses the tree because of 1 of its names", `"sub/.profile": the name begins with a dot`)
	if strings.Contains(err.Error(), "offset") {
		t.Errorf("got %v, which speaks of the transfer instead of the name", err)
	}
	wantEmpty(t, to)
}

// A file system that is no directory can be sent, and links and sparse files of it need nothing of the system.
func TestScanFS(t *testing.T) {
	fsys := fstest.MapFS{
		"a/one":   {Data: []byte("one"), Mode: 0o640, ModTime: time.Unix(1e9, 5)},
		"a/two":   {Data: []byte("two and more"), Mode: 0o600, ModTime: time.Unix(1e9, 6)},
		"a/empty": {Mode: 0o644},
		"b":       {Mode: fs.ModeDir | 0o755},
	}
	tree := must(Scan(testContext(t), fsys, "things", ScanOptions{}))(t)
	d, to := openDir(t, DirOptions{})
	check(t, store(d.Open, tree.Source(), 5))
	got := snapshot(t, to, false)
	line := func(data string) string { return fmt.Sprintf("%d bytes %x", len(data), sha256.Sum256([]byte(data))) }
	want := map[string]string{".": "directory", "things": "directory", "things/a": "directory", "things/b": "directory",
		"things/a/one": line("one"), "things/a/two": line("two and more"), "things/a/empty": line("")}
	for p, line := range want {
		if got[filepath.FromSlash(p)] != line {
			t.Errorf("%s: %q, want %q", p, got[filepath.FromSlash(p)], line)
		}
	}
	if len(got) != len(want) {
		t.Errorf("got %v", got)
	}
	check(t, tree.Close())
}

// Entries that cannot cross are refused by the sender, all of them by name.
func TestScanRefuses(t *testing.T) {
	fsys := fstest.MapFS{"ok": {}, "pipe": {Mode: fs.ModeNamedPipe}, "dir/sock": {Mode: fs.ModeSocket}, "dev": {Mode: fs.ModeDevice}, "ctrl\x01": {}}
	_, err := Scan(testContext(t), fsys, "photos", ScanOptions{})
	wantError(t, err, xfer.CodeName, "because of 4 of its names", `"pipe": it is a named pipe`, `"dir/sock": it is a socket`, `"dev": it is a device`, "control character")

	if _, err := Scan(testContext(t), fsys, "a/b", ScanOptions{}); !errors.Is(err, xfer.CodeName) {
		t.Errorf("got %v for a name with a slash", err)
	}
	ctx, cancel := context.WithCancelCause(testContext(t))
	cancel(errCut)
	if _, err := Scan(ctx, fsys, "photos", ScanOptions{}); !errors.Is(err, errCut) {
		t.Errorf("got %v after the end of the context", err)
	}
	for _, l := range []Limits{{Entries: 3}, {Depth: 1}, {Path: 5}} {
		_, err := Scan(testContext(t), fstest.MapFS{"d/e/file": {}}, "photos", ScanOptions{Limits: l})
		wantError(t, err, xfer.CodeTooLarge, "limit of this program")
	}
}

// A file that changes after the scan fails the transfer, whichever change it is.
func TestChangedFile(t *testing.T) {
	for name, change := range map[string]func(t *testing.T, p string){
		"grown":   func(t *testing.T, p string) { check(t, os.WriteFile(p, make([]byte, 9000), 0o600)) },
		"shrunk":  func(t *testing.T, p string) { check(t, os.Truncate(p, 10)) },
		"touched": func(t *testing.T, p string) { check(t, os.Chtimes(p, time.Time{}, time.Unix(1, 0))) },
		"gone":    func(t *testing.T, p string) { check(t, os.Remove(p)) },
		"linked": func(t *testing.T, p string) {
			check(t, os.Rename(p, p+"2"))
			check(t, os.Symlink(filepath.Base(p)+"2", p))
		},
	} {
		t.Run(name, func(t *testing.T) {
			if name == "linked" && runtime.GOOS == "windows" {
				t.Skip("Windows lets few users make symbolic links")
			}
			from := t.TempDir()
			check(t, os.WriteFile(filepath.Join(from, "file"), make([]byte, 8000), 0o600))
			check(t, os.WriteFile(filepath.Join(from, "file2"), make([]byte, 8000), 0o600))
			check(t, os.Remove(filepath.Join(from, "file2")))
			tree := scanDir(t, from, ScanOptions{})
			change(t, filepath.Join(from, "file"))
			d, to := openDir(t, all)
			err := store(d.Open, tree.Source(), 1000)
			if name == "linked" && err == nil {
				return // the link led to the very file
			}
			wantError(t, err, xfer.CodeChanged, `"file" is not as it was`)
			wantEmpty(t, to)
		})
	}
}

// A transfer that fails at any byte leaves nothing, in a new tree and in one that is there.
func TestCutTransfer(t *testing.T) {
	from := filepath.Join(t.TempDir(), "photos")
	r := rand.New(rand.NewPCG(3, 3))
	randomTree(t, r, from)
	tree := scanDir(t, from, ScanOptions{Preserve: true})
	opt := all
	opt.Overwrite = true
	d, to := openDir(t, opt)
	size := tree.Source().Size
	for range 20 {
		err := storePart(d.Open, tree.Source(), 1+r.IntN(4000), r.Int64N(size))
		if !errors.Is(err, errCut) {
			t.Fatalf("got %v", err)
		}
		wantEmpty(t, to)
	}
	check(t, store(d.Open, tree.Source(), 4096))
	before := snapshot(t, to, true)
	for range 20 {
		if err := storePart(d.Open, tree.Source(), 1+r.IntN(4000), r.Int64N(size)); !errors.Is(err, errCut) {
			t.Fatalf("got %v", err)
		}
	}
	if diff := compare(before, snapshot(t, to, true), "."); diff != "" {
		t.Errorf("a failed transfer has changed the tree: %s", diff)
	}
}

// compare returns the first path, other than except, at which two snapshots differ.
func compare(a, b map[string]string, except string) string {
	for p := range a {
		if p != except && a[p] != b[p] {
			return p
		}
	}
	for p := range b {
		if _, ok := a[p]; !ok {
			return p
		}
	}
	return ""
}

// An incomplete tree of a killed receiver is removed when it is old and no process has its lock, and never before.
func TestStaleTree(t *testing.T) {
	if runtime.GOOS != "linux" && runtime.GOOS != "darwin" {
		t.Skip("this system has no lock that ends with its process")
	}
	d, to := openDir(t, all)
	f := must(d.Open(t.Context(), netip.AddrPort{}, "photos/", xfer.Meta{}, tree(t, fstest.MapFS{"file": {Data: make([]byte, 100)}}).Source().Size))(t)
	src := tree(t, fstest.MapFS{"file": {Data: make([]byte, 100)}}).Source()
	if err := fill(f, src, 10, src.Size-20); !errors.Is(err, errCut) {
		t.Fatal(err)
	}
	entries := must(os.ReadDir(to))(t)
	if len(entries) != 1 || !isTemp(entries[0].Name()) {
		t.Fatalf("got %v", entries)
	}
	now := time.Now()
	d.removeStale(t.Context(), now.Add(2*staleAfter)) // a process has the lock: this one
	if len(must(os.ReadDir(to))(t)) != 1 {
		t.Fatal("a tree that is being received was removed")
	}
	s := f.(*claimed).s
	check(t, s.lock.Close()) // as the end of the process does
	check(t, s.file.Close())
	d.removeStale(t.Context(), now)
	if len(must(os.ReadDir(to))(t)) != 1 {
		t.Fatal("a new tree was removed")
	}
	d.removeStale(t.Context(), now.Add(2*staleAfter))
	wantEmpty(t, to)
}

func tree(t *testing.T, fsys fs.FS) *Tree {
	t.Helper()
	return must(Scan(testContext(t), fsys, "photos", ScanOptions{}))(t)
}

// Modes, times, execute bits and names that begin with a dot follow the rules of the directory.
func TestDirOptions(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("Windows has no such modes")
	}
	fsys := fstest.MapFS{"bin": {Mode: fs.ModeDir | 0o750}, "bin/run": {Data: []byte("x"), Mode: 0o751, ModTime: time.Unix(1e9, 0)}}
	tree := must(Scan(testContext(t), fsys, "photos", ScanOptions{Preserve: true}))(t)
	mode := func(opt DirOptions) (dir, file fs.FileMode, at time.Time) {
		d, to := openDir(t, opt)
		check(t, store(d.Open, tree.Source(), 100))
		info := must(os.Stat(filepath.Join(to, "photos/bin/run")))(t)
		return must(os.Stat(filepath.Join(to, "photos/bin")))(t).Mode().Perm(), info.Mode().Perm(), info.ModTime()
	}
	if dir, file, at := mode(DirOptions{}); dir != 0o750 || file != 0o640 || at.Unix() != 1e9 {
		t.Errorf("got %v, %v, %v", dir, file, at)
	}
	if _, file, _ := mode(all); file != 0o751 {
		t.Errorf("got %v with AllowExec", file)
	}
	opt := all
	opt.IgnoreMeta = true
	if _, file, at := mode(opt); file&0o111 != 0 || at.Unix() == 1e9 {
		t.Errorf("got %v, %v with IgnoreMeta", file, at)
	}
}

// With Sync a tree is stored as without, in a new directory and in one that is there.
func TestSync(t *testing.T) {
	fsys := fstest.MapFS{"a/one": {Data: make([]byte, 1000)}, "b": {Mode: fs.ModeDir | 0o700}}
	to := t.TempDir()
	if memory := fmt.Sprintf("/dev/shm/cinnabar-tree-%d", os.Getpid()); os.Mkdir(memory, 0o700) == nil { // where a sync does not wait for the writes of other programs
		t.Cleanup(func() { check(t, os.RemoveAll(memory)) })
		to = memory
	}
	opt := all
	opt.Sync, opt.Overwrite = true, true
	d := must(OpenDir(t.Context(), to, opt))(t)
	defer d.Close()
	for range 2 {
		check(t, store(d.Open, tree(t, fsys).Source(), 100))
	}
	if got := snapshot(t, to, false); len(got) != 5 {
		t.Errorf("got %v", got)
	}
}

// Trees that come at once do not disturb each other.
func TestTreesAtOnce(t *testing.T) {
	d, to := openDir(t, all)
	send := serve(t, xfer.Receiver{Open: d.Open})
	from := filepath.Join(t.TempDir(), "photos")
	randomTree(t, rand.New(rand.NewPCG(9, 9)), from)
	failed := make(chan error)
	for i := range 4 {
		go func() {
			tree, err := ScanDir(t.Context(), from, ScanOptions{Preserve: true})
			if err == nil {
				src := tree.Source()
				src.Name = fmt.Sprintf("photos%d/", i)
				_, err = send(src)
				err = errors.Join(err, tree.Close())
			}
			failed <- err
		}()
	}
	for range 4 {
		if err := <-failed; err != nil {
			t.Error(err)
		}
	}
	for i := range 4 {
		wantSame(t, from, filepath.Join(to, fmt.Sprintf("photos%d", i)), runtime.GOOS != "windows")
	}
	wantReleased(t, d)
}

// A full disk and a directory that is gone fail the transfer, with the reason and without the receiver's paths, and leave nothing.
func TestStorageFailures(t *testing.T) {
	src := tree(t, fstest.MapFS{"file": {Data: make([]byte, 100)}}).Source()
	head := src.Size - 100
	begin := func(d *Dir) (*claimed, error) {
		f := must(d.Open(t.Context(), netip.AddrPort{}, src.Name, src.Meta, src.Size))(t).(*claimed)
		b := make([]byte, head)
		must(src.Data.ReadAt(b, 0))(t)
		_, err := f.WriteAt(b, 0)
		return f, err
	}
	d, to := openDir(t, all)
	if full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0); err == nil {
		f, err := begin(d)
		check(t, err)
		f.s.file, f.s.open = full, 1
		_, err = f.WriteAt(make([]byte, 99), head) // and not the whole file, which has an own way
		wantError(t, err, xfer.CodeStorage, `cannot write "file"`, "the disk of the receiver's directory is full")
		check(t, f.Discard())
	}
	wantEmpty(t, to)
	if runtime.GOOS == "windows" {
		return // an open directory cannot be removed
	}
	check(t, os.Remove(to))
	f, err := begin(d)
	wantError(t, err, xfer.CodeStorage, `cannot create "photos"`)
	if strings.Contains(err.Error(), to) {
		t.Errorf("got %v with a path of the receiver", err)
	}
	check(t, f.Discard())
	wantReleased(t, d)
}

// memorySink is a Sink that keeps the files in memory.
type memorySink struct {
	m     *Manifest
	files map[string]string
	ended string
}

func (s *memorySink) Begin(m *Manifest) error {
	s.m = m
	return nil
}

func (s *memorySink) Write(i int, b []byte, offset int64) error {
	p := s.m.Path(i)
	if int64(len(s.files[p])) != offset {
		return fmt.Errorf("%s has %d bytes, and more come at %d", p, len(s.files[p]), offset)
	}
	s.files[p] += string(b)
	return nil
}

func (s *memorySink) Commit() error {
	s.ended += "commit "
	return nil
}

func (s *memorySink) Discard() error {
	s.ended += "discard "
	return nil
}

// A sink of another kind gets the list first, then the data in its order, and one end.
func TestSink(t *testing.T) {
	src := tree(t, fstest.MapFS{"a": {Data: []byte("one")}, "b/c": {Data: []byte("two")}, "b/empty": {}, "d": {Data: []byte("three")}}).Source()
	receive := func(s *memorySink) func(context.Context, netip.AddrPort, string, xfer.Meta, int64) (xfer.File, error) {
		return func(_ context.Context, _ netip.AddrPort, _ string, _ xfer.Meta, size int64) (xfer.File, error) {
			return Receive(s, size, Limits{})
		}
	}
	s := &memorySink{files: map[string]string{}}
	check(t, store(receive(s), src, 4))
	if s.ended != "commit " || len(s.files) != 3 || s.files["a"] != "one" || s.files["b/c"] != "two" || s.files["d"] != "three" {
		t.Errorf("got %q, %s", s.files, s.ended)
	}

	s = &memorySink{files: map[string]string{}}
	if err := storePart(receive(s), src, 4, src.Size-4); !errors.Is(err, errCut) || s.ended != "discard " {
		t.Errorf("got %v, %q", err, s.ended)
	}
}

// Entries before and behind a directory come to their places at every depth, though the paths are taken from the directory of the entry before.
func TestDeepTree(t *testing.T) {
	from := filepath.Join(t.TempDir(), "photos")
	at := from
	for depth := range 60 {
		check(t, os.Mkdir(at, 0o700))
		for _, name := range []string{"a", "ma", "mm", "z"} {
			check(t, os.WriteFile(filepath.Join(at, name), []byte(fmt.Sprint(name, depth)), 0o600))
		}
		check(t, os.Mkdir(filepath.Join(at, "m-empty"), 0o700))
		at = filepath.Join(at, "m")
	}
	d, to := openDir(t, all)
	check(t, store(d.Open, scanDir(t, from, ScanOptions{}).Source(), 1000))
	wantSame(t, from, filepath.Join(to, "photos"), false)
}

// Reading names the file that a transfer reads, and how far.
func TestReading(t *testing.T) {
	fsys := fstest.MapFS{"a/one": {Data: make([]byte, 10)}, "b": {Data: make([]byte, 20)}, "empty": {}}
	tr, err := Scan(t.Context(), fsys, "top", ScanOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer tr.Close()
	if p, ok := tr.Reading(); ok || len(tr.Active()) > 0 {
		t.Errorf("before the first byte of data it reads %+v", p)
	}
	src := tr.Source()
	head := src.Size - tr.Manifest().Data
	at := int64(0)
	for _, tt := range []struct {
		n int64
		Place
	}{{head + 4, Place{"a/one", 4, 10}}, {6, Place{"a/one", 10, 10}}, {1, Place{"b", 1, 20}}, {19, Place{"b", 20, 20}}} {
		if _, err := tr.ReadAt(make([]byte, tt.n), at); err != nil {
			t.Fatal(err)
		}
		at += tt.n
		if p, ok := tr.Reading(); p != tt.Place || !ok {
			t.Errorf("after %d bytes: %+v, %t; want %+v", at, p, ok, tt.Place)
		}
		if a := tr.Active(); len(a) != 1 || a[0] != tt.Place {
			t.Errorf("after %d bytes %+v are active, want %+v", at, a, tt.Place)
		}
	}
}

// TestActive reads files in turns, as lanes do: each file that is not at its end is active for a second, in the order of the tree, and of more
// than 8 files those that were read last.
func TestActive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := &Tree{manifest: &Manifest{Entries: []Entry{{}}}}
		for i := range 12 {
			tr.manifest.Entries = append(tr.manifest.Entries, Entry{Name: fmt.Sprint("f", i), Depth: 1, Size: 100})
		}
		want := func(files ...int) {
			t.Helper()
			var got []int
			for _, p := range tr.Active() {
				got = append(got, slices.IndexFunc(tr.manifest.Entries, func(e Entry) bool { return e.Name == p.Path }))
			}
			if !slices.Equal(got, files) {
				t.Errorf("files %v are active, want %v", got, files)
			}
		}
		for i := range 12 {
			tr.reading.set(i+1, 10)
			time.Sleep(time.Millisecond) //nolint:forbidigo // simulated time
		}
		want(5, 6, 7, 8, 9, 10, 11, 12)
		tr.reading.set(5, 100)
		tr.reading.set(7, 20)
		want(6, 7, 8, 9, 10, 11, 12)
		time.Sleep(activeTime - time.Millisecond) //nolint:forbidigo // simulated time
		tr.reading.set(9, 20)
		want(7, 9)
		time.Sleep(time.Hour) //nolint:forbidigo // simulated time
		want(9)
		if p, ok := tr.Reading(); !ok || p != (Place{"f8", 20, 100}) {
			t.Errorf("the last reading is %+v, %t", p, ok)
		}
	})
}
