package share

import (
	"context"
	"errors"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"cinnabar/internal/leaktest"
	"cinnabar/verbs"
	"cinnabar/verbs/iwarp"
	"cinnabar/xfer"
	"cinnabar/xfer/tree"
)

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

// peer is an address of a test's puller.
var peer = netip.MustParseAddrPort("192.0.2.1:1")

// makeTree makes files (with their names as content), directories (a slash at the end) and links (name -> target).
func makeTree(t testing.TB, names ...string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "public")
	for _, name := range append([]string{"./"}, names...) {
		link, target, isLink := strings.Cut(name, " -> ")
		at := filepath.Join(dir, link)
		var err error
		switch {
		case isLink:
			err = os.Symlink(target, at)
		case strings.HasSuffix(name, "/"):
			err = os.MkdirAll(at, 0o755)
		default:
			err = os.WriteFile(at, []byte(name), 0o640)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// openDir opens a directory until the end of the test.
func openDir(t testing.TB, path string, opt Options) *Dir {
	t.Helper()
	d := must(OpenDir(path, opt))(t)
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return d
}

// server serves a directory until the end of the test.
func server(t testing.TB, dev *verbs.Device, d *Dir) netip.AddrPort {
	t.Helper()
	l := must(verbs.Listen(dev, netip.MustParseAddrPort("127.0.0.1:0")))(t)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	r := xfer.Receiver{Files: d.Files, Open: func(context.Context, netip.AddrPort, string, xfer.Meta, int64) (xfer.File, error) {
		return nil, xfer.CodeStorage
	}}
	go func() { ended <- r.Serve(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		if err := errors.Join(<-ended, l.Close()); err != nil {
			t.Error(err)
		}
	})
	return l.Addr()
}

func device(t testing.TB) *verbs.Device {
	t.Helper()
	dev := must(iwarp.Open(iwarp.Config{}))(t)
	t.Cleanup(func() {
		if err := dev.Close(); err != nil {
			t.Error(err)
		}
	})
	return dev
}

// Files, trees and lists cross.
func TestServes(t *testing.T) {
	path := makeTree(t, "a", "d/", "d/b", "d/.hidden", "d/.git/", "d/.git/config", "d/l -> b", ".secret")
	dev := device(t)
	addr := server(t, dev, openDir(t, path, Options{}))
	into := t.TempDir()
	in := must(tree.OpenDir(t.Context(), into, tree.DirOptions{}))(t)
	defer in.Close()
	p := xfer.Puller{Open: in.Open}
	for _, asked := range []string{"a", "/d/", "."} {
		if _, err := p.Pull(t.Context(), dev, addr, xfer.FileRequest{Op: xfer.RequestFile, Path: asked}); err != nil {
			t.Errorf("%s: %v", asked, err)
		}
	}
	for name, want := range map[string]string{"a": "a", "d/b": "d/b", "public/a": "a", "public/d/l": "d/b"} {
		if b, err := os.ReadFile(filepath.Join(into, name)); err != nil || string(b) != want {
			t.Errorf("%s: %q, %v", name, b, err)
		}
	}
	for _, name := range []string{"d/.hidden", "d/.git", "public/.secret"} {
		if _, err := os.Lstat(filepath.Join(into, name)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s was served: %v", name, err)
		}
	}
	list := must(List(t.Context(), xfer.Puller{}, dev, addr, "d"))(t)
	if len(list) != 2 || list[0].Name != "b" || list[0].Kind != KindFile || list[0].Size != 3 || list[0].Mode != 0o640 || time.Since(list[0].ModTime) > time.Hour ||
		list[1].Name != "l" || list[1].Kind != KindSymlink || list[1].Target != "b" {
		t.Errorf("%+v", list)
	}
	if list := must(List(t.Context(), xfer.Puller{}, dev, addr, "/a"))(t); len(list) != 1 || list[0].Name != "a" {
		t.Errorf("%+v", list)
	}
	if list := must(List(t.Context(), xfer.Puller{}, dev, addr, "."))(t); len(list) != 2 || list[1].Kind != KindDirectory {
		t.Errorf("%+v", list)
	}
}

// A puller may choose ranges of files, and of trees, of which the list of entries crosses in any case. It may not choose ranges of lists of directories.
func TestServedChoices(t *testing.T) {
	d := openDir(t, makeTree(t, "a", "d/", "d/b"), Options{})
	for _, c := range []struct {
		r         xfer.FileRequest
		has, head bool // a choice, with a head
	}{
		{xfer.FileRequest{Op: xfer.RequestFile, Path: "a"}, true, false},
		{xfer.FileRequest{Op: xfer.RequestFile, Path: "d"}, true, true},
		{xfer.FileRequest{Op: xfer.RequestList, Path: "d"}, false, false},
	} {
		src, closer, err := d.Files(t.Context(), peer, c.r)
		if err != nil {
			t.Fatal(err)
		}
		if (src.Choice != nil) != c.has || c.has && (src.Choice.Head > 0) != c.head {
			t.Errorf("%+v: %+v", c.r, src.Choice)
		}
		if err := closer.Close(); err != nil {
			t.Error(err)
		}
	}
}

// A Dir refuses what a peer may not get, and no error of it has a path of the server.
func TestRefuses(t *testing.T) {
	path := makeTree(t, "a", "d/", ".secret", "out -> ../outside", "abs -> /etc/passwd", "dir -> ..", "d/up -> ../a", "loop -> loop")
	if err := os.WriteFile(filepath.Join(filepath.Dir(path), "outside"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	d := openDir(t, path, Options{})
	for _, c := range []struct {
		path string
		code xfer.Code
	}{
		{"..", xfer.CodeName}, {"../outside", xfer.CodeName}, {"d/../../outside", xfer.CodeName}, {"d//a", xfer.CodeName}, {"./a", xfer.CodeName},
		{".secret", xfer.CodeName}, {"d/.x", xfer.CodeName}, {".cinnabar-0011223344556677.part", xfer.CodeName}, {"a\x1b[2J", xfer.CodeName}, {`d\a`, xfer.CodeName},
		{"a\x00", xfer.CodeName}, {"\xff", xfer.CodeName}, {strings.Repeat("x", 300), xfer.CodeName},
		{"b", xfer.CodeSource}, {"a/b", xfer.CodeSource}, {"out", xfer.CodeSource}, {"abs", xfer.CodeSource}, {"dir", xfer.CodeSource}, {"dir/outside", xfer.CodeSource}, {"loop", xfer.CodeSource},
	} {
		for _, op := range []xfer.RequestOp{xfer.RequestFile, xfer.RequestList} {
			_, closer, err := d.Files(t.Context(), peer, xfer.FileRequest{Op: op, Path: c.path})
			if !errors.Is(err, c.code) || closer != nil || strings.Contains(err.Error(), filepath.Dir(path)) {
				t.Errorf("%v of %q: %v, %v", op, c.path, closer, err)
			}
		}
	}
	if _, _, err := d.Files(t.Context(), peer, xfer.FileRequest{Op: 9, Path: "a"}); !errors.Is(err, xfer.CodeUnsupported) {
		t.Errorf("got %v", err)
	}
	src, closer, err := d.Files(t.Context(), peer, xfer.FileRequest{Op: xfer.RequestFile, Path: "d/up"}) // a link that stays inside
	if err != nil || src.Name != "up" || src.Size != 1 {
		t.Fatalf("%+v, %v", src, err)
	}
	must(0, closer.Close())(t)
	all := openDir(t, path, Options{AllowDotFiles: true})
	if _, closer, err := all.Files(t.Context(), peer, xfer.FileRequest{Op: xfer.RequestFile, Path: ".secret"}); err != nil {
		t.Error(err)
	} else {
		must(0, closer.Close())(t)
	}
	if _, _, err := all.Files(t.Context(), peer, xfer.FileRequest{Op: xfer.RequestFile, Path: ".cinnabar-0011223344556677.part"}); !errors.Is(err, xfer.CodeName) {
		t.Errorf("got %v", err)
	}
}

// A symbolic link does not lead past the rule for hidden names, whatever is asked.
func TestLinksToHidden(t *testing.T) {
	path := makeTree(t, "d/", "d/.env", ".releases/", ".releases/5", "d/l -> .env", "current -> .releases", "five -> current/5", "d/up -> ../.releases/5", "d/around -> ../d/../d/.env",
		"seen", "d/seen -> ../d/../seen", "e -> d")
	hides, all := openDir(t, path, Options{}), openDir(t, path, Options{AllowDotFiles: true})
	for _, op := range []xfer.RequestOp{xfer.RequestFile, xfer.RequestList} {
		for _, asked := range []string{"d/l", "e/l", "current", "current/5", "five", "d/up", "d/around", "e/around"} {
			if _, closer, err := hides.Files(t.Context(), peer, xfer.FileRequest{Op: op, Path: asked}); !errors.Is(err, xfer.CodeName) || closer != nil || strings.Contains(err.Error(), path) {
				t.Errorf("%v of %q: %v", op, asked, err)
			}
			_, closer, err := all.Files(t.Context(), peer, xfer.FileRequest{Op: op, Path: asked})
			if err != nil {
				t.Errorf("%v of %q with hidden names: %v", op, asked, err)
				continue
			}
			must(0, closer.Close())(t)
		}
		src, closer, err := hides.Files(t.Context(), peer, xfer.FileRequest{Op: op, Path: "e/seen"})
		if err != nil || op == xfer.RequestFile && (src.Name != "seen" || src.Size != 4) {
			t.Errorf("%v of a link to a file that is not hidden: %+v, %v", op, src, err)
			continue
		}
		must(0, closer.Close())(t)
	}
}

// A list is bounded in bytes, and a puller bounds the number of entries.
func TestListBytes(t *testing.T) {
	var l lines
	long := Entry{Name: "a", Kind: KindSymlink, Target: strings.Repeat("\x01", 4<<10)}
	n := 0
	for ; n < MaxListBytes; n++ {
		if err := l.add(long); err != nil {
			if !errors.Is(err, xfer.CodeTooLarge) {
				t.Error(err)
			}
			break
		}
	}
	if b := l.join(); len(b) > MaxListBytes || n < 1000 {
		t.Errorf("%d entries, %d bytes", n, len(b))
	}
	if _, err := parseList([]byte(strings.Repeat("{\"name\":\"a\"}\n", mostEntries+1))); !errors.Is(err, xfer.CodeTooLarge) {
		t.Errorf("got %v", err)
	}
	for _, name := range []string{"..", ".", "a/b", "/"} {
		if _, err := parseList([]byte(`{"name":"` + name + `"}`)); !errors.Is(err, xfer.CodeProtocol) {
			t.Errorf("the name %q: %v", name, err)
		}
	}
}

// Errors while a file is read do not name the server's path.
func TestReadErrorHasNoPath(t *testing.T) {
	path := makeTree(t, "a")
	src, closer, err := openDir(t, path, Options{}).Files(t.Context(), peer, xfer.FileRequest{Op: xfer.RequestFile, Path: "a"})
	if err != nil {
		t.Fatal(err)
	}
	must(0, closer.Close())(t)
	if _, err := src.Data.ReadAt(make([]byte, 1), 0); !errors.Is(err, os.ErrClosed) || strings.Contains(err.Error(), "public") {
		t.Errorf("got %v", err)
	}
}

// underWay returns the number of trees and lists that d counts.
func underWay(d *Dir) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.all + len(d.work)
}

// Lists are bounded, and so are the trees and lists of a host, and of all.
func TestBounds(t *testing.T) {
	d := openDir(t, makeTree(t, "a", "b", "c", "d/"), Options{MaxList: 4, MaxWork: 5})
	d.patience = time.Millisecond
	list := xfer.FileRequest{Op: xfer.RequestList, Path: "."}
	_, first, err := d.Files(t.Context(), peer, list)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := d.Files(t.Context(), peer, xfer.FileRequest{Op: xfer.RequestFile, Path: "d"}); !errors.Is(err, xfer.CodeBusy) {
		t.Errorf("a second one of the host: %v", err)
	}
	var others []io.Closer
	for i := range 4 {
		_, c, err := d.Files(t.Context(), netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}), 1), list)
		if err != nil {
			t.Fatal(err)
		}
		others = append(others, c)
	}
	if _, _, err := d.Files(t.Context(), netip.MustParseAddrPort("10.9.9.9:1"), list); !errors.Is(err, xfer.CodeBusy) {
		t.Errorf("a sixth one: %v", err)
	}
	for _, c := range append(others, first, first) {
		must(0, c.Close())(t)
	}
	if n := underWay(d); n != 0 {
		t.Errorf("%d are under way", n)
	}
	long := openDir(t, makeTree(t, "a", "b", "c", ".d"), Options{MaxList: 2})
	if _, _, err := long.Files(t.Context(), peer, list); !errors.Is(err, xfer.CodeTooLarge) || !strings.Contains(err.Error(), "more than 2 entries") {
		t.Errorf("got %v", err)
	}
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := d.Files(cancelled, peer, list); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	if underWay(d) != 0 || underWay(long) != 0 {
		t.Error("an error leaves work under way")
	}
}

