package filexfer

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"cinnabar/cmd/cinnabar/internal/cli"
	"cinnabar/cmd/cinnabar/internal/clitest"
)

// A tree is made equal to the sender's: what differs crosses, and what the sender does not have goes after the list of it.
//
// parity: X02
func TestSendSync(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("Windows lets few users make symbolic links")
	}
	root := makeTree(t)
	p := startRecv(t, "127.0.0.1:0", "--overwrite", "--allow-delete")
	send := func(args ...string) string {
		t.Helper()
		code, client := clitest.RunProcess(t, append(append([]string{"send", "-r", "--exclude", "build/"}, args...), root, p.addr)...)
		if code != 0 {
			t.Fatalf("exit code %d: %s", code, client.Stderr)
		}
		return client.Stdout.String()
	}
	send("--preserve")
	for name, data := range map[string]string{"photos/old": "x", "photos/build/y": "y", "photos/a/one": "changed"} {
		at := filepath.Join(p.dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(at), 0o755), os.WriteFile(at, []byte(data), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	if out := send("--delete", "--dry-run"); !strings.HasSuffix(out, "\nwould remove photos/old\n") || !strings.Contains(out, "photos/a/one (1 bytes)") {
		t.Errorf("got %q", out)
	}
	if out := send("--delete", "--dry-run", "--json"); !strings.Contains(out, `{"event":"removal","path":"photos/old","kind":"other"}`) {
		t.Errorf("got %q", out)
	}
	for _, name := range []string{"photos/old", "photos/build/y"} {
		if _, err := os.Stat(filepath.Join(p.dir, name)); err != nil {
			t.Errorf("the dry run has removed it: %v", err)
		}
	}
	if out := send("--update", "--delete"); !strings.HasPrefix(out, "removes photos/old\nsent photos/: ") || !strings.Contains(out, ", 5 bytes were there") {
		t.Errorf("got %q", out)
	}
	if _, err := os.Stat(filepath.Join(p.dir, "photos/old")); err == nil {
		t.Error("a file that the sender does not have is there")
	}
	if got, err := os.ReadFile(filepath.Join(p.dir, "photos/a/one")); string(got) != "1" {
		t.Errorf("got %q, %v", got, err)
	}
	if out := send("--checksum", "--json"); !strings.Contains(out, `"kept":6`) {
		t.Errorf("got %q", out)
	}
	p.interrupt(t)
}

// A file whose sender is killed goes on where it stopped when it is sent again.
//
// parity: X02
func TestSendResumes(t *testing.T) {
	if runtime.GOOS != "linux" && runtime.GOOS != "darwin" {
		t.Skip("transfers resume where files can be locked: on Linux and macOS")
	}
	path := randomFiles(t, 100<<20)[0]
	p := startRecv(t, "127.0.0.1:0", "--overwrite")
	client := clitest.Start(t, "send", "--chunk", "64k", path, p.addr)
	client.Stderr.Expect("^sending ")
	client.Kill()
	_ = client.Wait() // it was killed, or has sent all before
	for {             // the receiver may not have noticed yet
		code, again := clitest.RunProcess(t, "send", path, p.addr)
		if code == 0 {
			t.Logf("%s", again.Stdout)
			break
		}
		if !strings.Contains(again.Stderr.String(), "is being received right now") {
			t.Fatalf("exit code %d: %s", code, again.Stderr)
		}
	}
	p.sameFile(t, path)
	if names := p.files(t); len(names) != 1 {
		t.Errorf("in the directory: %q", names)
	}
	p.interrupt(t)
}

// A receiver without the options keeps nothing, and removes nothing.
func TestRecvKeepsNothing(t *testing.T) {
	root := makeTree(t)
	p := startRecv(t, "127.0.0.1:0", "--keep-for", "0", "--overwrite")
	code, client := clitest.RunProcess(t, "send", "-r", "--delete", root, p.addr)
	if code != 1 || !strings.Contains(client.Stderr.String(), "this receiver removes nothing for senders") || !strings.Contains(client.Stderr.String(), "--allow-delete") {
		t.Errorf("exit code %d: %s", code, client.Stderr)
	}
	if names := p.files(t); len(names) != 0 {
		t.Errorf("in the directory: %q", names)
	}
	p.interrupt(t)
}

func TestSyncOptions(t *testing.T) {
	file := randomFiles(t, 10)[0]
	for _, e := range []struct {
		args []string
		code int
		text string
	}{
		{[]string{"send", "--delete", file, "127.0.0.1:1"}, cli.ExitUsage, "--delete is for directories"},
		{[]string{"send", "--update", "--protocol", "basic", file, "127.0.0.1:1"}, cli.ExitUsage, "need the fast protocol"},
		{[]string{"send", "--update", "-", "127.0.0.1:1"}, cli.ExitUsage, "send it by a command of its own"},
		{[]string{"recv", "--keep-for", "1h", "-"}, cli.ExitUsage, "--keep-for was given with -"},
		{[]string{"recv", "--keep-for", "-1s"}, cli.ExitUsage, "invalid --keep-for -1s"},
		{[]string{"recv", "--allow-delete"}, cli.ExitUsage, "which --overwrite lets senders change"},
	} {
		clitest.WantRun(t, e.code, e.args, e.text)
	}
}

// The list of removals has no characters that change how text is shown.
func TestRemovalIsPrintable(t *testing.T) {
	var out, err bytes.Buffer
	r := newReporter(t.Context(), sendWords, false, cli.Streams{Out: &out, Err: &err})
	r.removal("photos/\x1b[31mred", true, false)
	if got := out.String(); strings.Contains(got, "\x1b") || !strings.HasPrefix(got, "removes photos/") || !strings.HasSuffix(got, "red/\n") {
		t.Errorf("got %q", got)
	}
}
