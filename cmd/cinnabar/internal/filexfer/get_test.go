package filexfer

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"cinnabar/cmd/cinnabar/internal/cli"
	"cinnabar/cmd/cinnabar/internal/clitest"
	"cinnabar/identity"
	"cinnabar/internal/testproc"
	"cinnabar/xfer"
	"cinnabar/xfer/share"
)

// startServer starts a serve-files of a directory, and returns its address.
func startServer(t *testing.T, dir string, args ...string) (*testproc.Process, string) {
	t.Helper()
	p := clitest.Start(t, append([]string{"serve-files", dir, "--listen", "127.0.0.1:0"}, args...)...)
	return p, p.Stdout.Expect(`^serving directory \S+ at (\S+), (read-only|for reading and writing); interrupt \(\^C\) to end$`)[1]
}

// shared makes a directory with files in it.
func shared(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for name, data := range map[string]string{"notes.txt": "notes", "d/one": "one", "d/sub/two": "two", "d/.hidden": "x", ".secret": "x"} {
		at := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(at), 0o755), os.WriteFile(at, []byte(data), 0o640)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// files returns the paths of all files below a directory.
func filesBelow(t *testing.T, dir string) (list []string) {
	t.Helper()
	err := fs.WalkDir(os.DirFS(dir), ".", func(p string, e fs.DirEntry, err error) error {
		if err == nil && !e.IsDir() {
			list = append(list, p)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// parity: X04
func TestGet(t *testing.T) {
	server, addr := startServer(t, shared(t))
	in := t.TempDir()
	for _, args := range [][]string{
		{"get", addr, "notes.txt", "--dir", in},
		{"get", "-r", "--digest", "blake3", addr, "d/", "d/sub/two", "--dir", in},
		{"get", addr, "d/one", "--dir", in, "--output", "uno"},
		{"get", "-r", addr, ".", "--dir", in, "--output", "all"},
	} {
		code, p := clitest.RunProcess(t, args...)
		if code != 0 || !strings.Contains(p.Stdout.String(), "got ") {
			t.Fatalf("%q: exit code %d, %s%s", args, code, p.Stdout, p.Stderr)
		}
	}
	if got := filesBelow(t, in); !slices.Equal(got, []string{"all/d/one", "all/d/sub/two", "all/notes.txt", "d/one", "d/sub/two", "notes.txt", "two", "uno"}) {
		t.Errorf("got %q", got)
	}
	server.Stdout.Expect(`^served notes.txt: 5 bytes to 127.0.0.1:\d+ in `)
	code, p := clitest.RunProcess(t, "get", addr, "d/one", "-o", "-")
	if code != 0 || p.Stdout.String() != "one" {
		t.Errorf("exit code %d: %q, %s", code, p.Stdout, p.Stderr)
	}
	for _, c := range []struct {
		args []string
		says []string
	}{
		{[]string{"notes.txt", "--dir", in}, []string{"file exists", "--overwrite"}},
		{[]string{"d", "--dir", t.TempDir()}, []string{"--recursive"}},
		{[]string{"nothing"}, []string{`the server has no "nothing"`, "cinnabar ls"}},
		{[]string{".secret"}, []string{"begins with a dot", "--allow-dotfiles"}},
		{[]string{"../etc/passwd"}, []string{"two dots", "the peer says"}},
		{[]string{"nothing", "notes.txt", "--dir", in}, []string{"2 of 2 files were not pulled", `has no "nothing"`, "notes.txt: "}},
	} {
		code, p := clitest.RunProcess(t, append([]string{"get", addr}, c.args...)...)
		if code != cli.ExitFailure {
			t.Errorf("%q: exit code %d", c.args, code)
		}
		for _, says := range c.says {
			if !strings.Contains(p.Stderr.String(), says) {
				t.Errorf("%q: no %q in %s", c.args, says, p.Stderr)
			}
		}
	}
	code, p = clitest.RunProcess(t, "send", filepath.Join(in, "uno"), addr)
	if code != cli.ExitFailure || !strings.Contains(p.Stderr.String(), "read-only") {
		t.Errorf("a read-only server: exit code %d, %s", code, p.Stderr)
	}
	server.Interrupt()
	if code := server.ExitCode(); code != 0 {
		t.Errorf("exit code %d: %s", code, server.Stderr)
	}
}

// parity: X04
func TestServeWrites(t *testing.T) {
	dir := shared(t)
	_, addr := startServer(t, dir, "--write", "--allow-dotfiles")
	path := randomFiles(t, 100_000)[0]
	if code, p := clitest.RunProcess(t, "send", path, addr); code != 0 {
		t.Fatalf("%s", p.Stderr)
	}
	in := t.TempDir()
	if code, p := clitest.RunProcess(t, "get", addr, filepath.Base(path), ".secret", "--dir", in, "--allow-dotfiles", "--limit", "10MB/s"); code != 0 {
		t.Fatalf("%s", p.Stderr)
	}
	want, err := fileSum(path)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := fileSum(filepath.Join(in, filepath.Base(path))); err != nil || got != want {
		t.Errorf("%x, %v", got, err)
	}
}

// parity: X04
func TestList(t *testing.T) {
	dir := shared(t)
	if err := os.WriteFile(filepath.Join(dir, "esc\x1b[2J"), nil, 0o600); err != nil {
		t.Skipf("the file system has no such names: %v", err)
	}
	when := time.Date(2026, 3, 4, 5, 6, 7, 0, time.Local)
	if err := errors.Join(os.Symlink("notes.txt", filepath.Join(dir, "link")), os.Chtimes(filepath.Join(dir, "notes.txt"), when, when)); err != nil {
		t.Fatal(err)
	}
	_, addr := startServer(t, dir, "--allow-dotfiles")
	code, p := clitest.RunProcess(t, "ls", addr)
	text := p.Stdout.String()
	for _, line := range []string{`-rw-r----- 5 2026-03-04 05:06:07 notes.txt`, `"esc\x1b[2J"`, " d/\n", " .secret\n", " link -> notes.txt\n"} {
		if !strings.Contains(text, line) {
			t.Errorf("exit code %d: no %q in\n%s", code, line, text)
		}
	}
	if code, p = clitest.RunProcess(t, "ls", addr, "d/sub", "--json"); code != 0 {
		t.Fatalf("%s", p.Stderr)
	}
	var e map[string]any
	if err := json.Unmarshal([]byte(p.Stdout.String()), &e); err != nil || e["name"] != "two" || e["kind"] != "file" || e["size"] != 3.0 || e["mode"] != "0640" || e["time"] == "" {
		t.Errorf("%v, %v", e, err)
	}
	if code, p := clitest.RunProcess(t, "ls", addr, "nothing"); code != cli.ExitFailure || !strings.Contains(p.Stderr.String(), `has no "nothing"`) {
		t.Errorf("exit code %d: %s", code, p.Stderr)
	}
}

// A server without the token is refused, and a puller without it.
func TestGetWithToken(t *testing.T) {
	token := clitest.WriteTemp(t, "token", []byte(identity.NewToken().Reveal()))
	_, addr := startServer(t, shared(t), "--token-file", token)
	in := t.TempDir()
	if code, p := clitest.RunProcess(t, "get", addr, "notes.txt", "--dir", in, "--token-file", token); code != 0 {
		t.Fatalf("%s", p.Stderr)
	}
	if code, p := clitest.RunProcess(t, "get", addr, "d/one", "--dir", in); code != cli.ExitFailure || len(filesBelow(t, in)) != 1 {
		t.Errorf("without the token: exit code %d, %s", code, p.Stderr)
	}
	if code, _ := clitest.RunProcess(t, "ls", addr); code != cli.ExitFailure {
		t.Errorf("without the token ls has exit code %d", code)
	}
}

// A server that sends another name than the one that was asked for does not choose where the file goes.
func TestGetExpectsName(t *testing.T) {
	var name string
	open := func(_ context.Context, _ netip.AddrPort, n string, _ xfer.Meta, _ int64) (xfer.File, error) {
		name = n
		return &outputFile{}, nil
	}
	for _, c := range []struct {
		o           pullOptions
		path, sends string
		want        string // "": refused
	}{
		{pullOptions{}, "d/a", "a", "a"}, {pullOptions{}, "a", "b", ""}, {pullOptions{}, "a", "a/", ""}, {pullOptions{recursive: true}, "d", "d/", "d/"},
		{pullOptions{recursive: true}, "d", "e/", ""}, {pullOptions{recursive: true, out: "x"}, "d", "d/", "x/"}, {pullOptions{recursive: true, out: "x"}, ".", "public/", "x/"},
		{pullOptions{}, ".", "Makefile", ""}, {pullOptions{}, "/", "Makefile", ""}, {pullOptions{recursive: true}, ".", "public/", ""}, {pullOptions{recursive: true}, "a/..", "public/", ""},
		{pullOptions{out: "x"}, "..", "Makefile", "x"}, {pullOptions{out: "x"}, ".", "public/", ""},
		{pullOptions{out: "x"}, "a", "a", "x"}, {pullOptions{out: "x"}, "a", "b", ""},
	} {
		name = ""
		_, err := c.o.expects(c.path, open)(t.Context(), netip.AddrPort{}, c.sends, xfer.Meta{}, 0)
		if name != c.want || (err == nil) != (c.want != "") {
			t.Errorf("%q for %q: stored as %q, %v", c.sends, c.path, name, err)
		}
	}
}

// If a get is killed, or interrupted by ^C, the same get goes on where it stopped: the received bytes do not cross again. If the server's file has changed meanwhile, get stores
// the new contents.
//
// parity: X02 D47
func TestGetResumes(t *testing.T) {
	needsLocks(t)
	const size, least = 64 << 20, 4 << 20 // bytes of the file, and of the blocks that are there when get is ended and do not change
	data := make([]byte, size)
	_, _ = rand.NewChaCha8([32]byte{7}).Read(data) // never fails
	for name, c := range map[string]struct {
		files   []string // which have the data together
		path    string
		end     func(*testproc.Process) int
		code    int
		changes bool   // the server's first file changes meanwhile
		keep    string // further options
	}{
		"killed":         {[]string{"big"}, "big", killed, -1, false, "--keep-for=24h"},
		"interrupted":    {[]string{"big"}, "big", interrupted, cli.ExitSignal + int(syscall.SIGINT), false, "--keep-for=24h"},
		"other contents": {[]string{"big"}, "big", killed, -1, true, "--keep-for=24h"},
		"directory":      {[]string{"d/a", "d/b", "d/c", "d/d"}, "d", interrupted, cli.ExitSignal + int(syscall.SIGINT), true, "--keep-partial"},
		// Each of two lanes has four pieces of 2 MiB, which may be gaps in as many blocks of 4 MiB when get is ended, so more bytes must have come.
		"lanes, killed":           {[]string{"big"}, "big", killed, -1, true, "--lanes=2"},
		"lanes, interrupted":      {[]string{"big"}, "big", interrupted, cli.ExitSignal + int(syscall.SIGINT), true, "--lanes=2"},
		"directory, lanes":        {[]string{"d/a", "d/b", "d/c", "d/d"}, "d", killed, -1, true, "--lanes=3"},
		"checksum, lanes, killed": {[]string{"big"}, "big", killed, -1, true, "--lanes=2 --checksum"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // most of the time passes in waiting for --limit
			public, in := t.TempDir(), t.TempDir()
			want := bytes.Clone(data)
			part := size / len(c.files)
			write := func() {
				for i, f := range c.files {
					at := filepath.Join(public, f)
					if err := errors.Join(os.MkdirAll(filepath.Dir(at), 0o755), os.WriteFile(at, want[i*part:][:part], 0o640)); err != nil {
						t.Fatal(err)
					}
				}
			}
			write()
			_, addr := startServer(t, public)
			get := func(addr string, more ...string) []string {
				return slices.Concat([]string{"get", "-r", "--json", addr, c.path, "--dir", in}, strings.Fields(c.keep), more)
			}
			come := `"event":"progress".*"bytes":(9|\d\d)\d{6},`
			if strings.Contains(name, "lanes") {
				come = `"event":"progress".*"bytes":[45]\d{7},`
			}
			client := clitest.Start(t, get(addr, "--limit", "4MiB/s")...) // so that the second get has 6 s to be refused
			client.Stdout.Expect(come)
			if code, p := clitest.RunProcess(t, get(addr)...); code != cli.ExitFailure || !strings.Contains(p.Stderr.String(), "is being received right now by another process") || strings.Contains(p.Stderr.String(), "received part") {
				t.Errorf("a second get of the name: exit code %d: %s", code, p.Stderr)
			}
			if code := c.end(client); c.code >= 0 && code != c.code {
				t.Errorf("exit code %d, want %d: %s", code, c.code, client.Stderr)
			}
			keeps := "--keep-for 24h0m0s"
			if c.keep == "--keep-partial" {
				keeps = c.keep
			}
			if c.code >= 0 && !strings.Contains(client.Stderr.String(), "a received part stays in --dir ("+keeps+"): run the same get again") {
				t.Errorf("it does not say how to go on: %s", client.Stderr)
			}
			if c.changes {
				want[5] ^= 1
				write()
			}
			relay := newCountingRelay(t, addr)
			code, again := clitest.RunProcess(t, get(relay.addr)...)
			if code != 0 {
				t.Fatalf("exit code %d: %s", code, again.Stderr)
			}
			wantResumed(t, again.Stdout.String(), size, least, relay.comes.Load())
			for i, f := range c.files {
				if got, err := os.ReadFile(filepath.Join(in, f)); err != nil || !bytes.Equal(got, want[i*part:][:part]) {
					t.Errorf("%s has %d bytes that differ: %v", f, len(got), err)
				}
			}
			if got := filesBelow(t, in); !slices.Equal(got, c.files) {
				t.Errorf("in the directory: %q", got)
			}
		})
	}
}

// A tree is pulled again with only the files that differ, by time or by contents, and a plain file too. Without the options a get of a name that is here is refused.
//
// parity: X02
func TestGetSync(t *testing.T) {
	public, in := t.TempDir(), t.TempDir()
	write := func(dir, name, data string, when time.Time) {
		t.Helper()
		at := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(at), 0o755), os.WriteFile(at, []byte(data), 0o640), os.Chtimes(at, when, when)); err != nil {
			t.Fatal(err)
		}
	}
	when := time.Unix(1e9, 0)
	for name, data := range map[string]string{"d/a": "aaaaa", "d/sub/b": "bbbbbbb", "d/c": "ccc", "plain": "plain text"} {
		write(public, name, data, when)
	}
	_, addr := startServer(t, public)
	kept := func(path string, args ...string) float64 {
		t.Helper()
		code, p := clitest.RunProcess(t, append([]string{"get", "-r", "--json", addr, path, "--dir", in}, args...)...)
		if code != 0 {
			t.Fatalf("get %s %q: exit code %d: %s", path, args, code, p.Stderr)
		}
		lines := strings.Split(strings.TrimSpace(p.Stdout.String()), "\n")
		var e map[string]any
		if err := json.Unmarshal([]byte(lines[len(lines)-1]), &e); err != nil || e["event"] != "got" {
			t.Fatalf("got %q, %v", lines, err)
		}
		n, _ := e["kept"].(float64) // left out if it is 0
		return n
	}
	wantFiles := func(want map[string]string) {
		t.Helper()
		got := filesBelow(t, in)
		if len(got) != len(want) {
			t.Errorf("in the directory: %q", got)
		}
		for name, data := range want {
			if b, err := os.ReadFile(filepath.Join(in, name)); string(b) != data {
				t.Errorf("%s has %q, want %q: %v", name, b, data, err)
			}
		}
	}
	for _, c := range []struct {
		path string
		args []string
		want float64
		do   func()
	}{
		{path: "d"},
		{path: "plain", args: []string{"--update"}},
		{path: "d", args: []string{"--update"}, want: 15},
		{path: "plain", args: []string{"--update"}, want: 10},
		{path: "d", args: []string{"--update"}, want: 12, do: func() { write(public, "d/c", "CCC", when.Add(1)) }},
		{path: "d", args: []string{"--checksum"}, want: 10, do: func() { write(in, "d/a", "aaaab", when) }}, // of the same size and time
		{path: "d", args: []string{"--checksum"}, want: 15, do: func() { write(in, "d/a", "aaaaa", when.Add(7)) }},
		{path: "plain", args: []string{"--checksum"}, want: 10, do: func() { write(in, "plain", "plain text", when.Add(7)) }},
		{path: "plain", args: []string{"--update"}, do: func() { write(in, "plain", "plain text", when.Add(7)) }},
		{path: "d", args: []string{"--overwrite"}},
	} {
		if c.do != nil {
			c.do()
		}
		if got := kept(c.path, c.args...); got != c.want {
			t.Errorf("get %s %q: %v bytes were here, want %v", c.path, c.args, got, c.want)
		}
	}
	wantFiles(map[string]string{"d/a": "aaaaa", "d/sub/b": "bbbbbbb", "d/c": "CCC", "plain": "plain text"})
	if code, p := clitest.RunProcess(t, "get", "-r", addr, "d", "--dir", in); code != cli.ExitFailure || !strings.Contains(p.Stderr.String(), "file exists") {
		t.Errorf("without the options: exit code %d: %s", code, p.Stderr)
	}
}

// With --delete a directory is made equal to that of the server, after the list of the entries that go; --dry-run only prints the list. Names with a dot stay unless they are asked for.
//
// parity: X02
func TestGetDelete(t *testing.T) {
	public, in := t.TempDir(), t.TempDir()
	write := func(dir string, names ...string) {
		t.Helper()
		for _, name := range names {
			at := filepath.Join(dir, name)
			if err := errors.Join(os.MkdirAll(filepath.Dir(at), 0o755), os.WriteFile(at, []byte(name), 0o640)); err != nil {
				t.Fatal(err)
			}
		}
	}
	write(public, "d/a", "d/sub/b")
	_, addr := startServer(t, public)
	get := func(code int, more ...string) string {
		t.Helper()
		got, p := clitest.RunProcess(t, append([]string{"get", "-r", addr, "d", "--dir", in}, more...)...)
		if got != code {
			t.Fatalf("%q: exit code %d, want %d: %s", more, got, code, p.Stderr)
		}
		return p.Stdout.String() + p.Stderr.String()
	}
	get(0)
	write(in, "d/old", "d/gone/x", "d/sub/c", "d/.keep", "other")
	const list = "removes d/gone/\nremoves d/gone/x\nremoves d/old\nremoves d/sub/c\n"
	all := []string{"d/.keep", "d/a", "d/gone/x", "d/old", "d/sub/b", "d/sub/c", "other"}
	if out, want := get(0, "--delete", "--dry-run"), strings.ReplaceAll(list, "removes", "would remove"); out != want {
		t.Errorf("got %q, want %q", out, want)
	}
	if out := get(0, "--delete", "--dry-run", "--json", "--lanes", "3"); !strings.Contains(out, `{"event":"removal","path":"d/old","kind":"other"}`) || strings.Contains(out, `"got"`) {
		t.Errorf("got %q", out)
	}
	if got := filesBelow(t, in); !slices.Equal(got, all) {
		t.Errorf("the dry run leaves %q", got)
	}
	if out := get(0, "--delete", "--update"); !strings.HasPrefix(out, list) {
		t.Errorf("got %q, want %q first", out, list)
	}
	if got := filesBelow(t, in); !slices.Equal(got, []string{"d/.keep", "d/a", "d/sub/b", "other"}) {
		t.Errorf("in the directory: %q", got)
	}
	get(0, "--delete", "--allow-dotfiles")
	if got := filesBelow(t, in); !slices.Equal(got, []string{"d/a", "d/sub/b", "other"}) {
		t.Errorf("in the directory: %q", got)
	}
	write(in, "all/x")
	code, p := clitest.RunProcess(t, "get", "-r", "--delete", addr, ".", "--output", "all", "--dir", in)
	if code != 0 || !strings.HasPrefix(p.Stdout.String(), "removes all/x\n") {
		t.Errorf("exit code %d: %s%s", code, p.Stdout, p.Stderr)
	}
	if code, p := clitest.RunProcess(t, "get", "-r", "--delete", addr, "d/a", "--dir", in); code != cli.ExitFailure || !strings.Contains(p.Stderr.String(), "there is nothing to remove beside the file") || !strings.Contains(p.Stderr.String(), "try without --digest and --delete") {
		t.Errorf("a plain file: exit code %d: %s", code, p.Stderr)
	}
}

// get --exclude leaves the same entries as send --exclude in the directory, which are those of both sides that no pattern matches, and those of this side that one does. A file that is
// not in a directory crosses in any case.
//
// parity: X01
func TestGetExcludes(t *testing.T) {
	public, pushed, pulled := t.TempDir(), t.TempDir(), t.TempDir()
	write := func(dir string, names ...string) {
		t.Helper()
		for _, name := range names {
			at := filepath.Join(dir, name)
			if err := errors.Join(os.MkdirAll(filepath.Dir(at), 0o755), os.WriteFile(at, []byte(filepath.Base(dir)+name), 0o640)); err != nil {
				t.Fatal(err)
			}
		}
	}
	write(public, "d/a", "d/b.o", "d/keep.o", "d/build/x", "d/sub/c.o", "d/sub/d", "d/sub/build/y", "plain.o")
	patterns := []string{"--exclude", "*.o", "--include", "keep.o", "--exclude", "/build/"}
	for _, dir := range []string{pushed, pulled} {
		write(dir, "d/old", "d/old.o", "d/build/mine", "d/gone/x", "d/sub/build/z", "d/b.o")
	}
	_, addr := startServer(t, public)
	to := startRecv(t, "127.0.0.1:0", "--overwrite", "--allow-delete", "--dir", pushed)
	send := func(more ...string) string {
		t.Helper()
		code, p := clitest.RunProcess(t, append(append(append([]string{"send", "-r"}, patterns...), more...), filepath.Join(public, "d"), to.addr)...)
		if code != 0 {
			t.Fatalf("%q: exit code %d: %s", more, code, p.Stderr)
		}
		return p.Stdout.String()
	}
	get := func(code int, more ...string) string {
		t.Helper()
		got, p := clitest.RunProcess(t, append(append([]string{"get", "-r", "--dir", pulled, addr}, patterns...), more...)...)
		if got != code {
			t.Fatalf("%q: exit code %d, want %d: %s", more, got, code, p.Stderr)
		}
		return p.Stdout.String() + p.Stderr.String()
	}
	removals := func(out string) (list []string) {
		for line := range strings.Lines(out) {
			if strings.HasPrefix(line, "removes ") || strings.HasPrefix(line, "would remove ") {
				list = append(list, line)
			}
		}
		return list
	}
	before := filesBelow(t, pulled)
	want := []string{"would remove d/gone/\n", "would remove d/gone/x\n", "would remove d/old\n", "would remove d/sub/build/z\n"}
	if theirs, ours := removals(send("--delete", "--dry-run")), removals(get(0, "d", "--delete", "--dry-run")); !slices.Equal(ours, want) || !slices.Equal(theirs, want) {
		t.Errorf("get would remove %q, send %q, want %q", ours, theirs, want)
	}
	if got := filesBelow(t, pulled); !slices.Equal(got, before) {
		t.Errorf("the dry run leaves %q", got)
	}
	for _, more := range [][]string{{"--update", "--delete"}, {"--checksum"}, {"--update", "--delete"}} {
		theirs, ours := send(more...), get(0, append(more, "d")...)
		if !slices.Equal(removals(theirs), removals(ours)) {
			t.Errorf("%q: get removes %q, send %q", more, removals(ours), removals(theirs))
		}
		if !strings.Contains(ours, " bytes were there or left out") {
			t.Errorf("%q: got %q", more, ours)
		}
		got, sent := filesBelow(t, pulled), filesBelow(t, pushed)
		if want := []string{"d/a", "d/b.o", "d/build/mine", "d/keep.o", "d/old.o", "d/sub/build/y", "d/sub/d"}; !slices.Equal(got, want) || !slices.Equal(sent, want) {
			t.Errorf("%q: get leaves %q, send %q, want %q", more, got, sent, want)
		}
		for _, name := range got {
			b, err := os.ReadFile(filepath.Join(pulled, name))
			mine := strings.HasPrefix(string(b), filepath.Base(pulled))
			if err != nil || mine != slices.Contains([]string{"d/b.o", "d/build/mine", "d/old.o"}, name) {
				t.Errorf("%q: %s has %q, %v", more, name, b, err)
			}
		}
	}
	get(0, "plain.o")
	if b, err := os.ReadFile(filepath.Join(pulled, "plain.o")); err != nil || string(b) != filepath.Base(public)+"plain.o" {
		t.Errorf("a plain file has %q, %v", b, err)
	}
	get(0, ".", "--output", "all", "--lanes", "2")
	if got := filesBelow(t, filepath.Join(pulled, "all")); !slices.Equal(got, []string{"d/a", "d/build/x", "d/keep.o", "d/sub/build/y", "d/sub/d"}) {
		t.Errorf("the whole directory, in which d/build is not /build: %q", got)
	}
	to.interrupt(t)
}

// fullOutput is standard output on a disk without room.
type fullOutput struct{}

func (fullOutput) Write([]byte) (int, error) { return 0, syscall.ENOSPC }

// An entry stays if the list cannot say that it goes, and get fails, also if it only prints the list.
func TestGetDeleteNeedsList(t *testing.T) {
	public, in := t.TempDir(), t.TempDir()
	for _, dir := range []string{public, in} {
		if err := os.Mkdir(filepath.Join(dir, "d"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(in, "d", "old"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	_, addr := startServer(t, public)
	for _, more := range []string{"--dry-run", "--json", "--lanes=1"} {
		var errs bytes.Buffer
		cmd := NewGet(cli.Streams{In: strings.NewReader(""), Out: fullOutput{}, Err: &errs})
		cmd.SetArgs([]string{"-r", "--delete", more, addr, "d", "--dir", in})
		cmd.SilenceErrors, cmd.SilenceUsage = true, true
		if err := cmd.ExecuteContext(t.Context()); !errors.Is(err, syscall.ENOSPC) || !strings.Contains(err.Error(), "entries that are not in the list stay") {
			t.Errorf("%s: got %v: %s", more, err, &errs)
		}
		if got := filesBelow(t, in); !slices.Equal(got, []string{"d/old"}) {
			t.Errorf("%s: in the directory: %q", more, got)
		}
	}
}

// Trees that change at both ends are pulled with --update or --checksum, some after a get that was killed, and equal those of rsync.
//
// parity: X02
func TestGetLikeRsync(t *testing.T) {
	needsLocks(t)
	rsync, err := exec.LookPath("rsync")
	if err != nil {
		t.Skip("rsync is not installed (Debian's package rsync)")
	}
	r := rand.New(rand.NewPCG(3, 9))
	public, in, ref := t.TempDir(), t.TempDir(), t.TempDir()
	change := func(dir string, n int) {
		for range n {
			at := filepath.Join(dir, string(rune('a'+r.IntN(4))), string(rune('a'+r.IntN(12))))
			b := bytes.Repeat([]byte{byte(r.Uint32())}, r.IntN(3)*1000+1<<(r.IntN(12)+1))
			when := time.Unix(1e9+int64(r.IntN(3)), 0)
			if err := errors.Join(os.MkdirAll(filepath.Dir(at), 0o755), os.WriteFile(at, b, 0o640), os.Chtimes(at, when, when)); err != nil {
				t.Fatal(err)
			}
		}
	}
	_, addr := startServer(t, public)
	for round := range 10 {
		change(filepath.Join(public, "d"), 20)
		args := []string{"--checksum", "--update"}[round%2:][:1]
		if round > 2 && args[0] == "--checksum" { // with --update a file of another program with equal size and time stays, as with rsync
			change(filepath.Join(in, "d"), 3)
		}
		if err := exec.CommandContext(t.Context(), rsync, "-a", "--checksum", filepath.Join(in, "d"), ref).Run(); round > 0 && err != nil {
			t.Fatal(err)
		}
		how := []string{"-a", "--modify-window=-1"}
		if args[0] == "--checksum" {
			how = append(how, "--checksum")
		}
		if out, err := exec.CommandContext(t.Context(), rsync, append(how, filepath.Join(public, "d"), ref)...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		get := append([]string{"get", "-r", addr, "d", "--dir", in}, args...)
		if round%3 == 1 {
			p := clitest.Start(t, append(get, "--limit", "8KiB/s", "--digest", "none")...)
			p.Stderr.Expect(`^getting d/ `)
			killed(p)
		}
		if code, p := clitest.RunProcess(t, get...); code != 0 {
			t.Fatalf("round %d: exit code %d: %s", round, code, p.Stderr)
		}
		if out, err := exec.CommandContext(t.Context(), rsync, "-ani", "--checksum", "--delete", "--modify-window=-1", filepath.Join(ref, "d")+"/", filepath.Join(in, "d")+"/").CombinedOutput(); err != nil || len(out) > 0 {
			t.Errorf("round %d: %v: rsync would change\n%s", round, err, out)
		}
	}
}

// killed and interrupted end a process and return its exit code.
func killed(p *testproc.Process) int {
	p.Kill()
	_ = p.Wait() // it was killed
	return -1
}

func interrupted(p *testproc.Process) int {
	p.Interrupt()
	return p.ExitCode()
}

// With --keep-for 0 no part of a failed pull stays, and get does not speak of one.
func TestGetKeepsNothing(t *testing.T) {
	in := t.TempDir()
	_, addr := startServer(t, filepath.Dir(clitest.EndlessFile(t)))
	client := clitest.Start(t, "get", addr, "endless", "--dir", in, "--keep-for", "0")
	client.Stderr.Expect(`^getting endless `)
	if code := interrupted(client); code != cli.ExitSignal+int(syscall.SIGINT) || strings.Contains(client.Stderr.String(), "received part") {
		t.Errorf("exit code %d: %s", code, client.Stderr)
	}
	if got := filesBelow(t, in); len(got) > 0 {
		t.Errorf("in the directory: %q", got)
	}
}

func TestPullArguments(t *testing.T) {
	for _, c := range []struct{ args, says string }{
		{"get 127.0.0.1", "usage: cinnabar get HOST[:PORT] PATH"},
		{"get 127.0.0.1 a d/a", "would both be stored as"},
		{"get 127.0.0.1 " + strings.Repeat("x", xfer.MaxRequest+1), "1024 are possible"},
		{"get 127.0.0.1 a b -o c", "with 2 paths"},
		{"get 127.0.0.1 a -r -o -", "with --recursive"},
		{"get -r 127.0.0.1 .", "--output NAME"},
		{"get 127.0.0.1 /", "--output NAME"},
		{"get -r 127.0.0.1 a ..", "--output NAME"},
		{"get -r 127.0.0.1 a/.. -o ../b", "invalid --output"},
		{"get 127.0.0.1 a -o c/d", "invalid --output"},
		{"get 127.0.0.1 a -o - --fsync", "--fsync was given with --output -"},
		{"get 127.0.0.1 a -o - --keep-for 1h", "--keep-for was given with --output -"},
		{"get 127.0.0.1 a -o - --update", "--update was given with --output -"},
		{"get 127.0.0.1 a -o - --lanes 2", "--lanes was given with --output -"},
		{"get 127.0.0.1 a --lanes 0", "invalid --lanes 0: 1 to 64"},
		{"get 127.0.0.1 a --lanes 65", "invalid --lanes 65: 1 to 64"},
		{"get 127.0.0.1 a -o - --checksum", "--checksum was given with --output -"},
		{"get 127.0.0.1 a --delete", "--delete is for directories, which --recursive pulls"},
		{"get -r 127.0.0.1 a --dry-run", "--dry-run lists the entries that --delete would remove"},
		{"get 127.0.0.1 a --exclude x", "--exclude and --include are for the entries of directories, which --recursive pulls"},
		{"get 127.0.0.1 a --include x", "which --recursive pulls"},
		{"get 127.0.0.1 a -o - --exclude x", "which --recursive pulls"},
		{"get -r 127.0.0.1 a --exclude [a", `the pattern "[a" has a [ without its ]`},
		{"get -r 127.0.0.1 a --include a[[:b:]]", `write \[ for the character`},
		{`get -r 127.0.0.1 a --exclude x\`, `ends in a backslash`},
		{"get -r 127.0.0.1 a --exclude /", "names no entry"},
		{"get -r 127.0.0.1 a --exclude=", "the pattern is empty"},
		{"get 127.0.0.1 a --update --no-preserve", "--no-preserve was given with --update"},
		{"get 127.0.0.1 a --keep-for -1s", "invalid --keep-for -1s"},
		{"get 127.0.0.1:port: a", "the first argument is the server"},
		{"get :7 a", "no host"},
		{"ls", "usage: cinnabar ls"},
		{"ls a b c", "usage: cinnabar ls"},
		{"serve-files", "usage: cinnabar serve-files DIR"},
		{"serve-files . --overwrite", "which --write allows"},
		{"serve-files . --fsync", "which --write allows"},
	} {
		var o clitest.Output
		if code := clitest.Run(t.Context(), strings.Fields(c.args), o.Streams()); code != cli.ExitUsage || !strings.Contains(o.Err.String(), c.says) {
			t.Errorf("%s: exit code %d, %s", c.args, code, &o.Err)
		}
	}
}

func TestListText(t *testing.T) {
	for _, c := range []struct {
		e          share.Entry
		mode, name string
	}{
		{share.Entry{Name: "a", Kind: share.KindFile, Mode: 0o644}, "-rw-r--r--", "a"},
		{share.Entry{Name: "d", Kind: share.KindDirectory, Mode: 0o755}, "drwxr-xr-x", "d/"},
		{share.Entry{Name: "l", Kind: share.KindSymlink, Mode: 0o777, Target: "a\nb"}, "lrwxrwxrwx", `l -> "a\nb"`},
		{share.Entry{Name: "p", Kind: share.KindOther, Mode: 0o600}, "?rw-------", "p"},
		{share.Entry{Name: " \u202egpj", Kind: "nonsense\x1b", Mode: 0o7777 | fs.ModeSetuid}, "-rwxrwxrwx", `" \u202egpj"`},
	} {
		if mode, name := modeText(c.e), nameText(c.e); mode != c.mode || name != c.name {
			t.Errorf("%+v: %s %s", c.e, mode, name)
		}
	}
}