// Names that cannot be pulled are listed, and lists of a hostile server are refused.
func TestOddNames(t *testing.T) {
	if runtime.GOOS == "windows" || runtime.GOOS == "darwin" {
		t.Skip("the file system has no such names")
	}
	dir := makeTree(t, "new\nline", "bad\xff", "esc\x1b[2J")
	dev := device(t)
	addr := server(t, dev, openDir(t, dir, Options{}))
	list := must(List(t.Context(), xfer.Puller{}, dev, addr, "."))(t)
	if len(list) != 3 || list[0].Name != "bad\ufffd" || list[1].Name != "esc\x1b[2J" || list[2].Name != "new\nline" {
		t.Errorf("%+v", list)
	}
	for _, text := range []string{"{", `{"name":""}`, `{"name":"a","size":-1}`, "{\"name\":\"a\"}\nx", `{"name":"a","time":"yesterday"}`, strings.Repeat("x", 2<<20)} {
		if got, err := parseList([]byte(text)); !errors.Is(err, xfer.CodeProtocol) {
			t.Errorf("%.20s: %v, %v", text, got, err)
		}
	}
}

func FuzzParseList(f *testing.F) {
	f.Add([]byte(`{"name":"a","kind":"file","size":1,"mode":420,"time":"2026-01-01T00:00:00Z"}` + "\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		list, err := parseList(b)
		if err != nil && !errors.Is(err, xfer.CodeProtocol) {
			t.Errorf("got %v", err)
		}
		for _, e := range list {
			if e.Name == "" || e.Size < 0 {
				t.Errorf("accepted %+v", e)
			}
		}
	})
}
