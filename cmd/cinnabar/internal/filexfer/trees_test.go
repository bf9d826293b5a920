package filexfer

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"cinnabar/cmd/cinnabar/internal/cli"
	"cinnabar/cmd/cinnabar/internal/clitest"
)

// makeTree makes a directory "photos" with an entry of each kind.
func makeTree(t *testing.T) string {
	t.Helper()
	root := filepath.Join(t.TempDir(), "photos")
	for _, dir := range []string{"a/empty", "build"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for name, data := range map[string]string{"a/one": "1", "a/two.o": "22", "build/x": "x", "keep.o": "333"} {
		if err := os.WriteFile(filepath.Join(root, name), []byte(data), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if runtime.GOOS != "windows" {
		if err := os.Symlink("one", filepath.Join(root, "a/link")); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

// Directories cross with their contents, without those that a pattern excludes, and are refused as a whole.
//
// parity: X01 D47
func TestSendRecursive(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("Windows lets few users make symbolic links")
	}
	root, file := makeTree(t), randomFiles(t, 1000)[0]
	p := startRecv(t, "127.0.0.1:0")
	code, client := clitest.RunProcess(t, "send", "-r", "--exclude", "*.o", "--exclude", "build/", "--include", "keep.o", root, file, p.addr)
	if code != 0 || !strings.Contains(client.Stdout.String(), "sent photos/: ") {
		t.Fatalf("exit code %d: %s%s", code, client.Stdout, client.Stderr)
	}
	p.sameFile(t, file)
	p.Stdout.Expect(`^received photos/: \d+ bytes from `)
	for name, want := range map[string]string{"photos/a/one": "1", "photos/keep.o": "333"} {
		if got, err := os.ReadFile(filepath.Join(p.dir, name)); err != nil || string(got) != want {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
	if target, err := os.Readlink(filepath.Join(p.dir, "photos/a/link")); err != nil || target != "one" {
		t.Errorf("link to %q, %v", target, err)
	}
	for _, name := range []string{"photos/build", "photos/a/two.o"} {
		if _, err := os.Lstat(filepath.Join(p.dir, name)); err == nil {
			t.Errorf("%s was sent", name)
		}
	}

	code, client = clitest.RunProcess(t, "send", "-r", root, p.addr)
	if code != 1 || !strings.Contains(client.Stderr.String(), `the receiver has a directory "photos" and does not overwrite`) {
		t.Errorf("exit code %d: %s", code, client.Stderr)
	}
	if err := os.Symlink("/etc", filepath.Join(root, "out")); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(root, root+"2"); err != nil {
		t.Fatal(err)
	}
	code, client = clitest.RunProcess(t, "send", "-r", root+"2", p.addr)
	if code != 1 || !strings.Contains(client.Stderr.String(), `"out": the symbolic link to "/etc" may lead out of the tree`) || !strings.Contains(client.Stderr.String(), "--allow-links") {
		t.Errorf("exit code %d: %s", code, client.Stderr)
	}
	if names := p.files(t); len(names) != 2 {
		t.Errorf("in the directory: %q", names)
	}
	p.interrupt(t)
}

// A dry run lists the entries and connects to no receiver.
//
// parity: X01
func TestSendDryRun(t *testing.T) {
	root := makeTree(t)
	if runtime.GOOS != "windows" {
		if err := os.Link(filepath.Join(root, "keep.o"), filepath.Join(root, "z")); err != nil {
			t.Fatal(err)
		}
	}
	out := clitest.WantRun(t, 0, []string{"send", "-r", "--dry-run", "--exclude", "build", root, "127.0.0.1:1"}, "photos/a/one (1 bytes)")
	if runtime.GOOS != "windows" {
		const want = "photos/\nphotos/a/\nphotos/a/empty/\nphotos/a/link -> one (symbolic link)\nphotos/a/one (1 bytes)\nphotos/a/two.o (2 bytes)\nphotos/keep.o (3 bytes)\nphotos/z -> photos/keep.o (hard link)\n"
		if got := out.Out.String(); got != want {
			t.Errorf("got\n%s\nwant\n%s", got, want)
		}
	}
	clitest.WantRun(t, 0, []string{"send", "-r", "--dry-run", "--json", root, "127.0.0.1:1"}, `{"event":"entry","path":"photos/keep.o","kind":"file","bytes":3}`)
}

func TestSendTreeOptions(t *testing.T) {
	root := makeTree(t)
	for _, e := range []struct {
		args []string
		code int
		text string
	}{
		{[]string{root, "127.0.0.1:1"}, cli.ExitFailure, "--recursive sends directories too"},
		{[]string{"--exclude", "x", root, "127.0.0.1:1"}, cli.ExitUsage, "which --recursive sends"},
		{[]string{"-r", "--protocol", "basic", root, "127.0.0.1:1"}, cli.ExitUsage, "needs the fast protocol"},
		{[]string{"-r", "--exclude", "", root, "127.0.0.1:1"}, cli.ExitUsage, "the pattern is empty"},
		{[]string{"-r", "--exclude", "a\nb", root, "127.0.0.1:1"}, cli.ExitUsage, "line feed"},
		{[]string{"-r", "--exclude", "[a", root, "127.0.0.1:1"}, cli.ExitUsage, `the pattern "[a" has a [ without its ]`},
		{[]string{"-r", root, root + "/../photos", "127.0.0.1:1"}, cli.ExitUsage, `would both be stored as "photos"`},
	} {
		clitest.WantRun(t, e.code, append([]string{"send"}, e.args...), e.text)
	}
}
